"""Epochs of windows of arrays that the device holds: a batch is drawn by one launch on the caller's
stream, and nothing is copied from the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from gpuload.layout import BatchLayout, lay_out
from gpuload.order import Listed, Shares
from gpuload.pipeline import another_process
from gpuload.stats import Stats
from gpuload.window import Geometry


@dataclass(frozen=True, slots=True)
class Resident:
    """What every epoch of a loader over held arrays has in common.

    `windows` are the native ones; `window_of` gives the shape of an item's windows; `src_stride`
    is of the first array.
    """

    device: Device
    held: Held
    layout: BatchLayout
    geometry: Geometry
    windows: _native.Windows
    window_of: Callable[[int], tuple[int, ...]]
    src_stride: tuple[int, ...]
    stored: Dtype

    @property
    def delivered(self) -> Dtype:
        return self.layout.columns[0].dtype

    @property
    def drawn(self) -> Dtype:
        """What windows are drawn as: few casts are made in the same launch."""
        is_one = can_crop(self.stored.name, self.delivered.name)
        return self.delivered if is_one else self.stored


def hold(
    device: Device,
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
        arrays=put(device, arrays),
        row_ends=None if catalog.sample_axis is None else put(device, catalog.row_ends),
        selected=None if catalog.selected is None else put(device, catalog.selected),
        window_ends=None if window_ends is None else put(device, window_ends),
        labels=None if rows is None else put(device, rows.reshape(len(rows), -1).view(np.uint8)),
        n_items=len(catalog),
        dtype=dtype.number,
    )


def put(device: Device, array: npt.NDArray[Any]) -> torch.Tensor:
    """The same numbers on the device, there when this returns."""
    dense = torch.from_numpy(np.ascontiguousarray(array))
    flat = dense.reshape(-1).view(torch.uint8)
    stream, slab = device.stream(), device.host_memory(len(flat))
    memory = device.memory(len(flat), stream=stream)
    slab.copy_(flat)
    stream.copy(memory, slab)
    stream.record().synchronize()
    return memory.view(dense.dtype).view(dense.shape)


class ResidentFlight:
    """One epoch. Batches are made when they are asked for, on the stream that is current then."""

    is_in_native = False

    def __init__(
        self, resident: Resident, epoch: _native.Epoch, shares: Shares, listed: Listed | None
    ) -> None:
        self._resident = resident
        self._epoch = epoch
        self._shares = shares
        geometry, device = resident.geometry, resident.device
        self._drawing = Drawing(
            kind=geometry.kind,
            size=geometry.size,
            step=geometry.stride,
            per_item=geometry.per_item or 1,
            key=epoch.key,
            shuffled=epoch.shuffled,
            listed=None if listed is None else put(device, listed.items),
            listed_crop=None if listed is None else put(device, listed.crops.view(np.int32)),
            n_samples=shares.n_samples,
            first=shares.first,
            rank=shares.rank,
            world=shares.world,
        )
        self._batch = 0
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
        needs_items = not r.geometry.is_uniform or any(c.on_host for c in r.layout.columns)
        items = self._epoch.samples(r.windows, begin, begin + n)[0] if needs_items else None
        window = r.window_of(0 if items is None else int(items[0]))
        stream = r.device.current_stream()
        layout = lay_out(r.layout.columns, batch_size=n, window_elements=int(np.prod(window)))
        memory = r.device.memory(layout.nbytes, stream=stream)
        columns = {
            column.name: offset
            for column, offset in zip(layout.columns, layout.offsets, strict=True)
            if not column.on_host
        }
        if r.drawn == r.delivered:
            self._draw(stream, memory, columns, window, begin, n)
        else:
            self._draw_and_cast(stream, memory, columns, window, begin, n)
        shapes = [
            [n, *(window if column.row_shape is None else column.row_shape)]
            for column in layout.columns
        ]
        self._useful += n * int(np.prod(window)) * r.stored.nbytes
        tensors = layout.tensors(memory, shapes)
        for i, column in enumerate(layout.columns):
            if column.on_host:
                tensors[i] = torch.from_numpy(items)
        return tensors

    def _warm_up(self) -> None:
        """Nothing is compiled once batches are made: the caller may capture CUDA graphs then."""
        r = self._resident
        window = r.window_of(0)
        nothing = torch.empty(0, dtype=torch.uint8)
        r.device.prepare(self._crops(nothing, {"x": 0}, window, 0, 1))
        if r.drawn != r.delivered:
            r.device.prepare(self._cast(nothing, nothing, 0, window, 1))

    def _crops(
        self,
        memory: torch.Tensor,
        columns: dict[str, int],
        window: tuple[int, ...],
        begin: int,
        n: int,
    ) -> Crops:
        r = self._resident
        return Crops(
            held=r.held,
            drawing=self._drawing,
            batch=memory,
            columns=columns,
            to_dtype=r.drawn.number,
            shape=window,
            src_stride=r.src_stride,
            begin=begin,
            n=n,
        )

    def _cast(
        self, drawn: torch.Tensor, memory: torch.Tensor, at: int, window: tuple[int, ...], n: int
    ) -> Place:
        """x of a batch, from what was drawn; in both it begins at byte `at`."""
        r = self._resident
        src_stride, src_nbytes = row_major(window, r.drawn.nbytes)
        dst_stride, dst_nbytes = row_major(window, r.delivered.nbytes)
        return Place(
            drawn,
            memory,
            r.drawn.number,
            r.delivered.number,
            window,
            src_stride,
            dst_stride,
            at,
            at,
            n_pieces=n,
            src_step=src_nbytes,
            dst_step=dst_nbytes,
        )

    def _draw(
        self,
        stream: Stream,
        memory: torch.Tensor,
        columns: dict[str, int],
        window: tuple[int, ...],
        begin: int,
        n: int,
    ) -> None:
        r = self._resident
        row_nbytes = {
            column.name: row_major(
                window if column.row_shape is None else column.row_shape,
                r.drawn.nbytes if column.name == "x" else column.dtype.nbytes,
            )[1]
            for column in r.layout.columns
        }
        for skip in range(0, n, MAX_PIECES):
            shifted = {name: at + skip * row_nbytes[name] for name, at in columns.items()}
            some = min(n - skip, MAX_PIECES)
            stream.launch(self._crops(memory, shifted, window, begin + skip, some))
        for tensor in (*r.held.tensors, self._drawing.listed, self._drawing.listed_crop):
            if tensor is not None:  # the loader may be dropped while the launch still reads it
                r.device.hand_over(tensor, stream)

    def _draw_and_cast(
        self,
        stream: Stream,
        memory: torch.Tensor,
        columns: dict[str, int],
        window: tuple[int, ...],
        begin: int,
        n: int,
    ) -> None:
        """In two launches, through memory that the same stream is given again."""
        r = self._resident
        at = columns["x"]
        nbytes = at + n * row_major(window, r.drawn.nbytes)[1]
        drawn = r.device.memory(max(nbytes, 1), stream=stream)
        self._draw(stream, drawn, columns, window, begin, n)
        if at:
            stream.copy(memory[:at], drawn[:at])
        stream.launch(self._cast(drawn, memory, at, window, n))

    def close(self) -> None:
        self._closed = True

    def stats(self) -> Stats:
        return Stats(useful_nbytes=self._useful, stage_s=self._stage_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return []
