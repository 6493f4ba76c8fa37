"""Files that agree in element type and number of axes: their shapes, and what padding them to one
shape would cost. No I/O here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuload.catalog import Ints
from gpuload.sources import Source

PERCENTILES = (5, 25, 50, 75, 95)
COMMON_SHAPES = 5
BINS = 8
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "uint8": 1}  # bytes of an element


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """A shape, and how many items have it."""

    shape: tuple[int, ...]
    n_items: int


@dataclass(frozen=True, slots=True)
class Axis:
    """Extents of items along one axis.

    `p50` is the median. A percentile is the smallest extent there that at least so many percent of
    the items do not exceed. `bins[i]` counts the items from min + i * bin_width on, below the next.
    """

    min: int
    p5: int
    p25: int
    p50: int
    p75: int
    p95: int
    max: int
    bin_width: int
    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Padded:
    """All items in one array, each padded to `shape`.

    `nbytes` by element type; `data` is the share of it that is not padding, `n_larger` counts the
    items that are larger than `shape` on some axis.
    """

    to: str
    shape: tuple[int, ...]
    nbytes: dict[str, int]
    data: float
    n_larger: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One group of files. `n_shapes` counts different shapes; `shapes` are the most common ones."""

    dtype: str
    ndim: int
    n_files: int
    n_items: int
    nbytes: int
    n_shapes: int
    shapes: tuple[ShapeCount, ...]
    axes: tuple[Axis, ...]
    padded: tuple[Padded, ...]


def describe(source: Source) -> Kind:
    """Say what headers tell of a source; items are counted, not files."""
    catalog = source.catalog
    rows = np.diff(catalog.row_ends, prepend=0)
    # Items of one file have one shape; files of a source with a sample axis have it in common.
    shapes = catalog.item_shape_of_array[:1] if catalog.sample_axis is not None else source.shapes
    counts = rows.sum()[None] if catalog.sample_axis is not None else rows
    each, inverse = np.unique(shapes, axis=0, return_inverse=True)
    n_items = np.bincount(inverse.reshape(-1), counts, len(each)).astype(np.int64)
    common = np.argsort(-n_items, kind="stable")[:COMMON_SHAPES]
    return Kind(
        dtype=catalog.layout.dtype.name,
        ndim=shapes.shape[1],
        n_files=len(catalog.paths),
        n_items=len(source),
        nbytes=source.nbytes,
        n_shapes=len(each),
        shapes=tuple(ShapeCount(tuple(each[k].tolist()), int(n_items[k])) for k in common),
        axes=tuple(_axis(extents, counts) for extents in shapes.T),
        padded=tuple(_padded(to, shapes, counts) for to in ("max", "p95")),
    )


def percentile(extents: Ints, percent: int) -> int:
    """The extent that gpuload.Pad means by "p95": one that is there, never between two."""
    return int(np.percentile(extents, percent, method="higher"))


def _axis(extents: Ints, counts: Ints) -> Axis:
    low, high = int(extents.min()), int(extents.max())
    width = -(-(high - low + 1) // BINS)
    n_bins = (high - low) // width + 1
    bins = np.bincount((extents - low) // width, counts, n_bins).astype(np.int64)
    p5, p25, p50, p75, p95 = (percentile(extents, percent) for percent in PERCENTILES)
    return Axis(low, p5, p25, p50, p75, p95, high, width, tuple(bins.tolist()))


def _padded(to: str, shapes: Ints, counts: Ints) -> Padded:
    percent = 100 if to == "max" else int(to[1:])
    shape = tuple(percentile(extents, percent) for extents in shapes.T)
    larger = (shapes > np.array(shape, np.int64)).any(axis=1)
    # What is larger is cut to the shape.
    kept = (np.minimum(shapes, np.array(shape, np.int64)).prod(axis=1) * counts).sum()
    elements = math.prod(shape) * int(counts.sum())
    return Padded(
        to=to,
        shape=shape,
        nbytes={name: elements * width for name, width in WIDTHS.items()},
        data=float(kept / elements) if elements else 1.0,
        n_larger=int(counts[larger].sum()),
    )
