"""Every way from a file to a batch on a device gives what NumPy cuts out of the same file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from late import EagerDevice, LateDevice

import gpuload as gl
import gpuload.assembly
import gpuload.journey
from gpuload import stage
from gpuload.plan import Ahead, Transfer
from gpuload.readers import gds

# The last one runs the kernels of a GPU, built for the host.
DEVICES = ["at once", "late", "kernels"]
RNG = np.random.default_rng(5)


def numbers(shape, dtype):
    return (RNG.random(shape) * 200).astype(dtype)


# Arrays as they are saved, and the crop.
ARRAYS = {
    "rows of C order": ([numbers((9, 11), "f4") for _ in range(5)], (4, 3)),
    "whole": ([numbers((6, 5), "u1") for _ in range(5)], None),
    "columns of Fortran order": (
        [np.asfortranarray(numbers((7, 9, 4), "i2")) for _ in range(5)],
        (3, 4, 2),
    ),
    "big-endian": ([numbers((9, 11), ">f8") for _ in range(5)], (4, 3)),
    "big-endian, whole": ([numbers((3, 5), ">u2") for _ in range(5)], None),
    "of other shapes": ([numbers((6 + i, 12 - i), "f4") for i in range(5)], (4, 3)),
    "of both orders": (
        [np.asarray(numbers((6, 8), "f4"), order="FC"[i % 2]) for i in range(5)],
        (4, 3),
    ),
    "eight axes": (
        [numbers((2, 3, 2, 1, 2, 3, 2, 2), "f4") for _ in range(4)],
        (1, 2, 2, 1, 2, 2, 1, 2),
    ),
    "complex": ([numbers((5, 6), "f4") + 1j * numbers((5, 6), "f4") for _ in range(4)], (2, 3)),
    "big-endian complex": (
        [(numbers((5, 6), "f4") + 1j * numbers((5, 6), "f4")).astype(">c8") for _ in range(4)],
        (2, 3),
    ),
    "bool": ([numbers((9, 11), "u1") > 99 for _ in range(5)], (4, 3)),
    "numbers": ([numbers((), "f4") for _ in range(5)], None),
}
CASTS = {"as stored": None, "float32": "float32", "float16": "float16", "float64": "float64"}


CASES = [
    pytest.param(case, dtype, id=f"{name}, {cast}")
    for name, case in ARRAYS.items()
    for cast, dtype in CASTS.items()
    if dtype is None or not np.iscomplexobj(case[0][0])  # complex values have no real form
]


WAYS = [(d, io) for d in ("placed", "shipped") for io in ("mmap", "pread")] + [("listed", "pread")]


@pytest.fixture
def make_device(host_kernels):
    def make_device(name):
        if name == "at once":
            return EagerDevice()
        return LateDevice(kernels=host_kernels if name == "kernels" else None)

    return make_device


@pytest.fixture(params=["placed", "shipped", "listed"])
def delivery(request, monkeypatch):
    """Make loaders take this way, whatever it costs. Where reads are listed, what kvikio does is
    done by a stand-in."""
    monkeypatch.setattr(
        gpuload.journey, "plan_transfer", lambda *_, **__: Transfer(request.param, "the test")
    )
    if request.param == "listed":
        kvikio = request.getfixturevalue("standin")()
        monkeypatch.setattr(gds, "_kvikio", lambda: kvikio)
    return request.param


def save(folder, arrays):
    for i, array in enumerate(arrays):
        np.save(folder / f"{i:02}.npy", array)
    return gl.open(folder, labels=np.arange(len(arrays)))


def expected(batch, arrays, crop, dtype):
    cut = []
    for i, start in zip(batch.index.tolist(), batch.start.tolist(), strict=True):
        array = np.asarray(arrays[i])
        size = crop or array.shape
        window = array[tuple(slice(b, b + n) for b, n in zip(start, size, strict=True))]
        cut.append(window.astype(window.dtype.newbyteorder("=")))
    whole = np.stack(cut)
    return whole if dtype is None else whole.astype(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("delivery", "io"), WAYS, indirect=["delivery"])
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_windows_are_those_of_numpy(tmp_path, delivery, make_device, device, io, dtype, case):
    arrays, crop = case
    device = make_device(device)
    source = save(tmp_path, arrays)
    with gl.DataLoader(
        source,
        batch_size=3,
        shuffle=True,
        crop=crop and gl.RandomCrop(crop, per_array=3),
        dtype=dtype,
        io=io,
        device=device,
        extras=("index", "start", "path"),
    ) as loader:
        for _ in range(2):
            batches = list(loader)
            device.synchronize()
            assert len(batches) == len(loader)
            for batch in batches:
                np.testing.assert_array_equal(batch.x, expected(batch, arrays, crop, dtype))
                assert batch.y.tolist() == batch.index.tolist()
                assert batch.path == [source.paths[i] for i in batch.index.tolist()]


def stage_late(tmp_path, make_device):
    """Whether all batches are whole when the device runs late."""
    arrays = [numbers((40, 50), "f4") for _ in range(30)]
    device, ok = make_device("kernels"), True
    with gl.DataLoader(
        save(tmp_path, arrays),
        2,
        crop=gl.RandomCrop((30, 40)),
        device=device,
        prefetch=2,
        extras=("index", "start"),
    ) as loader:
        batches = list(loader)
        device.synchronize()
        for k, batch in enumerate(batches):
            ok &= batch.index.tolist() == [2 * k, 2 * k + 1]
            ok &= np.array_equal(batch.x, expected(batch, arrays, (30, 40), None))
    return ok


def only_two_ahead(monkeypatch):
    monkeypatch.setattr(gpuload.assembly, "plan_ahead", lambda **_: Ahead(2, 1, 1, False))


@pytest.mark.parametrize("delivery", ["listed"], indirect=True)
def test_what_reads_into_a_slot_waits_for_its_last_kernel(
    tmp_path, delivery, make_device, monkeypatch
):
    only_two_ahead(monkeypatch)
    assert stage_late(tmp_path, make_device)
    slot = stage.Slot

    class Unguarded(slot):
        """One whose `consumed` is forgotten."""

        __slots__ = ()

        def __setattr__(self, name, value):
            super().__setattr__(name, stage._Past() if name == "consumed" else value)

    monkeypatch.setattr(stage, "Slot", Unguarded)
    assert not stage_late(tmp_path, make_device)


def test_more_threads_than_batches_ahead_share_each_batch(tmp_path, delivery):
    arrays = [numbers((400, 500), "f4") for _ in range(9)]
    with gl.DataLoader(
        save(tmp_path, arrays),
        8,
        crop=gl.RandomCrop((390, 490)),
        threads=8,
        device=EagerDevice(),
        extras=("index", "start"),
    ) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.x, expected(batch, arrays, (390, 490), None))


@pytest.mark.parametrize("delivery", ["placed", "shipped"], indirect=True)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("bad", [0, 1, 4, 7])  # the first of its batch, and the last
def test_unreadable_samples_are_left_out_on_every_way(tmp_path, delivery, on_error, bad):
    arrays = [numbers((6, 8), "f4") for _ in range(8)]
    source = save(tmp_path, arrays)
    (tmp_path / f"{bad:02}.npy").write_bytes(b"")
    device = EagerDevice()
    with gl.DataLoader(
        source,
        batch_size=4,
        crop=gl.RandomCrop((3, 4), per_array=2),
        device=device,
        on_error=on_error,
        io="pread",
        extras=("index", "start"),
    ) as loader:
        batches = list(loader)
    for batch in batches:
        np.testing.assert_array_equal(batch.x, expected(batch, arrays, (3, 4), None))
    indices = torch.cat([batch.index for batch in batches]).tolist()
    assert bad not in indices
    assert len(indices) == {"skip": 14, "replace": 16}[on_error]
    assert {failure.index for failure in loader.errors} == {bad}


@pytest.mark.parametrize("device", DEVICES)
def test_structured_members_are_cut_out_of_their_records(tmp_path, delivery, make_device, device):
    device = make_device(device)
    record = np.dtype([("a", "u1"), ("b", "<f4", (2, 3)), ("c", ">i2")])
    arrays = [np.zeros((5, 6), record) for _ in range(4)]
    for array in arrays:
        array["b"], array["c"] = numbers((5, 6, 2, 3), "f4"), numbers((5, 6), "i2")
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    for member, crop in (("b", (2, 3, 2, 2)), ("c", (2, 3))):
        source = gl.open(tmp_path, member=member)
        with gl.DataLoader(
            source, 3, crop=gl.RandomCrop(crop, 2), device=device, extras=("index", "start")
        ) as loader:
            for batch in loader:
                device.synchronize()
                fields = [array[member] for array in arrays]
                np.testing.assert_array_equal(batch.x, expected(batch, fields, crop, None))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_files_are_items_on_every_way(tmp_path, delivery, make_device, device):
    device = make_device(device)
    arrays = [numbers((4 + i, 6, 5), "f4") for i in range(3)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    source = gl.open(tmp_path, sample_axis=0)
    rows = list(np.concatenate(arrays))
    with gl.DataLoader(
        source,
        4,
        shuffle=True,
        crop=gl.CenterCrop((3, 2)),
        device=device,
        extras=("index", "start"),
    ) as loader:
        batches = list(loader)
        device.synchronize()
    for batch in batches:
        np.testing.assert_array_equal(batch.x, expected(batch, rows, (3, 2), None))
