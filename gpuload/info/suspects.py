"""Files that are not like the others, by rules that name themselves. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.catalog import Ints
from gpuload.info.kinds import percentile
from gpuload.sources import Source

# Fewer arrays than these say nothing about what is usual.
LEAST_ARRAYS = 4
# An extent is far from the others beyond so many times the median, or below that part of it.
FAR = 4
# An axis has a usual extent when at most one array, or one in so many, has another.
RARE = 10


@dataclass(frozen=True, slots=True)
class Suspect:
    """A file, the rule that it meets, and in words why.

    Rules: "unreadable", "another kind" (element type, number of axes), "empty" (no elements),
    "unusual extent" (nearly all others agree on an axis), "far extent" (from the axis's median).
    """

    path: str
    rule: str
    reason: str


def find(groups: Sequence[Source]) -> Iterator[Suspect]:
    """Files of the smaller groups, then those that are odd in their own group.

    Args:
        groups: files that agree in element type and number of axes, the largest group first.
    """
    n_files = sum(len(group.catalog.paths) for group in groups)
    for group in groups[1:]:
        here, most = _kind(group), _kind(groups[0])
        if here == most:
            here = "of another record layout, or with other rows,"
        usual = f"{len(groups[0].catalog.paths)} of {n_files} files are {most}"
        for path in group.catalog.paths:
            yield Suspect(path, "another kind", f"{here} where {usual}")
    for group in groups:
        yield from _odd(group)


def _kind(source: Source) -> str:
    ndim = source.catalog.item_shape_of_array.shape[1]
    return f"{source.catalog.layout.dtype.name} with {ndim} {'axis' if ndim == 1 else 'axes'}"


def _odd(source: Source) -> Iterator[Suspect]:
    catalog = source.catalog
    is_empty = catalog.nbytes_of_array == 0
    for array in np.flatnonzero(is_empty):
        shape = tuple(catalog.shape[array].tolist())
        yield Suspect(catalog.path_of_array(int(array)), "empty", f"no elements, shape {shape}")
    filled = np.flatnonzero(~is_empty)
    if len(filled) < LEAST_ARRAYS:
        return
    for axis, extents in enumerate(catalog.item_shape_of_array[filled].T):
        for rows, rule, reason in _odd_extents(extents):
            for row in rows:
                path = catalog.path_of_array(int(filled[row]))
                yield Suspect(path, rule, f"axis {axis} is {extents[row]}, {reason}")


def _odd_extents(extents: Ints) -> Iterator[tuple[Ints, str, str]]:
    """Rows of odd extents with the rule and why; an extent is told once."""
    each, counts = np.unique(extents, return_counts=True)
    usual, n_usual = int(each[counts.argmax()]), int(counts.max())
    n = len(extents)
    if n - n_usual <= max(1, n // RARE):
        rows = np.flatnonzero(extents != usual)
        yield rows, "unusual extent", f"where {n_usual} of {n} arrays have {usual}"
        return
    median = percentile(extents, 50)
    above = np.flatnonzero(extents > median * FAR)
    yield above, "far extent", f"more than {FAR} times the median {median}"
    below = np.flatnonzero(extents * FAR < median)
    yield below, "far extent", f"less than 1/{FAR} of the median {median}"
