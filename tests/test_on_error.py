"""on_error="skip" and "replace": what is left out, what stands in, and how much is too much."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gpuload as gl

N = 24
BAD = [5, 6, 17]
each_io = pytest.mark.parametrize("io", ["pread", "mmap"])


@pytest.fixture
def files(save_arrays):
    """24 arrays, and how to break some of them."""
    directory, arrays = save_arrays(N, (6, 5))
    source = gl.open(directory, labels=np.arange(N) * 10)

    def damage(items):
        for i, item in enumerate(items):
            os.unlink(source.paths[item]) if i % 2 else os.truncate(source.paths[item], 130)

    return source, arrays, damage


def make_loader(source, on_error, **options):
    options = {"batch_size": 4, "threads": 2, "extras": ("index", "path", "valid")} | options
    return gl.DataLoader(source, on_error=on_error, **options)


def check_rows(batch, arrays):
    items = batch.index.tolist()
    np.testing.assert_array_equal(batch.x, arrays[items])
    assert batch.y.tolist() == [10 * item for item in items]
    assert [os.path.basename(path) for path in batch.path] == [f"{i:05}.npy" for i in items]


@each_io
def test_skip_leaves_out_what_cannot_be_read(files, io):
    source, arrays, damage = files
    damage(BAD)
    with make_loader(source, "skip", io=io) as loader:
        batches = list(loader)
        assert len(batches) == len(loader) == 6
    assert [batch.index.tolist() for batch in batches] == [
        [item for item in range(i, i + 4) if item not in BAD] for i in range(0, N, 4)
    ]
    for batch in batches:
        check_rows(batch, arrays)
        assert len(batch.valid) == len(batch.x)


@each_io
def test_replace_keeps_every_batch_full(files, io):
    source, arrays, damage = files
    damage(BAD)
    with make_loader(source, "replace", io=io) as loader:
        batches = list(loader)
    assert [len(batch.x) for batch in batches] == [4] * 6
    items = np.concatenate([batch.index for batch in batches])
    for batch in batches:
        check_rows(batch, arrays)
    assert not set(BAD) & set(items.tolist())
    good = [i for i in range(N) if i not in BAD]
    assert items[good].tolist() == good
    assert len(set(items[BAD].tolist())) > 1  # not the same stand-in for all


@each_io
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_errors_lists_what_happened(files, io, on_error):
    source, _, damage = files
    damage(BAD)
    with make_loader(source, on_error, io=io) as loader:
        assert loader.errors == []
        for epoch in range(2):
            list(loader)
            found = sorted(
                (failure for failure in loader.errors if failure.epoch == epoch),
                key=lambda failure: failure.batch,
            )
            first = [failure for failure in found if failure.index in BAD]
            assert {failure.index for failure in first} == set(BAD)
            for failure in found:
                assert failure.crop == 0
                assert failure.path == source.paths[failure.index]
                assert failure.message.startswith(f"{failure.path}: expected ")
        if on_error == "skip":
            assert sorted((f.epoch, f.batch, f.index) for f in loader.errors) == [
                (epoch, item // 4, item) for epoch in (0, 1) for item in BAD
            ]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_what_arrives_does_not_depend_on_threads_or_reading(files, on_error, shuffle):
    source, _, damage = files
    damage(BAD)
    seen = []
    for threads, io, prefetch in [(1, "pread", 1), (3, "pread", 5), (1, "mmap", 2), (4, "mmap", 1)]:
        with make_loader(
            source,
            on_error,
            threads=threads,
            io=io,
            prefetch=prefetch,
            shuffle=shuffle,
            crop=gl.RandomCrop(3, per_array=2),
            extras=("index", "crop", "start"),
        ) as loader:
            seen.append([[t.tolist() for t in batch] for batch in loader])
    assert seen[1:] == seen[:1] * 3


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_every_rank_makes_as_many_steps(files, on_error):
    source, arrays, damage = files
    damage([0, 2, 8, 10])  # all of them on rank 0
    lengths = []
    for rank in range(2):
        with make_loader(source, on_error, rank=rank, world_size=2, batch_size=3) as loader:
            batches = list(loader)
            lengths.append((len(loader), len(batches)))
            for batch in batches:
                check_rows(batch, arrays)
    assert lengths == [(4, 4), (4, 4)]


@each_io
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_budget_ends_the_epoch(files, io, on_error):
    source, _, damage = files
    damage(BAD)
    if on_error == "skip":
        with make_loader(source, on_error, io=io, max_errors=3) as loader:
            assert len(list(loader)) == 6
    with (
        make_loader(source, on_error, io=io, max_errors=1, threads=1) as loader,
        pytest.raises(gl.ReadError, match=r"00006\.npy: expected .*, got"),
    ):
        list(loader)
    with make_loader(source, on_error, io=io, max_errors=0, threads=1) as loader:
        got = []
        with pytest.raises(gl.ReadError, match=r"00005\.npy: expected"):
            got.extend(loader)
        assert len(got) == 1


def test_a_budget_counts_anew_in_each_epoch(files):
    source, _, damage = files
    damage([5])
    with make_loader(source, "skip", max_errors=1) as loader:
        for _ in range(4):
            assert len(list(loader)) == 6
        assert len(loader.errors) == 4


@each_io
def test_a_batch_of_which_nothing_can_be_read_is_an_error(files, io):
    source, arrays, damage = files
    damage([8, 9, 10, 11])
    got = []
    with make_loader(source, "skip", io=io) as loader:
        with pytest.raises(
            gl.ReadError,
            match=r"batch \d+: expected at least one readable .* got none; .* last: .*npy",
        ):
            got.extend(loader)
        assert len(loader.errors) >= 4
    assert [batch.index.tolist() for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for batch in got:
        check_rows(batch, arrays)


@each_io
def test_when_nothing_can_stand_in_replace_gives_up(files, io):
    source, _, damage = files
    damage(range(N))
    with (
        make_loader(source, "replace", io=io) as loader,
        pytest.raises(gl.ReadError, match=r"\.npy: expected"),
    ):
        list(loader)


def test_skip_closes_the_gaps_of_every_column(files):
    source, arrays, damage = files
    damage([1, 2])
    with make_loader(
        source, "skip", crop=gl.RandomCrop((2, 3)), extras=("start", "crop", "valid", "index")
    ) as loader:
        batch = next(iter(loader))
    assert batch.index.tolist() == [0, 3]
    assert batch.valid.tolist() == [True, True]
    for x, item, (row, column) in zip(batch.x, batch.index, batch.start.tolist(), strict=True):
        np.testing.assert_array_equal(x, arrays[item][row : row + 2, column : column + 3])


@each_io
def test_large_batches_in_several_parts_are_skipped_right(tmp_path, io):
    arrays = np.arange(8 * 600 * 500, dtype=np.float32).reshape(8, 600, 500)
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    source = gl.open(tmp_path)
    os.truncate(source.paths[2], 200_000)
    os.truncate(source.paths[5], 200_000)
    with gl.DataLoader(
        source, 8, io=io, prefetch=1, threads=4, on_error="skip", extras="index"
    ) as loader:
        batch = next(iter(loader))
    assert batch.index.tolist() == [0, 1, 3, 4, 6, 7]
    np.testing.assert_array_equal(batch.x, arrays[batch.index.numpy()])


@pytest.mark.parametrize(
    "options", [{}, {"flip": 0}, {"scale": 1.0}], ids=["plain", "flip", "scale"]
)
def test_a_stand_in_has_a_shape_of_its_own(tmp_path, options):
    for i, n in enumerate((4, 2, 6)):
        np.save(tmp_path / f"{i}.npy", np.full((n, n), i, "f4"))
    source = gl.open(tmp_path)
    (tmp_path / "0.npy").write_bytes(b"")
    loader = gl.DataLoader(source, 1, on_error="replace", extras="index", io="pread", **options)
    for batch in loader:
        (i,) = batch.index.tolist()
        assert i in (1, 2)
        assert batch.x.shape == (1, *source.shapes[i])
        assert (batch.x == i).all()


def test_windows_of_no_bytes_leave_no_memory_behind(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((40, 0, 3), "f4"))
    source = gl.open(tmp_path / "a.npy", sample_axis=0)
    source.labels = np.arange(40)
    with gl.DataLoader(source, 2, flip=(1,)) as loader:
        for _ in range(20):
            assert [y for _, y in loader][-1].tolist() == [38, 39]
        assert loader.stats().batch_blocks <= 70
