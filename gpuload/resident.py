"""Epochs of windows of arrays that the device holds: a batch is drawn by one launch on the caller's
stream, and nothing is copied from the host."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload import _native
from gpuload.catalog import SWAPPED, Catalog, Ints
from gpuload.devices import Crops, Device, Drawing, Held, Place, Stream
from gpuload.devices.arguments import MAX_PIECES, row_major
from gpuload.devices.programs import can_crop
from gpuload.dtypes import Dtype
from gpuload.layout import BatchLayout, Column, lay_out
from gpuload.order import Listed, Shares
from gpuload.pipeline import another_process
from gpuload.stage import keep_after_fork
from gpuload.stats import Stats
from gpuload.window import Geometry


class Tables:
    """Puts small arrays on a device, all by one stream and through one slab."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.stream()
        self._slab = torch.empty(0, dtype=torch.uint8)

    @property
    def pinned_nbytes(self) -> int:
        return len(self._slab)

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The same numbers on the device, there when this returns."""
        dense = torch.from_numpy(np.ascontiguousarray(array))
        flat = dense.reshape(-1).view(torch.uint8)
        nbytes = len(flat)
        if len(self._slab) < max(nbytes, 1):
            self._slab = self._device.host_memory(max(nbytes, 1))
        memory = self._device.memory(max(nbytes, 1), stream=self._stream)
        self._slab[:nbytes].copy_(flat)
        self._stream.copy(memory[:nbytes], self._slab[:nbytes])
        self._stream.record().synchronize()
        return memory[:nbytes].view(dense.dtype).view(dense.shape)


@dataclass(frozen=True, eq=False)
class Resident:
    """What every epoch of a loader over held arrays has in common.

    `windows` are the native ones; `window_of` gives the shape of an item's windows; `src_stride`
    is of the first array.
    """

    device: Device
    tables: Tables
    held: Held
    columns: tuple[Column, ...]
    geometry: Geometry
    windows: _native.Windows
    window_of: Callable[[int], tuple[int, ...]]
    src_stride: tuple[int, ...]
    stored: Dtype

    def __post_init__(self) -> None:
        keep_after_fork(self)

    @functools.cached_property
    def is_uniform(self) -> bool:
        """Whether all windows have one shape."""
        return self.geometry.is_uniform

    @property
    def delivered(self) -> Dtype:
        return self.columns[0].dtype

    @property
    def drawn(self) -> Dtype:
        """What windows are drawn as: few casts are made in the same launch."""
        is_one = can_crop(self.stored.name, self.delivered.name)
        return self.delivered if is_one else self.stored


def hold(
    tables: Tables,
    memory: torch.Tensor,
    catalog: Catalog,
    *,
    labels: npt.NDArray[Any] | None,
    window_ends: Ints | None,
) -> Held:
    """Put what is known of held arrays beside them on the device.

    Args:
        memory: the bytes of the arrays, as `catalog` describes them.
        labels: one row per item, as it is delivered.
    """
    dtype = catalog.layout.dtype
    swapped = ((catalog.flags & SWAPPED) > 0) & (dtype.nbytes > 1)
    numbers = (catalog.offset + catalog.layout.offset, catalog.row_nbytes_of_array, swapped)
    shapes = (catalog.item_shape_of_array, catalog.item_stride_of_array)
    arrays = np.concatenate((np.stack(numbers, axis=1), *shapes), axis=1).astype(np.int64)
    rows = None if labels is None else np.ascontiguousarray(labels)
    return Held(
        memory=memory,
        arrays=tables.put(arrays),
        row_ends=None if catalog.sample_axis is None else tables.put(catalog.row_ends),
        selected=None if catalog.selected is None else tables.put(catalog.selected),
        window_ends=None if window_ends is None else tables.put(window_ends),
        labels=None if rows is None else tables.put(rows.reshape(len(rows), -1).view(np.uint8)),
        n_items=len(catalog),
        dtype=dtype.number,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What all batches of `n` windows of one shape have in common.

    `places` says where columns other than x begin in their memory, and the bytes of a row;
    `shapes` are those of the tensors.
    """

    n: int
    window: tuple[int, ...]
    layout: BatchLayout
    shapes: list[list[int]]
    places: dict[str, tuple[int, int]]
    x_nbytes: int
    drawn_nbytes: int
    useful_nbytes: int


class ResidentFlight:
    """One epoch. Batches are made when they are asked for, on the stream that is current then."""

    is_in_native = False

    def __init__(
        self, resident: Resident, epoch: _native.Epoch, shares: Shares, listed: Listed | None
    ) -> None:
        self._resident = resident
        self._epoch = epoch
        self._shares = shares
        geometry, put = resident.geometry, resident.tables.put
        self._drawing = Drawing(
            kind=geometry.kind,
            size=geometry.size,
            step=geometry.stride,
            per_item=geometry.per_item or 1,
            key=epoch.key,
            shuffled=epoch.shuffled,
            listed=None if listed is None else put(listed.items),
            listed_crop=None if listed is None else put(listed.crops.view(np.int32)),
            n_samples=shares.n_samples,
            first=shares.first,
            rank=shares.rank,
            world=shares.world,
        )
        self._batch = 0
        self._shapes: dict[tuple[int, tuple[int, ...]], _Shape] = {}
        self._pid = os.getpid()
        self._closed = False
        self._stage_s = 0.0
        self._useful = 0
        self._warm_up()

    def next(self) -> list[torch.Tensor] | None:
        if os.getpid() != self._pid:
            raise RuntimeError(another_process(self._pid))
        if self._closed or self._batch == self._shares.n_batches:
            return None
        start = time.perf_counter()
        begin, end = (self._shares.given(self._batch + k) for k in (0, 1))
        self._batch += 1
        tensors = self._make(begin, end - begin)
        self._stage_s += time.perf_counter() - start
        return tensors

    def _make(self, begin: int, n: int) -> list[torch.Tensor]:
        r = self._resident
        items = self._items(begin, n)
        shape = self._shape(n, r.window_of(0 if items is None else int(items[0])))
        stream = r.device.current_stream()
        others = r.device.memory(max(shape.layout.others_nbytes, 1), stream=stream)
        x = r.device.memory(max(shape.x_nbytes, 1), stream=stream)
        if r.drawn == r.delivered:
            self._draw(stream, x, others, shape, begin)
        else:  # in two launches, through memory that the same stream is given again
            drawn = r.device.memory(max(shape.drawn_nbytes, 1), stream=stream)
            self._draw(stream, drawn, others, shape, begin)
            stream.launch(self._cast(drawn, x, shape.window, n))
        self._useful += shape.useful_nbytes
        tensors = shape.layout.tensors(others, x, shape.shapes)
        for i, column in enumerate(shape.layout.columns):
            if column.on_host:
                tensors[i] = torch.from_numpy(items)
        return tensors

    def _items(self, begin: int, n: int) -> Ints | None:
        """The items of a batch, where the host must know them."""
        r = self._resident
        if r.is_uniform and not any(column.on_host for column in r.columns):
            return None
        return self._epoch.samples(r.windows, begin, begin + n)[0]

    def _shape(self, n: int, window: tuple[int, ...]) -> _Shape:
        """The same for all batches of so many windows of one shape."""
        found = self._shapes.get((n, window))
        if found is None:
            r = self._resident
            elements = int(np.prod(window))
            columns = [replace(c, most=elements) if c.is_window else c for c in r.columns]
            layout = lay_out(columns, batch_size=n)
            rows = [window if c.row_shape is None else c.row_shape for c in columns]
            places = {
                c.name: (offset, row_major(row, c.dtype.nbytes)[1])
                for c, offset, row in zip(columns, layout.offsets, rows, strict=True)
                if c.name != "x" and not c.on_host
            }
            found = self._shapes[n, window] = _Shape(
                n=n,
                window=window,
                layout=layout,
                shapes=[[n, *row] for row in rows],
                places=places,
                x_nbytes=n * elements * r.delivered.nbytes,
                drawn_nbytes=n * elements * r.drawn.nbytes,
                useful_nbytes=n * elements * r.stored.nbytes,
            )
        return found

    def _warm_up(self) -> None:
        """Nothing is compiled once batches are made: the caller may capture CUDA graphs then."""
        r = self._resident
        window = r.window_of(0)
        nothing = torch.empty(0, dtype=torch.uint8)
        r.device.prepare(self._crops(nothing, 0, nothing, {}, window, 0, 1))
        if r.drawn != r.delivered:
            r.device.prepare(self._cast(nothing, nothing, window, 1))

    def _crops(
        self,
        x: torch.Tensor,
        x_offset: int,
        others: torch.Tensor,
        columns: dict[str, int],
        window: tuple[int, ...],
        begin: int,
        n: int,
    ) -> Crops:
        r = self._resident
        return Crops(
            held=r.held,
            drawing=self._drawing,
            x=x,
            x_offset=x_offset,
            others=others,
            columns=columns,
            to_dtype=r.drawn.number,
            shape=window,
            src_stride=r.src_stride,
            begin=begin,
            n=n,
        )

    def _cast(self, drawn: torch.Tensor, x: torch.Tensor, window: tuple[int, ...], n: int) -> Place:
        """x of a batch, from what was drawn."""
        r = self._resident
        src_stride, src_nbytes = row_major(window, r.drawn.nbytes)
        dst_stride, dst_nbytes = row_major(window, r.delivered.nbytes)
        return Place(
            drawn,
            x,
            r.drawn.number,
            r.delivered.number,
            window,
            src_stride,
            dst_stride,
            n_pieces=n,
            src_step=src_nbytes,
            dst_step=dst_nbytes,
        )

    def _draw(
        self, stream: Stream, x: torch.Tensor, others: torch.Tensor, shape: _Shape, begin: int
    ) -> None:
        r = self._resident
        row_nbytes = shape.drawn_nbytes // max(shape.n, 1)
        for skip in range(0, shape.n, MAX_PIECES):
            columns = {name: at + skip * nbytes for name, (at, nbytes) in shape.places.items()}
            some = min(shape.n - skip, MAX_PIECES)
            at = skip * row_nbytes
            stream.launch(self._crops(x, at, others, columns, shape.window, begin + skip, some))
        for tensor in (*r.held.tensors, self._drawing.listed, self._drawing.listed_crop):
            if tensor is not None:  # the loader may be dropped while the launch still reads it
                r.device.hand_over(tensor, stream)

    def close(self) -> None:
        self._closed = True

    def stats(self) -> Stats:
        return Stats(useful_nbytes=self._useful, stage_s=self._stage_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return []
