"""What this machine grants the process: cores, descriptors, maps, and which file system a path is
on."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

# File systems where a request costs a network round trip, as the kernel names them.
NETWORK = frozenset(
    """nfs nfs4 cifs smb3 smbfs lustre gpfs beegfs ceph 9p afs orangefs pvfs2 glusterfs panfs
    wekafs""".split()  # noqa: SIM905
)
MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})


def cores() -> int:
    """Cores this process may use: its affinity, within the quota of its cgroup (version 2)."""
    granted = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            granted = min(granted, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return max(granted, 1)


def descriptor_limit() -> int:
    """Open files the process may have, at most 2**20."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else min(soft, 1 << 20)


def map_limit() -> int:
    """Memory maps the process may have."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65530


def file_system(path: str) -> str:
    """The kernel's name of the file system that a path is on, such as "ext4"; "unknown" when it
    does not tell."""
    try:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                return after.split()[0]
    except OSError:
        pass
    return "unknown"


def is_network(name: str) -> bool:
    return name in NETWORK or name.startswith("fuse")
