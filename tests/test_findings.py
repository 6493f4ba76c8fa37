"""What doctor concludes from the facts of made-up machines, and how it words them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuload import doctor, system
from gpuload.doctor import machine
from gpuload.doctor.data import Contents, Data, Ground, Reading
from gpuload.doctor.findings import judge
from gpuload.doctor.gpu import Card, Gds, Gpu, Package
from gpuload.doctor.machine import Limit, Machine
from gpuload.doctor.report import sections
from gpuload.system import NumaNode

SERVER = Machine(
    system="Linux 6.8.0 x86_64",
    gpuload="0.1.0",
    python="3.12.1",
    torch="2.13.0",
    numpy="2.4.0",
    cores_granted=64,
    cores_present=64,
    cores_allowed="0-63",
    cgroup_cores=None,
    memory_nbytes=512_000_000_000,
    memory_available_nbytes=500_000_000_000,
    cgroup_memory_nbytes=None,
    numa_nodes=(NumaNode(0, "0-31", None), NumaNode(1, "32-63", None)),
    descriptors=Limit(65536, 1048576),
    locked_nbytes=Limit(None, None),
    max_maps=65530,
)
NO_GPU = Gpu(
    is_usable=False,
    reason="torch finds no CUDA device; install a driver",
    driver=None,
    driver_cuda=None,
    torch_cuda=None,
    cupy=(),
    kvikio=(),
    libcufile=None,
    visible_devices=None,
    cards=(),
    gds=Gds("CUDA cannot be used", None, False, None, None),
)
CUPY = Package("cupy-cuda13x", "14.2.0", 13)
KVIKIO = Package("kvikio-cu13", "26.10.0", 13)
ON_NODE_1 = Card(0, "NVIDIA H200", 1, 1, "9.0", "0000:c1:00.0", 1)
GOOD_GPU = Gpu(
    is_usable=True,
    reason=None,
    driver="590.48.01",
    driver_cuda="13.1",
    torch_cuda="13.0",
    cupy=(CUPY,),
    kvikio=(KVIKIO,),
    libcufile="nvidia-cufile 1.20",
    visible_devices=None,
    cards=(ON_NODE_1,),
    gds=Gds(None, "version: 2.17", True, True, None),
)
LOCAL = Ground("ext4", False, False, "/", "/dev/sda1", 10**12, 10**11)
ARRAYS = Contents(1000, 1000, 10**9, "float32", "1000 items", (), ())
WARM = Reading("mmap", "100% of", 64, 1.0, 1000.0, 8.0, False, 32765, False, "no kvikio")
DATA = Data("/data", LOCAL, ARRAYS, WARM)
COLD = replace(WARM, io="pread", resident=0.25, threads=16, is_measured=True)

OK_GPU = ("ok", "the device cuda can be used")
OK_MAPS = ("ok", "the files are in memory")

# machine, GPU, data -> level and beginning of each finding
FINDINGS = {
    "a good server": (SERVER, GOOD_GPU, None, [OK_GPU]),
    "no GPU": (SERVER, NO_GPU, None, [("note", "no NVIDIA driver here: batches are made on")]),
    "a driver, and torch cannot use it": (
        SERVER,
        replace(NO_GPU, driver="590.48.01"),
        None,
        [("problem", "the device cuda cannot be used: torch finds no CUDA device; install")],
    ),
    "GPUs hidden": (
        SERVER,
        replace(NO_GPU, driver_cuda="13.0", visible_devices=""),
        None,
        [
            ("problem", "the device cuda cannot be used"),
            ("problem", "CUDA_VISIBLE_DEVICES='' hides all GPUs; unset it"),
        ],
    ),
    "CuPy twice": (
        SERVER,
        replace(GOOD_GPU, cupy=(Package("cupy-cuda12x", "13.6.0", 12), CUPY)),
        None,
        [
            OK_GPU,
            (
                "problem",
                "CuPy is installed 2 times, over each other (cupy-cuda12x cupy-cuda13x); pip "
                "uninstall all of them, then install cupy-cuda13x",
            ),
        ],
    ),
    "CuPy for another CUDA": (
        SERVER,
        replace(GOOD_GPU, cupy=(Package("cupy-cuda12x", "13.6.0", 12),)),
        None,
        [
            OK_GPU,
            (
                "problem",
                "CuPy is for CUDA 12 and torch for CUDA 13; pip uninstall cupy-cuda12x, then pip "
                "install gpuload[cuda13]",
            ),
        ],
    ),
    "kvikio for another CUDA": (
        SERVER,
        replace(GOOD_GPU, torch_cuda="12.8", cupy=(Package("cupy", "14.2.0", None),)),
        None,
        [OK_GPU, ("problem", "kvikio is for CUDA 13 and torch for CUDA 12; pip uninstall kvikio")],
    ),
    "a driver older than torch's CUDA": (
        SERVER,
        replace(GOOD_GPU, is_usable=False, reason="driver too old", driver_cuda="12.4"),
        None,
        [
            ("problem", "the device cuda cannot be used: driver too old"),
            (
                "problem",
                "torch is for CUDA 13.0 and the driver runs up to 12.4; update the driver, or "
                "install torch for CUDA 12",
            ),
        ],
    ),
    "no kvikio": (
        SERVER,
        replace(GOOD_GPU, gds=replace(GOOD_GPU.gds, reason="kvikio is not installed")),
        None,
        [OK_GPU, ("note", "no GPUDirect Storage: kvikio is not installed")],
    ),
    "cores on the other socket": (
        replace(SERVER, cores_granted=32, cores_allowed="0-31"),
        GOOD_GPU,
        None,
        [
            OK_GPU,
            (
                "note",
                "GPU 0 is next to NUMA node 1 (cores 32-63), this process may use cores 0-31: "
                "copies cross the sockets; start it with numactl --cpunodebind=1",
            ),
            ("note", "32 of 64 cores are granted"),
        ],
    ),
    "some cores on the GPU's socket": (
        replace(SERVER, cores_allowed="0-32"),
        GOOD_GPU,
        None,
        [OK_GPU],
    ),
    "a GPU that torch does not see may be anywhere": (
        replace(SERVER, cores_allowed="0-31"),
        replace(GOOD_GPU, cards=(replace(ON_NODE_1, index=None),)),
        None,
        [OK_GPU],
    ),
    "one core": (
        replace(SERVER, cores_granted=1),
        GOOD_GPU,
        None,
        [OK_GPU, ("problem", "1 of 64 cores are granted; for more, --cpus-per-task in Slurm")],
    ),
    "a quota that threads do not know": (
        replace(SERVER, cgroup_cores=4.0),
        GOOD_GPU,
        None,
        [OK_GPU, ("note", "the control group grants the time of 4.0 cores, and loaders start")],
    ),
    "half a core of quota is rounded up": (
        replace(SERVER, cgroup_cores=63.5),
        GOOD_GPU,
        None,
        [OK_GPU],
    ),
    "few descriptors": (
        replace(SERVER, descriptors=Limit(256, None)),
        GOOD_GPU,
        None,
        [OK_GPU, ("note", "soft descriptor limit 256 is low; ulimit -n 65536")],
    ),
    "few descriptors, and some more to be had": (
        replace(SERVER, descriptors=Limit(256, 4096)),
        GOOD_GPU,
        None,
        [OK_GPU, ("note", "soft descriptor limit 256 is low; ulimit -n 4096")],
    ),
    "few descriptors, and no more to be had": (
        replace(SERVER, descriptors=Limit(256, 256)),
        GOOD_GPU,
        None,
        [OK_GPU, ("note", "soft descriptor limit 256 is low; so is the hard limit: LimitNOFILE=")],
    ),
    "warm files": (SERVER, GOOD_GPU, DATA, [OK_GPU, OK_MAPS]),
    "cold files": (
        SERVER,
        GOOD_GPU,
        replace(DATA, reading=COLD),
        [OK_GPU, ("note", "25% of the files is in the page cache: the first epoch reads from")],
    ),
    "more than memory": (
        SERVER,
        GOOD_GPU,
        replace(DATA, reading=COLD, contents=replace(ARRAYS, nbytes=2 * 10**12)),
        [OK_GPU, ("note", "2.0 TB of arrays do not fit in 512.0 GB of memory: every epoch")],
    ),
    "more than the control group allows": (
        replace(SERVER, cgroup_memory_nbytes=500_000_000),
        GOOD_GPU,
        DATA,
        [OK_GPU, ("note", "1.0 GB of arrays do not fit in 500.0 MB of memory"), OK_MAPS],
    ),
    "a network file system": (
        SERVER,
        GOOD_GPU,
        replace(
            DATA,
            ground=replace(LOCAL, file_system="lustre", is_network=True),
            reading=replace(COLD, resident=None),
        ),
        [OK_GPU, ("note", "lustre is a network file system: reads wait for the network")],
    ),
    "more files than maps and descriptors": (
        SERVER,
        GOOD_GPU,
        replace(DATA, reading=COLD, contents=replace(ARRAYS, files=100_000)),
        [
            OK_GPU,
            (
                "note",
                "100000 files are more than the 32765 maps that loaders keep: they are read; "
                "sysctl -w vm.max_map_count=400000",
            ),
            ("note", "100000 files and 65536 descriptors: files are opened again and again"),
        ],
    ),
    "straight into the GPU": (
        SERVER,
        GOOD_GPU,
        replace(DATA, reading=replace(WARM, is_gds=True)),
        [OK_GPU, OK_MAPS, ("ok", "reads can go straight into the GPU's memory (GDS)")],
    ),
    "a file that cannot be used": (
        SERVER,
        GOOD_GPU,
        replace(DATA, contents=replace(ARRAYS, errors=("a.npy: bad",)), error="a.npy: bad"),
        [OK_GPU, ("problem", "a.npy: bad"), OK_MAPS],
    ),
    "a folder without arrays": (
        SERVER,
        GOOD_GPU,
        Data("/data", LOCAL, error="/data: expected .npy files in it, got none", is_empty=True),
        [OK_GPU, ("note", "/data: expected .npy files in it, got none")],
    ),
    "a warning": (
        SERVER,
        GOOD_GPU,
        replace(DATA, contents=replace(ARRAYS, warnings=("classes in text order",))),
        [OK_GPU, ("note", "classes in text order"), OK_MAPS],
    ),
    "stopped while it was looked at": (
        SERVER,
        GOOD_GPU,
        replace(DATA, reading=None, error="looking at /data: got none"),
        [OK_GPU, ("problem", "looking at /data: got none")],
    ),
}


@pytest.mark.parametrize(("server", "gpu", "data", "want"), FINDINGS.values(), ids=FINDINGS)
def test_what_follows_from_the_facts(server, gpu, data, want):
    found = judge(server, gpu, data)
    assert [finding.level for finding in found] == [level for level, _ in want]
    for finding, (_, text) in zip(found, want, strict=True):
        assert finding.text.startswith(text)
        assert not finding.text.endswith(".")


def test_a_container_without_sys_and_proc_is_examined(tmp_path):
    found = machine.examine(tmp_path)
    assert found.cores_granted == system.cores()
    assert (found.memory_nbytes, found.numa_nodes, found.cores_allowed) == (None, (), "")
    told = dict(sections(doctor.Report(found, NO_GPU, None, ()))[0].rows)
    assert (told["memory"], told["NUMA"]) == ("unknown", "unknown")


def test_everything_a_gpu_has_is_told():
    two = (ON_NODE_1, replace(ON_NODE_1, index=None, numa_node=None, memory_nbytes=None))
    seen = replace(GOOD_GPU, cards=two, visible_devices="0")
    told = {s.title: dict(s.rows) for s in sections(doctor.Report(SERVER, seen, DATA, ()))}
    assert told["GPU"]["driver"] == "590.48.01, runs CUDA up to 13.1"
    assert told["GPU"]["torch"] == "for CUDA 13.0"
    assert told["GPU"]["CuPy"] == "cupy-cuda13x 14.2.0"
    assert told["GPU"]["visible"] == "CUDA_VISIBLE_DEVICES='0'"
    assert told["GPU"]["GPU 0"].endswith("PCI 0000:c1:00.0, NUMA node 1")
    assert told["GPU"]["GPU"].endswith("not seen by torch")
    assert told["GPUDirect Storage"]["kvikio"] == "can be tried"
    assert told["Machine"]["locked memory"] == "no limit"
    assert told["Machine"]["descriptors"] == "65536, may be raised to 1048576"
    assert told["Data"]["cost of reads"] == "1.0 us each and 8 GB/s, assumed"
