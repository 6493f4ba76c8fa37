"""Batches of arrays in memory: values, types and order are those of files of the same rows."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from arranged import devices, run
from hypothesis import given, settings
from hypothesis import strategies as st
from late import LateDevice
from paired import WHERE, check_field

import gpuload as gl

RNG = np.random.default_rng(7)
N = 20
IMAGES = (RNG.random((N, 9, 8)) * 200).astype("f4")
COLUMN = np.arange(N, dtype="f4")[:, None]


def rows_of(loader):
    """Each column of all batches of an epoch."""
    return [torch.cat(column) for column in zip(*loader, strict=True)]


# ---- Aligned arrays


def test_features_and_targets_come_row_by_row(on_every_way):
    x1, x2 = RNG.random((N, 5)), RNG.integers(0, 99, (N, 2, 3), "i2")
    y = np.arange(N)
    made = on_every_way(gl.arrays(x1, x2, target=y), 6)
    assert [len(batch.target) for batch in made] == [6, 6, 6, 2]
    for batch in made:
        assert batch._fields == ("x1", "x2", "target")
    for column, want in zip(rows_of(made), (x1, x2, y), strict=True):
        np.testing.assert_array_equal(column, want)
        assert column.numpy().dtype == want.dtype


def test_three_arrays_are_unpacked_in_a_loop():
    x1, x2, y = COLUMN, -COLUMN, torch.arange(N)
    seen = []
    for a, b, label in gl.DataLoader(gl.arrays(x1, x2, y), batch_size=6, shuffle=True, seed=1):
        assert (a.dtype, b.dtype, label.dtype) == (torch.float32, torch.float32, torch.int64)
        assert (a.shape, label.shape) == ((len(a), 1), (len(a),))
        assert torch.equal(a[:, 0].long(), label)
        assert torch.equal(a, -b)
        seen += label.tolist()
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(N))


def test_labels_of_a_source_come_after_the_arrays():
    source = gl.arrays(COLUMN, -COLUMN)
    source.labels = np.arange(N, dtype="u1")
    for x1, x2, y in gl.DataLoader(source, 8, shuffle=True):
        assert y.dtype == torch.int64
        assert torch.equal(x1[:, 0].long(), y)
        assert torch.equal(x2[:, 0].long(), -y)


def test_shuffled_rows_of_tensors_are_those_of_one_permutation(on_every_way):
    tensors = [
        torch.randn(N, 3),
        torch.randn(N, 2).to(torch.bfloat16),
        torch.arange(N) % 2 == 0,
        torch.randn(N, 2, dtype=torch.complex64),
        torch.arange(N, dtype=torch.uint8)[:, None, None],
    ]
    made = on_every_way(gl.arrays(*tensors), 7, shuffle=True, extras=("index",))
    *columns, index = rows_of(made)
    assert sorted(index.tolist()) == list(range(N))
    for column, tensor in zip(columns, tensors, strict=True):
        assert column.dtype == tensor.dtype
        assert torch.equal(column, tensor[index])


DTYPES = ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?", "c8", "c16"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_arrays_of_any_types_and_orders(data):
    n = data.draw(st.integers(1, 12))
    arrays = []
    for _ in range(data.draw(st.integers(1, 4))):
        shape = (n, *data.draw(st.lists(st.integers(0, 4), max_size=3)))
        dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
        dtype = dtype.newbyteorder(data.draw(st.sampled_from("<>")))
        array = (np.random.default_rng(0).random(shape) * 99).astype(dtype)
        order = data.draw(st.sampled_from(["C", "F", "backwards", "steps"]))
        array = {
            "C": lambda a: a,
            "F": np.asfortranarray,
            "backwards": lambda a: a[::-1],
            "steps": lambda a: np.repeat(a, 2, axis=0)[::2],
        }[order](array)
        arrays.append(array)
    batch_size, threads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    loader = gl.DataLoader(
        gl.arrays(*arrays), batch_size, shuffle=True, threads=threads, extras=("index",)
    )
    *columns, index = rows_of(loader)
    assert sorted(index.tolist()) == list(range(n))
    for column, array in zip(columns, arrays, strict=True):
        want = array[index.tolist()]
        np.testing.assert_array_equal(column, want)
        assert column.numpy().dtype == want.dtype.newbyteorder("=")


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_the_order_is_that_of_files_of_the_same_rows(tmp_path, shuffle):
    np.save(tmp_path / "a.npy", IMAGES)
    of_files = gl.open(tmp_path / "a.npy", sample_axis=0)
    options = {
        "shuffle": shuffle,
        "seed": 4,
        "crop": gl.RandomCrop((4, 3), per_array=3),
        "flip": 0,
        "extras": WHERE,
    }
    for a, b in zip(
        gl.DataLoader(of_files, 7, **options),
        gl.DataLoader(gl.arrays(IMAGES), 7, **options),
        strict=True,
    ):
        assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


# ---- Windows


def test_only_the_images_are_cropped_beside_their_targets(on_every_way):
    targets = RNG.random((N, 10))
    crop = gl.RandomCrop((4, 3), per_array=2)
    made = on_every_way(
        gl.arrays(image=IMAGES, target=targets), 8, crop=crop, shuffle=True, flip=1, extras=WHERE
    )
    assert sum(len(batch.target) for batch in made) == 2 * N
    for batch in made:
        check_field(batch, "image", list(IMAGES), (0, 1), crop=crop, flip=1)
        np.testing.assert_array_equal(batch.target, targets[batch.index.tolist()])


WINDOWS = {
    "random": {"crop": gl.RandomCrop((4, 3), per_array=2)},
    "center, scaled": {"crop": gl.CenterCrop(5), "scale": 0.5, "mean": 3, "std": 2},
    "grid, cast": {"crop": gl.GridCrop((4, 4)), "dtype": "float16"},
    "padded": {"pad": gl.Pad((12, 8), value=-1)},
    "cut to a shape": {"pad": gl.Pad((6, 10), oversize="crop", align="end")},
    "turned": {"crop": gl.RandomCrop((4, 4)), "rot90": (0, 1), "flip": (0, 1)},
    "whole": {},
}
STORED = {
    "C order": IMAGES,
    "big-endian": IMAGES.astype(">f8"),
    "Fortran order": np.asfortranarray(IMAGES),
    "whole numbers": IMAGES.astype("i4"),
}


@pytest.mark.parametrize("array", STORED.values(), ids=STORED)
@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
def test_rows_are_windows_as_those_of_files(check_every_way, options, array):
    check_every_way(gl.arrays(array), list(array), 6, shuffle=True, **options)


def test_bits_of_bfloat16_are_padded_and_cut(on_every_way):
    tensor = torch.randn(N, 6, 5).to(torch.bfloat16)
    for batch in on_every_way(
        gl.arrays(tensor), 6, crop=gl.RandomCrop((3, 4)), pad=gl.Pad(5), extras=("index", "start")
    ):
        for x, i, (a, b) in zip(batch.x, batch.index.tolist(), batch.start.tolist(), strict=True):
            assert torch.equal(x[1:4, :4], tensor[i, a : a + 3, b : b + 4])
            assert x.float().abs().sum() == x[1:4, :4].float().abs().sum()


def test_items_that_are_numbers_are_vectors_of_a_batch(on_every_way):
    made = on_every_way(gl.arrays(np.arange(N), torch.arange(N) % 3 == 0), 6, shuffle=True)
    for x1, x2 in made:
        assert (x1.dtype, x1.ndim, x2.dtype) == (torch.int64, 1, torch.bool)
        assert torch.equal(x1 % 3 == 0, x2)
    (x,) = on_every_way(gl.arrays(np.arange(5.0)), 5)
    assert x.tolist() == [0, 1, 2, 3, 4]


# ---- Memory


def addresses(source):
    return [field.catalog.contents.flat.ctypes.data for field in source.fields]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["r", "c"])
def test_loaders_read_a_memory_map_where_it_is(tmp_path, order, mode):
    path = tmp_path / "a.npy"
    np.save(path, np.asarray(IMAGES, order=order))
    mapped = np.load(path, mmap_mode=mode)
    source = gl.arrays(mapped)
    assert addresses(source) == [mapped.ctypes.data]
    with gl.DataLoader(source, 6, shuffle=True, extras=("index",)) as loader:
        x, index = rows_of(loader)
    np.testing.assert_array_equal(x, IMAGES[index])
    if mode == "c":
        mapped[:] = 1
        assert (next(iter(gl.DataLoader(source, 6))) == 1).all()
    np.testing.assert_array_equal(np.load(path), IMAGES)


def test_what_is_kept_of_a_batch_keeps_no_more_than_its_batch():
    """Batches that were dropped are used again while labels of others are kept."""
    large = np.zeros((400, 1000))  # the windows of a batch are 80 kB
    loader = gl.DataLoader(gl.arrays(large, np.arange(400)), 10)
    kept = [number for _ in range(3) for _, number in loader]
    assert loader.stats().batch_blocks <= loader.memory().blocks + 1 < len(kept)
    assert torch.equal(torch.cat(kept), torch.arange(400).repeat(3))


def test_batches_that_are_written_to_leave_all_arrays_alone(host_kernels):
    arrays = [IMAGES.copy(), np.arange(N), COLUMN.copy()]
    source = gl.arrays(*arrays)
    for name, device in devices(host_kernels).items():
        for cache in (None, "device") if name == "cpu" else (None,):
            with gl.DataLoader(source, 6, device=device, cache=cache) as loader:
                for batch in run(loader, device):
                    for column in batch:
                        column.fill_(-1)
    for array, want in zip(arrays, (IMAGES, np.arange(N), COLUMN), strict=True):
        np.testing.assert_array_equal(array, want)


def test_batches_that_are_kept_do_not_change():
    loader = gl.DataLoader(gl.arrays(IMAGES, np.arange(N)), 3, shuffle=True, threads=2)
    kept = [batch for _ in range(4) for batch in loader]
    loader.close()
    for x, i in kept:
        np.testing.assert_array_equal(x, IMAGES[i])


# ---- A loader's life


@pytest.mark.parametrize("prefetch", [1, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_neither_prefetch_nor_threads_change_the_order(prefetch, threads):
    options = {"shuffle": True, "seed": 9, "crop": gl.RandomCrop((3, 3), 2), "extras": WHERE}
    source = gl.arrays(IMAGES, np.arange(N))
    want = rows_of(gl.DataLoader(source, 8, **options))
    got = rows_of(gl.DataLoader(source, 3, prefetch=prefetch, threads=threads, **options))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_arrays_may_be_held_where_batches_are_made():
    options = {"shuffle": True, "crop": gl.RandomCrop((3, 3), 2), "flip": 0, "extras": WHERE}
    source = gl.arrays(IMAGES, np.arange(N))
    with gl.DataLoader(source, 6, cache="device", device="cpu", **options) as held:
        for epoch in range(2):
            loader = gl.DataLoader(source, 6, **options)
            loader.set_epoch(epoch)
            for a, b in zip(rows_of(held), rows_of(loader), strict=True):
                assert torch.equal(a, b)


def test_one_array_may_be_held_on_a_device(host_kernels):
    options = {"shuffle": True, "crop": gl.RandomCrop((3, 3), per_array=2)}
    want = list(gl.DataLoader(gl.arrays(IMAGES), 6, **options))
    device = LateDevice(kernels=host_kernels)
    with gl.DataLoader(gl.arrays(IMAGES), 6, cache="device", device=device, **options) as loader:
        for a, b in zip(run(loader, device), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_shards_share_out_the_rows():
    source = gl.arrays(COLUMN, np.arange(N))
    seen = []
    for rank in range(3):
        loader = gl.DataLoader(source, 2, shuffle=True, rank=rank, world_size=3, even="exact")
        for x, i in loader:
            assert torch.equal(x[:, 0].long(), i)
            seen += i.tolist()
    assert sorted(seen) == list(range(N))


def test_a_loader_goes_on_where_its_state_was_taken():
    source = gl.arrays(IMAGES, np.arange(N))
    options = {"shuffle": True, "crop": gl.RandomCrop((3, 3), per_array=2)}
    whole = list(gl.DataLoader(source, 6, **options))
    loader = gl.DataLoader(source, 6, **options)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    other = gl.DataLoader(gl.arrays(IMAGES.copy(), np.arange(N)), 6, **options)
    other.load_state_dict(state)
    for batch, want in zip(other, whole[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, want, strict=True))


def test_a_state_of_arrays_of_other_shapes_is_refused():
    state = gl.DataLoader(gl.arrays(IMAGES), 6).state_dict()
    with pytest.raises(ValueError, match=r"^state: expected data "):
        gl.DataLoader(gl.arrays(IMAGES[:, 1:]), 6).load_state_dict(state)


@pytest.mark.parametrize("array", STORED.values(), ids=STORED)
def test_a_loader_is_pickled_with_its_arrays(array):
    loader = gl.DataLoader(gl.arrays(array, np.arange(N)), 6, shuffle=True, seed=2)
    want = rows_of(loader)
    copy = pickle.loads(pickle.dumps(gl.DataLoader(loader.dataset, 6, shuffle=True, seed=2)))
    assert addresses(copy.dataset) != addresses(loader.dataset)
    assert all(torch.equal(a, b) for a, b in zip(rows_of(copy), want, strict=True))


def test_forked_processes_read_the_arrays_of_their_parent(run_python):
    program = run_python(
        """
import os
import numpy as np
import torch
import gpuload as gl

torch.set_num_threads(1)
array = np.arange(4000.0).reshape(1000, 4)
source = gl.arrays(array, np.arange(1000))
source[3]
children = []
for k in range(3):
    child = os.fork()
    if child == 0:
        loader = gl.DataLoader(source, 64, shuffle=True, seed=k)
        right = all(torch.equal(x[:, 0], 4.0 * i) for x, i in loader)
        os._exit(0 if right else 1)
    children.append(child)
assert all(torch.equal(x[:, 0], 4.0 * i) for x, i in gl.DataLoader(source, 64))
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    )
    assert program.returncode == 0, program.stderr
    assert program.stdout.strip() == "[0, 0, 0]"
