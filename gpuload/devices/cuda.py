"""An NVIDIA GPU as a device: memory from torch's allocator, torch's streams, kernels through CuPy.

Thin: each call here is one call of torch, CuPy or the driver. CuPy is imported when a device is
made.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from gpuload import system
from gpuload.devices import Event, Operation, Stream
from gpuload.devices.arguments import LANES, Launch, pack
from gpuload.devices.programs import Kernel, compiled
from gpuload.errors import DeviceError

_PAGE = 4096
_TOUCH_THREADS = 16  # first touch takes 0.3-0.8 s per GiB on one thread
_HOST_REGISTER_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process
_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_OLDEST = (7, 5)  # what the kernels are compiled for in tests


def why_not(index: int = 0) -> str | None:
    """Why this process cannot use a CUDA device, with the remedy; None when it can."""
    if torch.version.cuda is None:
        return (
            f"expected a CUDA build of torch, got torch {torch.__version__}; install one as "
            "pytorch.org says"
        )
    if not torch.cuda.is_available():
        return (
            "expected an NVIDIA GPU with its driver, torch sees none; check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # as in a child that was forked from a process with CUDA
        return (
            f"expected CUDA to start in this process, got {_first_line(error)}; after a fork it "
            "cannot, use spawn"
        )
    n = torch.cuda.device_count()
    if not 0 <= index < n:
        return f"expected a CUDA device of [0, {n}), got {index}; see CUDA_VISIBLE_DEVICES"
    capability = torch.cuda.get_device_capability(index)
    if capability < _OLDEST:
        return (
            f"expected a GPU of compute capability {_dotted(_OLDEST)} or newer, got "
            f"{_dotted(capability)}"
        )
    return _why_not_cupy(torch.version.cuda.split(".")[0], capability)


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _why_not_cupy(major: str, capability: tuple[int, int]) -> str | None:
    remedy = f'pip install "gpuload[cuda{major}]"'
    try:
        import cupy
    except Exception as error:  # whatever a broken installation raises
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            return f"expected CuPy beside torch, found none; {remedy}"
        return f"expected CuPy to import, got {_first_line(error)}; {remedy}"
    if not hasattr(cupy.cuda.Stream, "from_external"):
        return f"expected CuPy 14 or newer, got {cupy.__version__}; {remedy}"
    try:
        built, driver = (
            cupy.cuda.runtime.runtimeGetVersion() // 1000,
            cupy.cuda.runtime.driverGetVersion() // 1000,
        )
        if driver < built:
            return (
                f"expected a driver for CUDA {built} as CuPy is built for, got one for CUDA "
                f"{driver}; {remedy}, or update the driver"
            )
        known = cupy.cuda.nvrtc.getSupportedArchs()
        if 10 * capability[0] + capability[1] not in known:
            return (
                f"expected CuPy's compiler to know compute capability {_dotted(capability)}, it "
                f"knows up to {max(known) / 10:.1f}; {remedy} --upgrade"
            )
    except Exception as error:
        return (
            f"expected CuPy to find CUDA {major} as torch does, got {_first_line(error)}; {remedy}"
        )
    return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class CudaEvent:
    """A point in a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        # Waiting threads sleep: they do not spin.
        self.torch: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.torch.record(stream)

    def synchronize(self) -> None:
        self.torch.synchronize()


class _Handle:
    """A torch stream under the CUDA stream protocol, which older torch does not speak itself."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream  # must outlive what is made of its handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


class CudaStream:
    """A torch stream, entered by CuPy for launches."""

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream) -> None:
        self.device = device
        self.torch = stream

    @functools.cached_property
    def _cupy(self) -> Any:
        return self.device.cupy.cuda.Stream.from_external(_Handle(self.torch))

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        with torch.cuda.stream(self.torch):
            dst.copy_(src, non_blocking=True)

    def launch(self, operation: Operation) -> None:
        launch = pack(operation)
        kernel = self.device.load(launch.kernel)
        with torch.cuda.device(self.device.index), self._cupy:
            kernel(launch.grid, (LANES,), (by_value(launch),))

    def record(self) -> CudaEvent:
        return CudaEvent(self.torch)

    def wait(self, event: Event) -> None:
        if isinstance(event, CudaEvent):
            self.torch.wait_event(event.torch)
        else:  # of a buffer that nothing has used yet
            event.synchronize()


def by_value(launch: Launch) -> np.ndarray[Any, Any]:
    """The parameters as CuPy passes a structure: an array of one element of as many bytes."""
    return np.frombuffer(bytes(launch.params), f"V{ctypes.sizeof(launch.params)}")


class CudaDevice:
    """GPU number `index` of this process.

    Raises:
        DeviceError: it cannot be used; the message says why, and what to do.
    """

    is_host = False

    def __init__(self, index: int) -> None:
        problem = why_not(index)
        if problem is not None:
            raise DeviceError(f"device: {problem}")
        import cupy

        self.cupy: Any = cupy
        self.index = index
        self.name = f"cuda:{index}"
        self.torch = torch.device("cuda", index)
        major, minor = torch.cuda.get_device_capability(index)
        self._architecture = 10 * major + minor
        self._kernels: dict[str, Any] = {}

    # ---- Streams

    def stream(self) -> CudaStream:
        # One of torch's pool: they do not block on the legacy default stream.
        return CudaStream(self, torch.cuda.Stream(self.torch))  # type: ignore[no-untyped-call]

    def current_stream(self) -> CudaStream:
        return CudaStream(self, torch.cuda.current_stream(self.torch))

    def enter_thread(self) -> None:
        """Let this thread wait for events while another one captures a CUDA graph: by default that
        would end the capture (cuThreadExchangeStreamCaptureMode, CUDA driver API)."""
        torch.cuda.set_device(self.torch)
        _exchange_capture_mode(_CAPTURE_MODE_RELAXED)

    # ---- Kernels

    def prepare(self, operation: Operation) -> None:
        """Compile and load what an operation needs."""
        with torch.cuda.device(self.index):
            _ = self.load(pack(operation).kernel).num_regs  # asks the driver: loads the module

    def load(self, kernel: Kernel) -> Any:
        """The CuPy kernel, compiled when no process of this user has done so before."""
        found = self._kernels.get(kernel.name)
        if found is None:
            path = compiled(self.cupy.cuda.nvrtc, kernel, self._architecture)
            module = self.cupy.RawModule(path=str(path))
            found = self._kernels[kernel.name] = module.get_function(kernel.name)
        return found

    # ---- Memory

    def memory(self, nbytes: int, *, stream: Stream) -> torch.Tensor:
        assert isinstance(stream, CudaStream)
        try:
            with torch.cuda.stream(stream.torch):
                return torch.empty(nbytes, dtype=torch.uint8, device=self.torch)
        except torch.cuda.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.torch)
            reserved = torch.cuda.memory_reserved(self.torch)
            raise DeviceError(
                f"{self.name}: expected {nbytes} bytes of device memory, got {free} free of "
                f"{total}, {reserved} held by torch; lower batch_size or prefetch"
            ) from error

    def free_nbytes(self) -> int:
        """Device memory that can still be had, with what torch keeps unused."""
        free, _ = torch.cuda.mem_get_info(self.torch)
        kept = torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
        return free + kept

    def hand_over(self, memory: torch.Tensor, stream: Stream) -> None:
        assert isinstance(stream, CudaStream)
        memory.record_stream(stream.torch)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        base = np.empty(nbytes + _PAGE, np.uint8)
        begin = -base.ctypes.data % _PAGE
        aligned = base[begin : begin + nbytes]
        address = aligned.ctypes.data
        first_touch(address, nbytes, cores=self._near_cores)
        try:
            with torch.cuda.device(self.index):
                self.cupy.cuda.runtime.hostRegister(address, nbytes, _HOST_REGISTER_PORTABLE)
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"{self.name}: expected to pin {nbytes} bytes of host memory, got "
                f"{_first_line(error)}; lower prefetch or batch_size, or raise the memory limit "
                "(ulimit -l, the container's)"
            ) from error
        # Unpinned before `base` is freed: the callback holds it.
        unpin = weakref.finalize(aligned, _unregister, self, address, base, os.getpid())
        unpin.atexit = False
        return torch.from_numpy(aligned)

    @functools.cached_property
    def _near_cores(self) -> frozenset[int]:
        """The cores of the NUMA node that this GPU is attached to, empty when unknown."""
        address = self.cupy.cuda.runtime.deviceGetPCIBusId(self.index)
        cores = {node.number: node.cores for node in system.numa_nodes()}
        node = system.pci_numa_node(address)
        return frozenset() if node is None else frozenset(system.cores_listed(cores.get(node, "")))


def _unregister(device: CudaDevice, address: int, base: np.ndarray[Any, Any], pid: int) -> None:
    if os.getpid() != pid:  # in a forked child nothing is pinned, and the driver is no use
        return
    before = _exchange_capture_mode(
        _CAPTURE_MODE_RELAXED
    )  # any thread may be the one that collects
    with torch.cuda.device(device.index):
        device.cupy.cuda.runtime.hostUnregister(address)
    _exchange_capture_mode(before)


def _exchange_capture_mode(mode: int) -> int:
    """Set how this thread goes with captures of others; what it was before."""
    exchanged = ctypes.c_int(mode)
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    return exchanged.value


def first_touch(address: int, nbytes: int, *, cores: frozenset[int]) -> None:
    """Have memory given by the system now, in parallel, near `cores` (empty: anywhere)."""
    allowed = os.sched_getaffinity(0)
    near = (cores & allowed) or allowed
    n = max(1, min(_TOUCH_THREADS, len(near), nbytes // (1 << 20)))
    parts = [(nbytes * k // n, nbytes * (k + 1) // n) for k in range(n)]

    def touch(part: tuple[int, int]) -> None:
        os.sched_setaffinity(0, near)  # of this thread alone: memory comes from where it runs
        ctypes.memset(address + part[0], 0, part[1] - part[0])

    with ThreadPoolExecutor(n) as threads:
        list(threads.map(touch, parts))


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
