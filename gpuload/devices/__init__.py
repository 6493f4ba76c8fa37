"""Devices: memory, streams and events behind one protocol. The ring of slots is written against it.

Commands are enqueued and run in the order of their stream; `wait` orders one stream after an event
of another. A
device whose `is_host` is true has no memory of its own: batches are filled where the consumer reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Copy a strided box of elements from `src` to `dst` (uint8 tensors of one device).

    Offsets and strides in bytes; `from_dtype` and `to_dtype` are numbers of gpuload.dtypes.
    """

    src: torch.Tensor
    dst: torch.Tensor
    from_dtype: int
    to_dtype: int
    shape: tuple[int, ...]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    src_offset: int = 0
    dst_offset: int = 0


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Block the calling thread until the stream has come to this point."""


class Stream(Protocol):
    """A queue of commands. Each method enqueues and returns at once; buffers must outlive the
    command."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Copy bytes from host memory to device memory of the same length."""

    def launch(self, operation: Place) -> None:
        """Run a kernel."""

    def record(self) -> Event: ...

    def wait(self, event: Event) -> None:
        """Commands enqueued from now on run after `event`."""


class Device(Protocol):
    """Where batches are delivered."""

    name: str
    is_host: bool

    def stream(self) -> Stream:
        """A new stream."""

    def current_stream(self) -> Stream:
        """The stream that the calling thread's own commands go to."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies may read from asynchronously; uint8, uninitialised."""

    def memory(self, nbytes: int, *, stream: Stream) -> torch.Tensor:
        """Device memory first used on `stream`; uint8, uninitialised."""

    def hand_over(self, memory: torch.Tensor, stream: Stream) -> None:
        """`memory` is used on `stream` from now on: it is not recycled before that use is over."""
