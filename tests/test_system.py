"""What the kernel tells of the machine, on made-up machines: cgroups, memory nodes, mounts."""

from __future__ import annotations

import os

import pytest

from gpuload import system
from gpuload.system import Cgroup, Mount, NumaNode

V1 = "sys/fs/cgroup/"
NO_LIMIT_1 = "9223372036854771712\n"

# files -> cores, bytes
CGROUPS = {
    "no /sys at all": ({}, (None, None)),
    "version 2 without limits": (
        {
            "proc/self/cgroup": "0::/user.slice\n",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "max\n",
        },
        (None, None),
    ),
    "version 2, in a container that sees its own group as the root": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/memory.max": "4294967296\n",
        },
        (2.5, 1 << 32),
    ),
    "version 2, the group is not where this container can see it": (
        {
            "proc/self/cgroup": "0::/../../docker/abc\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "docker/abc/memory.max": "1\n",
        },
        (4.0, 1000),
    ),
    "version 2, the lowest of all groups above counts": (
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "sys/fs/cgroup/slurm/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": "2000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "3000\n",
            "sys/fs/cgroup/slurm/job_8/memory.max": "1\n",
        },
        (3.0, 2000),
    ),
    "version 1, controllers mounted together": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:x:/\n",
            V1 + "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000\n",
            V1 + "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            V1 + "memory/docker/abc/memory.limit_in_bytes": "5000\n",
            V1 + "memory/memory.limit_in_bytes": NO_LIMIT_1,
        },
        (1.5, 5000),
    ),
    "version 1 without limits, and an empty version 2 beside it": (
        {
            "proc/self/cgroup": "4:memory:/x\n1:cpu:/\n0::/\n",
            V1 + "cpu/cpu.cfs_quota_us": "-1\n",
            V1 + "cpu/cpu.cfs_period_us": "100000\n",
            V1 + "memory/x/memory.limit_in_bytes": NO_LIMIT_1,
            V1 + "unified/cgroup.procs": "",
        },
        (None, None),
    ),
    "version 1, a container where only its own part is mounted": (
        {
            "proc/self/cgroup": "4:memory:/kubepods/pod1/abc\n",
            V1 + "memory/memory.limit_in_bytes": "7000\n",
        },
        (None, 7000),
    ),
    "nonsense": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "many 0\n",
            "sys/fs/cgroup/memory.max": "",
        },
        (None, None),
    ),
}


@pytest.mark.parametrize(("files", "want"), CGROUPS.values(), ids=CGROUPS)
def test_the_limits_of_control_groups(kernel_files, files, want):
    assert system.cgroup(kernel_files(files)) == Cgroup(*want)


def test_memory_in_all_and_available(kernel_files):
    text = (
        "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\nHugePages_Total:  0\n"
    )
    assert system.memory(kernel_files({"proc/meminfo": text})) == (1_024_000, 614_400)


def test_memory_of_a_machine_that_does_not_tell(tmp_path):
    assert system.memory(tmp_path) == (None, None)


def test_memory_nodes_come_by_number(kernel_files):
    node = "sys/devices/system/node/node"
    root = kernel_files(
        {
            node + "10/cpulist": "\n",  # memory without cores
            node + "10/meminfo": "Node 10 MemTotal:       8 kB\n",
            node + "0/cpulist": "0-15,32-47\n",
            node + "0/meminfo": "Node 0 MemTotal:       4 kB\nNode 0 MemFree:  1 kB\n",
            node + "2/cpulist": "16-31\n",
            "sys/devices/system/node/online": "0,2,10\n",
        }
    )
    want = [NumaNode(0, "0-15,32-47", 4096), NumaNode(2, "16-31", None), NumaNode(10, "", 8192)]
    assert system.numa_nodes(root) == want


def test_a_container_without_sys_has_no_memory_nodes(tmp_path):
    assert system.numa_nodes(tmp_path) == []
    assert system.pci_numa_node("0000:c1:00.0", tmp_path) is None


@pytest.mark.parametrize(("text", "want"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None)])
def test_the_memory_node_of_a_device(kernel_files, text, want):
    root = kernel_files({"sys/bus/pci/devices/0000:c1:00.0/numa_node": text})
    assert system.pci_numa_node("0000:C1:00.0", root) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [("", set()), ("\n", set()), ("3", {3}), ("0-2,5\n", {0, 1, 2, 5}), ("7,9-9", {7, 9})],
)
def test_lists_of_cores(text, want):
    assert system.cores_listed(text) == want


MOUNTS = r"""22 27 0:21 / /proc rw - proc proc rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 27 0:40 / /data rw - autofs systemd-1 rw,fd=29
31 30 0:41 / /data rw,relatime - nfs4 server:/export rw,vers=4.2
32 27 8:2 / /data/local\040disk rw - xfs /dev/sdb\0401 rw
33 27 0:50 / /mnt rw - tmpfs tmpfs rw
34 27 8:3 /sub /mnt/a rw - btrfs /dev/sdc rw
35 27 8:4 / /database rw - zfs pool/db rw
truncated line
"""
ROOT_MOUNT = Mount("/", "/dev/sda1", "ext4")

# path, device -> mount
PLACES = {
    "the root": ("/", None, ROOT_MOUNT),
    "below the root": ("/home/me/x.npy", None, ROOT_MOUNT),
    "of two on one point the later": ("/data/x", None, Mount("/data", "server:/export", "nfs4")),
    "the point itself": ("/data", None, Mount("/data", "server:/export", "nfs4")),
    "a space in its name": (
        "/data/local disk/x",
        None,
        Mount("/data/local disk", "/dev/sdb 1", "xfs"),
    ),
    "a name that begins alike": ("/database/x", None, Mount("/database", "pool/db", "zfs")),
    "beside a name that begins alike": ("/datab/x", None, ROOT_MOUNT),
    "the device tells": ("/mnt/a/x", os.makedev(0, 50), Mount("/mnt", "tmpfs", "tmpfs")),
    "a device of no mount": ("/mnt/a/x", os.makedev(0, 99), Mount("/mnt/a", "/dev/sdc", "btrfs")),
}


@pytest.mark.parametrize(("path", "device", "want"), PLACES.values(), ids=PLACES)
def test_the_mount_of_a_path(kernel_files, path, device, want):
    root = kernel_files({"proc/self/mountinfo": MOUNTS})
    assert system.mount_of(path, device=device, root=root) == want


def test_no_mount_where_the_kernel_does_not_tell(tmp_path):
    assert system.mount_of("/data", root=tmp_path) is None


def test_the_mount_here_is_the_file_system_here(tmp_path):
    found = system.mount_of(os.path.realpath(tmp_path), device=os.stat(tmp_path).st_dev)
    assert found is not None
    assert system.file_system(str(tmp_path)) in (found.file_system, "unknown")
    assert os.path.ismount(found.point)
