"""The CUDA source of each kernel, how it is compiled, and where the result is kept. Nothing here
needs a GPU, CuPy or a driver.

Kernels are headers (gpuload/kernels) and one line that stamps an entry point for the types of a
batch. The same text compiles with a C++ compiler, where an entry point runs every thread of a
launch: that is how kernels are tested on machines without a GPU.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuload import system
from gpuload.dtypes import DTYPES

# In the order in which they include each other.
_HEADERS = (
    "numbers.h",
    "random.h",
    "convert.h",
    "order.h",
    "launch.h",
    "transform.h",
    "place.h",
    "pad.h",
    "resize.h",
    "unshuffle.h",
    "crops.h",
)

_TYPES = {
    "bool": "Bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "Half",
    "bfloat16": "Bfloat",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex64",
    "complex128": "Complex128",
}
_REAL = [name for name in DTYPES if not DTYPES[name].is_complex]

# No fused multiply-add and no flushing of subnormals: the same bits as on the host.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--dopt=on")

ITEM_NBYTES = (1, 2, 4, 8, 16)  # sizes of elements

FLOATS = ("float32", "float16", "bfloat16", "float64")  # what scaled values are delivered as

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # what the tests compile for


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point: its name, and the line that makes it."""

    name: str
    stamp: str


def place(from_dtype: str, to_dtype: str, *, affine: bool = False) -> Kernel:
    """place between two element types. With `affine` values are scaled too (real types)."""
    name = f"place_{from_dtype}_to_{to_dtype}" + "_affine" * affine
    types = f"{_TYPES[to_dtype]}, {_TYPES[from_dtype]}, {str(affine).lower()}"
    return Kernel(name, f"GL_KERNEL({name}, PlaceParams, place_thread<{types}>(p, t))")


def cast(from_dtype: str, to_dtype: str) -> Kernel:
    """The place kernel between two element types. Types that move the same bits share one: an
    integer's low bits are the same whatever its sign."""
    if _is_integer(to_dtype) and (_is_integer(from_dtype) or from_dtype == "bool"):
        to_dtype = _unsigned(to_dtype)
    narrows = _is_integer(to_dtype) and DTYPES[to_dtype].nbytes <= DTYPES[from_dtype].nbytes
    if _is_integer(from_dtype) and (narrows or to_dtype == "bool"):
        from_dtype = _unsigned(from_dtype)
    if from_dtype == to_dtype and from_dtype in _REAL:
        return place_raw(DTYPES[from_dtype].nbytes)
    return place(from_dtype, to_dtype)


def _is_integer(dtype: str) -> bool:
    return "int" in dtype


def _unsigned(dtype: str) -> str:
    return "u" + dtype.removeprefix("u")


def place_raw(nbytes: int) -> Kernel:
    """place between elements of one type, of 1, 2, 4 or 8 bytes."""
    name, kind = f"place_{nbytes}", f"u{8 * nbytes}"
    return Kernel(
        name, f"GL_KERNEL({name}, PlaceParams, place_thread<{kind}, {kind}, false>(p, t))"
    )


def crops(from_dtype: str, to_dtype: str) -> Kernel:
    """Windows of resident arrays, drawn on the device. Types of one size are copied alike."""
    name = f"crops_{from_dtype}_to_{to_dtype}"
    types = f"{_TYPES[to_dtype]}, {_TYPES[from_dtype]}"
    if from_dtype == to_dtype and from_dtype in _REAL:
        nbytes = DTYPES[from_dtype].nbytes
        name, types = f"crops_{nbytes}", f"u{8 * nbytes}, u{8 * nbytes}"
    draw = "draw_window(p, t, shared)"
    call = f"crops_thread<{types}>(p, t, shared)"
    return Kernel(name, f"GL_KERNEL_SHARED({name}, CropsParams, DrawnWindow, {draw}, {call})")


def pad(nbytes: int) -> Kernel:
    """pad for elements of 1, 2, 4, 8 or 16 bytes."""
    name = f"pad_{nbytes}"
    return Kernel(name, f"GL_KERNEL({name}, PadParams, pad_thread<{nbytes}>(p, t))")


def resize(from_dtype: str, to_dtype: str) -> Kernel:
    """resize to the same type, or to float32."""
    name = f"resize_{from_dtype}_to_{to_dtype}"
    types = f"{_TYPES[to_dtype]}, {_TYPES[from_dtype]}"
    return Kernel(name, f"GL_KERNEL({name}, ResizeParams, resize_thread<{types}>(p, t))")


def unshuffle(nbytes: int) -> Kernel:
    """Undo HDF5's byte shuffle of elements of `nbytes` bytes; 0 for any number of them."""
    name = f"unshuffle_{nbytes}" if nbytes else "unshuffle_any"
    return Kernel(name, f"GL_KERNEL({name}, UnshuffleParams, unshuffle_thread<{nbytes}>(p, t))")


def can_place(from_dtype: str, to_dtype: str) -> bool:
    """Whether a cast exists: complex values have no real form."""
    return DTYPES[to_dtype].is_complex or not DTYPES[from_dtype].is_complex


def can_crop(from_dtype: str, to_dtype: str) -> bool:
    """Whether windows of held arrays are cast as they are drawn; others are cast after that."""
    return from_dtype == to_dtype or (from_dtype in _REAL and to_dtype == "float32")


def every_kernel() -> Iterator[Kernel]:
    """All that can be launched, each once."""
    pairs = list(itertools.product(DTYPES, repeat=2))
    real = [pair for pair in pairs if not set(pair) - set(_REAL)]
    yield from dict.fromkeys(cast(*pair) for pair in pairs if can_place(*pair))
    yield from dict.fromkeys(crops(*pair) for pair in pairs if can_crop(*pair))
    yield from (place(a, b, affine=True) for a, b in real if b in FLOATS)
    yield from (resize(a, b) for a, b in real if b in (a, "float32"))
    yield from map(pad, ITEM_NBYTES)
    yield from map(unshuffle, (0, *ITEM_NBYTES[1:]))


@functools.cache
def headers() -> str:
    """All headers as one text: nothing is included, so that no cache can miss a change."""
    folder = Path(__file__).parents[1] / "kernels"
    texts = [(folder / name).read_text() for name in _HEADERS]
    return re.sub(r'#pragma once\n|#include ".+"\n', "", "\n".join(texts))


def source(kernels: Iterable[Kernel]) -> str:
    """A program with these entry points."""
    return "\n".join([headers(), *(kernel.stamp for kernel in kernels), ""])


def options(architecture: int) -> tuple[str, ...]:
    """What NVRTC is told, for compute capability `architecture` (90 for 9.0)."""
    digest = hashlib.sha256(headers().encode()).hexdigest()[:16]
    return (f"--gpu-architecture=sm_{architecture}", f"-DGPULOAD_SOURCE=0x{digest}", *OPTIONS)


def compile_program(
    nvrtc: Any, kernels: Sequence[Kernel], architecture: int, *extra: str
) -> tuple[bytes, str]:
    """Compile by NVRTC, which needs no driver.

    Args:
        nvrtc: cupy.cuda.nvrtc.
        extra: further options, such as "--ptxas-options=-v" for register counts in the log.

    Returns:
        The machine code (a cubin) and the compiler's log.
    """
    program = nvrtc.createProgram(source(kernels), "gpuload.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options(architecture), *extra))
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program).strip("\0")
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip("\0")
        raise RuntimeError(f"kernels: {error}: {log}") from error
    finally:
        nvrtc.destroyProgram(program)


def compiled(nvrtc: Any, kernel: Kernel, architecture: int) -> Path:
    """The file with the machine code of a kernel, compiled now when nobody has done so before.

    Files are named by a hash of source, options and compiler, and put in place by a rename: many
    processes may look for one at once.
    """
    text = repr((source([kernel]), options(architecture), nvrtc.getVersion()))
    path = cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"
    if path.exists() and path.stat().st_size > 0:
        return path
    cubin, _ = compile_program(nvrtc, [kernel], architecture)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            file.write(cubin)
            file.flush()
            os.fsync(file.fileno())  # a machine that stops now leaves no empty file behind
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
    return path


@functools.cache
def cache_folder() -> Path:
    """A folder of this user's for compiled kernels, on a local disk where that can be told.

    $GPULOAD_KERNEL_CACHE_DIR, else $XDG_CACHE_HOME/gpuload/kernels; a folder for this process where
    that cannot be written, or lies on a network file system and was not named.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    named = os.environ.get("GPULOAD_KERNEL_CACHE_DIR")
    folder = Path(named or os.path.join(home, "gpuload", "kernels"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            if named or not system.is_network(system.file_system(str(folder))):
                return folder
    except OSError:
        pass
    own = tempfile.mkdtemp(prefix="gpuload-kernels-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)
