"""Load a whole source once, into host memory or onto a device, and keep it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from gpuload import _native
from gpuload.catalog import Catalog, Ints, Paths
from gpuload.devices import Device, Event
from gpuload.progress import shown
from gpuload.readers.posix import OpenFiles

_ALIGN = 64  # bytes, of each array: what vector loads like best
_REQUEST_NBYTES = 8 << 20  # a file is read by several threads
_STEP_NBYTES = 64 << 20  # read between two looks at the progress bar; a pinned slab
_SHOW_NBYTES = 256 << 20  # less than that is there before anyone has read a bar
_HEADROOM = 1.05  # free memory that is left for batches and for others


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each array of a source will lie in memory.

    `catalog` describes them there: one "file", offsets in it. `requests` are rows of
    (file, offset, nbytes, byte of the memory), by the latter.
    """

    catalog: Catalog
    requests: Ints
    nbytes: int


def plan(catalog: Catalog) -> Plan:
    """Lay the arrays that items lie in behind one another. No I/O."""
    short = catalog.compact()
    sizes = short.nbytes_of_array
    ends = np.cumsum(-(-sizes // _ALIGN) * _ALIGN)
    begins = ends - -(-sizes // _ALIGN) * _ALIGN
    nbytes = int(ends[-1]) if len(ends) else 0
    held = replace(
        short,
        paths=Paths.of(["memory"]),
        sizes=np.array([nbytes], np.int64),
        file=np.zeros(len(sizes), np.uint32),
        offset=begins,
        contents=None,
    )
    return Plan(held, _requests(short.file, short.offset, sizes, begins), nbytes)


def _requests(file: np.ndarray, offset: Ints, nbytes: Ints, begin: Ints) -> Ints:
    """Rows of at most _REQUEST_NBYTES each."""
    parts = -(-nbytes // _REQUEST_NBYTES)
    array = np.repeat(np.arange(len(nbytes)), parts)
    within = np.arange(len(array)) - np.repeat(np.cumsum(parts) - parts, parts)
    skip = within * _REQUEST_NBYTES
    rest = np.minimum(nbytes[array] - skip, _REQUEST_NBYTES)
    rows = (file[array].astype(np.int64), offset[array] + skip, rest, begin[array] + skip)
    return np.stack(rows, axis=1)


def check_fits(nbytes: int, device: Device) -> None:
    """Refuse what does not fit, before anything is taken.

    Raises:
        ValueError: the device has too little free memory.
    """
    free = device.free_nbytes()
    if nbytes * _HEADROOM > free:
        raise ValueError(
            f"cache: expected {nbytes / 1e6:,.1f} MB of arrays to fit on {device.name}, got "
            f"{free / 1e6:,.1f} MB free; select fewer items, or pass cache=None"
        )


def pinned_nbytes(wanted: Plan) -> int:
    """Host memory that is pinned while arrays are loaded onto a device."""
    return sum(_slab_sizes(list(_steps(wanted.requests))))


def load_on_host(wanted: Plan, files: OpenFiles, *, threads: int) -> _native.Resident:
    """Read all arrays into memory of the process.

    Raises:
        ReadError: a file is gone, changed, short or broken.
        MemoryError: there is no memory.
    """
    memory = _native.Resident(wanted.nbytes)
    with shown("loading into host memory", wanted.nbytes, least_nbytes=_SHOW_NBYTES) as advance:
        for rows in _steps(wanted.requests):
            files.native.read_all(rows, memory.address, wanted.nbytes, threads)
            advance(int(rows[:, 2].sum()))
    return memory


def load_on_device(wanted: Plan, files: OpenFiles, device: Device, *, threads: int) -> torch.Tensor:
    """Read all arrays onto a device, through two slabs of pinned memory: one is read into while the
    other is copied.

    Returns:
        uint8, complete when this returns; it may be used on any stream.

    Raises:
        ReadError: a file is gone, changed, short or broken.
        DeviceError: the device has no memory.
    """
    stream = device.stream()
    memory = device.memory(max(wanted.nbytes, 1), stream=stream)
    steps = list(_steps(wanted.requests))
    sizes = [_extent(rows) for rows in steps]
    slabs = [device.host_memory(nbytes) for nbytes in _slab_sizes(steps)]
    copied: list[Event] = []
    try:
        what = f"loading into {device.name}"
        with shown(what, wanted.nbytes, least_nbytes=_SHOW_NBYTES) as advance:
            for k, (rows, nbytes) in enumerate(zip(steps, sizes, strict=True)):
                slab = slabs[k % 2]
                if k >= 2:
                    copied[k - 2].synchronize()
                begin = int(rows[0, 3])
                moved = rows - np.array([0, 0, 0, begin])
                files.native.read_all(moved, slab.data_ptr(), len(slab), threads)
                stream.copy(memory[begin : begin + nbytes], slab[:nbytes])
                copied.append(stream.record())
                advance(int(rows[:, 2].sum()))
    finally:
        if copied:
            copied[-1].synchronize()  # the slabs must outlive their copies
    return memory


def _extent(rows: Ints) -> int:
    """Bytes of the memory that consecutive requests fill."""
    return int(rows[-1, 3] + rows[-1, 2] - rows[0, 3])


def _slab_sizes(steps: list[Ints]) -> list[int]:
    """Two slabs at most, each large enough for any step."""
    return [max(map(_extent, steps))] * len(steps[:2]) if steps else []


def _steps(requests: Ints) -> Iterator[Ints]:
    """Consecutive requests of about _STEP_NBYTES together."""
    if not len(requests):
        return
    step = np.cumsum(requests[:, 2]) // _STEP_NBYTES
    yield from np.split(requests, np.flatnonzero(np.diff(step)) + 1)
