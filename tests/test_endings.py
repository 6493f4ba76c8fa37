"""How a loader ends: close, break, errors. Nothing hangs, nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl

each_io = pytest.mark.parametrize("io", ["pread", "mmap"])


@pytest.fixture
def files(save_arrays):
    directory, arrays = save_arrays(40, (16, 16))
    return gl.open(directory, labels=np.arange(40)), arrays


def native_threads() -> int:
    n = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            n += (task / "comm").read_text().startswith("gpuload")
    return n


def wait_for_threads(n: int) -> None:
    """A new thread says its name only when it first runs."""
    until = time.monotonic() + 10
    while native_threads() != n:
        assert time.monotonic() < until, native_threads()
        time.sleep(0.001)


def open_files(below: str) -> list[str]:
    """Descriptors and maps of this process that lead below a folder."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(link))
        except FileNotFoundError:
            continue  # of the listing itself
    maps = Path("/proc/self/maps").read_text().splitlines()
    targets += [line.split(maxsplit=5)[-1] for line in maps]
    return [target for target in targets if target.startswith(below)]


def folder_of(source) -> str:
    return os.path.dirname(source.paths[0])


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    """After each test, with its loaders gone, neither threads nor files of ours are left."""
    gc.collect()  # of other tests
    wait_for_threads(0)
    yield
    gc.collect()
    until = time.monotonic() + 5
    while (native_threads() or open_files(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.01)
    assert native_threads() == 0
    assert open_files(str(tmp_path)) == []
    assert [t for t in threading.enumerate() if t.name.startswith("gpuload")] == []


# close()


@each_io
def test_close_ends_threads_and_closes_files(files, io):
    source, _ = files
    loader = gl.DataLoader(source, 4, io=io, threads=3)
    list(loader)
    wait_for_threads(3)
    assert open_files(folder_of(source))
    loader.close()
    assert native_threads() == 0
    assert open_files(folder_of(source)) == []
    loader.close()


@each_io
def test_close_ends_threads_while_somebody_holds_the_iterator(files, io):
    source, arrays = files
    loader = gl.DataLoader(source, 4, io=io, threads=3)
    iterator = iter(loader)
    x, _ = next(iterator)
    loader.close()
    assert native_threads() == 0
    assert open_files(folder_of(source)) == []
    np.testing.assert_array_equal(x, arrays[:4])
    assert next(iterator, None) is None


def test_a_closed_loader_says_so_and_still_reports(files):
    loader = gl.DataLoader(files[0], 4)
    list(loader)
    before = loader.stats()
    loader.close()
    after = loader.stats()
    assert (after.batches, after.read_nbytes) == (before.batches, before.read_nbytes)
    assert after.read_nbytes >= 40 * 16 * 16 * 4
    assert loader.state_dict()["epoch"] == 1
    assert loader.describe()
    with pytest.raises(RuntimeError, match="expected an open loader, got one that was closed"):
        iter(loader)


def test_with_closes_also_after_an_error(files):
    with pytest.raises(ZeroDivisionError, match="by zero"), gl.DataLoader(files[0], 4) as loader:  # noqa: PT012
        for x, _ in loader:
            len(x) / 0
    assert native_threads() == 0


@each_io
def test_a_loader_that_is_dropped_leaves_nothing(files, io):
    loader = gl.DataLoader(files[0], 4, io=io)
    list(loader)
    del loader
    gc.collect()
    assert native_threads() == 0
    assert open_files(folder_of(files[0])) == []


@each_io
def test_batches_outlive_their_loader(files, io):
    source, arrays = files
    with gl.DataLoader(source, 4, io=io) as loader:
        batches = list(loader)
    del loader
    gc.collect()
    assert native_threads() == 0
    for i, (x, y) in enumerate(batches):
        np.testing.assert_array_equal(x, arrays[4 * i : 4 * i + 4])
        assert y.tolist() == list(range(4 * i, 4 * i + 4))


def test_close_from_another_thread_ends_the_loop(files):
    loader = gl.DataLoader(files[0], 2, threads=2)
    started, n = threading.Event(), []

    def consume():
        while True:
            try:
                for _ in loader:
                    n.append(1)
                    started.set()
            except RuntimeError as error:  # closed between two epochs
                n.append(error)
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert started.wait(10)
    loader.close()
    consumer.join(10)
    assert not consumer.is_alive()
    assert "got one that was closed" in str(n[-1])


@pytest.mark.parametrize("n_closers", [2, 8])
def test_many_threads_may_close_at_once(files, n_closers):
    for _ in range(10):
        loader = gl.DataLoader(files[0], 1, threads=4)
        iterator = iter(loader)
        next(iterator)
        closers = [threading.Thread(target=loader.close) for _ in range(n_closers)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(10)
            assert not closer.is_alive()
        assert native_threads() == 0


# Iterators that do not come to their end


@each_io
def test_break_ends_the_epoch_and_the_next_is_whole(files, io):
    source, arrays = files
    with gl.DataLoader(source, 4, io=io) as loader:
        for n in (1, 3, 7):
            for i, (x, _) in enumerate(loader, start=1):
                np.testing.assert_array_equal(x, arrays[4 * i - 4 : 4 * i])
                if i == n:
                    break
        np.testing.assert_array_equal(np.concatenate([x for x, _ in loader]), arrays)


def test_an_iterator_that_was_never_asked_is_dropped(files):
    loader = gl.DataLoader(files[0], 4)
    for _ in range(20):
        iter(loader)
    iterator = iter(loader)
    del iterator
    assert len(list(loader)) == 10


def test_an_exception_in_the_loop_leaves_the_loader_usable(files):
    loader = gl.DataLoader(files[0], 4)
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            fail_at_the_second(loader)
    assert len(list(loader)) == 10


def fail_at_the_second(loader):
    for i, _ in enumerate(loader):
        if i == 1:
            raise KeyError("mine")


def test_many_unfinished_iterators_at_once(files):
    source, arrays = files
    loader = gl.DataLoader(source, 4, threads=2)
    iterators = [iter(loader) for _ in range(12)]
    for i in range(10):
        for iterator in iterators:
            np.testing.assert_array_equal(next(iterator)[0], arrays[4 * i : 4 * i + 4])
    assert [next(iterator, None) for iterator in iterators] == [None] * 12
