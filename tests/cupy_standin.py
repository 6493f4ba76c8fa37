"""CuPy, NVRTC and the driver for machines without a GPU: the part of cuda_standin.py that takes the
place of cupy and of libcuda."""

from __future__ import annotations

import re
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_standin import CudaStandIn, Stream

GLOBAL, RELAXED = 0, 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime.CUDARuntimeError, without the library that knows the texts."""


def make_cupy(standin: CudaStandIn) -> types.ModuleType:
    """The module cupy."""
    says = standin.says

    class CupyStream:
        """cupy.cuda.Stream."""

        def __init__(self, stream: Stream, keeps: object) -> None:
            self._stream, self._keeps = stream, keeps

        @classmethod
        def from_external(cls, obj: Any) -> CupyStream:
            version, handle = obj.__cuda_stream__()
            assert version == 0
            # All default streams have one handle.
            default = standin.defaults[standin.current_device]
            return cls(default if handle == 0 else standin.by_handle(handle), obj)

        def __enter__(self) -> CupyStream:
            if self._stream.index != standin.current_device:
                standin.wrong.append("a stream of another GPU is entered")
            stacks = standin._entered(standin.local, "cupy_streams")
            stacks.setdefault(self._stream.index, []).append(self._stream)
            return self

        def __exit__(self, *exc: object) -> None:
            standin._entered(standin.local, "cupy_streams")[self._stream.index].pop()

    class RawKernel:
        """cupy.RawKernel."""

        def __init__(self, name: str) -> None:
            self.name = name
            self._is_loaded = False

        def _load(self) -> None:
            standin.uses("a module", standin.current_device)
            if not self._is_loaded:
                standin.loaded.append(self.name)
            self._is_loaded = True

        @property
        def num_regs(self) -> int:
            self._load()
            return 32

        def __call__(self, grid: Any, block: Any, args: Any) -> None:
            self._load()
            standin.launch(self.name, grid, block, args)

    class RawModule:
        """cupy.RawModule of a file with machine code."""

        def __init__(self, *, path: str) -> None:
            assert isinstance(path, str)  # what CuPy's Cython takes
            self._code = Path(path).read_bytes()

        def get_function(self, name: str) -> RawKernel:
            assert name.encode() in self._code
            return RawKernel(name)

    if not says.has_from_external:
        del CupyStream.from_external
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "14.2.0" if says.has_from_external else "13.6.0"
    cupy.RawModule = RawModule
    cupy.cuda = types.SimpleNamespace(
        Stream=CupyStream,
        nvrtc=Nvrtc(standin),
        runtime=types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            deviceGetPCIBusId=lambda device: "0000:C1:00.0",
            driverGetVersion=lambda: says.driver_version,
            hostRegister=standin.register,
            hostUnregister=standin.unregister,
            runtimeGetVersion=lambda: says.runtime_version,
        ),
    )
    return cupy


class Nvrtc:
    """cupy.cuda.nvrtc. Its machine code is the names of the kernels."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self, standin: CudaStandIn) -> None:
        self._standin = standin
        self._programs: dict[int, str] = {}

    def getVersion(self) -> tuple[int, int]:  # noqa: N802
        if self._standin.says.at_nvrtc is not None:
            raise self._standin.says.at_nvrtc
        return 13, 5

    def getSupportedArchs(self) -> list[int]:  # noqa: N802
        self.getVersion()
        return [75, 80, 86, 89, 90, 100, 103, 110, 120, 121]

    def createProgram(self, src: str, name: str, headers: Any, include_names: Any) -> int:  # noqa: N802
        self._programs[len(self._programs) + 1] = src
        return len(self._programs)

    def compileProgram(self, prog: int, options: Any) -> None:  # noqa: N802
        assert "--gpu-architecture=sm_90" in options
        self._standin.compiled += self._names(prog)

    def getCUBIN(self, prog: int) -> bytes:  # noqa: N802
        return " ".join(self._names(prog)).encode()

    def getProgramLog(self, prog: int) -> str:  # noqa: N802
        return ""

    def destroyProgram(self, prog: int) -> None:  # noqa: N802
        self._programs[prog] = ""

    def _names(self, prog: int) -> list[str]:
        return re.findall(r"^GL_KERNEL\w*\((\w+),", self._programs[prog], re.M)


class Unimportable:
    """An import system that finds cupy broken, and nothing else."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._others = list(sys.meta_path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "cupy":
            raise self._error
        specs = (finder.find_spec(name, path, target) for finder in self._others)
        return next((spec for spec in specs if spec is not None), None)


class Driver:
    """libcuda.so.1."""

    def __init__(self, standin: CudaStandIn) -> None:
        self._standin = standin

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        wanted = mode._obj  # what ctypes.byref() refers to; it gets the mode of before
        thread, relaxed = threading.current_thread(), self._standin.relaxed
        before = RELAXED if thread in relaxed else GLOBAL
        if wanted.value == RELAXED:
            relaxed[thread] = self._standin.current_device
        else:
            relaxed.pop(thread, None)
        wanted.value = before
        return 0
