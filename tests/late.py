"""Devices for tests: one whose streams run each command as late as CUDA would allow, and one that
runs it at once.

The late device shows what a GPU hides until it is busy: a command that should have waited, memory
that is recycled under a command that still uses it, a slab that is refilled before its copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from host_kernels import HostKernels

from gpuload.devices import Operation
from gpuload.devices.arguments import pack
from gpuload.devices.cpu import CpuDevice, CpuStream, run

POISON = 0xDB


class EagerStream(CpuStream):
    """Runs each command when it is given: what hides every mistake in ordering."""

    def do(self, command: Callable[[], object]) -> None:
        command()

    def synchronize(self) -> None:
        pass


class EagerDevice(CpuDevice):
    """A device that is not the host, so that batches go through the ring, and that runs at once."""

    name = "eager"
    is_host = False

    def stream(self) -> EagerStream:
        return EagerStream()

    def current_stream(self) -> EagerStream:
        return EagerStream()

    def on(self, stream: EagerStream) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        pass


class LateStream:
    """Runs a command only when somebody waits for it: the laziest order that CUDA allows."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.todo: deque[Callable[[], object]] = deque()
        self.done = 0

    def do(self, command: Callable[[], object]) -> None:
        with self.device.lock:
            self.device.recycle()
            self.todo.append(command)

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        assert len(dst) == len(src)
        to, from_ = alias(dst), alias(src)
        slab = self.device.host_block(src)
        if slab is not None:
            slab.n_copies += 1

        def copy() -> None:
            to.copy_(from_)
            if slab is not None:
                slab.n_copies -= 1

        self.do(copy)

    def launch(self, operation: Operation) -> None:
        if self.device.kernels is not None:  # as on a GPU: nothing is kept but addresses
            launch = pack(operation)
            self.do(lambda: self.device.kernels.run(launch))
            return
        parts = {name: getattr(operation, name, None) for name in ("src", "dst", "table")}
        aliases = {name: alias(part) for name, part in parts.items() if part is not None}
        aliased = replace(operation, **aliases)
        self.do(lambda: run(aliased))

    def record(self) -> Mark:
        with self.device.lock:
            self.device.recycle()
            return Mark(self, self.done + len(self.todo))

    def wait(self, event: Mark) -> None:
        self.do(event.synchronize)

    def synchronize(self) -> None:
        self.record().synchronize()

    def run_to(self, n: int) -> None:
        while self.done < n:
            self.done += 1
            self.todo.popleft()()


@dataclass(frozen=True)
class Mark:
    """A point in a late stream."""

    stream: LateStream
    n: int

    def synchronize(self) -> None:
        with self.stream.device.lock:
            self.stream.run_to(self.n)

    @property
    def has_come(self) -> bool:
        return self.stream.done >= self.n


@dataclass(eq=False)
class Block:
    """Memory of the device. It is never given back to the system, so that a command that comes too
    late finds poison rather than a fault."""

    memory: np.ndarray
    stream: LateStream
    is_host: bool = False
    n_copies: int = 0  # from host memory, not done yet
    users: list[LateStream] = field(default_factory=list)
    in_use: list[Mark] = field(default_factory=list)  # not to be recycled before these have come


class LateDevice:
    """A device whose memory comes from a stream-ordered caching allocator, like torch's for CUDA.

    Memory that Python drops may be used again by later commands of the stream it was allocated on.
    What other streams still do with it is known only from hand_over(). `recycling` picks between
    two orders that CUDA allows: "early" lets the next user write as soon as the memory is dropped,
    "late" as late as everything else.
    """

    name = "late"
    is_host = False

    def __init__(self, recycling: str = "early", *, kernels: HostKernels | None = None) -> None:
        self.kernels = kernels  # the kernels of a GPU, built for the host
        self.lock = threading.RLock()
        self.streams: list[LateStream] = []
        self.blocks: list[Block] = []
        self.idle: list[Block] = []
        self.recycling = recycling
        self.dropped_too_soon = 0  # slabs that a copy still had to read
        self._dropped: deque[Block] = deque()
        self._by_address: dict[int, Block] = {}
        self._current = threading.local()
        self.default = self.stream()

    def stream(self) -> LateStream:
        self.streams.append(LateStream(self))
        return self.streams[-1]

    def current_stream(self) -> LateStream:
        return getattr(self._current, "stream", self.default)

    @contextlib.contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        """Make a stream the current one of this thread."""
        before, self._current.stream = self.current_stream(), stream
        yield
        self._current.stream = before

    def enter_thread(self) -> None:
        pass

    def prepare(self, operation: Operation) -> None:
        pass

    def free_nbytes(self) -> int:
        return 1 << 40

    def synchronize(self) -> None:
        for stream in list(self.streams):
            stream.synchronize()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        block = Block(np.full(nbytes, POISON, np.uint8), self.default, is_host=True)
        self.blocks.append(block)

        def drop() -> None:
            # Host memory is no stream's: whoever drops it must know that no copy reads it any more.
            self.dropped_too_soon += block.n_copies
            block.memory.fill(POISON)

        return owned(block.memory, drop)

    def host_block(self, memory: torch.Tensor) -> Block | None:
        """The host memory that this is a part of, None for device memory."""
        address = memory.data_ptr()
        for block in self.host_blocks:
            begin = block.memory.ctypes.data
            if begin <= address < begin + len(block.memory):
                return block
        return None

    def memory(self, nbytes: int, *, stream: LateStream) -> torch.Tensor:
        assert nbytes > 0
        with self.lock:
            self.recycle()
            block = self._take(nbytes, stream)
            self._by_address[block.memory.ctypes.data] = block
        return owned(block.memory, lambda: self._dropped.append(block))

    def hand_over(self, memory: torch.Tensor, stream: LateStream) -> None:
        with self.lock:
            self.recycle()
            self._by_address[memory.data_ptr()].users.append(stream)

    @property
    def reserved_nbytes(self) -> int:
        """Device memory that was ever taken from the system."""
        with self.lock:
            self.recycle()
            return sum(block.memory.nbytes for block in self._by_address.values())

    @property
    def host_blocks(self) -> list[Block]:
        """Host memory that was ever asked for."""
        return [block for block in self.blocks if block.is_host]

    def recycle(self) -> None:
        """Take back what Python has dropped since the last command. Call with the lock held."""
        while self._dropped:
            block = self._dropped.popleft()
            block.in_use = [stream.record() for stream in block.users]
            block.users = []
            if all(mark.has_come for mark in block.in_use):
                self._overwrite(block)
            self.idle.append(block)

    def _take(self, nbytes: int, stream: LateStream) -> Block:
        for block in reversed(self.idle):
            is_free = all(mark.has_come for mark in block.in_use)
            if is_free and block.stream is stream and block.memory.nbytes == nbytes:
                self.idle.remove(block)
                self._overwrite(block)
                return block
        block = Block(np.full(nbytes, POISON, np.uint8), stream)
        self.blocks.append(block)
        return block

    def _overwrite(self, block: Block) -> None:
        """What the next user of this memory does to it, after the commands of its own stream."""
        block.stream.todo.append(lambda: block.memory.fill(POISON))
        if self.recycling == "early":
            block.stream.run_to(block.stream.done + len(block.stream.todo))


def owned(memory: np.ndarray, when_dropped: Callable[[], object]) -> torch.Tensor:
    """A tensor over `memory` that tells when the last tensor that shares it is gone."""
    handle = memory[:]
    weakref.finalize(handle, when_dropped).atexit = False
    return torch.from_numpy(handle)


def alias(memory: torch.Tensor) -> torch.Tensor:
    """The same values without a share in their memory: a command does not keep it alive."""
    raw = (ctypes.c_uint8 * memory.nbytes).from_address(memory.data_ptr())
    same = torch.from_numpy(np.ctypeslib.as_array(raw))
    return same.view(memory.dtype).view(memory.shape)
