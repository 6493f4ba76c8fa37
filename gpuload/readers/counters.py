"""Who counted a read into device memory: what cuFile and nvidia-fs say, and what that proves.

A library that does not say that it falls back to host memory is no proof; a counter that moved is.
Nothing is read or opened here but counters.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NVFS_STATS = Path("/proc/driver/nvidia-fs/stats")

_WAYS = ("p2p", "nvfs", "posix")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether reads go from storage to the device past host memory, and how that is known."""

    is_gds: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads of this process that cuFile counted, by the way that they took."""

    p2p: int
    nvfs: int
    posix: int  # through host memory

    def since(self, before: Reads) -> Reads:
        return Reads(*(getattr(self, way) - getattr(before, way) for way in _WAYS))


def judge(cufile: Reads | None, nvfs: int | None) -> Verdict:
    """What these counts of one trial read prove. None: nobody counted.

    cuFile's own are believed first: they are of this process alone.
    """
    if cufile is not None and cufile.posix > 0:
        return Verdict(
            False,
            f"cuFile read through host memory: it counted {cufile.posix} posix, {cufile.p2p} "
            f"P2PDMA and {cufile.nvfs} nvidia-fs reads; `gdscheck -p` and cufile.log say why",
        )
    if cufile is not None and (cufile.p2p > 0 or cufile.nvfs > 0):
        way = "P2PDMA" if cufile.p2p > 0 else "nvidia-fs"
        return Verdict(True, f"cuFile counted the trial read as one over {way}")
    if nvfs is None:
        return Verdict(
            False,
            "nobody counted the trial read: expected cuFile's counters (pip install cuda-bindings) "
            "or nvidia-fs loaded with rw_stats_enabled=1 and otherwise idle, got neither",
        )
    if nvfs > 0:
        return Verdict(True, "nvidia-fs counted the trial read")
    return Verdict(False, "the trial read went through host memory: nvidia-fs did not count it")


def parse_nvfs_reads(text: str) -> int | None:
    """Reads that nvidia-fs has done for all processes; None when it does not count them.

    `text` is what NVFS_STATS holds (nvidia-fs 2.3 to 2.28, src/nvfs-stat.c). "Reads" is there once
    or twice and "Sparse Reads" is something else; with rw_stats_enabled=0 only errors are counted.
    """
    lines = re.findall(r"^\s*Reads\s*:(.*)$", text, re.M)
    counts = dict(re.findall(r"([\w-]+)\s*=\s*(\d+)", " ".join(lines)))
    found = counts.get("ok", counts.get("n"))
    return None if found is None else int(found)


def nvfs_reads() -> int | None:
    """What nvidia-fs says now; None where it is not loaded."""
    try:
        return parse_nvfs_reads(NVFS_STATS.read_text(errors="replace"))
    except OSError:
        return None


@contextlib.contextmanager
def cufile_counters() -> Iterator[Callable[[], Reads | None]]:
    """Have cuFile count, and give the function that reads its counters. Its driver must be open."""
    cufile: Any = None
    level: int | None = None
    with contextlib.suppress(Exception):  # not installed, or a libcufile that does not count
        cufile = _cufile()
        level = cufile.get_stats_level()
        cufile.set_stats_level(3)
        cufile.stats_start()
    try:
        yield lambda: None if cufile is None else read_cufile(cufile)
    finally:
        # Left on, they cost time in each read and have made processes crash at their end.
        if level is not None:
            with contextlib.suppress(Exception):
                if level == 0:
                    cufile.stats_stop()
            with contextlib.suppress(Exception):
                cufile.set_stats_level(level)


def read_cufile(cufile: Any) -> Reads | None:
    """Sums over all GPUs, by `cufile` (the module cuda.bindings.cufile); None when libcufile does
    not give them, or not in the layout that the module knows."""
    # A libcufile newer than the module writes more than that knows of: leave room.
    raw = np.zeros(1 << 16, np.uint8)
    try:
        cufile.get_stats_l3(raw.ctypes.data)
        layout = np.dtype(cufile.stats_level3_dtype)
        stats = raw[: layout.itemsize].view(layout)[0]
        n_gpus, gpus = int(stats["num_gpus"]), stats["per_gpu_stats"]
        if n_gpus > len(gpus):
            return None
        return Reads(*(int(gpus[f"n_{way}_reads"][:n_gpus].sum()) for way in _WAYS))
    except Exception:  # which one depends on the versions of both
        return None


def _cufile() -> Any:
    from cuda.bindings import cufile

    return cufile
