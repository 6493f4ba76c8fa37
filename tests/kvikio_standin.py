"""A kvikio and a cuFile for machines without a GPU: reads into host tensors, in threads, late.

It watches its user: what would be a race or a use after close with the real one is in `wrong`.
"""

from __future__ import annotations

import ctypes
import enum
import os
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import torch

from gpuload.catalog import Paths
from gpuload.readers.device_files import PAGE, DeviceFiles, page_aligned


class CompatMode(enum.IntEnum):
    OFF, ON, AUTO = 0, 1, 2


class IOFuture:
    def __init__(self, future: Future[int]) -> None:
        self.future: Future[int] | None = future

    def get(self) -> int:
        future, self.future = self.future, None
        if future is None:
            raise RuntimeError("No associated state")  # as std::future says
        return future.result(timeout=20)


class StandIn:
    """Looks like the module. `before_read(path, offset, nbytes)` runs in the thread of each read
    and may wait, raise, or return how many bytes come."""

    __version__ = "26.10.00"
    CompatMode = CompatMode

    def __init__(
        self,
        *,
        seed: int = 0,
        task_size: int = 4 << 20,
        gds_threshold: int = 16 << 10,
        n_threads: int = 4,
    ) -> None:
        self.settings = {
            "compat_mode": CompatMode.AUTO,
            "gds_threshold": gds_threshold,
            "num_threads": n_threads,
            "task_size": task_size,
        }
        self.is_compat = False
        self.has_direct = True
        self.before_read = lambda path, offset, nbytes: None
        self.register_error = self.deregister_error = ""
        self.wrong: list[str] = []
        self.log: list[tuple[str, object]] = []
        self.open_files: list[CuFile] = []
        self.max_open = 0
        self.reads: list[tuple[str, int, int]] = []
        self.writing: list[tuple[int, int]] = []
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(n_threads)
        self.random = random.Random(seed)
        self.defaults = SimpleNamespace(
            get=self._get, is_compat_mode_preferred=lambda: self.is_compat
        )
        self.buffer = SimpleNamespace(
            memory_register=self._memory_register, memory_deregister=self._memory_deregister
        )

    def CuFile(self, file, flags: str = "r") -> CuFile:  # noqa: N802
        return CuFile(self, file, flags)

    def _get(self, config_name: str):
        return self.settings[config_name]

    def _memory_register(self, buf) -> None:
        if self.register_error:
            raise RuntimeError(self.register_error)
        self.log.append(("register", buf.data_ptr()))

    def _memory_deregister(self, buf) -> None:
        if self.writing:
            self.wrong.append("memory was deregistered under a read")
        if self.deregister_error:
            raise RuntimeError(self.deregister_error)
        self.log.append(("deregister", buf.data_ptr()))


class CuFile:
    def __init__(self, kvikio: StandIn, file: str, flags: str) -> None:
        try:
            self.descriptors = [os.open(file, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)]
        except OSError as error:
            raise RuntimeError(f"Unable to open file.\n at: file_utils.cpp: {error}") from None
        self.kvikio, self.path, self.closed, self.n_reading = kvikio, file, False, 0
        kvikio.open_files.append(self)
        kvikio.max_open = max(kvikio.max_open, len(kvikio.open_files))
        kvikio.log.append(("open", file))

    def fileno(self) -> int:
        return self.descriptors[0]

    def is_direct_io_supported(self) -> bool:
        return self.kvikio.has_direct

    def close(self) -> None:
        if self.closed:
            return
        if self.n_reading:
            self.kvikio.wrong.append(f"{self.path} was closed under a read")
        self.closed = True
        self.kvikio.open_files.remove(self)
        self.kvikio.log.append(("close", self.path))
        for descriptor in self.descriptors:
            os.close(descriptor)

    def pread(self, buf: torch.Tensor, size=None, file_offset=0, task_size=None) -> IOFuture:
        kvikio = self.kvikio
        size = buf.nbytes if size is None else size
        assert buf.is_contiguous()
        assert size <= buf.nbytes
        assert not self.closed
        if (task_size or kvikio.settings["task_size"]) < size:
            kvikio.wrong.append("several tasks: an error of one leaves the others running")
        with kvikio.lock:
            begin, end = buf.data_ptr(), buf.data_ptr() + size
            if any(b < end and begin < e for b, e in kvikio.writing):
                kvikio.wrong.append("the same memory is read into twice at once")
            kvikio.writing.append((begin, end))
            kvikio.reads.append((self.path, file_offset, size))
            self.n_reading += 1
            delay = kvikio.random.random() / 500
        if size < kvikio.settings["gds_threshold"]:  # at once, on the calling thread
            future: Future[int] = Future()
            future.set_result(self._read(buf, size, file_offset, 0))
            return IOFuture(future)
        return IOFuture(kvikio.pool.submit(self._read, buf, size, file_offset, delay))

    def _read(self, buf: torch.Tensor, size: int, offset: int, delay: float) -> int:
        kvikio = self.kvikio
        try:
            time.sleep(delay)
            wanted = kvikio.before_read(self.path, offset, size)
            data = os.pread(self.descriptors[0], size if wanted is None else wanted, offset)
            if data:
                buf[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            return len(data)
        finally:
            with kvikio.lock:
                kvikio.writing.remove((buf.data_ptr(), buf.data_ptr() + size))
                self.n_reading -= 1


GPU = np.dtype(
    [
        ("uuid", "i1", 16),
        ("n_total_reads", "u8"),
        ("n_p2p_reads", "u8"),
        ("n_nvfs_reads", "u8"),
        ("n_posix_reads", "u8"),
        ("n_total_writes", "u8"),
    ]
)
LEVEL3 = np.dtype(
    [("detailed", "u8", 4), ("num_gpus", "u4"), ("pad", "u4"), ("per_gpu_stats", GPU, 4)]
)


class Bindings:
    """cuda.bindings.cufile, with counters that a test sets. Its struct is as large as `room`."""

    stats_level3_dtype = LEVEL3

    def __init__(self, level: int = 0, room: int = LEVEL3.itemsize) -> None:
        self.level, self.room = level, room
        self.is_started = level > 0
        self.gpus: list[tuple[int, int, int]] = []
        self.failing = ""

    def __getattribute__(self, name: str):
        if name == object.__getattribute__(self, "failing"):
            raise RuntimeError(f"function {name} is not found")
        return object.__getattribute__(self, name)

    def get_stats_level(self) -> int:
        return self.level

    def set_stats_level(self, level: int) -> None:
        self.level = level

    def stats_start(self) -> None:
        assert self.level == 3
        self.is_started = True

    def stats_stop(self) -> None:
        self.is_started = False

    def get_stats_l3(self, stats: int) -> None:
        if not (self.is_started and self.level == 3):
            raise RuntimeError("CU_FILE_INVALID_VALUE")
        raw = np.full(self.room, 0xDB, np.uint8)
        found = raw[: LEVEL3.itemsize].view(LEVEL3)
        found["num_gpus"] = len(self.gpus)
        for i, counts in enumerate(self.gpus[:4]):
            for way, count in zip(("p2p", "nvfs", "posix"), counts, strict=True):
                found["per_gpu_stats"][0, i][f"n_{way}_reads"] = count
        ctypes.memmove(stats, raw.ctypes.data, self.room)


def opened(kvikio, paths, sizes=None, *, max_open: int = 4) -> DeviceFiles:
    """The files of a source, of the sizes that they have now unless others are given."""
    sizes = [os.stat(path).st_size for path in paths] if sizes is None else sizes
    return DeviceFiles(kvikio, Paths.of(paths), np.array(sizes, np.int64), max_open=max_open)


def rows(*requests) -> np.ndarray:
    """(file, offset, nbytes, dst) as they are asked for."""
    return np.array(requests, np.int64).reshape(-1, 4)


def memory_of(nbytes: int) -> torch.Tensor:
    """Bytes that begin at a page, none of them read yet."""
    return page_aligned(torch.full((nbytes + PAGE,), 0xDB, dtype=torch.uint8))[:nbytes]
