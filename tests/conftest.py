"""What several test files share."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl
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
