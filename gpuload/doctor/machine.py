"""The machine: versions, cores, memory and limits of this process, as plain facts."""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from gpuload import system
from gpuload.system import NumaNode


@dataclass(frozen=True, slots=True)
class Limit:
    """What the process may have now, and what it may raise that to; None without a limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine has, and what it grants this process.

    `cores_granted` is what loaders go by. `cores_allowed` are those of its affinity, as the kernel
    lists them. `cgroup_cores` and `cgroup_memory_nbytes` are None where control groups set no
    limit.
    """

    system: str
    gpuload: str
    python: str
    torch: str
    numpy: str
    cores_granted: int
    cores_present: int
    cores_allowed: str
    cgroup_cores: float | None
    memory_nbytes: int | None
    memory_available_nbytes: int | None
    cgroup_memory_nbytes: int | None
    numa_nodes: tuple[NumaNode, ...]
    descriptors: Limit
    locked_nbytes: Limit
    max_maps: int


def examine(root: Path = system.ROOT) -> Machine:
    """Gather the facts. Reads only files of the kernel, which answer at once."""
    cgroup = system.cgroup(root)
    total, available = system.memory(root)
    allowed = re.search(
        r"^Cpus_allowed_list:\s*(\S+)", system.read_text(root / "proc/self/status"), re.M
    )
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpuload=version("gpuload"),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        cores_granted=system.cores(),
        cores_present=os.cpu_count() or 1,
        cores_allowed=allowed[1] if allowed else "",
        cgroup_cores=cgroup.cores,
        memory_nbytes=total,
        memory_available_nbytes=available,
        cgroup_memory_nbytes=cgroup.memory_nbytes,
        numa_nodes=tuple(system.numa_nodes(root)),
        descriptors=_limit(resource.RLIMIT_NOFILE),
        locked_nbytes=_limit(resource.RLIMIT_MEMLOCK),
        max_maps=system.map_limit(),
    )


def _limit(which: int) -> Limit:
    soft, hard = resource.getrlimit(which)
    return Limit(*(None if n == resource.RLIM_INFINITY else n for n in (soft, hard)))
