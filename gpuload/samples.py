"""The samples of a source under a crop: their numbers, their windows, and what samplers name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from gpuload import _native
from gpuload.catalog import Ints
from gpuload.sources.source import Source
from gpuload.window import Crop, Geometry, resolve

# With shuffle="block", a block of rows of one file is about this large.
_BLOCK_NBYTES = 1 << 20


class Samples:
    """The windows of a source's items, numbered: sample s is a window of an item."""

    def __init__(self, source: Source, crop: Crop | None) -> None:
        catalog = source.catalog
        self._source = source
        self._used = catalog.used_arrays
        self.shapes = catalog.item_shape_of_array[self._used]
        self.geometry: Geometry = resolve(crop, self.shapes, self._name)
        self._crop = crop

    def _name(self, row: int) -> str:
        return self._source.catalog.path_of_array(int(self._used[row]))

    @cached_property
    def _ends(self) -> Ints | None:
        """Windows of items 0..i, where items have different numbers of them."""
        if self.geometry.per_item is not None:
            return None
        arrays = self._source.catalog.array_of(np.arange(len(self._source), dtype=np.int64))
        return np.cumsum(self.geometry.counts[np.searchsorted(self._used, arrays)])

    @cached_property
    def n(self) -> int:
        ends = self._ends
        return (
            int(ends[-1]) if ends is not None else len(self._source) * (self.geometry.per_item or 0)
        )

    @cached_property
    def largest_window(self) -> int:
        """Elements."""
        return int(self.geometry.extents.prod(axis=1).max())

    @property
    def block(self) -> int:
        """Samples that shuffle="block" keeps together: of one array, or of about 1 MiB of rows."""
        per_item = self.geometry.per_item or max(1, self.n // len(self._source))
        if self._source.catalog.sample_axis is None:
            return per_item
        row_nbytes = int(self.shapes[0].prod()) * self._source.catalog.layout.record_nbytes
        return per_item * max(1, _BLOCK_NBYTES // max(row_nbytes, 1))

    def expect_uniform(self) -> None:
        """Windows of one batch have one shape.

        Raises:
            ValueError: two arrays give windows of different shapes.
        """
        if self.geometry.is_uniform:
            return
        extents = self.geometry.extents
        other = int(np.flatnonzero((extents != extents[0]).any(axis=1))[0])
        raise ValueError(
            f"{self._name(other)}: expected windows of shape {tuple(map(int, extents[0]))} as in "
            f"{self._name(0)}, got {tuple(map(int, extents[other]))}; pass crop= with a size for "
            "each axis, or batch_size=1"
        )

    def items(self, sampler: Iterable[int], name: str = "sampler") -> Ints:
        """What a sampler yields, as item numbers.

        Raises:
            TypeError, IndexError: it yields something else, or items that are not there.
            ValueError: it yields nothing.
        """
        drawn = list(sampler)
        try:
            items = np.fromiter(map(operator.index, drawn), np.int64, len(drawn))
        except TypeError:
            other = next((i for i in drawn if not hasattr(i, "__index__")), drawn)
            raise TypeError(
                f"{name}: expected item numbers, got {other!r}; pass lists of items as "
                "batch_sampler="
            ) from None
        if not len(items):
            raise ValueError(f"{name}: expected at least one item, got none")
        n = len(self._source)
        bad = items[(items < -n) | (items >= n)]
        if len(bad):
            raise IndexError(f"{name}: expected items of [{-n}, {n}), got {bad[0]}")
        return np.where(items < 0, items + n, items)

    def batches(self, batch_sampler: Iterable[Sequence[int]]) -> list[Ints]:
        """What a batch sampler yields, as item numbers of each batch.

        Raises:
            TypeError, IndexError, ValueError: as of `items`.
        """
        batches = []
        for drawn in batch_sampler:
            if not isinstance(drawn, Iterable):
                raise TypeError(
                    f"batch_sampler: expected lists of items, got {drawn!r}; pass items as sampler="
                )
            batches.append(self.items(drawn, "batch_sampler"))
        if not batches:
            raise ValueError("batch_sampler: expected at least one batch, got none")
        return batches

    def per_item_of_sampler(self) -> int:
        if self.geometry.per_item is None:
            raise ValueError(
                "sampler: expected a crop with as many windows for each item, got GridCrop on "
                "arrays of different shapes; use source.select in place of a sampler"
            )
        return self.geometry.per_item

    def native(self) -> _native.Windows:
        return self.geometry.native(self._ends)

    def describe(self) -> str:
        shape = "x".join(map(str, self.geometry.extents[0])) or "scalar"
        if not self.geometry.is_uniform:
            shape += " and other shapes"
        return f"{self._crop or 'whole items'}: {shape}"
