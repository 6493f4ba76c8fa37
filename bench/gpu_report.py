"""From measured values to tables and verdicts of bench/gpu.py. No GPU and no clock here.

python -m bench.gpu_report FILE   prints a results file as Markdown
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Table

Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """What a row is to reach: the ratio of its median to a bound, at least or at most `share`."""

    share: float
    at_most: bool = False

    def is_met(self, share: float) -> bool:
        return share <= self.share if self.at_most else share >= self.share

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {percent(self.share)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, repeated.

    Attributes:
        unit: "GB/s", "samples/s", "us", "ms", or "share" (of 1).
        values: one for each repeat.
        bound: what the median is divided by, in the same unit; `bound_name` says what that is.
        note: what else is to be known, such as a tuned setting.
    """

    name: str
    unit: str
    values: list[float]
    bound: float | None = None
    bound_name: str = ""
    target: Target | None = None
    note: str = ""

    @property
    def share(self) -> float | None:
        if self.unit == "share":
            return median(self.values)
        return None if not self.bound else median(self.values) / self.bound

    @property
    def verdict(self) -> str:
        if self.target is None or self.share is None:
            return ""
        return "met" if self.target.is_met(self.share) else "missed"


@dataclass(slots=True)
class Group:
    """Rows of one table. `skipped` says why it was not measured."""

    title: str
    caption: str = ""
    rows: list[Row] = field(default_factory=list)
    skipped: str = ""


def to_results(groups: Sequence[Group]) -> list[Results]:
    """The groups as JSON-able data, with the verdicts."""
    return [
        asdict(group)
        | {
            "rows": [
                asdict(row) | {"share": row.share, "verdict": row.verdict} for row in group.rows
            ]
        }
        for group in groups
    ]


def from_results(results: Sequence[Results]) -> list[Group]:
    """The inverse of to_results."""
    return [
        Group(
            group["title"], group["caption"], [_row(row) for row in group["rows"]], group["skipped"]
        )
        for group in results
    ]


def _row(row: Results) -> Row:
    kept = {k: v for k, v in row.items() if k not in ("share", "verdict", "target")}
    return Row(**kept, target=None if row["target"] is None else Target(**row["target"]))


def tables(groups: Sequence[Group]) -> list[Table]:
    """A table for each group that was measured."""
    headers = ["", "bound", "median", "min-max", "of the bound", "target", "verdict", "note"]
    return [
        Table(group.title, group.caption, headers, [_cells(row) for row in group.rows], left=2)
        for group in groups
        if group.rows
    ]


def _cells(row: Row) -> list[str]:
    share = row.share
    return [
        row.name,
        row.bound_name,
        quantity(median(row.values), row.unit),
        spread(row.values, row.unit),
        "" if share is None or row.unit == "share" else percent(share),
        "" if row.target is None else str(row.target),
        row.verdict,
        row.note,
    ]


def summary(groups: Sequence[Group]) -> str:
    """One line: how many targets are met, which are missed, what was not measured."""
    rows = [(group, row) for group in groups for row in group.rows if row.verdict]
    missed = [f"{group.title}: {row.name}" for group, row in rows if row.verdict == "missed"]
    parts = [f"{len(rows) - len(missed)} of {len(rows)} targets are met"]
    if missed:
        parts.append(f"missed: {'; '.join(missed)}")
    skipped = [f"{group.title} ({group.skipped})" for group in groups if group.skipped]
    if skipped:
        parts.append(f"not measured: {'; '.join(skipped)}")
    return ". ".join(parts)


def machine_line(results: Results) -> str:
    """One line that names the GPU, the machine, the versions and the command."""
    told = results["machine"]
    names = (
        "memory",
        "kernel",
        "file system",
        "python",
        "torch",
        "numpy",
        "CuPy",
        "CUDA",
        "driver",
    )
    parts = [told["GPU"], told["cpu"], *(f"{name} {told[name]}" for name in names)]
    return (
        f"{', '.join(parts)}; {results['started'][:10]}, git {told['git']}; `{results['command']}`"
    )


def quantity(value: float, unit: str) -> str:
    """Three significant digits and the unit."""
    if unit == "share":
        return percent(value)
    digits = f"{float(f'{value:.3g}'):,.10f}".rstrip("0").rstrip(".")
    return f"{digits} {unit}"


def spread(values: Sequence[float], unit: str) -> str:
    low, high = (quantity(value, unit).partition(" ")[0] for value in (min(values), max(values)))
    return low if low == high else f"{low}-{high}"


def percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) >= 0.0995 else f"{share:.1%}"


def main(path: Path) -> None:
    """Print the results file as Markdown."""
    results = json.loads(path.read_text())
    groups = from_results(results["groups"])
    print(machine_line(results), end="\n\n")
    print("\n".join(table.to_markdown() for table in tables(groups)))
    print(summary(groups))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
