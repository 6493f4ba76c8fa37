"""What is not as it must be for a GPU: one line that says what was expected, what was found, and
what to do."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from cuda_standin import CudaStandIn
from cupy_standin import CUDARuntimeError

import gpuload as gl
from gpuload.devices.choose import choose
from gpuload.devices.cpu import CpuDevice
from gpuload.readers import gds

NO_CUPY = ModuleNotFoundError("No module named 'cupy'", name="cupy")
HALF_A_CUPY = ModuleNotFoundError("No module named 'cuda.pathfinder'", name="cuda.pathfinder")
NO_LIBRARY = OSError(errno.ENOENT, "libnvrtc.so.12: cannot open shared object file")
NO_NVRTC = RuntimeError("Failed to dlopen libnvrtc.so.12: libnvrtc.so.12: cannot open\nmore of it")
FORKED = RuntimeError(
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
NOT_PINNED = CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

# What the machine says -> why there is no CUDA device.
REFUSALS = {
    "torch is for the CPU alone": (
        {"torch_cuda": None},
        f"expected a CUDA build of torch, got torch {torch.__version__}; install one as "
        "pytorch.org says",
    ),
    "no GPU, or no driver": (
        {"n_gpus": 0},
        "expected an NVIDIA GPU with its driver, torch sees none; check nvidia-smi and "
        "CUDA_VISIBLE_DEVICES",
    ),
    "after a fork": (
        {"at_start": FORKED},
        "expected CUDA to start in this process, got RuntimeError: Cannot re-initialize CUDA in "
        "forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
        "method; after a fork it cannot, use spawn",
    ),
    "no CuPy": (
        {"at_import": NO_CUPY},
        'expected CuPy beside torch, found none; pip install "gpuload[cuda13]"',
    ),
    "no CuPy for CUDA 12": (
        {"at_import": NO_CUPY, "torch_cuda": "12.8"},
        'expected CuPy beside torch, found none; pip install "gpuload[cuda12]"',
    ),
    "CuPy without what it needs": (
        {"at_import": HALF_A_CUPY},
        "expected CuPy to import, got ModuleNotFoundError: No module named 'cuda.pathfinder'; pip "
        'install "gpuload[cuda13]"',
    ),
    "CuPy is broken": (
        {"at_import": ImportError("\n\nno library\nand a long text")},
        'expected CuPy to import, got ImportError: no library; pip install "gpuload[cuda13]"',
    ),
    "CuPy is too old": (
        {"has_from_external": False},
        'expected CuPy 14 or newer, got 13.6.0; pip install "gpuload[cuda13]"',
    ),
    "the driver is older than CuPy": (
        {"driver_version": 12040},
        "expected a driver for CUDA 13 as CuPy is built for, got one for CUDA 12; pip install "
        '"gpuload[cuda13]", or update the driver',
    ),
    "CuPy is for another CUDA, whose NVRTC is not there": (
        {"runtime_version": 12090, "at_nvrtc": NO_NVRTC},
        "expected CuPy to find CUDA 13 as torch does, got RuntimeError: Failed to dlopen "
        'libnvrtc.so.12: libnvrtc.so.12: cannot open; pip install "gpuload[cuda13]"',
    ),
    "the GPU is too old": (
        {"capability": (6, 1)},
        "expected a GPU of compute capability 7.5 or newer, got 6.1",
    ),
    "the GPU is newer than CuPy": (
        {"capability": (15, 0)},
        "expected CuPy's compiler to know compute capability 15.0, it knows up to 12.1; pip "
        'install "gpuload[cuda13]" --upgrade',
    ),
    "NVRTC is not there at all": (
        {"at_nvrtc": NO_LIBRARY},
        "expected CuPy to find CUDA 13 as torch does, got FileNotFoundError: [Errno 2] "
        'libnvrtc.so.12: cannot open shared object file; pip install "gpuload[cuda13]"',
    ),
}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Make a machine with a GPU of which something is to be said."""

    def machine(**says) -> CudaStandIn:
        made = CudaStandIn(**says)
        made.install(monkeypatch, tmp_path / "kernels")
        return made

    return machine


@pytest.fixture
def source(tmp_path):
    for i in range(6):
        np.save(tmp_path / f"{i}.npy", np.full((4, 5), i, np.float32))
    return gl.open(tmp_path)


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("named", ["cuda", "cuda:0", torch.device("cuda")], ids=str)
def test_a_device_that_is_asked_for_is_refused_in_one_line(machine, source, named, case):
    says, reason = case
    machine(**says)
    with pytest.raises(gl.DeviceError) as refusal:
        gl.DataLoader(source, 2, device=named)
    assert str(refusal.value) == f"device: {reason}"


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_the_cpu_is_taken_instead_where_that_was_left_open(machine, source, case):
    says, reason = case
    machine(**says)
    with gl.DataLoader(source, 2) as loader:
        assert [x[0, 0, 0].item() for x in loader] == [0, 2, 4]
        assert loader.describe().endswith(f"device    cpu (no GPU: {reason})")
    assert list(gl.prefetch([1, 2])) == [1, 2]


@pytest.mark.parametrize("n_gpus", [1, 2])
@pytest.mark.parametrize("index", [2, 17])
def test_an_index_out_of_range_is_refused(machine, n_gpus, index):
    machine(n_gpus=n_gpus)
    match = (
        rf"^device: expected a CUDA device of \[0, {n_gpus}\), got {index}; see "
        "CUDA_VISIBLE_DEVICES$"
    )
    with pytest.raises(gl.DeviceError, match=match):
        choose(f"cuda:{index}")


@pytest.mark.parametrize(
    ("named", "error", "match"),
    [
        ("gpu", ValueError, r'^device: expected "auto", "cpu", "cuda" or "cuda:N", got "gpu"$'),
        ("cuda:-1", ValueError, r'or "cuda:N", got "cuda:-1"$'),
        ("cuda:1 ", ValueError, r'or "cuda:N", got "cuda:1 "$'),
        (torch.device("meta"), ValueError, r'or "cuda:N", got "meta"$'),
        (0, TypeError, r'^device: expected "auto", "cpu", "cuda" or a Device, got 0$'),
        (None, TypeError, r"got None$"),
    ],
)
def test_what_is_no_device_is_refused(named, error, match):
    with pytest.raises(error, match=match):
        choose(named)


def test_a_device_of_ones_own_is_taken_as_it_is():
    mine = CpuDevice()
    assert choose(mine) == (mine, "")


# ---- While batches are made


@pytest.mark.parametrize("n_that_fit", [0, 2])
def test_memory_that_cannot_be_pinned_is_refused(machine, source, n_that_fit):
    """The slabs that were pinned before are given back."""
    made = machine()
    made.says.at_register = lambda nbytes: (
        NOT_PINNED if len(made.registrations) == n_that_fit else None
    )
    match = (
        r"^cuda:0: expected to pin \d+ bytes of host memory, got CUDARuntimeError: "
        r"cudaErrorMemoryAllocation: out of memory; lower prefetch or batch_size, or raise the "
        r"memory limit \(ulimit -l, the container's\)$"
    )
    with gl.DataLoader(source, 2, device="cuda") as loader:
        with pytest.raises(gl.DeviceError, match=match):
            next(iter(loader))
        made.says.at_register = lambda nbytes: None
        assert len(list(loader)) == 3
    made.check()


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_device_without_memory_says_what_to_lower(machine, source, cache):
    made = machine()
    made.says.at_allocation = lambda nbytes: torch.OutOfMemoryError("CUDA out of memory.")
    with gl.DataLoader(source, 2, device="cuda", cache=cache) as loader:
        made.says.free_nbytes = 1000
        match = (
            r"^cuda:0: expected \d+ bytes of device memory, got 1000 free of 1099511627776, 0 held "
            "by torch; lower batch_size or prefetch$"
        )
        with pytest.raises(gl.DeviceError, match=match) as refusal:
            next(iter(loader))
        assert isinstance(refusal.value.__cause__, torch.OutOfMemoryError)
    del refusal
    made.check()


def test_a_loader_goes_on_after_a_device_that_was_full(machine, source):
    made = machine()
    with gl.DataLoader(source, 2, device="cuda") as loader:
        made.says.at_allocation = lambda nbytes: torch.OutOfMemoryError("CUDA out of memory.")
        with pytest.raises(gl.DeviceError, match="device memory"):
            list(loader)
        made.says.at_allocation = lambda nbytes: None
        batches = list(loader)
        made.synchronize()
        assert [x[0, 0, 0].item() for x in batches] == [0, 2, 4]
    made.check()


def test_arrays_that_do_not_fit_are_refused_before_any_is_read(machine, source):
    made = machine(free_nbytes=300)
    match = r"^cache: expected 0\.0 MB of arrays to fit on cuda:0, got 0\.0 MB free; select"
    with pytest.raises(ValueError, match=match):
        gl.DataLoader(source, 2, device="cuda", cache="device")
    assert made.threads == set()


def test_reads_into_the_gpu_are_refused_with_the_reason(machine, source, monkeypatch):
    machine()
    monkeypatch.setattr(gds, "MIN_NBYTES", 1)
    monkeypatch.setattr(gds, "why_not", lambda: "expected kvikio beside CuPy, found none; install")
    match = (
        r'^io: expected reads straight into a GPU with io="gds", got none: expected kvikio beside '
        r'CuPy, found none; install; pass io="auto"$'
    )
    with pytest.raises(gl.DeviceError, match=match):
        gl.DataLoader(source, 2, device="cuda", io="gds")
    with gl.DataLoader(source, 2, device="cuda") as loader:
        assert "not read into it: expected kvikio beside CuPy, found none" in loader.describe()


# ---- Machines without a GPU, and loaders that need none

ON_THE_CPU = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np, torch
import gpuload as gl

def refuse(*arguments, **named):
    raise AssertionError("CUDA is started")

torch.cuda.init = torch.cuda._lazy_init = torch.cuda.current_device = refuse
np.save("a.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
source = gl.open("a.npy", sample_axis=0)
for options in ({"device": "cpu"}, {"device": "auto"}, {"device": "cpu", "cache": "device"}):
    with gl.DataLoader(source, 2, **options) as loader:
        print([x.sum().item() for x in loader])
        loader.describe(), loader.memory(), loader.stats()
print([x.sum().item() for x in gl.prefetch([torch.ones(2)], "cpu")])
print(sorted({"cupy", "kvikio"} & set(sys.modules)), torch.cuda.is_initialized())
"""


def test_loaders_on_the_cpu_do_not_touch_cuda(run_python):
    done = run_python(ON_THE_CPU)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[15.0, 51.0]"] * 3 + ["[2.0]", "[] False"]
