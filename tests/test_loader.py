"""DataLoader as its users see it: batches, reports, endings."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import gpuload as gl


@pytest.fixture
def folder(save_arrays):
    """Ten 6 x 5 arrays."""
    return save_arrays(10, (6, 5))[0]


@pytest.fixture
def arrays():
    return np.arange(300, dtype=np.float32).reshape(10, 6, 5)


# ---- What a batch is


def test_a_batch_of_one_field_is_a_bare_tensor(folder, arrays):
    batches = list(gl.DataLoader(gl.open(folder), 4))
    assert [type(batch) for batch in batches] == [torch.Tensor] * 3
    assert [batch.shape for batch in batches] == [(4, 6, 5), (4, 6, 5), (2, 6, 5)]
    assert all(batch.dtype == torch.float32 and batch.is_contiguous() for batch in batches)
    assert np.array_equal(torch.cat(batches), arrays)


def test_labels_make_it_a_pair(folder, arrays):
    loader = gl.DataLoader(gl.open(folder, labels=np.arange(10, dtype=np.int16) ** 2), 4)
    for n, (x, y) in enumerate(loader):
        assert np.array_equal(x, arrays[4 * n : 4 * n + 4])
        assert y.dtype == torch.int64
        assert y.tolist() == [i**2 for i in range(10)][4 * n : 4 * n + 4]


LABELS = {
    "floats": (np.linspace(0, 1, 10, dtype=np.float32), torch.float32),
    "rows": (np.arange(30, dtype=np.uint8).reshape(10, 3), torch.int64),
    "truths": (np.arange(10) % 2 == 0, torch.bool),
    "halves": (np.arange(20, dtype=np.float16).reshape(10, 2, 1), torch.float16),
}


@pytest.mark.parametrize(("labels", "dtype"), LABELS.values(), ids=LABELS)
def test_labels_keep_their_shape_and_kind(folder, labels, dtype):
    batches = list(gl.DataLoader(gl.open(folder, labels=labels), 4, shuffle=True, extras="index"))
    for batch in batches:
        assert batch.y.dtype == dtype
        assert np.array_equal(batch.y, labels[batch.index])


def test_extras_come_in_the_order_asked_for(folder):
    source = gl.open(folder, labels=range(10))
    names = ("path", "valid", "start", "crop", "index")
    loader = gl.DataLoader(source, 3, crop=gl.RandomCrop((2, 3), per_array=2), extras=names)
    for batch in loader:
        assert isinstance(batch, tuple)
        assert batch._fields == ("x", "y", *names)
        n = len(batch.x)
        assert batch.x.shape == (n, 2, 3)
        assert batch.index.tolist() == batch.y.tolist()
        assert batch.path == [str(folder / f"{i:05}.npy") for i in batch.index.tolist()]
        assert batch.start.shape == (n, 2)
        assert {batch.index.dtype, batch.crop.dtype, batch.start.dtype} == {torch.int64}
        assert set(batch.crop.tolist()) <= {0, 1}
        assert batch.valid.dtype == torch.bool
        assert batch.valid.all()


EXTRAS = {
    "none": ((), None),
    "one, as text": ("start", ("x", "start")),
    "named twice": (["index", "index"], ("x", "index")),
    "path alone": (("path",), ("x", "path")),
    "path before index": (("path", "index"), ("x", "path", "index")),
}


@pytest.mark.parametrize(("extras", "fields"), EXTRAS.values(), ids=EXTRAS)
def test_a_batch_has_the_fields_asked_for(folder, extras, fields):
    batch = next(iter(gl.DataLoader(gl.open(folder), 4, extras=extras)))
    assert getattr(batch, "_fields", None) == fields


def test_paths_are_those_of_a_selection(folder):
    source = gl.open(folder).select([7, 3, 7])
    (batch,) = gl.DataLoader(source, 3, extras=("path", "index"))
    assert batch.path == [str(folder / name) for name in ("00007.npy", "00003.npy", "00007.npy")]
    assert batch.index.tolist() == [0, 1, 2]


def test_class_folders_are_labels(tmp_path):
    for name, value in (("cat", 1), ("ant", 2), ("bee", 3)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", np.full(3, value))
    (batch,) = gl.DataLoader(gl.open(tmp_path), 3)
    assert batch.y.tolist() == [0, 1, 2]
    assert batch.x[:, 0].tolist() == [2, 3, 1]


def test_items_without_axes_make_a_row(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.float64(i))
    (x,) = gl.DataLoader(gl.open(tmp_path), 4)
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_a_batch_of_one_keeps_its_axis(folder):
    batches = list(gl.DataLoader(gl.open(folder, labels=range(10))))
    assert [batch.x.shape for batch in batches] == [(1, 6, 5)] * 10
    assert [batch.y.tolist() for batch in batches] == [[i] for i in range(10)]


@pytest.mark.parametrize("copy_of", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy])
def test_a_batch_can_be_pickled_and_copied(folder, copy_of):
    loader = gl.DataLoader(gl.open(folder, labels=range(10)), 4, extras=("path", "start"))
    batch = next(iter(loader))
    same = copy_of(batch)
    assert type(same) is type(batch)
    assert same._fields == ("x", "y", "path", "start")
    assert same.path == batch.path
    assert all(torch.equal(a, b) for a, b in zip(same[:2], batch[:2], strict=True))
    assert same.x.data_ptr() != batch.x.data_ptr()


def test_batches_survive_as_a_list(folder, arrays):
    assert np.array_equal(torch.cat(list(gl.DataLoader(gl.open(folder), 3))), arrays)


# ---- How many

# samples, batch size -> sizes, sizes with drop_last
SIZES = {
    "a rest": (42, 16, [16, 16, 10], [16, 16]),
    "no rest": (32, 16, [16, 16], [16, 16]),
    "less than a batch": (3, 4, [3], None),
    "one": (1, 1, [1], [1]),
    "just one more": (5, 4, [4, 1], [4]),
}


@pytest.mark.parametrize(("n", "batch_size", "kept", "dropped"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_the_last_batch_is_kept_or_dropped(numbered, n, batch_size, kept, dropped, shuffle):
    source = numbered(n)
    loader = gl.DataLoader(source, batch_size, shuffle=shuffle)
    assert len(loader) == len(kept)
    assert [len(x) for x in loader] == kept
    if dropped is not None:
        loader = gl.DataLoader(source, batch_size, shuffle=shuffle, drop_last=True)
        assert len(loader) == len(dropped)
        assert [len(x) for x in loader] == dropped


# ---- Reports


def test_stats_count_what_was_handed_out(folder):
    loader = gl.DataLoader(gl.open(folder), 4, crop=gl.RandomCrop(2, per_array=3), io="mmap")
    assert loader.stats() == gl.Stats()
    list(loader)
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.samples) == (1, 8, 30)
    assert stats.useful_nbytes == stats.read_nbytes == 30 * 2 * 2 * 4
    assert stats.read_requests == 0
    assert stats.fill_s > 0
    assert stats.wait_s >= 0
    assert stats.stage_s == 0
    for n, _ in enumerate(loader, 1):
        if n == 3:
            break
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.samples) == (2, 11, 42)


def test_stats_of_a_rank_are_its_own(folder):
    loader = gl.DataLoader(gl.open(folder), 2, rank=1, world_size=4)
    list(loader)
    assert (loader.stats().batches, loader.stats().samples) == (2, 3)  # one of them a repeat


def test_stats_of_a_resumed_epoch_count_what_was_left(folder):
    first = gl.DataLoader(gl.open(folder), 4)
    next(iter(first))
    loader = gl.DataLoader(gl.open(folder), 3)
    loader.load_state_dict(first.state_dict())
    list(loader)
    assert (loader.stats().batches, loader.stats().samples) == (2, 6)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_memory_is_known_before_and_kept(tmp_path, io):
    for i in range(32):
        np.save(tmp_path / f"{i:02}.npy", np.full((256, 256), i, np.uint8))
    loader = gl.DataLoader(gl.open(tmp_path), 8, dtype="float64", prefetch=2, io=io, threads=2)
    memory = loader.memory()
    assert memory.batch_nbytes == 8 * 256 * 256 * 8  # 4 MiB: no more ahead than asked for
    assert memory.blocks == 3
    assert memory.host_nbytes == 3 * memory.batch_nbytes + memory.scratch_nbytes
    assert (memory.scratch_nbytes == 0) == (io == "mmap")
    for _ in range(3):
        iterator, seen = iter(loader), []
        while (x := next(iterator, None)) is not None:
            seen += x[:, 0, 0].tolist()
            del x
            assert loader.stats().batch_blocks <= memory.blocks
        assert seen == list(range(32))
    for x in loader:  # noqa: B007 (keeps a batch until it has the next one)
        assert loader.stats().batch_blocks <= memory.blocks + 1
    kept = list(loader)
    assert loader.stats().batch_blocks >= len(kept)
    del kept, x
    assert loader.stats().batch_blocks <= memory.blocks


def test_describe_says_how_and_why(folder):
    loader = gl.DataLoader(
        gl.open(folder), 4, crop=gl.RandomCrop((2, 5), per_array=3), dtype="float64", threads=2
    )
    text = loader.describe()
    said = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert said["samples"] == "30 per epoch from 10 items, 8 batches"
    assert said["windows"] == "RandomCrop(size=(2, 5), per_array=3): 2x5, float32 -> float64"
    assert said["threads"].startswith("2, ")
    assert said["device"].startswith("cpu")
    assert said["io"].split(":")[0] in ("mmap", "pread")
    assert f"{loader.memory().host_nbytes / 1e6:.1f} MB" in said["memory"]


def test_describe_of_reads_tells_what_a_window_takes(folder):
    loader = gl.DataLoader(gl.open(folder), 4, io="pread", crop=gl.CenterCrop((2, None)))
    text = loader.describe()
    assert "io        pread: asked for" in text
    assert "reads     1 span, 40 bytes in all, for the window of item 0" in text


def test_describe_tells_of_different_shapes(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((4, 3)))
    assert (
        "whole items: 2x3 and other shapes, float64" in gl.DataLoader(gl.open(tmp_path)).describe()
    )


def test_no_errors_is_an_empty_list(folder):
    loader = gl.DataLoader(gl.open(folder), 4, on_error="skip")
    list(loader)
    assert loader.errors == []


# ---- Ending


def test_close_may_be_called_twice_and_ends_iterations(folder, arrays):
    loader = gl.DataLoader(gl.open(folder), 4)
    iterator = iter(loader)
    x = next(iterator)
    loader.close()
    loader.close()
    assert next(iterator, None) is None
    assert np.array_equal(x, arrays[:4])  # a batch is its owner's for good


def test_close_ends_iterations_of_every_epoch(numbered):
    """Also where a batch sampler made larger batches, and with them another pipeline."""
    batches = [[0]] * 100
    loader = gl.DataLoader(numbered(10), batch_sampler=batches)
    first = iter(loader)
    next(first)
    batches[50] = [0] * 1000
    second = iter(loader)
    next(second)
    loader.close()
    assert next(first, None) is next(second, None) is None


def test_with_closes(folder):
    with gl.DataLoader(gl.open(folder), 4) as loader:
        list(loader)
    with pytest.raises(
        RuntimeError,
        match=r"^DataLoader: expected an open loader, got one that was closed; make a new one$",
    ):
        iter(loader)


def test_with_closes_after_an_error(folder):
    loader = gl.DataLoader(gl.open(folder), 4)
    with pytest.raises(KeyError, match="in the loop"), loader:
        raise KeyError(f"in the loop, at {next(iter(loader))[0, 0, 0]}")
    with pytest.raises(RuntimeError, match="got one that was closed"):
        next(iter(loader))


def test_a_closed_loader_still_tells(folder):
    loader = gl.DataLoader(gl.open(folder), 4)
    list(loader)
    loader.close()
    assert loader.stats().batches == len(loader) == 3
    assert loader.state_dict()["epoch"] == 1


def test_a_loader_can_be_pickled_after_use(folder, arrays):
    loader = gl.DataLoader(
        gl.open(folder, labels=range(10)), 4, shuffle=True, seed=3, extras="index"
    )
    list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert len(pickle.dumps(loader)) < 10_000
    assert (copied.epoch, copied.seed, copied.batch_size) == (1, 3, 4)
    for a, b in zip(loader, copied, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert np.array_equal(a.x, arrays[a.index])
