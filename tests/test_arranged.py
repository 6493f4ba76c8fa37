"""Everything that a loader does to windows, together: batches are those of a NumPy twin."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from arranged import (
    TOLD,
    Twin,
    assert_same,
    check_every_way,
    devices,
    numbered,
    raw,
    run,
    save,
    some,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from late import EagerDevice, LateDevice

import gpuload as gl

ALL = {
    "crop": gl.RandomCrop((5, 4, None), 2),
    "pad": gl.Pad((8, 8, None), value=2.5),
    "flip": (0, 1),
    "rot90": (0, 1),
    "scale": 1 / 255,
    "mean": (0.1, 0.2, 0.3),
    "std": (1, 2, 3),
    "layout": "NCHW",
}
RAGGED = ALL | {"crop": None, "pad": gl.Pad("batch", mode="reflect")}
WAYS = {"in place": ALL, "of the batch": RAGGED}
each_way = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


@pytest.fixture
def ragged(tmp_path):
    """A source of 11 labelled arrays of different shapes, and they."""
    arrays = [some((6 + i % 4, 9 - i % 5, 3), "u1", i) for i in range(11)]
    return save(tmp_path / "ragged", arrays, labels=np.arange(11) * 10), arrays


# ---- Any arguments


@st.composite
def loaders(draw):
    """Arrays, and arguments that go together."""
    ndim = draw(st.integers(1, 4))
    sides = st.lists(st.integers(1, 6), min_size=ndim, max_size=ndim).map(tuple)
    n = draw(st.integers(1, 6))
    shapes = [draw(sides)] * n if draw(st.booleans()) else [draw(sides) for _ in range(n)]
    stored = draw(st.sampled_from(["u1", "<i2", ">i4", ">f4", "<f4", "f8", "f2", "?"]))
    orders = draw(st.lists(st.sampled_from("CF"), min_size=n, max_size=n))
    arrays = [
        np.asarray(some(shape, stored, i), order=order)
        for i, (shape, order) in enumerate(zip(shapes, orders, strict=True))
    ]
    options = {"shuffle": draw(st.sampled_from([False, True, "block"])), "seed": draw(SEEDS)}
    sizes = st.tuples(*[st.sampled_from([None, 1, 2, 3, 5])] * ndim)
    crop = draw(st.sampled_from([None, gl.RandomCrop, gl.CenterCrop, gl.GridCrop]))
    if crop is not None:
        options["crop"] = crop(draw(sizes), *([2] if crop is gl.RandomCrop else []))
    modes = ["nearest", "nearest-exact"]
    modes += ["linear", "antialias", "area"] if stored != "?" else []
    mode = draw(st.sampled_from(modes))
    resizes = draw(st.booleans()) and ndim <= 3
    if resizes:
        options["resize"] = gl.Resize(draw(sizes), mode)
    kinds = [7, 8, "max", "batch", "multiple:3", "p60"]
    to = [draw(st.sampled_from(kinds)) for _ in range(ndim)]
    if ndim > 1 and draw(st.booleans()):
        plane = draw(st.permutations(range(ndim)))[:2]
        options["rot90"] = tuple(plane)
        for axis in plane:
            to[axis] = to[plane[0]]
    options["pad"] = gl.Pad(
        tuple(to),
        draw(st.sampled_from(["center", "begin", "end"])),
        draw(st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"])),
        draw(st.sampled_from([0, 1])),
        draw(st.sampled_from(["crop", "resize"])) if ndim <= 3 else "crop",
        mode,
    )
    options["layout"] = draw(st.sampled_from([None, "channels_first", "channels_last"]))
    options["flip"] = draw(st.lists(st.integers(0, ndim - 1), unique=True).map(tuple))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([1 / 255, 0.5, 3]))
        options["mean"], options["std"] = draw(st.sampled_from([(None, None), (0.5, 0.25)]))
    floats = [None, "float32", "float64", "float16", "bfloat16"]
    whole = [] if "scale" in options else ["uint8", "int64"]
    options["dtype"] = draw(st.sampled_from(floats + whole))
    return arrays, draw(st.integers(1, 5)), options


SEEDS = st.integers(0, 2**64 - 1)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=loaders())
def test_any_arguments_that_go_together(host_kernels, case):
    arrays, batch_size, options = case
    with tempfile.TemporaryDirectory() as folder:
        source = save(Path(folder), arrays)
        check_every_way(host_kernels, source, arrays, batch_size, epochs=2, **options)


@each_way
def test_all_of_it(ragged, check_every_way, options):
    source, arrays = ragged
    for shuffle in (False, True, "block"):
        check_every_way(source, arrays, 4, shuffle=shuffle, epochs=2, **options)


# ---- Files that cannot be read


def damage(source, items):
    for k, i in enumerate(items):
        os.unlink(source.paths[i]) if k % 2 else os.truncate(source.paths[i], 130)


@pytest.mark.parametrize("bad", [[0], [3], [4, 6], [2, 8]], ids=str)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@each_way
def test_unreadable_samples_are_left_out_or_replaced(ragged, on_every_way, options, on_error, bad):
    source, arrays = ragged
    damage(source, bad)
    twin = Twin(arrays, **options)
    batches = on_every_way(source, 4, on_error=on_error, extras=TOLD, **options)
    seen = []
    for batch in batches:
        items = batch.index.tolist()
        seen += items
        assert batch.y.tolist() == [10 * i for i in items]
        assert len(batch.x) == len(batch.mask) == len(batch.lengths) == len(items)
        # A batch is as large as if all of it could be read.
        target = tuple(batch.x.shape[axis] for axis in (2, 3, 1))
        rows = (items, batch.start.tolist(), batch.flip.tolist(), batch.rot90.tolist())
        for k, row in enumerate(zip(*rows, strict=True)):
            x, mask = twin.sample(*row, target)
            np.testing.assert_array_equal(raw(batch.x[k]), x)
            np.testing.assert_array_equal(batch.mask[k], mask)
    per_item = 1 if options["crop"] is None else 2
    assert not set(bad) & set(seen)
    left = per_item * (11 - len(bad))
    assert len(seen) == (left if on_error == "skip" else per_item * 11)
    assert set(seen) == set(range(11)) - set(bad)


@each_way
def test_an_unreadable_file_is_named(ragged, host_kernels, options):
    source, _ = ragged
    damage(source, [6])
    for device in devices(host_kernels).values():
        with (
            gl.DataLoader(source, 4, device=device, **options) as loader,
            pytest.raises(gl.ReadError, match=r"006\.npy: "),
        ):
            run(loader, device)


# ---- Shards, going on


@pytest.mark.parametrize("world_size", [2, 3])
@each_way
def test_shards_show_what_one_process_would(ragged, host_kernels, options, world_size):
    source, _ = ragged

    def rows(device, **shard):
        with gl.DataLoader(
            source, 4, shuffle=True, device=device, extras=TOLD, **shard, **options
        ) as loader:
            batches = run(loader, device)
        found = {}
        for batch in batches:
            for k, key in enumerate(zip(batch.index.tolist(), batch.crop.tolist(), strict=True)):
                data = raw(batch.x[k])[raw(batch.mask[k]).repeat(3, 0)]
                found[key] = (data.tobytes(), batch.lengths[k].tolist(), batch.y[k].item())
        return found

    want = rows("cpu")
    for device in devices(host_kernels).values():
        union = {}
        for rank in range(world_size):
            union |= rows(device, rank=rank, world_size=world_size)
        assert union == want


@each_way
def test_going_on_after_any_batch_is_as_if_never_stopped(ragged, host_kernels, options):
    source, _ = ragged

    def make(device):
        return gl.DataLoader(source, 4, shuffle=True, device=device, extras=TOLD, **options)

    with make("cpu") as loader:
        whole = [list(loader), list(loader)]
    n = len(whole[0])
    for device in ("cpu", EagerDevice(), LateDevice(kernels=host_kernels)):
        with make(device) as loader:
            states, iterator = [loader.state_dict()], iter(loader)
            for _ in range(n):
                next(iterator)
                states.append(loader.state_dict())
            iterator.close()
        for done, state in enumerate(states):
            with make(device) as loader:
                loader.load_state_dict(json.loads(json.dumps(state)))
                rest = run(loader, device)
                for batch, want in zip(rest, whole[0][done:] or whole[1], strict=True):
                    assert_same(batch, want, f"after {done} batches")


# ---- What is counted, and what memory is taken


@each_way
def test_stats_count_what_was_shown(ragged, host_kernels, options):
    source, arrays = ragged
    twin = Twin(arrays, **options)
    windows = [twin.window(i) for i in range(11)]
    per_item = 1 if options["crop"] is None else 2
    for device in devices(host_kernels).values():
        for io in ("mmap", "pread"):
            with gl.DataLoader(source, 4, device=device, io=io, **options) as loader:
                assert len(run(loader, device)) == len(loader)
                stats = loader.stats()
            assert (stats.epochs, stats.batches) == (1, len(loader))
            assert stats.samples == 11 * per_item
            assert stats.useful_nbytes == per_item * sum(int(np.prod(w)) for w in windows)
            assert stats.read_nbytes >= stats.useful_nbytes
            assert (stats.read_requests > 0) == (io == "pread")


@pytest.mark.parametrize("prefetch", [1, 3])
@each_way
def test_memory_stays_below_the_bound(tmp_path, host_kernels, options, prefetch):
    arrays = [some((60 + i % 40, 90 - i % 50, 3), "u1", i) for i in range(40)]
    source = save(tmp_path / "large", arrays)
    if options["crop"] is not None:
        options = options | {
            "crop": gl.RandomCrop((50, 40, None), 2),
            "pad": gl.Pad((64, 64, None)),
        }
    for device in (LateDevice(), LateDevice("late", kernels=host_kernels)):
        with gl.DataLoader(source, 4, device=device, prefetch=prefetch, **options) as loader:
            for _ in range(2):
                for batch in loader:
                    del batch
            device.synchronize()
            bound, stats = loader.memory(), loader.stats()
            assert sum(block.memory.nbytes for block in device.host_blocks) <= bound.host_nbytes
            assert stats.pinned_nbytes <= bound.host_nbytes
            assert device.reserved_nbytes <= bound.device_nbytes
            assert device.dropped_too_soon == 0
    with gl.DataLoader(source, 4, device="cpu", prefetch=prefetch, **options) as loader:
        for batch in loader:
            del batch
        bound, stats = loader.memory(), loader.stats()
        assert stats.batch_blocks <= bound.blocks
        assert bound.blocks * bound.batch_nbytes <= bound.host_nbytes
        nbytes = 4 * 3 * 4 * 64 * 64  # of x, were all batches as small as the smallest
        assert bound.batch_nbytes >= nbytes


@each_way
def test_batches_outlive_a_loader_that_is_closed(ragged, host_kernels, options):
    source, _ = ragged
    for device in devices(host_kernels).values():
        loader = gl.DataLoader(source, 4, device=device, extras=TOLD, **options)
        kept = run(loader, device)
        before = [batch.x.clone() for batch in kept]
        iterator = iter(loader)
        next(iterator)
        loader.close()
        loader.close()
        with pytest.raises(RuntimeError, match="expected an open loader"):
            iter(loader)
        for batch, x in zip(kept, before, strict=True):
            assert torch.equal(batch.x, x)
        with gl.DataLoader(source, 4, device="cpu", extras=TOLD, **options) as again:
            for batch, want in zip(kept, again, strict=True):
                assert_same(batch, want)


@each_way
def test_breaking_off_and_starting_again_is_a_new_epoch(ragged, host_kernels, options):
    source, _ = ragged
    with gl.DataLoader(source, 4, device="cpu", extras=TOLD, **options) as loader:
        whole = [list(loader) for _ in range(3)]
    for device in devices(host_kernels).values():
        with gl.DataLoader(source, 4, device=device, extras=TOLD, **options) as loader:
            next(iter(loader))
            iterator = iter(loader)
            first = [next(iterator), next(iterator)]
            del iterator
            last = run(loader, device)
        for batch, want in zip(first + last, whole[1][:2] + whole[2], strict=True):
            assert_same(batch, want)


def test_similar_sizes_together_are_still_those_of_numpy(ragged, check_every_way):
    source, arrays = ragged
    pad = gl.Pad("batch", bucket=True)
    check_every_way(source, arrays, 4, shuffle=True, epochs=2, pad=pad, flip=(0, 1))


def test_a_batch_sampler_decides_what_comes_together(ragged, on_every_way):
    source, arrays = ragged
    lists = [[3, 3, 0], [10], [5, 1, 2, 4]]
    batches = on_every_way(source, 1, batch_sampler=lists, extras=TOLD, pad=gl.Pad("batch"))
    assert [batch.index.tolist() for batch in batches] == lists
    twin = Twin(arrays, pad=gl.Pad("batch"))
    for batch in batches:
        twin.check(batch)


def test_one_long_array_among_short_ones(tmp_path, check_every_way):
    arrays = [numbered((n, 3)) for n in (1, 5000, 2, 7)]
    source = save(tmp_path / "a", arrays)
    for to in (("max", None), ("batch", None)):
        check_every_way(source, arrays, 2, pad=gl.Pad(to, mode="wrap"), shuffle=True, epochs=2)
