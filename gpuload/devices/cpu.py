"""The CPU as a device: commands run when they are given."""

from __future__ import annotations

import torch

from gpuload import _native
from gpuload.devices import Event, Place, Stream
from gpuload.dtypes import DTYPES


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
    o = operation
    _check_within(o.src, o.src_offset, o.from_dtype, o.shape, o.src_stride, "src")
    _check_within(o.dst, o.dst_offset, o.to_dtype, o.shape, o.dst_stride, "dst")
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
    memory: torch.Tensor,
    offset: int,
    dtype: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    side: str,
) -> None:
    if min(shape, default=1) < 0:
        raise ValueError(f"place: expected axes of 0 or more, got {shape}")
    if 0 in shape:
        return
    reach = [(n - 1) * step for n, step in zip(shape, stride, strict=True)]
    begin = offset + sum(min(r, 0) for r in reach)
    end = offset + sum(max(r, 0) for r in reach) + list(DTYPES.values())[dtype].nbytes
    if begin < 0 or end > memory.numel():
        raise ValueError(
            f"place: expected a box within {memory.numel()} bytes of {side}, got bytes "
            f"[{begin}, {end})"
        )
