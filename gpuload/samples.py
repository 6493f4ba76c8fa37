"""The samples of a source under a crop: their numbers, their windows, and what samplers name."""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from gpuload import _native
from gpuload.catalog import SWAPPED, Ints
from gpuload.devices.arguments import MAX_AXES
from gpuload.fit import Fit, Pad, Resize, resolve_fit
from gpuload.plan import WindowFacts
from gpuload.sources.source import Source
from gpuload.window import WHOLE_ITEM, Crop, Geometry, resolve

# With shuffle="block", a block of rows of one file is about this large.
_BLOCK_NBYTES = 1 << 20


def _runs(extent: Sequence[int], stride: Sequence[int], nbytes: int) -> int:
    """Runs of bytes that a window is made of, in the order it is delivered in."""
    run = nbytes
    for n, step in zip(reversed(extent), reversed(stride), strict=True):
        if n != 1 and step != run:
            break
        run *= n
    return math.prod(extent) * nbytes // max(run, 1)


class Items:
    """The items of a source, each of them one sample, and what samplers name of them."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items

    @property
    def n(self) -> int:
        """Samples of an epoch."""
        return self.n_items

    @property
    def block(self) -> int:
        """Samples that shuffle="block" keeps together."""
        return 1

    @property
    def has_buckets(self) -> bool:
        """Whether samples of similar size are to come together."""
        return False

    def sizes(self, items: Ints) -> Ints:
        """Elements of a sample of each of these items."""
        return np.ones(len(items), np.int64)

    @property
    def sizes_hash(self) -> int:
        """What tells other sizes from these."""
        return 0

    def per_item_of_sampler(self) -> int:
        return 1

    def native(self) -> _native.Windows:
        return _native.Windows(WHOLE_ITEM, [], [], 1, None)

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
        n = self.n_items
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


class Samples(Items):
    """The windows of a source's items, numbered: sample s is a window of an item."""

    def __init__(
        self,
        source: Source,
        crop: Crop | None,
        *,
        pad: Pad | None = None,
        resize: Resize | None = None,
        flip: object = (),
        rot90: object = None,
    ) -> None:
        super().__init__(len(source))
        catalog = source.catalog
        self._source = source
        self._used = catalog.used_arrays
        self.shapes = catalog.item_shape_of_used
        self.geometry: Geometry = resolve(
            crop, self.shapes, self._name, may_stick_out=pad is not None
        )
        self.fit: Fit = resolve_fit(
            self.geometry.extents,
            items=self._items_of_used,
            cropped=self.geometry.size or (-1,) * self.shapes.shape[1],
            pad=pad,
            resize=resize,
            flip=flip,
            rot90=rot90,
            name=self._name,
        )
        self._crop = crop
        self._bucket = pad is not None and pad.bucket

    @property
    def has_buckets(self) -> bool:
        return self._bucket

    @property
    def sizes_hash(self) -> int:
        return zlib.crc32(np.ascontiguousarray(self.fit.contents).tobytes())

    def sizes(self, items: Ints) -> Ints:
        used = np.searchsorted(self._used, self._source.catalog.array_of(items))
        elements: Ints = self.fit.contents.prod(axis=1)
        return elements[used]

    def _items_of_used(self) -> Ints:
        """Items of each array in use."""
        catalog = self._source.catalog
        if catalog.selected is None:
            return np.diff(catalog.row_ends, prepend=0)[self._used]
        arrays = catalog.array_of(np.arange(len(self._source), dtype=np.int64))
        return np.bincount(np.searchsorted(self._used, arrays), minlength=len(self._used))

    def _name(self, row: int) -> str:
        return self._source.catalog.path_of_array(int(self._used[row]))

    @cached_property
    def window_ends(self) -> Ints | None:
        """Windows of items 0..i, where items have different numbers of them."""
        if self.geometry.per_item is not None:
            return None
        arrays = self._source.catalog.array_of(np.arange(len(self._source), dtype=np.int64))
        return np.cumsum(self.geometry.counts[np.searchsorted(self._used, arrays)])

    @cached_property
    def n(self) -> int:
        ends = self.window_ends
        return (
            int(ends[-1]) if ends is not None else len(self._source) * (self.geometry.per_item or 0)
        )

    @cached_property
    def largest_window(self) -> int:
        """Elements."""
        return int(self.geometry.extents.prod(axis=1).max())

    def window_facts(self, split: tuple[int, int], *, is_uniform: bool) -> WindowFacts:
        """How the window with the largest span lies in its file.

        Args:
            split: reads of a window, and their bytes.
            is_uniform: all arrays are alike, and one box serves for all windows.
        """
        catalog = self._source.catalog
        extents, nbytes = self.geometry.extents, catalog.layout.dtype.nbytes
        strides = catalog.item_stride_of_array[self._used]
        spans = ((np.maximum(extents, 1) - 1) * strides).sum(axis=1) + nbytes
        k = int(spans.argmax())
        n = int(extents[k].prod())
        rows = _runs(extents[k].tolist(), strides[k].tolist(), nbytes)
        swapped = catalog.flags[self._used] & SWAPPED
        n_axes = int((extents[k] > 1).sum()) if is_uniform else extents.shape[1]
        return WindowFacts(
            span_nbytes=int(spans[k]),
            useful_nbytes=n * nbytes,
            n_rows=rows,
            n_elements=n if rows >= n > 1 or (swapped.any() and nbytes > 1) else 0,
            reads=split[0],
            read_nbytes=split[1],
            can_ship=n > 0 and n_axes <= MAX_AXES and bool((swapped == swapped[0]).all()),
        )

    @property
    def window_stride(self) -> tuple[int, ...]:
        """Bytes between elements of a window, of the first array."""
        return tuple(map(int, self._source.catalog.item_stride_of_array[self._used[0]]))

    def window_of(self, item: int) -> tuple[int, ...]:
        """The shape of an item's windows."""
        if self.geometry.is_uniform:
            return tuple(map(int, self.geometry.extents[0]))
        array = self._source.catalog.array_of(np.array([item], np.int64))
        return tuple(map(int, self.geometry.extents[np.searchsorted(self._used, array[0])]))

    @property
    def is_swapped(self) -> bool:
        """Whether arrays are stored in the other byte order; meant where all are alike in it."""
        return bool(self._source.catalog.flags[self._used[0]] & SWAPPED)

    @property
    def block(self) -> int:
        """Samples that shuffle="block" keeps together: of one array, or of about 1 MiB of rows."""
        per_item = self.geometry.per_item or max(1, self.n // len(self._source))
        if self._source.catalog.sample_axis is None:
            return per_item
        row_nbytes = int(self.shapes[0].prod()) * self._source.catalog.layout.record_nbytes
        return per_item * max(1, _BLOCK_NBYTES // max(row_nbytes, 1))

    def expect_uniform(self) -> None:
        """Windows of one batch have one shape, along axes that nothing pads.

        Raises:
            ValueError: two arrays give windows of different shapes.
        """
        extents = self.fit.contents
        differ = ((extents != extents[:1]) & np.array(self.fit.alone, bool)).any(axis=1)
        if not differ.any():
            return
        other = int(np.flatnonzero(differ)[0])
        raise ValueError(
            f"{self._name(other)}: expected windows of shape {tuple(map(int, extents[0]))} as in "
            f"{self._name(0)}, got {tuple(map(int, extents[other]))}; pass crop= with a size for "
            "each axis, or batch_size=1, or pad=gpuload.Pad()"
        )

    def per_item_of_sampler(self) -> int:
        if self.geometry.per_item is None:
            raise ValueError(
                "sampler: expected a crop with as many windows for each item, got GridCrop on "
                "arrays of different shapes; use source.select in place of a sampler"
            )
        return self.geometry.per_item

    def native(self) -> _native.Windows:
        return self.geometry.native(self.window_ends)

    def describe(self) -> str:
        shape = "x".join(map(str, self.geometry.extents[0])) or "scalar"
        if not self.geometry.is_uniform:
            shape += " and other shapes"
        if any(self.fit.pads):
            varies = any(p and n < 0 for p, n in zip(self.fit.pads, self.fit.to, strict=True))
            most = " at most" if varies else ""
            shape += f", padded to{most} {'x'.join(map(str, self.fit.largest))}"
        return f"{self._crop or 'whole items'}: {shape}"
