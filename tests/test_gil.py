"""Native calls that take time let other Python threads run.

With a huge switch interval, a thread that waits for the GIL gets it only when it is released: the
tests do not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import gpuload as gl
from gpuload import _native
from gpuload.catalog import Paths


def other_thread_ran_during(call):
    """Whether another Python thread got to run while `call` was in progress."""
    go, ran, done = threading.Event(), [], []

    def other():
        go.wait()
        ran.append(not done)

    thread = threading.Thread(target=other)
    interval = sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(60)
    try:
        go.set()
        call()
        done.append(True)
        return ran == [True]
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One file with an item of 64 MiB."""
    path = tmp_path_factory.mktemp("large") / "large.npy"
    np.save(path, np.ones((1, 16, 1024, 1024), np.float32))
    return path


def test_the_probe_sees_a_held_gil():
    assert not other_thread_ran_during(lambda: sum(range(5_000_000)))


@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_waiting_for_a_batch_releases_the_gil(large, io):
    with gl.DataLoader(gl.open(large, sample_axis=0), 1, io=io, threads=1, prefetch=1) as loader:
        iterator = iter(loader)
        assert other_thread_ran_during(lambda: next(iterator))


def test_reading_an_item_releases_the_gil(large):
    source = gl.open(large, sample_axis=0)
    assert other_thread_ran_during(lambda: source[0])


def test_scanning_headers_releases_the_gil(large):
    paths = Paths.of([str(large)] * 20_000)
    assert other_thread_ran_during(lambda: _native.scan_npy(paths.blob, paths.ends, 2))


def test_looking_at_files_releases_the_gil(large):
    paths = Paths.of([str(large)] * 50_000)
    assert other_thread_ran_during(lambda: _native.stat_paths(paths.blob, paths.ends, 2))


def test_closing_releases_the_gil(large):
    """close() waits for reads in progress."""
    loader = gl.DataLoader(gl.open(large, sample_axis=0), 1, io="pread", threads=1, prefetch=1)
    iterator = iter(loader)
    assert other_thread_ran_during(loader.close)
    assert next(iterator, None) is None


def test_placing_a_box_releases_the_gil():
    n = 1 << 26
    src, dst = np.zeros(n, np.uint8), np.empty(n, np.uint8)
    to, from_ = dst.ctypes.data, src.ctypes.data
    assert other_thread_ran_during(
        lambda: _native.place(to, from_, 1, 1, [n], [1], [1], False)  # 1: uint8
    )
