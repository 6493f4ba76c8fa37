"""What several test files share."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl
from gpuload.readers import gds
from gpuload.sources import npy

torch.set_num_threads(1)  # its pool spins, and would take the cores from the loaders' threads
sys.path.insert(0, str(Path(__file__).parent))  # for modules that are no tests, such as late.py


@pytest.fixture(scope="session")
def zygote():
    from zygote import Zygote

    process = Zygote()
    yield process
    process.close()


@pytest.fixture
def start_python(tmp_path, zygote):
    """Start a program in a fresh process, from a folder that holds no source."""

    def start(code: str, *arguments: object):
        return zygote.start(code, *arguments, cwd=tmp_path)

    yield start
    if zygote.program is not None and zygote.program.returncode is None:
        with contextlib.suppress(TimeoutError):
            zygote.program.wait(0)


@pytest.fixture
def run_python(start_python):
    """Run a program to its end in a fresh process, from a folder that holds no source."""

    def run(code: str, *arguments: object, timeout_s: float = 30):
        program = start_python(code, *arguments)
        program.wait(timeout_s)
        return program

    return run


@pytest.fixture
def save_arrays(tmp_path):
    """Write .npy files of which every element of every file is different."""

    def save(n: int, shape: tuple[int, ...], dtype: str = "float32", folder: str = "data"):
        directory = tmp_path / folder
        directory.mkdir()
        arrays = np.arange(n * np.prod(shape), dtype=dtype).reshape(n, *shape)
        for i, array in enumerate(arrays):
            np.save(directory / f"{i:05}.npy", array)
        return directory, arrays

    return save


@pytest.fixture
def numbered(tmp_path):
    """A source of `n` items in one file, each of them [its own number, ...] of `shape`."""

    def numbered(n: int, shape: tuple[int, ...] = (1,), name: str = "numbered"):
        path = tmp_path / f"{name}-{n}.npy"
        rows = np.arange(n, dtype=np.int64).reshape(n, *[1] * len(shape))
        np.save(path, np.broadcast_to(rows, (n, *shape)))
        return gl.open(path, sample_axis=0)

    return numbered


@pytest.fixture
def four(tmp_path):
    """Files 0.npy, 1.npy, 10.npy and 2.npy, each [its number] * 3."""
    from numbered_files import save_numbered

    return save_numbered(tmp_path / "four", {f"{number}.npy": number for number in (0, 1, 2, 10)})


@pytest.fixture
def rows(tmp_path):
    """Rows 0 to 4 in a.npy (2 rows) and b.npy (3 rows)."""
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(2.0)[:, None])
    np.save(folder / "b.npy", np.arange(2.0, 5.0)[:, None])
    return folder


@pytest.fixture
def table(tmp_path):
    """Write lines of a CSV file of labels, and give its path."""
    from numbered_files import save_table

    return partial(save_table, tmp_path / "labels.csv")


@pytest.fixture
def scanned(monkeypatch):
    """Returns the names of the files whose headers were read since it was last called."""
    names = []
    scan = npy.scan

    def counting(paths, *, threads):
        names.extend(Path(path).name for path in paths)
        return scan(paths, threads=threads)

    monkeypatch.setattr(npy, "scan", counting)

    def take() -> list[str]:
        taken = names[:]
        names.clear()
        return taken

    return take


@pytest.fixture(scope="session")
def host_kernels(tmp_path_factory):
    """Every kernel, built for the host; kept beside the folders of earlier sessions."""
    from host_kernels import build

    return build(tmp_path_factory.getbasetemp().parent)


@pytest.fixture
def on_every_way(host_kernels):
    """Make the batches of a loader on every device and way to read, which must be the same."""
    from arranged import on_every_way

    return partial(on_every_way, host_kernels)


@pytest.fixture
def check_every_way(host_kernels):
    """Compare the batches of a loader on every device and way to read with those of NumPy."""
    from arranged import check_every_way

    return partial(check_every_way, host_kernels)


@pytest.fixture
def kernel_files(tmp_path):
    """Write what the kernel of a made-up machine says, in files below a root; return the root."""

    def kernel_files(files: dict[str, str]) -> Path:
        root = tmp_path / "root"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    return kernel_files


@pytest.fixture
def cuda_says(monkeypatch):
    """Set why the CUDA device cannot be used; None says that it can."""

    def cuda_says(reason: str | None) -> None:
        module = types.ModuleType("gpuload.devices.cuda")
        module.why_not = lambda: reason
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return cuda_says


@pytest.fixture
def no_cuda(cuda_says):
    """A machine without a GPU, wherever this runs. The reason that it gives."""
    reason = "torch is built for the CPU alone; install a CUDA build"
    cuda_says(reason)
    return reason


@pytest.fixture
def one_gpu(monkeypatch, cuda_says):
    """A machine whose torch sees one GPU. What torch knows of it."""
    cuda_says(None)
    known = types.SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000)
    known.major, known.minor = 9, 0
    known.pci_domain_id, known.pci_bus_id, known.pci_device_id = 0, 0xC1, 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: known)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (149_000_000_000, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gds, "why_not", lambda: None)
    return known


@pytest.fixture
def standin():
    """Make stand-ins for kvikio. At the end: nobody did what would have been a race, and all is
    closed."""
    from kvikio_standin import StandIn

    made = []

    def make(**options):
        made.append(StandIn(**options))
        return made[-1]

    yield make
    gc.collect()
    for kvikio in made:
        kvikio.pool.shutdown()
        assert kvikio.wrong == []
        assert kvikio.open_files == []


@pytest.fixture
def save_bytes(tmp_path):
    """Write files of random bytes; give their paths and their bytes."""

    def save_bytes(*sizes: int):
        rng = np.random.default_rng(5)
        files = [rng.integers(0, 256, n, np.uint8) for n in sizes]
        paths = [str(tmp_path / f"{i}.bin") for i in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            data.tofile(path)
        return paths, files

    return save_bytes


@pytest.fixture
def cuda(monkeypatch, tmp_path, host_kernels):
    """A machine with two GPUs that are made up. At the end: nobody did what a real one would punish
    or hide, and no memory is pinned any more."""
    from cuda_standin import CudaStandIn

    made = CudaStandIn(host_kernels, n_gpus=2)
    made.install(monkeypatch, tmp_path / "kernels")
    yield made
    made.check()


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """The GPU that torch calls "cuda", as a device. Compiled kernels are kept beside the folders of
    earlier sessions."""
    from gpuload.devices import programs
    from gpuload.devices.choose import choose

    folder = tmp_path_factory.getbasetemp().parent / "gpuload-kernels"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "cache_folder", lambda: folder)
        yield choose("cuda")[0]
