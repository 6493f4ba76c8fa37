"""What each table of samples per second measures: its files, its rows, its bounds, its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType

import numpy as np

from bench import check, check_whole, data, limits
from bench.peers import Batch, Row

# The package that each module needs. torch first: its worker processes are forked, and that should
# happen before others start threads.
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "spdl": "spdl",
    "dali": "nvidia",
    "gpuload": "gpuload",
}
CHECKED_BATCHES = 6  # of the volume


@dataclass(frozen=True, slots=True)
class Workload:
    """Files at `paths`, none where the data are in memory.

    `rows` takes a module of peers and returns its rows, `check` the batches of a row and its
    family, `limits` compiles and checks the bounds.
    """

    modules: dict[str, str]  # modules of bench.peers, and the package that each needs
    paths: list[str]
    rows: Callable[[ModuleType], list[Row]]
    check: Callable[[Iterator[Batch], str], None]
    limits: Callable[[], list[limits.Limit]]


def crop2d(batch_size: int) -> Workload:
    """Random 20x20 windows of 2,000 matrices, ten of each."""
    files = data.crop2d()
    return Workload(
        modules=_modules("rows", *PACKAGES),
        paths=[*files.paths, files.one_file],
        rows=lambda peers: peers.crop2d_rows(files, batch_size),
        check=lambda batches, family: check.crop2d_epochs(batches, _epochs(family), files.labels),
        limits=lambda: limits.crop2d(files, batch_size),
    )


def volume(batch_size: int) -> Workload:
    """Random 96^3 windows of one volume."""
    path = data.volume()
    return Workload(
        modules=_modules("rows", *PACKAGES),
        paths=[path],
        rows=lambda peers: peers.volume_rows(path, batch_size),
        check=lambda batches, family: check.volume_batches(
            islice(batches, CHECKED_BATCHES), data.VOLUME_SIDE
        ),
        limits=lambda: limits.volume(path, batch_size),
    )


def padclass(batch_size: int) -> Workload:
    """Whole arrays of different sizes, padded to one."""
    files = data.padclass()
    return Workload(
        modules=_modules("whole", *PACKAGES),
        paths=files.paths,
        rows=lambda peers: peers.padclass_rows(files, batch_size),
        check=lambda batches, family: check_whole.padclass_epochs(batches, _epochs(family), files),
        limits=lambda: limits.padclass(files, batch_size),
    )


def stack(batch_size: int) -> Workload:
    """Whole samples of one file, uint8 to float32 in [0, 1]."""
    path = data.stack()
    samples = np.load(path, mmap_mode="r")
    return Workload(
        modules=_modules("whole", "torch", "numpy", "spdl", "gpuload"),
        paths=[path],
        rows=lambda peers: peers.stack_rows(path, batch_size),
        check=lambda batches, family: check_whole.Stack(
            samples, exact=family == "gpuload"
        ).check_epochs(batches, _epochs(family)),
        limits=lambda: limits.stack(path, batch_size),
    )


def inmemory(batch_size: int) -> Workload:
    """Rows of three arrays that are in memory."""
    features = data.in_memory()
    return Workload(
        modules=_modules("whole", "torch", "numpy", "gpuload"),
        paths=[],
        rows=lambda peers: peers.inmemory_rows(features, batch_size),
        check=lambda batches, family: check_whole.in_memory_epochs(batches, _epochs(family)),
        limits=list,
    )


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "crop2d": crop2d,
    "volume": volume,
    "padclass": padclass,
    "stack": stack,
    "inmemory": inmemory,
}


def _modules(kind: str, *families: str) -> dict[str, str]:
    return {f"{family}_{kind}": PACKAGES[family] for family in families}


def _epochs(family: str) -> int:
    """How many epochs are checked."""
    return 2 if family == "gpuload" else 1
