"""A data set: what it lies on, what it holds, and how a loader would read it.

The loader's own parts decide; here they are asked. Files are read to look at their headers, at the
page cache, and at what a read costs.
"""

from __future__ import annotations

import contextlib
import glob
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuload import sources, system
from gpuload.doctor.gpu import Gpu
from gpuload.doctor.step import NoAnswerError, Steps
from gpuload.errors import GpuloadError, MissingError
from gpuload.plan import Facts, plan_io
from gpuload.readers import gds, posix
from gpuload.sources import Source

# A mount that does not answer in this time is dead, or as good as dead.
REACH_S = 10
# Headers of a million files on a network file system take a minute.
OPEN_S = 120
LOOK_S = 30
PROBE_S = 60


@dataclass(frozen=True, slots=True)
class Ground:
    """What a path lies on. Without `free_nbytes` it could not be reached."""

    file_system: str
    is_network: bool
    is_memory: bool
    mount_point: str | None
    mount_source: str | None
    nbytes: int | None = None
    free_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What `gpuload.open` makes of a path, `errors` being of files that have to be left out."""

    items: int
    files: int
    nbytes: int
    dtype: str
    summary: str
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a loader with io="auto" reads the files.

    `resident` is the share of sampled pages in the page cache, None where the system does not tell.
    The cost of a read is that of common machines unless `is_measured`.
    """

    io: str
    reason: str
    threads: int
    resident: float | None
    request_ns: float
    bytes_per_ns: float
    is_measured: bool
    max_maps: int
    is_gds: bool
    gds_reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """All that was found out about a path.

    `error` is what gpuload.open says where it does not open, or which step did not end. `is_empty`
    tells a folder without arrays.
    """

    path: str
    ground: Ground
    contents: Contents | None = None
    reading: Reading | None = None
    error: str | None = None
    is_empty: bool = False


def examine(path: str, *, gpu: Gpu, steps: Steps) -> Data:
    """Look at a file, a folder or a glob.

    Raises:
        MissingError: nothing is there.
    """
    data = Data(path, _ground(_lead(os.path.abspath(path))))
    try:
        for more in _look(data, gpu, steps):
            data = more
    except MissingError as missing:
        if not os.path.isdir(path):
            raise
        data = replace(data, error=str(missing), is_empty=True)
    except NoAnswerError as stopped:
        data = replace(data, error=f"{stopped}; see whether {_named(data.ground)} is alive")
    except OSError as error:
        data = replace(data, error=str(error))
    return data


def _look(data: Data, gpu: Gpu, steps: Steps) -> Iterator[Data]:
    """What is known after each step, so that it is not lost when the next one does not end."""
    path = data.path
    ground = steps.run(f"reaching {path}", lambda: _reach(path), limit_s=REACH_S)
    yield (data := replace(data, ground=ground))
    opened = steps.run(f"opening {path}", lambda: _open(path), limit_s=OPEN_S)
    source = opened.source
    if source is None:
        yield replace(data, error=opened.error)
        return
    yield (data := replace(data, contents=_contents(source, opened), error=opened.error))
    facts, ground = steps.run(
        f"looking at the files of {path}", lambda: _look_at(source), limit_s=LOOK_S
    )
    yield replace(data, ground=ground, reading=_reading(facts, _probe(source, gpu, steps)))


def _lead(path: str) -> str:
    """The part of a path before the first pattern of a glob."""
    parts = path.split(os.sep)
    plain = [i for i, part in enumerate(parts) if glob.has_magic(part)]
    return os.sep.join(parts[: plain[0]]) or os.sep if plain else path


def _ground(path: str, device: int | None = None) -> Ground:
    """What the kernel's table says of a path, which is not touched."""
    mount = system.mount_of(path, device=device)
    name = mount.file_system if mount else "unknown"
    return Ground(
        file_system=name,
        is_network=system.is_network(name),
        is_memory=name in system.MEMORY,
        mount_point=mount.point if mount else None,
        mount_source=mount.source if mount else None,
    )


def _reach(path: str) -> Ground:
    """Follow links, and ask the file system itself. A path that is not there has a folder above."""
    real = os.path.realpath(path if os.path.lexists(path) else _lead(os.path.abspath(path)))
    while not os.path.exists(real):
        real = os.path.dirname(real)
    space = os.statvfs(real)
    return replace(
        _ground(real, os.stat(real).st_dev),
        nbytes=space.f_blocks * space.f_frsize,
        free_nbytes=space.f_bavail * space.f_frsize,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """A source, without files that cannot be used where there is an `error`."""

    source: Source | None
    error: str | None
    warnings: tuple[str, ...]


def _open(path: str) -> _Opened:
    """Open a path as a user would.

    Raises:
        MissingError: nothing is there, or a folder has no arrays.
    """
    source = error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            source = sources.open(path)
        except GpuloadError as reason:
            # Of a file in a folder it says the same: then it is one of several that do not open.
            if isinstance(reason, MissingError) and reason.filename in (path, None):
                raise
            error = str(reason)
            with contextlib.suppress(GpuloadError):
                source = sources.open(path, on_error="skip")
    # Opened twice, it warns twice.
    told = dict.fromkeys(str(warning.message) for warning in caught)
    return _Opened(source, error, tuple(told))


def _contents(source: Source, opened: _Opened) -> Contents:
    return Contents(
        items=len(source),
        files=len(source.catalog.paths),
        nbytes=source.nbytes,
        dtype=source.catalog.layout.dtype.name,
        summary=source.summary(),
        errors=tuple(source.errors),
        warnings=opened.warnings,
    )


def _look_at(source: Source) -> tuple[Facts, Ground]:
    """What the loader would find out, and what the files lie on: a folder may hold links."""
    facts = posix.look_at(source.catalog, posix.open_files(source.catalog))
    return facts, _reach(source.catalog.paths[0])


def _probe(source: Source, gpu: Gpu, steps: Steps) -> tuple[bool, str]:
    """Whether reads go from the disk to the GPU, by reading the largest file that way."""
    if gpu.gds.reason is not None:
        return False, gpu.gds.reason
    path = source.catalog.paths[int(source.catalog.sizes.argmax())]
    try:
        verdict = steps.run(
            "reading straight into the GPU",
            lambda: gds.probe(path, "cuda:0"),
            limit_s=PROBE_S,
        )
    except NoAnswerError as error:
        return False, str(error)
    return verdict.is_gds, verdict.reason


def _reading(facts: Facts, straight: tuple[bool, str]) -> Reading:
    plan = plan_io(facts, io="auto", threads=None)
    assumed = posix.WARM_REQUEST_NS, posix.WARM_BYTES_PER_NS
    return Reading(
        io=plan.io,
        reason=plan.reason,
        threads=plan.threads,
        resident=facts.resident,
        request_ns=plan.request_ns,
        bytes_per_ns=plan.bytes_per_ns,
        is_measured=(plan.request_ns, plan.bytes_per_ns) != assumed,
        max_maps=facts.max_maps,
        is_gds=straight[0],
        gds_reason=straight[1],
    )


def _named(ground: Ground) -> str:
    if ground.mount_point is None:
        return "its file system"
    return f"the {ground.file_system} mount of {ground.mount_source} at {ground.mount_point}"
