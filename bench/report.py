"""Turn the JSON that run.py wrote into tables: for the terminal, and in Markdown for README.

python -m bench.report FILE   prints the Markdown
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import rich.table

Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells under headers; all columns but the first `left` ones are numbers."""

    title: str
    caption: str
    headers: list[str]
    rows: list[list[str]]
    left: int = 1

    def to_rich(self) -> rich.table.Table:
        table = rich.table.Table(title=self.title, caption=self.caption, title_justify="left")
        for i, header in enumerate(self.headers):
            table.add_column(header, justify="left" if i < self.left else "right")
        for row in self.rows:
            ours = row[0].startswith("gpuload")
            table.add_row(*row, style="bold" if ours else None)
        return table

    def to_markdown(self) -> str:
        rules = ["---" if i < self.left else "---:" for i in range(len(self.headers))]
        rows = [[f"**{row[0]}**", *row[1:]] if row[0] == "gpuload" else row for row in self.rows]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.headers, rules, *rows)]
        return "\n".join([f"### {self.title}", "", *lines, "", self.caption, ""])


def tables(results: Results) -> list[Table]:
    """Return the tables of all measurements that `results` holds, the summary first."""
    measured = results["tables"]
    speed = [table for table in measured.values() if "workload" in table]
    found = [_summary(speed)] if any(_best(t, "gpuload") for t in speed) else []
    found += [_throughput(table) for table in speed]
    for key, make in (
        ("load", _load),
        ("overhead", _overhead),
        ("start", _start),
        ("cold", _cold),
        ("memory", _memory),
    ):
        if key in measured:
            found.append(make(measured[key]))
    return found


def machine_line(results: Results) -> str:
    """Return one line that names the machine, the versions and the command."""
    told = results["machine"]
    names = ("cpu", "memory", "kernel", "file system", "python", "torch", "numpy", "spdl-core")
    parts = [told["cpu"]] + [f"{name} {told[name]}" for name in names[1:]]
    parts.append(f"DALI {told['nvidia-dali-cuda130']}")
    return (
        f"{', '.join(parts)}; {results['started'][:10]}, git {told['git']}; `{results['command']}`"
    )


def _summary(speed: list[Results]) -> Table:
    rows = []
    for table in speed:
        for ours in (row for row in table["rows"] if row["name"] == "gpuload"):
            peers = [_best(table, "torch", ours["layout"])]
            peers += [_best(table, family) for family in ("dali", "spdl", "numpy")]
            name = f"{table['workload']}, batch {table['batch_size']}, {ours['layout']}"
            ratios = [_times(ours, peer) for peer in peers]
            rows.append([name, _rate(ours), *ratios, _share(ours, _limit(table, ours))])
    headers = ["workload", "samples/s", "x best torch", "x best DALI", "x SPDL", "x NumPy loop"]
    caption = "The best torch row is that of the same layout; the tables below name it."
    if any(table["workload"] == "inmemory" for table in speed):
        caption += " The NumPy loop of inmemory indexes tensors by hand."
    title = "gpuload against the best row of each kind"
    return Table(title, caption, [*headers, "of the C++ limit"], rows)


def _throughput(table: Results) -> Table:
    ranked = sorted(table["rows"], key=_median, reverse=True)
    rows = [
        [
            row["name"],
            row["layout"],
            row["setting"],
            _rate(row),
            f"{_round(min(row['samples_per_s']))}-{_round(max(row['samples_per_s']))}",
            _times(row, _best(table, "torch", row["layout"])),
            _times(row, _best(table, "dali")),
            _share(row, _limit(table, row)),
        ]
        for row in ranked
    ]
    others = max(max(row["others_cores"]) for row in ranked)
    repeats = len(ranked[0]["samples_per_s"])
    missing = f" Not installed: {', '.join(table['missing'])}." if table["missing"] else ""
    warm = (
        f"Page cache warm ({table['resident']:.1%} resident)" if table["resident"] else "No files"
    )
    caption = (
        f"{warm}, values checked first, {repeats} "
        f"interleaved repeats of {table['seconds']:g} s after one that is dropped; other processes "
        f"used at most {others:.2f} cores.{missing}"
    )
    headers = ["loader", "layout", "setting", "samples/s", "min-max", "x best torch"]
    headers += ["x best DALI", "of the C++ limit"]
    title = f"{table['workload']}, batch {table['batch_size']}"
    return Table(title, caption, headers, rows, left=3)


def _load(table: Results) -> Table:
    limit = next(median(r["seconds"]) for r in table["rows"] if r["name"].startswith("C++ limit"))
    rows = [
        [
            row["name"],
            _spread(row["seconds"], 2),
            f"{median(row['seconds']) / limit:.2f}",
            "" if None in row["extra"] else _spread(row["extra"], 0),
        ]
        for row in table["rows"]
    ]
    caption = (
        f"All of padclass in one array of {table['result_nbytes'] / 1e6:.0f} MB, labels with it. "
        "Fresh process each time, imports not counted, files in the page cache, results checked. "
        "Memory is the peak above what there was before and above the result."
    )
    headers = ["loader", "seconds", "x reading and zeroing", "MiB above the result"]
    return Table("One array of all files", caption, headers, rows)


def _overhead(table: Results) -> Table:
    rows = [
        [row["name"], str(row["batch_size"]), _spread(row["wall_us"]), _spread(row["cpu_us"])]
        for row in table["rows"]
    ]
    caption = "Samples of one element, so that little more than the machinery is left."
    headers = ["loader", "batch", "wall us per batch", "CPU us of the consumer per batch"]
    return Table("Python's cost per batch", caption, headers, rows)


def _start(table: Results) -> Table:
    rows = [[row["name"], _spread(row["seconds"], 2)] for row in table["rows"]]
    caption = (
        "Fresh process each time, imports not counted, files in the page cache. torch and DALI "
        "only list the files; gpuload reads and checks every header."
    )
    title = f"First batch over {table['files']:,} files"
    return Table(title, caption, ["loader", "seconds"], rows)


def _cold(table: Results) -> Table:
    rows = [
        [
            row["name"],
            _spread([n / 2**20 for n in row["resident_nbytes"]], 2),
            f"{median(row['resident_nbytes']) / row['useful_nbytes']:.1f}",
            _spread([s * 1e3 for s in row["seconds"]], 1),
        ]
        for row in table["rows"]
    ]
    caption = "One 32^3 window (0.125 MiB) of a 64 MiB float32 file that was not in the page cache."
    headers = ["loader", "MiB in the page cache after", "bytes read per byte used", "ms"]
    return Table("Cold cache", caption, headers, rows)


def _memory(table: Results) -> Table:
    rows = []
    for row in table["rows"]:
        epochs = row["epochs"]
        totals = ", ".join(f"{epoch['total']:.0f}" for epoch in epochs)
        last = epochs[-1]
        cells = [f"{last[name]:.0f}" for name in ("anonymous", "file pages", "peak")]
        rows.append([row["name"], *cells, totals])
    caption = (
        "MiB above the interpreter with torch imported, crop2d at batch 256. Pages of mapped files "
        "count as resident, although the kernel takes them back when it needs the memory."
    )
    headers = ["loader", "anonymous", "file pages", "peak", "resident after each epoch"]
    return Table("Resident memory", caption, headers, rows)


def _median(row: Results) -> float:
    return float(median(row["samples_per_s"]))


def _best(table: Results, family: str, layout: str = "") -> Results | None:
    """Return the family's fastest row, in that layout if one is named and there is such a row."""
    rows = [row for row in table["rows"] if row["family"] == family]
    rows = [row for row in rows if layout and row["layout"] == layout] or ([] if layout else rows)
    return max(rows, key=_median, default=None)


def _limit(table: Results, row: Results) -> Results | None:
    """Return the fastest limit of the row's method: descriptors for pread, maps for the others."""
    method = "descriptors" if 'io="pread"' in row["name"] else "map"
    rows = [r for r in table["rows"] if r["family"] == "limit"]
    same = [r for r in rows if method in r["name"]] or rows
    return max(same, key=_median, default=None) if row["family"] != "limit" else None


def _times(row: Results, other: Results | None) -> str:
    if other is None:
        return ""
    ratio = _median(row) / _median(other)
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _share(row: Results, limit: Results | None) -> str:
    if limit is None:
        return ""
    share = _median(row) / _median(limit)
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _rate(row: Results) -> str:
    return _round(_median(row))


def _round(value: float) -> str:
    """Return three significant digits with thousands separated."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _spread(values: list[float], digits: int = 1) -> str:
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def main(path: Path) -> None:
    """Print the results file as Markdown."""
    results = json.loads(path.read_text())
    print(machine_line(results), end="\n\n")
    print("\n".join(table.to_markdown() for table in tables(results)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
