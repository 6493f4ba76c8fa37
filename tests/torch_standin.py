"""torch.cuda for machines without a GPU, and what of NumPy pins memory: the part of cuda_standin.py
that takes the place of both in devices/cuda.py."""

from __future__ import annotations

import threading
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from late import LateStream, Mark

if TYPE_CHECKING:
    from cuda_standin import CudaStandIn


class Torch:
    """torch, but for what concerns the GPU."""

    def __init__(self, standin: CudaStandIn) -> None:
        self._standin = standin
        self.cuda = TorchCuda(standin)
        self.version = types.SimpleNamespace(cuda=standin.says.torch_cuda)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, nbytes: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert (dtype, device.type) == (torch.uint8, "cuda")
        return self._standin.empty(nbytes, device.index)


class TorchCuda:
    """torch.cuda."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, standin: CudaStandIn) -> None:
        self._standin = standin
        self.device = standin.device
        self.stream = standin.on

    def is_available(self) -> bool:
        return self._standin.says.n_gpus > 0

    def device_count(self) -> int:
        return self._standin.says.n_gpus

    def init(self) -> None:
        if self._standin.says.at_start is not None:
            raise self._standin.says.at_start

    def current_device(self) -> int:
        self.init()
        return self._standin.current_device

    def set_device(self, device: torch.device) -> None:
        self._standin.local.device = device.index

    def get_device_capability(self, index: int) -> tuple[int, int]:
        self.init()
        return self._standin.says.capability

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self._standin.says.free_nbytes, 1 << 40

    def memory_reserved(self, device: torch.device) -> int:
        return self._standin.gpus[device.index].reserved_nbytes

    def memory_allocated(self, device: torch.device) -> int:
        gpu = self._standin.gpus[device.index]
        return gpu.reserved_nbytes - sum(block.memory.nbytes for block in gpu.idle)

    def current_stream(self, device: torch.device) -> Stream:
        return self._standin.current_stream(device.index)

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        gpu = self._standin.gpus[device.index]
        self._standin.streams.append(Stream(self._standin, device.index, gpu.stream()))
        return self._standin.streams[-1]

    def Event(self, *, blocking: bool = False) -> Event:  # noqa: N802
        if not blocking:
            self._standin.wrong.append("an event that spins")
        return Event(self._standin)


class Stream:
    """torch.cuda.Stream. The handle of a default stream is 0."""

    def __init__(self, standin: CudaStandIn, index: int, late: LateStream) -> None:
        self.index = index
        self.late = late
        self.is_default = late is standin.gpus[index].default
        self.cuda_stream = 0 if self.is_default else id(self)

    def wait_event(self, event: Event) -> None:
        if event.mark is not None:
            self.late.wait(event.mark)


class Event:
    """torch.cuda.Event."""

    def __init__(self, standin: CudaStandIn) -> None:
        self._standin = standin
        self.mark: Mark | None = None

    def record(self, stream: Stream) -> None:
        self._standin.threads.add(threading.current_thread())
        self.mark = stream.late.record()

    def synchronize(self) -> None:
        self._standin.threads.add(threading.current_thread())
        if self.mark is not None:
            self.mark.synchronize()


class Numpy:
    """NumPy, but it tells when memory of `empty` is freed."""

    def __init__(self, standin: CudaStandIn) -> None:
        self.empty = standin.allocate

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
