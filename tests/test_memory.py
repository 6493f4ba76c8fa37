"""Memory, descriptors and maps: bounded, flat, and recycled only once the caller has let go."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from late import EagerDevice

import gpuload as gl

MB = 1 << 20
each_io = pytest.mark.parametrize("io", ["pread", "mmap"])


@pytest.fixture
def rows(tmp_path):
    """600 items of 16 KiB in one file; item i is filled with i."""
    values = np.arange(600, dtype=np.float32)
    np.save(tmp_path / "rows.npy", np.broadcast_to(values[:, None, None], (600, 64, 64)))
    return gl.open(tmp_path / "rows.npy", sample_axis=0, labels=np.arange(600))


def own_nbytes() -> int:
    """Memory of this process that is not of files."""
    memory = psutil.Process().memory_full_info()
    return memory.rss - memory.shared


# Whose memory a batch is


@each_io
def test_batches_that_are_held_stay_as_they_are(rows, io):
    with gl.DataLoader(rows, 8, io=io, threads=3) as loader:
        held = [list(loader) for _ in range(3)]
    for epoch in held:
        for i, (x, y) in enumerate(epoch):
            wanted = np.arange(8 * i, 8 * i + 8)
            np.testing.assert_array_equal(x, np.broadcast_to(wanted[:, None, None], x.shape))
            np.testing.assert_array_equal(y, wanted)
    pointers = [x.data_ptr() for epoch in held for x, _ in epoch]
    assert len(set(pointers)) == len(pointers)


# Ways to keep a batch: which of its tensors, and what is kept of it.
KEPT = {
    "x": ("x", lambda batch: batch.x),
    "y alone": ("y", lambda batch: batch.y),
    "a slice": ("x", lambda batch: batch.x[3, 1:2]),
    "a view of another shape": ("x", lambda batch: batch.x.view(-1)[-5:]),
    "a transposed view": ("x", lambda batch: batch.x.transpose(0, 2)[0, 0]),
    "a NumPy view": ("x", lambda batch: batch.x.numpy()),
    "a NumPy view of a slice": ("x", lambda batch: batch.x[1].numpy()[2:3]),
    "another type's view": ("y", lambda batch: batch.y.view(torch.int32)),
    "a storage": ("y", lambda batch: batch.y.untyped_storage()),
    "the batch": ("x", lambda batch: batch),
    "an iterator over x": ("x", lambda batch: iter(batch.x)),
}


def test_keeping_labels_does_not_keep_the_windows(rows):
    with gl.DataLoader(rows, 8, threads=2) as loader:
        labels = [y for _ in range(3) for _, y in loader]
        assert loader.stats().batch_blocks <= loader.memory().blocks + 1
        n = len(loader)
        for i, y in enumerate(labels):
            assert y.tolist() == list(range(8 * (i % n), 8 * (i % n) + len(y)))


@pytest.mark.parametrize(("of", "keep"), KEPT.values(), ids=KEPT)
def test_any_share_in_a_batch_keeps_its_memory(rows, of, keep):
    with gl.DataLoader(rows, 8, threads=2) as loader:
        kept = begin = content = None
        for i, batch in enumerate(loader):
            if i == 5:
                kept, begin = keep(batch), getattr(batch, of).data_ptr()
                content = batch.x.clone(), batch.y.clone()
            elif kept is not None:
                assert getattr(batch, of).data_ptr() != begin
        assert begin not in {getattr(batch, of).data_ptr() for batch in loader}
        x, y = content
        assert x[:, 0, 0].tolist() == y.tolist() == list(range(40, 48))
        del kept, batch
        list(loader)
        assert loader.stats().batch_blocks <= loader.memory().blocks


def test_memory_is_used_again_once_the_last_tensor_is_gone(rows):
    with gl.DataLoader(rows, 8, threads=2) as loader:
        pointers = [batch.x.data_ptr() for _ in range(4) for batch in loader]
        assert len(set(pointers)) <= loader.memory().blocks + 1 < len(pointers) / 8


def test_a_batch_may_be_written_to(rows):
    with gl.DataLoader(rows, 8) as loader:
        for x, y in loader:
            x += 1000
            y.zero_()
        for i, (x, y) in enumerate(loader):
            assert x[:, 1, 2].tolist() == y.tolist() == list(range(8 * i, 8 * i + len(x)))


# Bounds


@each_io
@pytest.mark.parametrize("n_held", [0, 1, 20])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_blocks_are_bounded_by_what_memory_says_and_the_caller_holds(rows, io, n_held, batch_size):
    with gl.DataLoader(rows, batch_size, io=io, prefetch=3, threads=2) as loader:
        bound = loader.memory()
        assert bound.host_nbytes >= bound.blocks * bound.batch_nbytes
        held = []
        for _ in range(3):
            for x, _ in loader:
                held.append(x)
                del x
                held = held[len(held) - n_held :]
            assert loader.stats().batch_blocks <= bound.blocks + n_held + 1
        held.clear()
        list(loader)[:0]
        assert loader.memory() == bound
        for _ in loader:
            pass
        assert loader.stats().batch_blocks <= bound.blocks + 1


@each_io
def test_one_huge_item_among_small_ones_is_held_once_per_block(tmp_path, io):
    """Each block may come to hold the huge item; no more than that, and close() frees it."""
    for i in range(99):
        np.save(tmp_path / f"{i:03}.npy", np.full(250, i, np.float32))
    huge = 32 * MB
    np.save(tmp_path / "huge.npy", np.ones(huge // 4, np.float32))
    source = gl.open(tmp_path)
    before = own_nbytes()
    with gl.DataLoader(source, 1, shuffle=True, prefetch=2, io=io, threads=2) as loader:
        bound = loader.memory()
        assert bound.batch_nbytes >= huge
        after = []
        for _ in range(12):
            n = sum(x.shape[1] == huge // 4 for x in loader)
            assert n == 1
            after.append(own_nbytes() - before)
        assert max(after) <= bound.host_nbytes + huge + 4 * MB
    gc.collect()
    assert own_nbytes() - before < 4 * MB


@pytest.mark.parametrize("device", ["cpu", "eager"])
@each_io
def test_resident_memory_is_flat_over_epochs(rows, io, device):
    with gl.DataLoader(
        rows,
        16,
        shuffle=True,
        crop=gl.RandomCrop((20, None)),
        io=io,
        threads=2,
        device=EagerDevice() if device == "eager" else device,
        extras=("index", "path", "start"),
    ) as loader:
        for _ in range(4):
            list(loader)
        before = own_nbytes()
        for _ in range(20):
            for _ in loader:
                pass
        assert own_nbytes() - before < 5 * MB


def test_single_rows_and_opening_again_do_not_leak(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(100_000, dtype=np.float64).reshape(100, 1000))
    source = gl.open(tmp_path / "rows.npy", sample_axis=0)
    order = np.random.default_rng(0).integers(100, size=60_000)

    def read(indices):
        return sum(float(source[i][0]) for i in indices)

    def open_and_read(n):
        for _ in range(n):
            assert gl.open(tmp_path / "rows.npy", sample_axis=0)[7][0] == 7000

    assert read(order[:2000]) == float((order[:2000] * 1000).sum())
    open_and_read(100)
    before, n_fds = own_nbytes(), len(os.listdir("/proc/self/fd"))
    read(order)
    assert own_nbytes() - before < 5 * MB
    open_and_read(2000)
    gc.collect()
    assert own_nbytes() - before < 5 * MB
    assert len(os.listdir("/proc/self/fd")) == n_fds


def test_making_and_closing_loaders_does_not_leak(rows):
    def once():
        with gl.DataLoader(rows, 64, threads=2) as loader:
            next(iter(loader))

    for _ in range(10):
        once()
    gc.collect()
    n_fds, n_threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    before = own_nbytes()
    for _ in range(150):
        once()
    gc.collect()
    assert own_nbytes() - before < 5 * MB
    assert len(os.listdir("/proc/self/fd")) == n_fds
    assert len(os.listdir("/proc/self/task")) == n_threads


# Limits of the process


@each_io
def test_sixty_four_descriptors_are_enough_for_three_hundred_files(save_arrays, run_python, io):
    directory, _ = save_arrays(300, (10, 10))
    done = run_python(
        """
        import os, resource, sys
        import numpy as np
        import gpuload as gl

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        source = gl.open(sys.argv[1])
        with gl.DataLoader(source, 7, shuffle=True, io=sys.argv[2], threads=8) as loader:
            for _ in range(3):
                values = np.concatenate([x.reshape(-1) for x in loader])
                assert sorted(values.tolist()) == list(range(30_000))
                assert len(os.listdir("/proc/self/fd")) < 32
        """,
        directory,
        io,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thousand_kept_batches_take_no_descriptors(save_arrays, run_python):
    directory, _ = save_arrays(1000, (2, 2))
    done = run_python(
        """
        import os, resource, sys
        import gpuload as gl

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        for io in ("pread", "mmap"):
            kept = list(gl.DataLoader(gl.open(sys.argv[1]), 1, io=io))
            assert [int(x[0, 0, 0]) for x in kept] == list(range(0, 4000, 4))
            assert len(os.listdir("/proc/self/fd")) < 128
        """,
        directory,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_when_others_use_up_the_descriptors_it_is_said_or_waited_for(save_arrays, run_python):
    directory, _ = save_arrays(60, (10, 10))
    done = run_python(
        """
        import os, resource, sys
        import gpuload as gl

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        source = gl.open(sys.argv[1])
        loader = gl.DataLoader(source, 7, io="pread", threads=2)
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            list(loader)
        except gl.ReadError as error:
            print(error)
        os.close(held.pop())
        os.close(held.pop())
        print(len(list(loader)))
        """,
        directory,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert "expected a free file descriptor, got none" in first
    assert "ulimit -n" in first
    assert second == "9"


def test_more_files_than_maps_are_read(save_arrays, monkeypatch):
    directory, arrays = save_arrays(30, (6, 6))
    from gpuload import system

    monkeypatch.setattr(system, "map_limit", lambda: 20)  # half of them are left to others
    with gl.DataLoader(gl.open(directory), 4, io="mmap", threads=2) as loader:
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate(list(loader)), arrays)
        maps = Path("/proc/self/maps").read_text()
        assert maps.count(f"{directory}/") == 10


# Large indices


def test_the_index_of_400000_items_is_small_and_not_copied_by_children(tmp_path, run_python):
    """Touching every path and label must not copy pages that parent and child share."""
    done = run_python(
        """
        import os
        import numpy as np, psutil
        import gpuload as gl
        from gpuload.catalog import Catalog, Layout, Paths
        from gpuload.dtypes import DTYPES
        from gpuload.sources.source import Source

        def private():
            memory = psutil.Process().memory_full_info()
            return memory.uss

        n = 400_000
        before = private()
        catalog = Catalog(
            paths=Paths.of(f"/some/folder/with/a/long/name/{i:012}.npy" for i in range(n)),
            sizes=np.full(n, 528, np.int64),
            file=np.arange(n, dtype=np.uint32),
            offset=np.full(n, 128, np.int64),
            shape=np.full((n, 2), 10, np.int64),
            flags=np.zeros(n, np.uint8),
            layout=Layout(DTYPES["float32"], 4),
        )
        source = Source(catalog, labels=np.arange(n))
        loader = gl.DataLoader(source, 256, shuffle=True)
        assert private() - before < 100 * 2**20, private() - before
        pid = os.fork()
        if pid:
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        before = private()
        order = range(0, n * 7919, 7919)  # a prime: all items, far apart
        assert sum(len(source.paths[i % n]) for i in order) == 46 * n
        assert sum(int(source.labels[i % n]) for i in order) == n * (n - 1) // 2
        grown = private() - before
        assert grown < 5 * 2**20, grown
        os._exit(0)
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
