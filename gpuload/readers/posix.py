"""Files by positioned reads or kept maps: look at what the files lie on, then make a native reader.

Looking costs at most 32 probes of the page cache and, where something is not in it, eight small
reads. Nothing
here imports CUDA, CuPy or kvikio.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

import numpy as np

from gpuload import _native, system
from gpuload.catalog import Catalog, Paths
from gpuload.dtypes import DTYPES, Dtype
from gpuload.errors import ReadError
from gpuload.plan import Facts, IoPlan

_PROBES = 32
# What a warm read costs on common machines, used where nothing needs to be measured.
WARM_REQUEST_NS, WARM_BYTES_PER_NS = 1_000.0, 8.0
_SMALL, _LARGE = 4 << 10, 64 << 10

Place = tuple[int, int]  # file, byte


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The native set of files of a source, with the bounds it keeps."""

    native: _native.Files
    max_maps: int


def open_files(catalog: Catalog) -> OpenFiles:
    """Make the set of files; none is opened yet.

    At most a quarter of the descriptors that the process may have are kept, and half of its maps.
    """
    max_descriptors = max(4, min(system.descriptor_limit() // 4, 4096))
    max_maps = system.map_limit() // 2
    return OpenFiles(catalog.native_files(max_descriptors, max_maps), max_maps)


def files_of_memory(memory: _native.Resident) -> OpenFiles:
    """Arrays that are held in memory of the process, as one file."""
    paths, sizes = Paths.of(["memory"]), np.array([memory.nbytes], np.int64)
    files = _native.Files(paths.blob, paths.ends, sizes, 1, 1, [memory.address], memory)
    return OpenFiles(files, max_maps=1)


def look_at(catalog: Catalog, files: OpenFiles) -> Facts:
    """Find out what the files lie on, whether the page cache holds them, and what a read costs."""
    if catalog.contents is not None and files.native.is_memory:
        return _in_memory(len(catalog.paths), files.max_maps)
    places = _places(catalog)
    first = catalog.paths[places[0][0]] if places else os.curdir
    name = system.file_system(first)
    network, memory = system.is_network(name), name in system.MEMORY
    resident = None if network else _resident_share(files, places)
    request_ns, bytes_per_ns = WARM_REQUEST_NS, WARM_BYTES_PER_NS
    if not memory and (resident is None or resident < 1):
        request_ns, bytes_per_ns = _measure(catalog, places)
    return Facts(
        file_system=name,
        is_network=network,
        is_memory=memory,
        resident=resident,
        request_ns=request_ns,
        bytes_per_ns=bytes_per_ns,
        n_files=len(catalog.paths),
        max_maps=files.max_maps,
        cores=system.cores(),
    )


def _in_memory(n_files: int, max_maps: int) -> Facts:
    return Facts(
        file_system="",
        is_network=False,
        is_memory=True,
        resident=1.0,
        request_ns=WARM_REQUEST_NS,
        bytes_per_ns=WARM_BYTES_PER_NS,
        n_files=min(n_files, max_maps),  # they need no maps
        max_maps=max_maps,
        cores=system.cores(),
    )


def _resident_share(files: OpenFiles, places: list[Place]) -> float | None:
    """How much of these places the page cache holds; None when the system does not tell."""
    shares = []
    for place in places:
        try:
            shares.append(files.native.resident_share([place]))
        except ReadError as error:  # the reader will say so too, when the file is wanted
            if error.errno in (errno.EMFILE, errno.ENFILE):
                break  # each further one would wait for a descriptor
    known = [share for share in shares if share >= 0]
    return sum(known) / len(known) if known else None


def _places(catalog: Catalog) -> list[Place]:
    """Some bytes of the arrays in use, spread over files and within them: the same ones each
    time."""
    used = catalog.used_arrays
    if not len(used):
        return []
    n = min(_PROBES, max(4, len(used)))
    arrays = used[np.linspace(0, len(used) - 1, n).astype(np.int64)]
    within = (np.arange(n) * 0.618034) % 1.0
    offsets = catalog.offset[arrays]
    sizes = catalog.sizes[catalog.file[arrays]]
    at = offsets + (within * np.maximum(sizes - offsets, 0)).astype(np.int64)
    return [(int(f), int(o)) for f, o in zip(catalog.file[arrays], at, strict=True)]


def _measure(catalog: Catalog, places: list[Place]) -> tuple[float, float]:
    """Nanoseconds per request and bytes per nanosecond, from four small and four larger reads.

    Reads lie where windows may lie, with read-ahead off; 272 KiB in all.
    """
    timed: dict[int, list[float]] = {_SMALL: [], _LARGE: []}
    for i, (file, offset) in enumerate(places[:8]):
        nbytes = _LARGE if i % 2 else _SMALL
        path = catalog.paths[file]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # the reader will say what is wrong when the file is wanted
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            start = time.perf_counter_ns()
            got = len(os.pread(descriptor, nbytes, offset - offset % 4096))
            if got == nbytes:
                timed[nbytes].append(time.perf_counter_ns() - start)
        except OSError:
            continue  # so will it here
        finally:
            os.close(descriptor)
    if not all(timed.values()):
        return WARM_REQUEST_NS, WARM_BYTES_PER_NS
    small, large = (float(np.median(timed[n])) for n in (_SMALL, _LARGE))
    per_ns = (_LARGE - _SMALL) / max(large - small, 1.0)
    per_ns = min(max(per_ns, 0.05), 50.0)
    return min(max(small - _SMALL / per_ns, 500.0), 5e6), per_ns


def make_reader(
    catalog: Catalog,
    files: OpenFiles,
    to: Dtype | None,
    plan: IoPlan,
    scaling: tuple[float, tuple[float, ...]] | None = None,
) -> _native.Reader:
    """A native reader that follows the plan. It keeps descriptors and maps until it and `files` are
    gone.

    Args:
        to: deliver elements of this type; None delivers bytes as they are stored.
        scaling: the scale, and mean and std of each channel behind one another.
    """
    return _native.Reader(
        catalog.native(),
        files.native,
        (to or DTYPES["uint8"]).number,
        plan.io == "mmap",
        plan.request_ns,
        plan.bytes_per_ns,
        plan.max_gap,
        plan.max_nbytes,
        plan.is_cold,
        to is None,
        scaling,
    )
