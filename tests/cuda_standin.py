"""torch.cuda and CuPy for machines without a GPU: devices/cuda.py runs on them as it is.

Streams run late (late.py), and kernels are those built for the host. They watch their user: what a
real GPU would punish, or would hide, is in `wrong`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cupy_standin import Driver, Unimportable, make_cupy
from host_kernels import HostKernels
from late import Block, LateDevice, LateStream, alias
from torch_standin import Numpy, Stream, Torch

from gpuload.devices import cuda, params, programs
from gpuload.devices.arguments import LANES, Launch
from gpuload.devices.programs import Kernel

PAGE = 4096
PORTABLE = 1  # cudaHostRegisterPortable
STRUCTS = {
    "place": params.PlaceParams,
    "pad": params.PadParams,
    "resize": params.ResizeParams,
    "unshuffle": params.UnshuffleParams,
    "crops": params.CropsParams,
}
_copy = torch.Tensor.copy_


@dataclass
class Says:
    """What the machine, torch, CuPy and the driver say. An exception is raised where one is set."""

    torch_cuda: str | None = "13.0"
    n_gpus: int = 1
    current: int = 0  # the device of a thread that has set none
    runtime_version: int = 13020
    driver_version: int = 13020
    capability: tuple[int, int] = (9, 0)
    has_from_external: bool = True
    free_nbytes: int = 1 << 40
    at_import: Exception | None = None
    at_start: Exception | None = None
    at_nvrtc: Exception | None = None
    at_register: Callable[[int], Exception | None] = lambda nbytes: None
    at_allocation: Callable[[int], Exception | None] = lambda nbytes: None


@dataclass(eq=False)
class Allocation:
    """Host memory, and whether it has been given back to the system."""

    begin: int
    nbytes: int
    is_freed: bool = False


@dataclass(eq=False)
class Registration:
    """Pinned host memory, and the copies that still have to read it."""

    address: int
    nbytes: int
    allocation: Allocation | None
    pending: list[LateStream] = field(default_factory=list)

    def holds(self, tensor: torch.Tensor) -> bool:
        begin = tensor.data_ptr()
        return self.address <= begin and begin + tensor.nbytes <= self.address + self.nbytes


class CudaStandIn:
    """`install()` puts it where devices/cuda.py looks; `check()` is for the end."""

    def __init__(self, kernels: HostKernels | None = None, **says: Any) -> None:
        self.says = Says(**says)
        self.kernels = kernels
        self.gpus = [LateDevice() for _ in range(self.says.n_gpus)]
        self.wrong: list[str] = []
        self.streams: list[Stream] = []
        self.compiled: list[str] = []  # names of kernels
        self.loaded: list[str] = []
        self.launched: list[str] = []
        self.on_streams: list[Stream] = []  # of each copy and launch
        self.registrations: list[Registration] = []
        self.n_registered = 0
        self.threads: set[threading.Thread] = set()  # that used the device
        self.relaxed: dict[threading.Thread, int] = {}  # those that entered, and their GPU
        self.local = threading.local()
        self.allocations: list[Allocation] = []
        self.defaults = [Stream(self, i, gpu.default) for i, gpu in enumerate(self.gpus)]
        self.torch = Torch(self)
        self.cupy = make_cupy(self)

    def install(self, monkeypatch: Any, folder: Path) -> None:
        """Take the place of torch, NumPy and the driver in devices/, and of the module cupy.

        Args:
            folder: for compiled kernels.
        """
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(programs, "cache_folder", lambda: folder)
        monkeypatch.setattr(cuda, "torch", self.torch)
        monkeypatch.setattr("gpuload.devices.choose.torch", self.torch)
        monkeypatch.setattr(cuda, "np", Numpy(self))
        monkeypatch.setattr(cuda, "_driver", lambda: Driver(self))
        monkeypatch.setitem(sys.modules, "cupy", self.cupy)
        if self.says.at_import is not None:
            monkeypatch.delitem(sys.modules, "cupy")
            monkeypatch.setattr(sys, "meta_path", [Unimportable(self.says.at_import)])
        # Functions, which Python binds to the tensor.
        monkeypatch.setattr(torch.Tensor, "copy_", lambda *a, **k: self._copy_(*a, **k))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *a: self._record_stream(*a))

    def check(self) -> None:
        """Nothing went wrong, nothing is left."""
        gc.collect()
        self.synchronize()
        assert self.wrong == []
        names = {thread.name for thread in self.threads - set(self.relaxed)}
        assert names <= {threading.main_thread().name}, "they would end the capture of a graph"
        assert self.registrations == [], "memory that is still pinned"
        assert all(gpu.dropped_too_soon == 0 for gpu in self.gpus)

    def synchronize(self) -> None:
        for gpu in self.gpus:
            gpu.synchronize()

    def by_handle(self, handle: int) -> Stream:
        return next(s for s in [*self.defaults, *self.streams] if s.cuda_stream == handle)

    def uses(self, what: str, index: int) -> None:
        """Called for whatever needs the device: the thread must have it as its current one."""
        self.threads.add(threading.current_thread())
        if self.current_device != index:
            self.wrong.append(f"{what} for GPU {index} while {self.current_device} is current")

    # ---- What is current in this thread

    @property
    def current_device(self) -> int:
        return getattr(self.local, "device", self.says.current)

    def current_stream(self, index: int) -> Stream:
        return self._entered(self.local, "streams").get(index, self.defaults[index])

    def current_cupy_stream(self, index: int) -> Stream | None:
        stack = self._entered(self.local, "cupy_streams").get(index, [])
        return stack[-1] if stack else None

    @staticmethod
    def _entered(local: threading.local, name: str) -> dict[int, Any]:
        if not hasattr(local, name):
            setattr(local, name, {})
        return getattr(local, name)

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.local.device = self.current_device, index
        try:
            yield
        finally:
            self.local.device = before

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """torch.cuda.stream(): its stream and its device are the current ones."""
        streams = self._entered(self.local, "streams")
        before = streams.get(stream.index)
        streams[stream.index] = stream
        try:
            with self.device(stream.index):
                yield
        finally:
            streams.pop(stream.index)
            if before is not None:
                streams[stream.index] = before

    # ---- Memory

    def empty(self, nbytes: int, index: int) -> torch.Tensor:
        self.uses("memory", index)
        if index not in self._entered(self.local, "streams"):
            self.wrong.append("memory is allocated outside of an entered stream")
        _raise(self.says.at_allocation(nbytes))
        return self.gpus[index].memory(nbytes, stream=self.current_stream(index).late)

    def block_of(self, tensor: torch.Tensor) -> tuple[int, Block] | None:
        """The device memory that a tensor lies in, and its GPU; None for host memory."""
        at = tensor.data_ptr()
        for index, gpu in enumerate(self.gpus):
            for block in list(gpu.blocks):
                begin = block.memory.ctypes.data
                if begin <= at < begin + max(block.memory.nbytes, 1):
                    return index, block
        return None

    def _record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        found = self.block_of(tensor)
        if not tensor.nbytes:
            return
        if found is None:
            self.wrong.append("record_stream() of memory that is not the allocator's")
            return
        gpu = self.gpus[found[0]]
        with gpu.lock:
            gpu.recycle()
            found[1].users.append(stream.late)

    def _copy_(
        self, dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        to, from_ = self.block_of(dst), self.block_of(src)
        if to is None and from_ is None:
            return _copy(dst, src, non_blocking)
        index = to[0] if to is not None else from_[0]
        self.uses("a copy", index)
        if index not in self._entered(self.local, "streams"):
            self.wrong.append("a copy outside of an entered stream")
        if not non_blocking:
            self.wrong.append("a copy that blocks")
        pinned = next((r for r in self.registrations if r.holds(src)), None)
        if from_ is None and pinned is None and src.nbytes:
            self.wrong.append("a copy from memory that is not pinned")
        if src.nbytes:
            self._enqueue_copy(dst, src, self.current_stream(index), pinned)
        return dst

    def _enqueue_copy(
        self,
        dst: torch.Tensor,
        src: torch.Tensor,
        stream: Stream,
        pinned: Registration | None,
    ) -> None:
        assert (dst.nbytes, dst.dtype) == (src.nbytes, src.dtype)
        assert dst.is_contiguous()
        assert src.is_contiguous()
        to, from_ = alias(dst), alias(src)  # a command keeps no memory alive
        if pinned is not None:
            pinned.pending.append(stream.late)

        def run() -> None:
            _copy(to, from_)
            if pinned is not None:
                pinned.pending.remove(stream.late)

        self.on_streams.append(stream)
        stream.late.do(run)

    def register(self, address: int, nbytes: int, flags: int) -> None:
        """cudaHostRegister."""
        self.uses("pinning", self.current_device)
        allocation = next(
            (a for a in self.allocations if a.begin <= address < a.begin + a.nbytes), None
        )
        is_inside = (
            allocation is not None and address + nbytes <= allocation.begin + allocation.nbytes
        )
        if address % PAGE or nbytes < 1 or flags != PORTABLE or not is_inside:
            self.wrong.append(f"hostRegister({address:#x}, {nbytes}, {flags})")
        if any(
            address < r.address + r.nbytes and r.address < address + nbytes
            for r in self.registrations
        ):
            self.wrong.append("memory is pinned twice")
        _raise(self.says.at_register(nbytes))
        self.registrations.append(Registration(address, nbytes, allocation))
        self.n_registered += 1

    def unregister(self, address: int) -> None:
        """cudaHostUnregister."""
        found = next((r for r in self.registrations if r.address == address), None)
        if found is None:
            self.wrong.append("memory is unpinned that is not pinned")
            return
        self.registrations.remove(found)
        if found.pending:
            self.wrong.append("memory is unpinned that a copy still reads")
            for stream in list(found.pending):
                stream.synchronize()

    def allocate(self, nbytes: int, dtype: object) -> np.ndarray:
        """numpy.empty."""
        memory = np.empty(nbytes, dtype)
        allocation = Allocation(memory.ctypes.data, memory.nbytes)
        self.allocations.append(allocation)

        def free() -> None:
            allocation.is_freed = True
            self.allocations.remove(allocation)
            if any(r.allocation is allocation for r in self.registrations):
                self.wrong.append("memory is freed while it is pinned")

        weakref.finalize(memory, free).atexit = False
        return memory

    # ---- Kernels

    def launch(self, name: str, grid: Any, block: Any, args: Any) -> None:
        """RawKernel.__call__, as CuPy takes its arguments (cupy/cuda/function.pyx)."""
        index = self.current_device
        self.uses("a launch", index)
        stream = self.current_cupy_stream(index)
        if stream is None:
            self.wrong.append("a launch outside of an entered stream")
            return
        for numbers in (grid, block):
            assert isinstance(numbers, tuple)
            assert all(type(n) is int and n >= 1 for n in numbers)
        assert block == (LANES,)
        (passed,) = args
        kind = STRUCTS[name.split("_")[0]]
        assert isinstance(passed, np.ndarray)
        assert passed.size == 1  # CuPy passes nothing else by value
        assert passed.dtype == np.dtype(f"V{ctypes.sizeof(kind)}")
        launch = Launch(Kernel(name, ""), kind.from_buffer_copy(passed.tobytes()), grid)
        self.launched.append(name)
        self.on_streams.append(stream)
        stream.late.do(lambda: self.kernels.run(launch))


def _raise(error: Exception | None) -> None:
    """Raise it, without a frame that keeps it: its traceback keeps all that the caller has."""
    try:
        if error is not None:
            raise error
    finally:
        del error
