"""fork, spawn and pickling: what a child may use, and that nothing of it hangs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl

FORK = multiprocessing.get_context("fork")
N = 40
pytestmark = pytest.mark.filterwarnings(  # Python 3.12 and later, once there are threads
    "ignore:.*use of fork.*:DeprecationWarning"
)


@pytest.fixture
def files(save_arrays):
    directory, arrays = save_arrays(N, (8, 8))
    return gl.open(directory, labels=np.arange(N)), arrays


def in_child(function, *, timeout_s: float = 20):
    """What `function` returns or raises in a forked child that ends as usual."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run():
        try:
            theirs.send(function())
        except BaseException as error:
            theirs.send((type(error).__name__, str(error), traceback.format_exc()))

    child = FORK.Process(target=run)
    child.start()
    theirs.close()
    try:
        assert ours.poll(timeout_s), "the child hangs"
        result = ours.recv()
        child.join(timeout_s)
        assert child.exitcode == 0, "the child hangs at its end, or died"
        return result
    finally:
        child.kill()
        child.join()
        ours.close()


def items(loader):
    return [int(i) for batch in loader for i in batch[1]]


DEVICES = ["cpu", "late"]


def make_loader(source, device="cpu", **options):
    from late import LateDevice

    return gl.DataLoader(
        source, 4, threads=2, device=LateDevice() if device == "late" else device, **options
    )


# A loader of the parent


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_a_used_loader_in_a_child_is_an_error_that_names_both_processes(files, device, io):
    with make_loader(files[0], device, io=io) as loader:
        list(loader)
        name, message, _ = in_child(lambda: list(loader))
        assert name == "RuntimeError"
        assert f"expected use in process {os.getpid()} that made it, got process " in message
        assert "make a DataLoader after the fork, or use spawn" in message
        assert len(list(loader)) == 10


@pytest.mark.parametrize("device", DEVICES)
def test_an_iterator_of_the_parent_in_a_child_is_an_error_too(files, device):
    with make_loader(files[0], device) as loader:
        iterator = iter(loader)
        next(iterator)
        name, message, _ = in_child(lambda: next(iterator))
        assert name == "RuntimeError"
        assert f"expected use in process {os.getpid()}" in message
        assert len(list(iterator)) == 9  # the parent goes on


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "act",
    [
        lambda loader, iterator: loader.close(),
        lambda loader, iterator: iterator.close(),
        lambda loader, iterator: loader.stats() and None,
        lambda loader, iterator: None,
    ],
    ids=["close the loader", "close the iterator", "stats", "nothing"],
)
def test_a_child_may_close_what_it_inherits(files, device, act):
    with make_loader(files[0], device) as loader:
        iterator = iter(loader)
        next(iterator)
        for _ in range(5):
            assert in_child(lambda: act(loader, iterator)) is None
        assert len(list(iterator)) == 9


def test_a_child_that_exits_the_ordinary_way_does_not_hang(files, start_python):
    program = start_python(
        """
        import os, sys
        import gpuload as gl

        loader = gl.DataLoader(gl.open(sys.argv[1]), 4, threads=3)
        iterator = iter(loader)
        held = [next(iterator), next(iterator)]
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                held.clear()
                sys.exit()  # with everything the interpreter does at exit
            pids.append(pid)
        print([os.waitpid(pid, 0)[1] for pid in pids], len(list(iterator)))
        """,
        os.path.dirname(files[0].paths[0]),
    )
    assert program.wait(20) == 0
    assert program.stdout == f"{[0] * 3} 8\n"
    assert program.stderr == ""


def test_fork_in_the_middle_of_an_epoch_disturbs_no_values(files):
    source, arrays = files
    with make_loader(source, shuffle=True) as loader:
        for _ in range(3):
            for x, y in loader:
                np.testing.assert_array_equal(x, arrays[y])
                if int(y[0]) % 5 == 0:
                    assert in_child(lambda: 1) == 1


def test_batches_held_across_a_fork_are_whole_and_freed_in_the_child(files):
    source, arrays = files
    with make_loader(source) as loader:
        batches = list(loader)

        def look_and_drop():
            right = all(np.array_equal(x, arrays[y]) for x, y in batches)
            batches.clear()
            return right

        assert in_child(look_and_drop)
        assert all(np.array_equal(x, arrays[y]) for x, y in batches)
        x = batches[0].x
        x += 1  # the child has pages of its own
        assert in_child(lambda: float(x[0, 0, 0])) == 1
        assert in_child(lambda: float(x.fill_(7).sum())) == 7 * 4 * 64
        np.testing.assert_array_equal(x, arrays[:4] + 1)


# A loader of the child


@pytest.mark.parametrize("device", DEVICES)
def test_a_loader_made_in_the_child_works(files, device):
    with make_loader(files[0]) as loader:
        list(loader)
        source = files[0]
        assert in_child(lambda: items(make_loader(source, device, shuffle=True)).sort()) is None
        assert sorted(in_child(lambda: items(make_loader(source)))) == list(range(N))


def test_a_loader_that_was_not_used_yet_works_in_the_child(files):
    loader = make_loader(files[0])
    assert in_child(lambda: items(loader)) == list(range(N))
    assert items(loader) == list(range(N))


def test_four_forked_workers_read_no_wrong_row(tmp_path):
    """Each worker uses the source of the parent, which has read from it already."""
    n = 2000
    rows = np.repeat(np.arange(n, dtype=np.int64)[:, None], 50, axis=1)
    np.save(tmp_path / "rows.npy", rows)
    source = gl.open(tmp_path / "rows.npy", sample_axis=0)
    assert source[3].tolist() == [3] * 50

    def count_wrong(queue):
        order = np.random.default_rng(os.getpid()).permutation(n)
        queue.put(sum(source[i].tolist() != [i] * 50 for i in order))

    queue = FORK.SimpleQueue()
    workers = [FORK.Process(target=count_wrong, args=(queue,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert [queue.get() for _ in workers] == [0] * 4
    queue.close()


def test_a_fork_while_other_threads_read_does_not_hang(files):
    import threading

    source, stop = files[0], threading.Event()

    def read_on():
        with make_loader(source) as loader:
            while not stop.is_set():
                list(loader)
                source[0]

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            assert in_child(lambda: items(make_loader(source)), timeout_s=10) == list(range(N))
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


# Pickling


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_used_source_and_a_used_loader_pickle(files, protocol):
    source, arrays = files
    source[0]
    with make_loader(source, shuffle=True, crop=gl.RandomCrop(4), extras="index") as loader:
        list(loader)
        pickled = pickle.dumps((source, loader), protocol)
        copy, other = pickle.loads(pickled)
        np.testing.assert_array_equal(copy[5][0], arrays[5])
        for mine, theirs in zip(loader, other, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
    assert len(pickled) < 10_000
    other.close()


def test_spawned_workers_get_working_copies(files, tmp_path):
    (tmp_path / "program.py").write_text(
        """
import multiprocessing, sys
import numpy as np
import gpuload as gl

def work(source, loader, queue):
    queue.put([int(source[i][1]) for i in range(3)] + [int(i) for _, y in loader for i in y])

if __name__ == "__main__":
    source = gl.open(sys.argv[1], labels=np.arange(40))
    source[0]
    loader = gl.DataLoader(source, 4)
    list(loader)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(source, loader, queue)) for _ in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    print([worker.exitcode for worker in workers])
    print(queue.get() == queue.get() == [0, 1, 2, *range(40)])
"""
    )
    done = subprocess.run(
        [sys.executable, "program.py", str(Path(files[0].paths[0]).parent)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n") == ["[0, 0]", "True", ""]


# What the CPU path leaves alone


def test_neither_cuda_nor_its_libraries_are_touched(files, run_python):
    done = run_python(
        """
        import sys
        import torch
        import gpuload as gl

        source = gl.open(sys.argv[1])
        source[0]
        loader = gl.DataLoader(source, 4, shuffle=True, crop=gl.RandomCrop(3), dtype="float16")
        n = sum(len(x) for x in loader)
        print(n, torch.cuda.is_initialized())
        others = {"cupy", "kvikio", "h5py", "skimage", "click", "rich"}
        print(sorted(others & set(sys.modules)))
        """,
        os.path.dirname(files[0].paths[0]),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == [f"{N} False", "[]", ""]
