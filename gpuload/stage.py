"""How a batch lies in memory, and the ring of slots that takes it to a device: who may touch which
buffer, when.

On a host device there is nothing to take anywhere, and the ring is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gpuload.devices import Device, Event, Place, Stream
from gpuload.dtypes import DTYPES, Dtype

_ALIGN = 64  # bytes; a cache line, and what vector loads like best


Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor of a batch: rows of `row_shape`, or of the window's shape when that is None.

    A column that is `on_host` is wanted by the loader itself: it does not go to the device.
    """

    name: str
    dtype: Dtype
    row_shape: tuple[int, ...] | None = None
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where the columns of a batch begin in its memory, in bytes."""

    columns: tuple[Column, ...]
    offsets: tuple[int, ...]
    nbytes: int

    def offset(self, name: str) -> int:
        """The byte that a column begins at, -1 when there is no such column."""
        for column, offset in zip(self.columns, self.offsets, strict=True):
            if column.name == name:
                return offset
        return -1

    def tensors(self, memory: torch.Tensor, shapes: Shapes) -> list[torch.Tensor]:
        """The columns as views of a batch's memory (uint8). `shapes` include the batch axis."""
        return [self._view(memory, i, shape) for i, shape in enumerate(shapes)]

    def host_copies(self, slab: torch.Tensor, shapes: Shapes) -> dict[int, torch.Tensor]:
        """Copies of the columns that stay on the host, by position, from a slab in host memory."""
        return {
            i: self._view(slab, i, shapes[i]).clone()
            for i, column in enumerate(self.columns)
            if column.on_host
        }

    def _view(self, memory: torch.Tensor, i: int, shape: Sequence[int]) -> torch.Tensor:
        dtype = self.columns[i].dtype
        nbytes = math.prod(shape) * dtype.nbytes
        return memory.narrow(0, self.offsets[i], nbytes).view(dtype.torch).view(tuple(shape))


def lay_out(columns: Sequence[Column], *, batch_size: int, window_elements: int) -> BatchLayout:
    """Put columns behind one another, each on a cache line. `window_elements` is for the largest
    window."""
    offsets, end = [], 0
    for column in columns:
        offsets.append(end)
        n = window_elements if column.row_shape is None else math.prod(column.row_shape)
        end += -(-batch_size * n * column.dtype.nbytes // _ALIGN) * _ALIGN
    return BatchLayout(tuple(columns), tuple(offsets), max(end, _ALIGN))


class _Past:
    """The event of a buffer that nothing has used yet."""

    def synchronize(self) -> None:
        pass


@dataclass(slots=True)
class Slot:
    """Device memory that one batch in flight is copied to."""

    staging: torch.Tensor
    consumed: Event = field(default_factory=_Past)  # staging may be overwritten after this


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch on its way: its memory may be read after `ready`, its slab refilled after
    `copied`."""

    memory: torch.Tensor
    ready: Event
    copied: Event


class Ring:
    """Slots of device memory, used in turn by one copy stream and one kernel stream.

    The copy of a batch overlaps the kernels of the batch before. Nothing here blocks the calling
    thread, and
    nothing is allocated but the batches themselves, which belong to the caller.
    """

    def __init__(self, device: Device, *, nbytes: int, n_slots: int) -> None:
        self.device = device
        self.copies: Stream = device.stream()
        self.kernels: Stream = device.stream()
        self.slots = [Slot(device.memory(nbytes, stream=self.copies)) for _ in range(n_slots)]
        for slot in self.slots:  # a ring may be dropped while its last kernels still run
            device.hand_over(slot.staging, self.kernels)
        self._next = 0

    def stage(self, slab: torch.Tensor) -> Staged:
        """Enqueue one batch: slab -> staging -> fresh memory. Returns at once.

        `slab` (uint8, host) must not be written before `copied` of the result has come.
        """
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        # The kernel of the batch that had this slot before may still read the staging memory.
        self.copies.wait(slot.consumed)
        self.copies.copy(slot.staging, slab)
        copied = self.copies.record()
        self.kernels.wait(copied)
        memory = self.device.memory(len(slab), stream=self.kernels)
        self.kernels.launch(_whole(slot.staging, memory))
        slot.consumed = self.kernels.record()
        return Staged(memory, ready=slot.consumed, copied=copied)

    def hand_out(self, staged: Staged) -> torch.Tensor:
        """Make the caller's current stream wait for a batch, and give its memory to the caller for
        good."""
        stream = self.device.current_stream()
        stream.wait(staged.ready)
        self.device.hand_over(staged.memory, stream)
        return staged.memory


def _whole(src: torch.Tensor, dst: torch.Tensor) -> Place:
    byte = DTYPES["uint8"].number
    return Place(src, dst, byte, byte, (len(dst),), (1,), (1,))
