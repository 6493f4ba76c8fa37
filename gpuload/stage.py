"""The ring of slots that takes batches to a device: who may touch which buffer, when.

On a host device there is nothing to take anywhere, and the ring is not used.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from gpuload.devices import Device, Event, Stream
from gpuload.layout import Filled, Way

_PAGE = 4096  # what reads into the device wants its memory aligned to


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
    `copied`. `others` is of all columns but x."""

    others: torch.Tensor
    x: torch.Tensor
    ready: Event
    copied: Event


class DirectReader(Protocol):
    """Reads files straight into device memory (readers/gds.py). `notes` are for people."""

    notes: list[str]

    def register(self, memory: torch.Tensor) -> None:
        """Tell the driver of memory that will be read into again and again."""

    def deregister(self, memory: torch.Tensor) -> None: ...

    def read(self, requests: npt.NDArray[np.int64], memory: torch.Tensor) -> None:
        """Read rows of (file, offset, nbytes, byte of `memory`); all is there on return."""


# Rings and held arrays. In a forked child torch cannot free memory that other streams have used: it
# ends the process. So a child keeps them for ever.
_live: weakref.WeakSet[object] = weakref.WeakSet()
_kept: list[object] = []


def keep_after_fork(owner: object) -> None:
    """Never free what `owner` holds in a child that is forked while it lives."""
    _live.add(owner)


os.register_at_fork(after_in_child=lambda: _kept.extend(_live))


class Ring:
    """Slots of device memory, used in turn by one copy stream and one kernel stream.

    The copy of a batch overlaps the kernels of the batch before. Nothing here blocks the calling
    thread, unless something reads into the device directly, and nothing is allocated but the
    batches themselves, which belong to the caller.

    The device does not run ahead of the consumer: a batch is made only when the consumer's stream
    has come to where it asked for the one `n_slots` before. So the number of batches in device
    memory is bounded, also for a consumer that does not wait for its own kernels.

    Args:
        direct: what reads x into the device, when slabs hold a list of reads.
    """

    def __init__(
        self, device: Device, route: Way, *, n_slots: int, direct: DirectReader | None = None
    ) -> None:
        self.device = device
        self.copies: Stream = device.stream()
        self.kernels: Stream = device.stream()
        self.slots: list[Slot] = []
        self._route = route
        self._n_slots = n_slots
        self._direct = direct
        self._next = 0
        keep_after_fork(self)
        self._asked: deque[Event] = deque()  # where the consumer's stream was at each hand-out
        if route.is_copy:
            return
        nbytes = route.slab.nbytes
        for memory in route.constants:  # a ring may be dropped while its kernels run
            device.hand_over(memory, self.kernels)
        self._warm_up()
        for _ in range(n_slots):
            memory = device.memory(nbytes + _PAGE * (direct is not None), stream=self.copies)
            device.hand_over(memory, self.kernels)
            skip = -memory.data_ptr() % _PAGE if direct is not None else 0
            self.slots.append(Slot(memory[skip : skip + nbytes]))
            if direct is not None:
                direct.register(self.slots[-1].staging)
        if direct is not None:  # it does not know streams: what had this memory before is over then
            self.copies.record().synchronize()
            weakref.finalize(self, _deregister, direct, [slot.staging for slot in self.slots])

    def _warm_up(self) -> None:
        """Nothing is compiled once batches are made: the caller may capture CUDA graphs then."""
        nothing = torch.empty(self._route.slab.nbytes, dtype=torch.uint8)  # never touched
        for operation in self._route.examples(nothing):
            self.device.prepare(operation)

    def stage(
        self, slab: torch.Tensor, n: int, window: Sequence[int], *, n_rows: int | None = None
    ) -> Staged:
        """Enqueue one batch of `n` samples of one window: see stage_filled."""
        return self.stage_filled(slab, Filled(n, tuple(window), n if n_rows is None else n_rows))

    def stage_filled(self, slab: torch.Tensor, filled: Filled) -> Staged:
        """Enqueue one batch: slab -> staging -> fresh memory. Returns at once.

        Args:
            slab: uint8, host; must not be written before `copied` of the result has come.
        """
        self._keep_back()
        route = self._route
        if route.is_copy:
            others, x = self._memory(filled, self.copies)
            if len(others):
                self.copies.copy(others, slab[: len(others)])
            nbytes = route.windows_nbytes(filled)
            self.copies.copy(x[:nbytes], slab[len(others) : len(others) + nbytes])
            copied = self.copies.record()
            return Staged(others, x, ready=copied, copied=copied)
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        copied = self._to_staging(slot, slab, filled)
        self.kernels.wait(copied)
        others, x = self._memory(filled, self.kernels)
        if len(others):
            self.kernels.copy(others, slot.staging[: len(others)])
        for begin, at, nbytes in route.moves(filled):
            self.kernels.copy(x[at : at + nbytes], slot.staging[begin : begin + nbytes])
        for operation in route.operations(slot.staging, x, filled):
            self.kernels.launch(operation)
        slot.consumed = self.kernels.record()
        return Staged(others, x, ready=slot.consumed, copied=copied)

    def _memory(self, filled: Filled, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh memory of a batch: of its windows, and of all other columns before them."""
        nbytes = self._route.batch.others_nbytes
        x = self.device.memory(max(self._route.windows_nbytes(filled), 1), stream=stream)
        return (self.device.memory(nbytes, stream=stream) if nbytes else x[:0]), x

    def _keep_back(self) -> None:
        """Do not run ahead of the consumer's work on the device."""
        while len(self._asked) > self._n_slots:
            self.copies.wait(self._asked[0])
            self.kernels.wait(self._asked.popleft())

    def _to_staging(self, slot: Slot, slab: torch.Tensor, filled: Filled) -> Event:
        # The kernel of the batch that had this slot before may still read the staging memory.
        nbytes = self._route.staged_nbytes(filled)
        if self._direct is not None:
            slot.consumed.synchronize()
            begin = self._route.slab.offset("x")
            self._direct.read(self._route.reads(slab, filled.n_rows).numpy(), slot.staging[begin:])
            nbytes = begin
        else:
            self.copies.wait(slot.consumed)
        self.copies.copy(slot.staging[:nbytes], slab[:nbytes])
        return self.copies.record()

    def hand_out(self, staged: Staged) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the caller's current stream wait for a batch, and give its memory to the caller for
        good: that of all columns but x, and that of x."""
        stream = self.device.current_stream()
        self._asked.append(stream.record())
        stream.wait(staged.ready)
        for memory in (staged.others, staged.x):
            if len(memory):
                self.device.hand_over(memory, stream)
        return staged.others, staged.x


def _deregister(direct: DirectReader, stagings: Sequence[torch.Tensor]) -> None:
    """Before the memory is freed: that could block the driver for ever (GDS release notes)."""
    for staging in stagings:
        direct.deregister(staging)
