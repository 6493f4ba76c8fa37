"""How a batch lies in memory, on its way and when it is delivered. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from gpuload.devices import Operation, Place
from gpuload.devices.arguments import row_major
from gpuload.dtypes import INT64, Dtype

_ALIGN = 64  # bytes; a cache line, and what vector loads like best
_PAGE = 4096
_MOST = 1 << 62  # bytes of a batch, below an overflow of int64
_SMALL = 16  # windows of a field that are so many times smaller than others get memory apart
MASK, PACKED = (
    -1,
    -2,
)  # "fields": the mask of the first one; the bytes of all, where they are packed
Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor of a batch: rows of `row_shape`, or windows when that is None.

    Windows are those of a `field` by number, of at most `most` elements each. A column that is
    `on_host` is wanted by the loader itself: it does not go to the device.
    """

    name: str
    dtype: Dtype
    row_shape: tuple[int, ...] | None = None
    on_host: bool = False
    most: int | None = None
    field: int = 0

    @property
    def is_window(self) -> bool:
        return self.row_shape is None


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where the columns of a batch begin in its memory, in bytes.

    Windows come last, from byte `others_nbytes` on; what lies before gets memory of its own when a
    batch is delivered, so that keeping labels does not keep windows.
    """

    columns: tuple[Column, ...]
    offsets: tuple[int, ...]
    nbytes: int
    others_nbytes: int

    def offset(self, name: str) -> int:
        """The byte that a column begins at, -1 when there is no such column."""
        for column, offset in zip(self.columns, self.offsets, strict=True):
            if column.name == name:
                return offset
        return -1

    def mask_offset(self) -> int:
        """The byte that the mask begins at, -1 when there is none; a field may have its name."""
        for column, offset in zip(self.columns, self.offsets, strict=True):
            if column.field == MASK:
                return offset
        return -1

    def fields(self) -> list[tuple[int, int, int]]:
        """Where windows of each field begin, then tables of packed ones (-1: none). Packed windows
        of all fields begin at the same byte."""
        windows = [c for c in self.columns if c.is_window and c.field >= 0]
        packed = [
            offset
            for column, offset in zip(self.columns, self.offsets, strict=True)
            if column.field == PACKED
        ]
        at = self.offset
        return [
            (
                packed[0] if packed else at(c.name),
                at(f"table {c.field}"),
                at(f"pads {c.field}"),
            )
            for c in windows
        ]

    def tensors(
        self, others: torch.Tensor, windows: torch.Tensor, shapes: Shapes
    ) -> list[torch.Tensor]:
        """The columns as views of the memory (uint8) of windows and of that of all others.
        `shapes` include the batch axis."""
        return [
            self._view(windows, i, shape, self.offsets[i] - self.others_nbytes)
            if self.offsets[i] >= self.others_nbytes
            else self._view(others, i, shape)
            for i, shape in enumerate(shapes)
        ]

    def host_copies(self, slab: torch.Tensor, shapes: Shapes) -> dict[int, torch.Tensor]:
        """Copies of the columns that stay on the host, by position, from a slab in host memory."""
        return {
            i: self._view(slab, i, shapes[i]).clone()
            for i, column in enumerate(self.columns)
            if column.on_host
        }

    def _view(
        self, memory: torch.Tensor, i: int, shape: Sequence[int], begin: int | None = None
    ) -> torch.Tensor:
        dtype = self.columns[i].dtype
        nbytes = math.prod(shape) * dtype.nbytes
        begin = self.offsets[i] if begin is None else begin
        return memory.narrow(0, begin, nbytes).view(dtype.torch).view(tuple(shape))


def lay_out(
    columns: Sequence[Column],
    *,
    batch_size: int,
    window_elements: int = 0,
    room: int | None = None,
    small_apart: bool = False,
) -> BatchLayout:
    """Put columns behind one another, each on a cache line; windows come last.

    Args:
        window_elements: of the largest window, where a column does not say it.
        room: the bytes of each row of x where x does not hold windows.
        small_apart: windows that are far smaller than others do not lie with them.
    """
    rows = [_row_nbytes(column, window_elements) for column in columns]
    largest = max((n for n, c in zip(rows, columns, strict=True) if c.is_window), default=0)
    last = [
        column.is_window and not (small_apart and nbytes * _SMALL < largest)
        for column, nbytes in zip(columns, rows, strict=True)
    ]
    offsets, end, others = [0] * len(columns), 0, 0
    for i in sorted(range(len(columns)), key=lambda i: last[i]):
        is_room = columns[i].name == "x" and room is not None
        if is_room:
            end = -(-end // _PAGE) * _PAGE  # what reads into the device wants pages
        if not last[i]:
            others = end + -(-batch_size * rows[i] // _ALIGN) * _ALIGN
        offsets[i] = end
        row_nbytes = room if is_room and room is not None else rows[i]
        end += -(-batch_size * row_nbytes // _ALIGN) * _ALIGN
    if end >= _MOST:
        raise ValueError(
            f"batch_size: expected batches of fewer than 2**62 bytes, got {end}; pass a smaller "
            "batch_size=, pad= or resize="
        )
    if room is not None and any(last):
        others = min(offsets[i] for i in range(len(columns)) if last[i])
    return BatchLayout(tuple(columns), tuple(offsets), max(end, _ALIGN), others)


def _row_nbytes(column: Column, window_elements: int) -> int:
    if column.row_shape is not None:
        return math.prod(column.row_shape) * column.dtype.nbytes
    return (window_elements if column.most is None else column.most) * column.dtype.nbytes


@dataclass(frozen=True, slots=True)
class Filled:
    """What a filled slab holds: a batch of `n` samples, in `n_rows` rows where some were left out
    of it. `shapes` are those of the columns; `packed_end` is the end of windows that are packed."""

    n: int
    window: tuple[int, ...]
    n_rows: int
    shapes: Shapes = ()
    packed_end: int = 0


class Way(Protocol):
    """What a device does to turn a filled slab into a batch, in memory for its windows and memory
    for all else."""

    @property
    def slab(self) -> BatchLayout: ...

    @property
    def batch(self) -> BatchLayout: ...

    @property
    def is_copy(self) -> bool:
        """Whether a batch is a slab, byte by byte."""

    def staged_nbytes(self, filled: Filled) -> int:
        """Bytes of the slab that cross."""

    def windows_nbytes(self, filled: Filled) -> int:
        """Bytes of memory for windows."""

    def moves(self, filled: Filled) -> Sequence[tuple[int, int, int]]:
        """What is copied as it is: from a byte of the slab, to a byte of the windows, how much."""

    def operations(
        self, staging: torch.Tensor, windows: torch.Tensor, filled: Filled
    ) -> Sequence[Operation]:
        """What makes the windows of what was copied to `staging`."""

    def examples(self, memory: torch.Tensor) -> Sequence[Operation]:
        """Operations like those to come."""

    @property
    def constants(self) -> Sequence[torch.Tensor]:
        """Memory of the device that all operations read."""

    def reads(self, slab: torch.Tensor, n: int) -> torch.Tensor:
        """The reads that a slab lists, int64 (m, 4): file, offset, nbytes, byte of x."""


@dataclass(frozen=True, slots=True)
class Route:
    """What the device does to turn a filled slab into a batch.

    Columns other than x lie alike in both. x is copied as it is when the slab holds it as it is
    delivered; else the device places it: windows behind one another, or, with a `table` in the
    slab, windows within spans of stored bytes.

    Attributes:
        slab, batch: where columns begin in a slab and in a batch. The slab's may end with a column
            "table", and "reads" where something else reads into the device.
        stored, delivered: element types of x.
        swap: stored in the other byte order.
        src_stride: bytes between elements of a window within its span, when all are alike.
    """

    slab: BatchLayout
    batch: BatchLayout
    stored: Dtype
    delivered: Dtype
    swap: bool = False
    src_stride: tuple[int, ...] | None = None
    room: int = 0

    @property
    def has_table(self) -> bool:
        return self.slab.offset("table") >= 0

    @property
    def is_copy(self) -> bool:
        """Whether a batch is a slab, byte by byte."""
        return self.slab == self.batch and self.stored == self.delivered and not self.swap

    @property
    def is_listed(self) -> bool:
        """Whether something else reads files into the device."""
        return self.slab.offset("reads") >= 0

    def staged_nbytes(self, filled: Filled) -> int:
        return self.slab_nbytes(filled.n_rows, filled.window)

    def windows_nbytes(self, filled: Filled) -> int:
        return self.x_nbytes(filled.n, filled.window)

    def moves(self, filled: Filled) -> Sequence[tuple[int, int, int]]:
        return ()

    def operations(
        self, staging: torch.Tensor, windows: torch.Tensor, filled: Filled
    ) -> Sequence[Operation]:
        return (self.operation(staging, windows, filled.n, filled.window),)

    def examples(self, memory: torch.Tensor) -> Sequence[Operation]:
        ndim = len(self.src_stride or (0,))
        return (self.operation(memory, memory, 1, (1,) * ndim),)

    @property
    def constants(self) -> Sequence[torch.Tensor]:
        return ()

    def slab_nbytes(self, n_rows: int, window: Sequence[int]) -> int:
        """Bytes of a slab that hold so many windows."""
        row = self.room if self.has_table else math.prod(window) * self.stored.nbytes
        return self.slab.offset("x") + n_rows * row

    def x_nbytes(self, n: int, window: Sequence[int]) -> int:
        """Bytes of x of a batch of `n` samples."""
        return n * math.prod(window) * self.delivered.nbytes

    def operation(
        self, staging: torch.Tensor, x: torch.Tensor, n: int, window: Sequence[int]
    ) -> Place:
        """What makes x of what was copied to `staging`."""
        dst_stride = row_major(window, self.delivered.nbytes)[0]
        table, src_stride = None, self.src_stride
        if self.has_table:
            table = self._table(staging, n)
            src_stride = src_stride or (0,) * len(window)  # the table has them
        else:
            src_stride = row_major(window, self.stored.nbytes)[0]
        return Place(
            staging,
            x,
            self.stored.number,
            self.delivered.number,
            tuple(window),
            src_stride,
            dst_stride,
            self.slab.offset("x"),
            swap=self.swap,
            n_pieces=n,
            src_step=math.prod(window) * self.stored.nbytes,
            dst_step=math.prod(window) * self.delivered.nbytes,
            table=table,
        )

    def _table(self, memory: torch.Tensor, n: int) -> torch.Tensor:
        (length,) = self._column("table").row_shape or (0,)
        begin = self.slab.offset("table")
        return memory.narrow(0, begin, n * length * 8).view(torch.int64).view(n, length)

    def _column(self, name: str) -> Column:
        return next(column for column in self.slab.columns if column.name == name)

    def reads(self, slab: torch.Tensor, n: int) -> torch.Tensor:
        """The reads that a slab lists, int64 (m, 4): file, offset, nbytes, byte of x."""
        begin = self.slab.offset("reads")
        rows = slab.narrow(0, begin, n * 32).view(torch.int64).view(n, 4)
        return rows[rows[:, 0] >= 0]


def route_placed(
    columns: Sequence[Column], *, crossing: Dtype, batch_size: int, window_elements: int
) -> Route:
    """Windows are cut out on the host, and cross as elements of `crossing`."""
    slab = [replace(c, dtype=crossing) if c.name == "x" else c for c in columns]
    return Route(
        lay_out(slab, batch_size=batch_size, window_elements=window_elements),
        lay_out(columns, batch_size=batch_size, window_elements=window_elements),
        stored=crossing,
        delivered=columns[0].dtype,
    )


def route_spans(
    columns: Sequence[Column],
    *,
    stored: Dtype,
    swap: bool,
    span_nbytes: int,
    window_stride: tuple[int, ...] | None,
    ndim: int,
    is_listed: bool,
    batch_size: int,
    window_elements: int,
) -> Route:
    """Stored bytes cross, from the first to the last of each window, and the device cuts it out.

    Args:
        window_stride: bytes between elements of a window, None when arrays differ.
        is_listed: something else reads them into the device, by whole pages.
    """
    room = (-(-span_nbytes // _PAGE) + 1) * _PAGE if is_listed else (-(-span_nbytes // 16) + 1) * 16
    row_length = 2 if window_stride is not None else 2 + 2 * ndim
    slab = [*columns, Column("table", INT64, (row_length,))]
    if is_listed:
        slab.append(Column("reads", INT64, (4,)))
    return Route(
        lay_out(slab, batch_size=batch_size, window_elements=window_elements, room=room),
        lay_out(columns, batch_size=batch_size, window_elements=window_elements),
        stored=stored,
        delivered=columns[0].dtype,
        swap=swap,
        src_stride=window_stride,
        room=room,
    )
