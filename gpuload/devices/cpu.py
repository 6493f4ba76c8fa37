"""The CPU as a device: commands run when they are given."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from gpuload import _native, system
from gpuload.devices import Crops, Event, Operation, Pad, Place, Resize, Stream
from gpuload.devices.arguments import pack
from gpuload.dtypes import DTYPES


class CpuEvent:
    """Every command before it has run already."""

    def synchronize(self) -> None:
        pass


class CpuStream:
    """Runs each command at once, on the calling thread."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        dst.copy_(src)

    def launch(self, operation: Operation) -> None:
        run(operation)

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

    def enter_thread(self) -> None:
        pass

    def prepare(self, operation: Operation) -> None:
        pass

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def memory(self, nbytes: int, *, stream: Stream) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def free_nbytes(self) -> int:
        return system.free_nbytes()

    def hand_over(self, memory: torch.Tensor, stream: Stream) -> None:
        pass


def run(operation: Operation) -> None:
    """Do an operation in host memory, by the loops of csrc.

    Raises:
        TypeError: a Crops: on the host, held arrays are read like files.
    """
    if isinstance(operation, Place):
        run_place(operation)
    elif isinstance(operation, Crops):
        raise TypeError("launch: expected an operation of the host, got Crops; use a DataLoader")
    else:
        params = pack(operation).params
        address = ctypes.addressof(params)
        if isinstance(operation, Pad):
            _native.pad_boxes(address)
        elif isinstance(operation, Resize):
            _native.resize_boxes(address, operation.from_dtype, operation.to_dtype)
        else:
            _native.unshuffle_chunks(address)


def run_place(operation: Place) -> None:
    """The host executor of `place`.

    Raises:
        ValueError: the box does not lie within both tensors.
    """
    o = operation
    affine = None
    if o.affine is not None:
        channels = 0 if o.affine.channels is None else o.affine.channels.data_ptr()
        affine = (o.affine.scale, channels, -1 if o.affine.axis is None else o.affine.axis)
    for src_offset, dst_offset, shape, src_stride in _pieces(o):
        _check_within(o.src, src_offset, o.from_dtype, shape, src_stride, "src")
        _check_within(o.dst, dst_offset, o.to_dtype, shape, o.dst_stride, "dst")
        _native.place(
            o.dst.data_ptr() + dst_offset,
            o.src.data_ptr() + src_offset,
            o.from_dtype,
            o.to_dtype,
            list(shape),
            list(o.dst_stride),
            list(src_stride),
            o.swap,
            affine,
        )


Shape = tuple[int, ...]


def _pieces(o: Place) -> Iterator[tuple[int, int, Shape, Shape]]:
    """Where each piece of an operation begins on both sides, its extents and source strides."""
    ndim = len(o.shape)
    for k in range(o.n_pieces):
        row = None if o.table is None else o.table[k].tolist()
        src, dst = (k * o.src_step, k * o.dst_step) if row is None else row[:2]
        shape, stride = o.shape, o.src_stride
        if row is not None and len(row) > 2:
            shape, stride = tuple(row[2 : 2 + ndim]), tuple(row[2 + ndim :])
        yield o.src_offset + src, o.dst_offset + dst, shape, stride


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
