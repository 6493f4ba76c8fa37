"""What this machine grants the process: cores, memory, descriptors, maps; its memory nodes, and the
file system that a path is on."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# File systems where a request costs a network round trip, as the kernel names them.
NETWORK = frozenset(
    """nfs nfs4 cifs smb3 smbfs lustre gpfs beegfs ceph 9p afs orangefs pvfs2 glusterfs panfs
    wekafs""".split()  # noqa: SIM905
)
MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})

ROOT = Path("/")  # where proc/ and sys/ are; tests put made-up machines in its place

_NO_LIMIT = 1 << 60  # cgroup version 1 says "no limit" by a number that no machine has


def cores() -> int:
    """Cores this process may use: its affinity, within the quotas of its cgroups."""
    granted, quota = len(os.sched_getaffinity(0)), cgroup().cores
    return max(1, granted if quota is None else min(granted, math.ceil(quota)))


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
        mount = mount_of(os.path.realpath(path), device=os.stat(path).st_dev)
    except OSError:
        return "unknown"
    return "unknown" if mount is None else mount.file_system


def is_network(name: str) -> bool:
    return name in NETWORK or name.startswith("fuse")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, and what is mounted there: a device, or a server's folder."""

    point: str
    source: str
    file_system: str


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What the control groups of the process allow; None where they set no limit."""

    cores: float | None
    memory_nbytes: int | None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One memory node, and the cores next to it as the kernel lists them: "0-15,32-47"."""

    number: int
    cores: str
    memory_nbytes: int | None


def read_text(path: Path) -> str:
    """What a file of the kernel says; nothing when it is not there or not readable."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: str, *, device: int | None = None, root: Path = ROOT) -> Mount | None:
    """The mount that a path lies on, by the kernel's table.

    The path itself is not touched: its server may be dead.

    Args:
        path: absolute, without links.
        device: `st_dev` of the path where it is known. It tells mounts apart that hide each other.
    """
    wanted = "" if device is None else f"{os.major(device)}:{os.minor(device)}"
    best, rank = None, (False, -1)
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        below = path == point or path.startswith(point.rstrip("/") + "/")
        found = (fields[2] == wanted, len(point))
        if below and found >= rank:  # of two on one point, the later hides the other
            best, rank = Mount(point, _unescaped(rest[1]), rest[0]), found
    return best


def _unescaped(text: str) -> str:
    """Spaces and the like stand as octal numbers in the kernel's table."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def cgroup(root: Path = ROOT) -> Cgroup:
    """The lowest limits of the control groups that the process is in, version 1 or 2."""
    quotas: list[float] = []
    limits: list[int] = []
    for folder in _cgroup_folders(root):
        version_1 = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for text in (read_text(folder / "cpu.max"), " ".join(version_1)):
            match [_number(word) for word in text.split()]:
                case [int(quota), int(period)] if quota > 0 and period > 0:
                    quotas.append(quota / period)
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(read_text(folder / name))
            if limit is not None and limit < _NO_LIMIT:
                limits.append(limit)
    return Cgroup(min(quotas, default=None), min(limits, default=None))


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """The groups of this process and all above them, as far as they can be seen from here."""
    base = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        # Version 1 mounts each controller in a folder of its own, or some together.
        names = {"", controllers, *controllers.split(",")} if controllers else {""}
        within = Path(path.lstrip("/"))
        if ".." in within.parts:  # the group lies outside of what this container sees
            within = Path()
        for mount in (base / name for name in sorted(names)):
            yield from (mount / above for above in (within, *within.parents))


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and those that programs can still have."""
    found = dict(re.findall(r"^(\w+): +(\d+) kB$", read_text(root / "proc/meminfo"), re.M))
    total, available = (
        int(found[name]) * 1024 if name in found else None for name in ("MemTotal", "MemAvailable")
    )
    return total, available


def free_nbytes() -> int:
    """Bytes of memory that the process can still have, as far as the machine tells."""
    _, available = memory()
    known = [n for n in (available, cgroup().memory_nbytes) if n is not None]
    return min(known, default=1 << 62)


def numa_nodes(root: Path = ROOT) -> list[NumaNode]:
    """The memory nodes by number; none where the kernel does not tell."""
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        nbytes = re.search(r"MemTotal: +(\d+) kB", read_text(folder / "meminfo"))
        nodes.append(
            NumaNode(
                int(folder.name.removeprefix("node")),
                read_text(folder / "cpulist").strip(),
                int(nbytes[1]) * 1024 if nbytes else None,
            )
        )
    return sorted(nodes, key=lambda node: node.number)


def pci_numa_node(bus_id: str, root: Path = ROOT) -> int | None:
    """The memory node next to a PCI device such as "0000:c1:00.0"; None where nobody tells."""
    node = _number(read_text(root / "sys/bus/pci/devices" / bus_id.lower() / "numa_node"))
    return None if node is None or node < 0 else node


def cores_listed(text: str) -> set[int]:
    """The cores that a list of the kernel names: "0-2,5" for 0, 1, 2 and 5."""
    ranges = (part.split("-") for part in text.strip().split(",") if part)
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}
