"""Files straight into device memory by kvikio (GPUDirect Storage), where a trial read proved it.

`why_not` says what is missing, `probe` reads once and looks at who counted the read, `GdsFiles`
reads. Only this module imports kvikio, and only when it is called. cuFile's driver is opened after
CUDA has given memory and never before: without a CUDA driver, opening it does not return.

What cannot be checked without a GPU: that kvikio takes and registers memory of torch's, that the
counters move, and how fast any of it is. The tests marked `gpu` check the first two.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import threading
from typing import Any

import numpy as np
import torch

from gpuload.catalog import Ints, Paths
from gpuload.errors import ReadError
from gpuload.readers import counters
from gpuload.readers.counters import Verdict
from gpuload.readers.device_files import PAGE, DeviceFiles, align, page_aligned
from gpuload.readers.holdings import quoted

__all__ = ["MIN_NBYTES", "PAGE", "GdsFiles", "Verdict", "align", "page_aligned", "probe", "why_not"]

MIN_NBYTES = 128 << 10  # shorter reads go through pinned memory; an estimate, not measured

_OLDEST = (25, 12)  # the first kvikio with CuFile.is_direct_io_supported


def why_not() -> str | None:
    """Why kvikio cannot be used in this process, with the remedy; None when a probe may try.

    Opens neither a file nor cuFile's driver.
    """
    if not torch.cuda.is_available():
        return f"GDS needs a CUDA device: torch {torch.__version__} finds none"
    if torch.version.cuda is None:
        return f"GDS needs CUDA: expected a torch built for it, got {torch.__version__}"
    major = torch.version.cuda.partition(".")[0]
    remedy = f'pip install "gpuload[cuda{major}]"'
    try:
        kvikio = _kvikio()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "kvikio":
            return f"kvikio is not installed; {remedy}"
        return f"kvikio does not import, got {quoted(error)}; {remedy}"
    built_for = [other for other in ("12", "13") if _is_installed(f"kvikio-cu{other}")]
    if built_for and major not in built_for:
        return (
            f"kvikio: expected one for CUDA {major} as torch is, got CUDA {built_for[0]}; "
            f"pip uninstall kvikio-cu{built_for[0]} libkvikio-cu{built_for[0]}, then {remedy}"
        )
    if tuple(map(int, re.findall(r"\d+", kvikio.__version__)[:2])) < _OLDEST:
        return f"kvikio: expected 25.12 or newer, got {kvikio.__version__}; {remedy}"
    try:
        return _forbidden_by_settings(kvikio, remedy)
    except Exception as error:  # a variable KVIKIO_... that kvikio cannot read
        return f"kvikio does not accept its settings, got {quoted(error)}"


def _forbidden_by_settings(kvikio: Any, remedy: str) -> str | None:
    if kvikio.defaults.get("compat_mode") == kvikio.CompatMode.ON:
        return "kvikio is set to read through host memory; unset KVIKIO_COMPAT_MODE"
    if kvikio.defaults.is_compat_mode_preferred():
        return (
            "kvikio chose to read through host memory: expected libcufile, a readable /run/udev and"
            f" no WSL, got not all of them; {remedy}, and mount /run/udev into the container"
        )
    threshold = int(kvikio.defaults.get("gds_threshold"))
    if threshold > MIN_NBYTES:
        return (
            f"kvikio is set to read less than {threshold} bytes through host memory, expected "
            f"{MIN_NBYTES} at most; unset KVIKIO_GDS_THRESHOLD"
        )
    return None


_verdicts: dict[tuple[int, int, str], Verdict] = {}
_probing = threading.Lock()


def probe(path: str, device: str = "cuda:0") -> Verdict:
    """Read once from this file into device memory, and find out which way the bytes went.

    What counters say holds for all files of the file system and is remembered; that a file is too
    small, or that its read failed, is not. Waits for all work on the device.
    """
    if (reason := why_not()) is not None:
        return Verdict(False, reason)
    try:
        status = os.stat(path)
    except OSError as error:
        return Verdict(False, f'{path}: looking at the file failed, got "{error.strerror}"')
    key = (os.getpid(), status.st_dev, device)
    with _probing:
        if key in _verdicts:
            return _verdicts[key]
        if status.st_size < MIN_NBYTES:
            return Verdict(
                False,
                f"{path}: expected {MIN_NBYTES} bytes or more to read on trial, got "
                f"{status.st_size}; small files are read through host memory",
            )
        try:
            _verdicts[key] = _try(_kvikio(), path, device)
        except Exception as error:  # of CUDA, cuFile or kvikio: there is another way to read
            return Verdict(False, f"{path}: the trial read failed, got {quoted(error)}")
        return _verdicts[key]


def _try(kvikio: Any, path: str, device: str) -> Verdict:
    n_before = counters.nvfs_reads()
    with open(path, "rb", buffering=0) as plain:
        expected = np.frombuffer(os.pread(plain.fileno(), MIN_NBYTES, 0), np.uint8)
    room = page_aligned(torch.empty(MIN_NBYTES + PAGE, dtype=torch.uint8, device=device))
    memory = room.narrow(0, 0, len(expected))
    memory.copy_(torch.from_numpy(~expected))  # a byte that is not read stays wrong
    torch.cuda.synchronize(device)
    file = kvikio.CuFile(path)
    try:
        if not file.is_direct_io_supported():
            return Verdict(False, f"{path}: its file system does not open files with O_DIRECT")
        with counters.cufile_counters() as cufile_reads:
            n, ours = counters.nvfs_reads(), cufile_reads()
            file.pread(memory, len(memory), 0, len(memory)).get()
            n_now, ours_now = counters.nvfs_reads(), cufile_reads()
    finally:
        file.close()
    if not np.array_equal(memory.cpu().numpy(), expected):
        raise ReadError("other bytes than those of a plain read", filename=path)
    # nvidia-fs counts for all processes: while others read, its count proves nothing.
    is_idle = n == n_before
    verdict = counters.judge(
        None if ours is None or ours_now is None else ours_now.since(ours),
        None if n is None or n_now is None or not is_idle else n_now - n,
    )
    if not verdict.is_gds:
        return verdict
    threads = kvikio.defaults.get("num_threads")
    return Verdict(True, f"{verdict.reason}; kvikio threads (KVIKIO_NTHREADS): {threads}")


class GdsFiles(DeviceFiles):
    """The files of a source, read by kvikio. Make it only after a probe has answered `is_gds`."""

    def __init__(self, paths: Paths, sizes: Ints, *, max_open: int) -> None:
        super().__init__(_kvikio(), paths, sizes, max_open=max_open)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _kvikio() -> Any:
    import kvikio
    import kvikio.buffer
    import kvikio.defaults

    return kvikio
