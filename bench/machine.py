"""What a result depends on: the machine, the versions, the load, and what the page cache holds."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench import ROOT, data

PACKAGES = ("gpuload", "torch", "numpy", "spdl-core", "nvidia-dali-cuda130")
PAGE = mmap.PAGESIZE
TICKS = os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, str]:
    """Return the machine and the versions, each in words."""
    return {
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * PAGE / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "file system": _file_system(data.folder()),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "compiler": _line(0, "g++", "--version"),
        "git": _line(0, "git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        **{name: _version(name) for name in PACKAGES},
    }


def resident_nbytes(path: str) -> int:
    """Return how many bytes of the file the page cache holds, in whole pages."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        n_pages = -(-len(view) // PAGE)
        pages = np.zeros(n_pages, np.uint8)
        array = np.frombuffer(view, np.uint8)
        address, nbytes = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(view))
        failed = libc.mincore(address, nbytes, ctypes.c_void_p(pages.ctypes.data))
        del array  # the map cannot be closed while an array shows it
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", path)
    return int((pages & 1).sum()) * PAGE


def warm(paths: Iterable[str]) -> float:
    """Read all files once; return the share of their pages that the page cache then holds."""
    total = resident = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
        total += -(-Path(path).stat().st_size // PAGE) * PAGE
        resident += resident_nbytes(path)
    return resident / total


def drop(path: str) -> None:
    """Drop the file's pages from the page cache; its pages must be clean and unmapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Others:
    """CPU that processes outside our own tree use, in cores, between start and stop."""

    def __init__(self, wall_s: float) -> None:
        self._wall_s, self._busy_s, self._own_s = wall_s, _busy_s(), _own_s()

    def cores(self, wall_s: float) -> float:
        foreign = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return max(0.0, foreign / (wall_s - self._wall_s))


def _busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / TICKS


def _own_s() -> float:
    """Return CPU seconds of this process, its live descendants, and those already waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parents[pid] = int(rest[1])
        used[pid] = sum(int(field) for field in rest[11:15])  # utime, stime, cutime, cstime
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used.get(pid, 0) for pid in own) / TICKS


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    path.mkdir(parents=True, exist_ok=True)
    return _line(1, "df", "--output=fstype", str(path))


def _line(number: int, *command: str) -> str:
    """Return one line of what the command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.splitlines()[number]
