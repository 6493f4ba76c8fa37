"""Windows of several fields cross to a device packed behind one another; the device turns, casts,
scales and pads them. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gpuload.devices import Affine, Operation, Pad, Place
from gpuload.devices.arguments import row_major
from gpuload.dtypes import DTYPES, INT64, Dtype
from gpuload.layout import MASK, PACKED, BatchLayout, Column, Filled, lay_out
from gpuload.transform import Form


@dataclass(frozen=True, slots=True, eq=False)
class PackedWay:
    """What the device does with packed windows. A slab also holds two tables for each field: where
    its windows are packed and go, and where they lie in their samples.

    Attributes:
        crossing: element types of what is packed, by field.
        channels: mean and std of each channel, float64 (C, 2) on the device, by field.
        pads: whether anything is padded.
    """

    slab: BatchLayout
    batch: BatchLayout
    forms: tuple[Form, ...]
    crossing: tuple[Dtype, ...]
    channels: tuple[torch.Tensor | None, ...]
    pads: bool

    @property
    def is_copy(self) -> bool:
        return False

    def staged_nbytes(self, filled: Filled) -> int:
        return self.slab.fields()[0][0] + filled.packed_end

    def windows_nbytes(self, filled: Filled) -> int:
        ends = [0]
        for column, offset, shape in zip(
            self.batch.columns, self.batch.offsets, filled.shapes, strict=False
        ):
            if column.is_window:
                ends.append(offset + math.prod(shape) * column.dtype.nbytes)
        return max(ends) - self.batch.others_nbytes if len(ends) > 1 else 0

    def moves(self, filled: Filled) -> Sequence[tuple[int, int, int]]:
        """The mask, which the host has made."""
        for column, shape in zip(self.batch.columns, filled.shapes, strict=False):
            if column.field == MASK:
                at = self.batch.mask_offset() - self.batch.others_nbytes
                return ((self.slab.mask_offset(), at, math.prod(shape)),)
        return ()

    def operations(
        self, staging: torch.Tensor, windows: torch.Tensor, filled: Filled
    ) -> Sequence[Operation]:
        shapes = {
            column.field: tuple(shape[1:])
            for column, shape in zip(self.batch.columns, filled.shapes, strict=False)
            if column.is_window
        }
        return self._operations(staging, windows, filled.n, shapes)

    def examples(self, memory: torch.Tensor) -> Sequence[Operation]:
        shapes = {k: (1,) * len(form.order) for k, form in enumerate(self.forms)}
        return self._operations(memory, memory, 1, shapes)

    @property
    def constants(self) -> Sequence[torch.Tensor]:
        return [channels for channels in self.channels if channels is not None]

    def reads(self, slab: torch.Tensor, n: int) -> torch.Tensor:
        return torch.empty((0, 4), dtype=torch.int64)  # the host reads everything

    def _operations(
        self,
        staging: torch.Tensor,
        windows: torch.Tensor,
        n: int,
        shapes: dict[int, tuple[int, ...]],
    ) -> list[Operation]:
        made: list[Operation] = []
        for k, (form, (packed, table, pads)) in enumerate(
            zip(self.forms, self.slab.fields(), strict=True)
        ):
            shape, at = shapes[k], self.batch.offset(form.name) - self.batch.others_nbytes
            ndim = len(shape)
            dst_stride, nbytes = row_major(shape, form.delivered.nbytes)
            made.append(
                Place(
                    staging,
                    windows,
                    self.crossing[k].number,
                    form.delivered.number,
                    shape,
                    self._src_stride(k, shape),
                    dst_stride,
                    packed,
                    at,
                    n_pieces=n,
                    table=_rows(staging, table, n, 2 + 2 * ndim),
                    affine=self._affine(k),
                )
            )
            if self.pads and ndim:
                made.append(
                    Pad(
                        windows,
                        form.delivered.nbytes,
                        shape,
                        dst_stride,
                        mode=form.pad_mode,
                        value=form.pad_value,
                        dst_offset=at,
                        n_pieces=n,
                        dst_step=nbytes,
                        table=_rows(staging, pads, n, 2 * ndim),
                    )
                )
        return made

    def _src_stride(self, k: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes between elements of a window that fills its sample and is not turned. The table has
        those of each window; these tell the launch what to expect."""
        order = self.forms[k].order
        of_item = [shape[order.index(axis)] for axis in range(len(order))]
        strides, _ = row_major(of_item, self.crossing[k].nbytes)
        return tuple(strides[axis] for axis in order)

    def _affine(self, k: int) -> Affine | None:
        form = self.forms[k]
        if form.scaling is None:
            return None
        axis = form.order.index(form.channel_axis) if form.channel_axis >= 0 else None
        return Affine(form.scaling[0], self.channels[k], axis)


def _rows(memory: torch.Tensor, begin: int, n: int, length: int) -> torch.Tensor:
    return memory.narrow(0, begin, n * length * 8).view(torch.int64).view(n, length)


def pack(
    columns: Sequence[Column],
    forms: tuple[Form, ...],
    *,
    crossing: tuple[Dtype, ...],
    channels: tuple[torch.Tensor | None, ...],
    room: int,
    pads: bool,
    batch_size: int,
) -> PackedWay:
    """Lay out slabs for packed windows of at most `room` bytes a sample, and their batches."""
    slab = [replace(c, most=0) if c.is_window and c.field != MASK else c for c in columns]
    for k, form in enumerate(forms):
        ndim = len(form.order)
        slab += [
            Column(f"table {k}", INT64, (2 + 2 * ndim,)),
            Column(f"pads {k}", INT64, (2 * ndim,)),
        ]
    slab.append(Column("packed", DTYPES["uint8"], most=room, field=PACKED))
    return PackedWay(
        lay_out(slab, batch_size=batch_size),
        lay_out(columns, batch_size=batch_size),
        forms,
        crossing,
        channels,
        pads,
    )
