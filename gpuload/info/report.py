"""What was found, in words and tables, for people. Text only: nothing is found out here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuload.info import Info
from gpuload.info.kinds import WIDTHS, Axis, Kind, Padded
from gpuload.info.suspects import Suspect

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = ".:-=+*%#"
EXTENTS = ("axis", "min", "5 %", "25 %", "median", "75 %", "95 %", "max", "from min to max")
MEMORY = ("padded to", "shape", *WIDTHS, "data", "larger items")
MOST_PER_RULE = 10  # files that are listed
MOST_CLASSES = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A title and rows of cells, all as long as `headers`. Without headers: a name and a text."""

    title: str
    rows: Sequence[tuple[str, ...]]
    headers: Sequence[str] = ()


def sections(info: Info, *, bars: str = BARS) -> list[Section]:
    """All of it. `bars`: eight characters, from low to high."""
    told = [Section("Files", list(_files(info)))]
    for kind in info.kinds:
        name = f"{kind.dtype}, {kind.ndim} {'axis' if kind.ndim == 1 else 'axes'}"
        told.append(Section(f"Items of {name}", list(_kind(kind))))
        if kind.axes:
            rows = [_axis(number, axis, bars) for number, axis in enumerate(kind.axes)]
            told.append(Section(f"Extents of {name}", rows, EXTENTS))
        rows = [_padded(padded) for padded in kind.padded]
        told.append(Section(f"Memory of {name}, all items padded", rows, MEMORY))
    told.append(Section("Suspicious files", list(_suspects(info.suspects))))
    return told


def _files(info: Info) -> Iterator[tuple[str, str]]:
    yield "path", info.path
    yield "files", f"{info.n_files:,}"
    yield "items", f"{info.n_items:,}, {size(info.nbytes)} as stored"
    if info.classes is not None:
        names = [f"{name} ({n:,})" for name, n in info.classes.items()]
        more = [f"and {len(names) - MOST_CLASSES} more"] if len(names) > MOST_CLASSES else []
        yield "classes", ", ".join([f"{len(names)}: {names[0]}", *names[1:MOST_CLASSES], *more])
    for warning in info.warnings:
        yield "note", warning


def _kind(kind: Kind) -> Iterator[tuple[str, str]]:
    yield "items", f"{kind.n_items:,}, {size(kind.nbytes)} as stored"
    yield "files", f"{kind.n_files:,}"
    parts = [f"{each.shape} x {each.n_items:,}" for each in kind.shapes]
    if kind.n_shapes > len(parts):
        parts.append(f"and {kind.n_shapes - len(parts):,} more")
    yield "shapes", f"{kind.n_shapes:,}: {', '.join(parts)}"


def _axis(number: int, axis: Axis, bars: str) -> tuple[str, ...]:
    extents = (axis.min, axis.p5, axis.p25, axis.p50, axis.p75, axis.p95, axis.max)
    most = max(axis.bins)
    drawn = "".join(bars[-(-8 * n // most) - 1] if n else " " for n in axis.bins) if most else ""
    return str(number), *map(str, extents), drawn


def _padded(padded: Padded) -> tuple[str, ...]:
    sizes = (size(padded.nbytes[name]) for name in WIDTHS)
    return padded.to, str(padded.shape), *sizes, f"{padded.data:.0%}", f"{padded.n_larger:,}"


def _suspects(suspects: tuple[Suspect, ...]) -> Iterator[tuple[str, str]]:
    if not suspects:
        yield "none", ""
    told: Counter[str] = Counter()
    for suspect in suspects:
        told[suspect.rule] += 1
        if told[suspect.rule] <= MOST_PER_RULE:
            # What could not be read names its file itself.
            text = suspect.reason
            yield suspect.rule, text if suspect.path in text else f"{suspect.path}: {text}"
    for rule, n in told.items():
        if n > MOST_PER_RULE:
            yield rule, f"and {n - MOST_PER_RULE:,} more files; --json lists all"


def size(nbytes: int) -> str:
    """Bytes for people: "24.5 GB"."""
    scaled, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 1000 or unit == "TB":
            break
        scaled /= 1000
    return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
