"""The CPU as a device: commands run when they are given."""

from __future__ import annotations

import torch

from gpuload import _native
from gpuload.devices import Event, Place, Stream


class CpuEvent:
    """Every command before it has run already."""

    def synchronize(self) -> None:
        pass


class CpuStream:
    """Runs each command at once, on the calling thread."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        dst.copy_(src)

    def launch(self, operation: Place) -> None:
        run_place(operation)

    def record(self) -> Event:
        return CpuEvent()

    def wait(self, event: Event) -> None:
        event.synchronize()


class CpuDevice:
    """Host memory. Loaders skip the ring on it: batches are filled where the consumer reads
    them."""

    name = "cpu"
    is_host = True

    def stream(self) -> Stream:
        return CpuStream()

    def current_stream(self) -> Stream:
        return CpuStream()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def memory(self, nbytes: int, *, stream: Stream) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def hand_over(self, memory: torch.Tensor, stream: Stream) -> None:
        pass


def run_place(operation: Place) -> None:
    """The host executor of `place`.

    Raises:
        ValueError: the box does not lie within both tensors.
    """
    _check_within(operation.src, operation.src_offset, operation.shape, operation.src_stride, "src")
    _check_within(operation.dst, operation.dst_offset, operation.shape, operation.dst_stride, "dst")
    _native.place(
        operation.dst.data_ptr() + operation.dst_offset,
        operation.src.data_ptr() + operation.src_offset,
        operation.from_dtype,
        operation.to_dtype,
        list(operation.shape),
        list(operation.dst_stride),
        list(operation.src_stride),
        False,
    )


def _check_within(
    memory: torch.Tensor, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], side: str
) -> None:
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if (
        min(shape, default=1) > 0
        and not 0 <= min(offset, last) <= max(offset, last) < memory.numel()
    ):
        raise ValueError(
            f"place: expected a box within {memory.numel()} bytes of {side}, got {offset}..{last}"
        )
