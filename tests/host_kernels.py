"""The kernels as a library for the host: an entry point runs every (block, thread) of a launch.

It is built from the text that NVRTC gets, with one more function per parameter structure, which
tells how the compiler laid it out.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuload.devices import params, programs
from gpuload.devices.arguments import Launch

KERNELS = Path(__file__).parents[1] / "gpuload" / "kernels"
STRUCTS = {  # names in gpuload/kernels -> their forms in Python
    "Affine": params.AffineParams,
    "PlaceParams": params.PlaceParams,
    "PadParams": params.PadParams,
    "ResizeParams": params.ResizeParams,
    "UnshuffleParams": params.UnshuffleParams,
    "Permutation": params.PermutationParams,
    "Shuffled": params.ShuffledParams,
    "CropsParams": params.CropsParams,
}
PARTS = 4  # compiled at the same time, where there are cores for it
_OPTIONS = "-std=c++20 -O1 -ffp-contract=off -fPIC -Wall -Wextra -Wconversion -Wshadow -Werror"
# `#pragma unroll` is for the device.
OPTIONS = (*_OPTIONS.split(), "-Wno-unknown-pragmas")
SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class HostKernels:
    """A built library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))

    def run(self, launch: Launch) -> None:
        """Run a launch to its end."""
        kernel = getattr(self._library, launch.kernel.name)
        kernel.restype = None
        kernel(ctypes.byref(launch.params), *map(ctypes.c_uint32, launch.grid))

    def layout(self, struct: str) -> dict[str, tuple[int, int]]:
        """(offset, nbytes) of each field as compiled, and of the whole under the name ""."""
        fields = [name for name, _ in STRUCTS[struct]._fields_]
        numbers = (ctypes.c_uint64 * (2 * len(fields) + 2))()
        getattr(self._library, f"layout_{struct}")(numbers)
        return dict(zip(["", *fields], zip(numbers[::2], numbers[1::2], strict=True), strict=True))


def build(folder: Path) -> HostKernels:
    """Load every kernel."""
    return HostKernels(library(folder, programs.every_kernel()))


def library(folder: Path, kernels: Iterable[programs.Kernel], *flags: str) -> Path:
    """Build kernels below `folder`, or find them there: files are named by what they are made
    of."""
    chosen = sorted(set(kernels), key=lambda kernel: kernel.name)
    texts = [programs.source(chosen[i::PARTS]) for i in range(PARTS)]
    texts.append("\n".join([programs.headers(), *map(_layout_function, STRUCTS)]))
    command = (os.environ.get("CXX", "g++"), *OPTIONS, *flags)
    digest = hashlib.sha256(repr((texts, command)).encode()).hexdigest()[:16]
    path = folder / f"gpuload-host-kernels-{digest}.so"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes that test, one compiles
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _compile(Path(scratch), texts, command).rename(path)
    return path


def _compile(scratch: Path, texts: Sequence[str], command: Sequence[str]) -> Path:
    def compile_part(i: int) -> str:
        path = scratch / f"{i}.cpp"
        path.write_text(texts[i])
        _call(*command, "-c", path, "-o", path.with_suffix(".o"))
        return str(path.with_suffix(".o"))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_part, range(len(texts))))
    _call(*command, "-shared", *objects, "-o", scratch / "all.so")
    return scratch / "all.so"


def _call(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:5000]


def _layout_function(struct: str) -> str:
    names = [name for name, _ in STRUCTS[struct]._fields_]
    offsets = [f"__builtin_offsetof(T, {name}), sizeof(T::{name})" for name in names]
    return f"""
extern "C" void layout_{struct}(unsigned long long *out) {{
    using T = gpuload::{struct};
    const unsigned long long numbers[] = {{{", ".join(["0, sizeof(T)", *offsets])}}};
    for (unsigned long long number : numbers) *out++ = number;
}}
"""
