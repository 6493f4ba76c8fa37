"""Arrays that are loaded once: the batches are those of the files, on the CPU and by the kernels of
a GPU, built for the host."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from late import LateDevice

import gpuload as gl
from gpuload import cache, resident
from gpuload.devices.cpu import CpuDevice

EXTRAS = ("index", "crop", "start", "valid", "path")
RNG = np.random.default_rng(11)


def numbers(shape, dtype="f4"):
    return (RNG.random(shape) * 200).astype(dtype)


@pytest.fixture(params=["cpu", "kernels"])
def device(request, host_kernels):
    return CpuDevice() if request.param == "cpu" else LateDevice(kernels=host_kernels)


def save(folder, arrays, **options):
    for i, array in enumerate(arrays):
        np.save(folder / f"{i:02}.npy", array)
    return gl.open(folder, **({"labels": np.arange(len(arrays)) * 3} | options))


def check_same(source, device, **options):
    """Two epochs of a loader that holds its arrays are those of one that reads files."""
    options = {"batch_size": 4, "shuffle": True, "extras": EXTRAS} | options
    with (
        gl.DataLoader(source, device="cpu", **options) as from_files,
        gl.DataLoader(source, device=device, cache="device", **options) as held,
    ):
        for _ in range(2):
            wanted, got = list(from_files), list(held)
            if isinstance(device, LateDevice):
                device.synchronize()
            assert len(got) == len(wanted) == len(held)
            for mine, right in zip(got, wanted, strict=True):
                for a, b in zip(mine, right, strict=True):
                    if isinstance(b, list):
                        assert a == b
                        continue
                    assert (a.shape, a.dtype) == (b.shape, b.dtype)
                    np.testing.assert_array_equal(a, b)
        assert held.stats().batches == from_files.stats().batches
        assert held.stats().useful_nbytes == from_files.stats().useful_nbytes


ARRAYS = {
    "alike": [numbers((9, 11)) for _ in range(6)],
    "of other shapes": [numbers((6 + i, 12 - i)) for i in range(6)],
    "of both orders": [np.asarray(numbers((8, 9)), order="CF"[i % 2]) for i in range(6)],
    "of both byte orders": [numbers((8, 9), "<f4" if i % 2 else ">f4") for i in range(6)],
    "of odd sizes": [numbers((7, 5 + i), "u1") for i in range(6)],
    "complex": [numbers((7, 6)) + 1j * numbers((7, 6)) for _ in range(6)],
}
CROPS = {
    "random": gl.RandomCrop((4, 3), per_array=3),
    "random, an axis whole": gl.RandomCrop((None, 3), per_array=2),
    "centre": gl.CenterCrop((3, 4)),
    "grid": gl.GridCrop((3, 2), stride=(2, 2)),
}
CASES = [
    pytest.param(arrays, crop, id=f"{name}, {kind}")
    for name, arrays in ARRAYS.items()
    for kind, crop in CROPS.items()
    if kind != "random, an axis whole" or "shapes" not in name
]


@pytest.mark.parametrize(("arrays", "crop"), CASES)
def test_windows_are_those_of_the_files(tmp_path, device, arrays, crop):
    check_same(save(tmp_path, arrays), device, crop=crop)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
@pytest.mark.parametrize("per_array", [1, 40])
def test_every_order_is_that_of_the_files(tmp_path, device, shuffle, per_array):
    source = save(tmp_path, [numbers((9, 11)) for _ in range(70)])
    crop = gl.RandomCrop((2, 3), per_array=per_array)
    check_same(source, device, crop=crop, shuffle=shuffle, batch_size=64)


@pytest.mark.parametrize("dtype", [None, "float32", "float64", "float16", "int16"])
@pytest.mark.parametrize("stored", ["u1", ">i4", "f4", "f8"])
def test_values_are_cast_as_from_files(tmp_path, device, stored, dtype):
    source = save(tmp_path, [numbers((9, 11), stored) for _ in range(6)])
    check_same(source, device, crop=gl.RandomCrop((4, 5), 2), dtype=dtype)


def test_rows_of_files_are_items(tmp_path, device):
    source = save(tmp_path, [numbers((4 + i, 6, 5)) for i in range(3)], sample_axis=0, labels=None)
    check_same(source, device, crop=gl.RandomCrop((3, 2), 2))
    check_same(source.select([9, 2, 2, 14]), device, crop=None)


def test_rows_along_another_axis_are_items(tmp_path, device):
    source = save(tmp_path, [numbers((6, 4, 5)) for i in range(3)], sample_axis=1, labels=None)
    check_same(source, device, crop=gl.RandomCrop((3, 2), 2))


def test_only_arrays_that_are_used_are_loaded(tmp_path, device):
    source = save(tmp_path, [numbers((20, 20)) for _ in range(9)]).select([7, 2, 7])
    (tmp_path / "05.npy").unlink()
    check_same(source, device, crop=gl.RandomCrop((4, 4), 5))
    assert cache.plan(source.catalog).nbytes == 2 * 1600


def test_structured_members_are_held_in_their_records(tmp_path, device):
    record = np.dtype([("a", "u1"), ("b", "<f4", (2, 3)), ("c", ">i2")])
    arrays = [np.zeros((5, 6), record) for _ in range(4)]
    for array in arrays:
        array["b"], array["c"] = numbers((5, 6, 2, 3)), numbers((5, 6), "i2")
    for member, crop in (("b", (2, 3, 2, 2)), ("c", (2, 3))):
        check_same(save(tmp_path, arrays, member=member), device, crop=gl.RandomCrop(crop, 3))


def test_labels_of_any_kind_are_delivered(tmp_path, device):
    arrays = [numbers((5, 6)) for _ in range(6)]
    for labels in (np.arange(6, dtype="i1"), numbers((6, 3), "f8"), np.arange(6) % 2 == 0):
        check_same(save(tmp_path, arrays, labels=labels), device, crop=gl.CenterCrop((2, 2)))


def test_samplers_name_the_items(tmp_path, device):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(6)])
    crop = gl.RandomCrop((2, 3), per_array=2)
    check_same(source, device, crop=crop, shuffle=False, sampler=[5, 0, 0, 3, 2])
    batches = [[4, 1], [3], [0, 0, 2]]
    check_same(source, device, crop=crop, shuffle=False, batch_size=1, batch_sampler=batches)


@pytest.mark.parametrize("even", ["pad", "drop", "exact"])
def test_ranks_share_an_epoch(tmp_path, device, even):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(7)])
    for rank in range(2):
        check_same(source, device, rank=rank, world_size=2, even=even, batch_size=3)


def test_items_of_other_shapes_come_one_by_one(tmp_path, device):
    source = save(tmp_path, [numbers((5 + i, 9 - i)) for i in range(6)])
    check_same(source, device, batch_size=1)


def test_an_epoch_goes_on_where_it_was_left(tmp_path, device):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(9)])
    options = {"shuffle": True, "crop": gl.RandomCrop((2, 3), 3), "extras": ("index", "start")}
    with gl.DataLoader(source, 4, device="cpu", **options) as from_files:
        wanted = list(from_files)
    with gl.DataLoader(source, 4, device=device, cache="device", **options) as held:
        batches = iter(held)
        got = [next(batches) for _ in range(3)]
        state = held.state_dict()
        del batches
        held.load_state_dict(state)
        got += list(held)
        if isinstance(device, LateDevice):
            device.synchronize()
    for mine, right in zip(got, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))


def test_files_may_go_once_they_are_loaded(tmp_path, device):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(6)])
    with gl.DataLoader(source, 3, device=device, cache="device") as loader:
        first = [x.sum() for x, y in loader]
        for path in set(source.paths):
            os.unlink(path)
        assert len(list(loader)) == len(first) == 2


def test_a_file_that_cannot_be_loaded_is_named(tmp_path, device):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(6)])
    (tmp_path / "04.npy").write_bytes(b"")
    with (
        gl.DataLoader(source, 3, device=device, cache="device") as loader,
        pytest.raises(gl.ReadError, match=r"04\.npy: expected 248 bytes as when the source was"),
    ):
        next(iter(loader))


def test_what_does_not_fit_is_refused_before_it_is_taken(tmp_path, device, monkeypatch):
    source = save(tmp_path, [numbers((5, 6)) for _ in range(6)])
    monkeypatch.setattr(type(device), "free_nbytes", lambda self: 700)
    match = r"cache: expected 0\.0 MB of arrays to fit on .*, got 0\.0 MB free; select fewer items"
    with pytest.raises(ValueError, match=match):
        gl.DataLoader(source, 3, device=device, cache="device")


def test_what_is_held_is_told(tmp_path, device):
    source = save(tmp_path, [numbers((50, 60)) for _ in range(6)])
    with gl.DataLoader(source, 3, device=device, cache="device") as loader:
        list(loader)
        assert "held" in loader.describe()
        memory = loader.memory()
        assert (memory.host_nbytes if device.is_host else memory.device_nbytes) >= source.nbytes


def test_large_files_are_loaded_in_several_steps(tmp_path, device, monkeypatch):
    monkeypatch.setattr(cache, "_REQUEST_NBYTES", 1000)
    monkeypatch.setattr(cache, "_STEP_NBYTES", 5000)
    source = save(tmp_path, [numbers((40 + i, 61)) for i in range(4)])
    check_same(source, device, crop=gl.RandomCrop((20, 30), 3))


def test_a_batch_of_many_windows_takes_several_launches(tmp_path, host_kernels, monkeypatch):
    monkeypatch.setattr(resident, "MAX_PIECES", 5)
    source = save(tmp_path, [numbers((5, 6)) for _ in range(6)])
    device = LateDevice(kernels=host_kernels)
    check_same(source, device, crop=gl.RandomCrop((2, 3), 4), batch_size=12)


def test_a_loader_that_is_dropped_leaves_its_batches_whole(tmp_path, host_kernels):
    """The launch may still be to come when the loader and what it holds are gone."""
    arrays = [numbers((5, 6)) for _ in range(6)]
    source = save(tmp_path, arrays)
    device = LateDevice("early", kernels=host_kernels)
    loader = gl.DataLoader(source, 6, device=device, cache="device")
    batch = next(iter(loader))
    loader.close()
    del loader
    again = [device.memory(1 << 12, stream=stream) for stream in device.streams]
    device.synchronize()
    np.testing.assert_array_equal(batch.x, np.stack(arrays))
    del again
