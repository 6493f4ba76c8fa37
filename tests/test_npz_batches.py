"""Batches of NPZ files, stored and deflated, are those of NPY files of the same arrays."""

from __future__ import annotations

import pickle

import arranged
import numpy as np
import pytest
import torch
from arranged import some
from paired import WHERE, check_field, images_and_masks

import gpuload as gl
from gpuload.sources import inflated

SHAPES = [(6, 9), (8, 5), (7, 7), (5, 8), (9, 6)]
SAVE = {"stored": np.savez, "deflated": np.savez_compressed}
ARRAYS = {
    "float32": [some(shape) for shape in SHAPES],
    "big-endian": [some(shape, ">f8") for shape in SHAPES],
    "Fortran order": [np.asfortranarray(some(shape, "i2")) for shape in SHAPES],
    "bytes": [some(shape, "u1") for shape in SHAPES],
}
WINDOWS = {
    "crops": {"crop": gl.RandomCrop((4, 3), per_array=2), "flip": (0, 1)},
    "padded": {"pad": gl.Pad()},
    "padded by batch, scaled": {"pad": gl.Pad("batch", align="begin"), "scale": 1 / 255},
    "crops, padded and turned": {"crop": gl.RandomCrop(8), "pad": gl.Pad(), "rot90": (0, 1)},
}


@pytest.fixture(params=SAVE)
def save(request, monkeypatch):
    """How NumPy saves an archive. What is inflated can be read in one way only."""
    if request.param == "deflated":
        ways = [(device, "auto") for device in dict.fromkeys(name for name, _ in arranged.WAYS)]
        monkeypatch.setattr(arranged, "WAYS", ways)
    return SAVE[request.param]


@pytest.fixture
def inflations(monkeypatch):
    """Paths of members that were inflated whole, in turn."""
    seen = []
    whole = inflated.inflate

    def counting(member):
        seen.append(member.path)
        return whole(member)

    monkeypatch.setattr(inflated, "inflate", counting)
    return seen


def save_archives(folder, save, arrays):
    for i, array in enumerate(arrays):
        save(folder / f"{i:02}.npz", other=np.zeros(i), x=array)


@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("arrays", ARRAYS.values(), ids=ARRAYS)
def test_windows_of_members(tmp_path, check_every_way, save, arrays, options):
    save_archives(tmp_path, save, arrays)
    source = gl.open(tmp_path, key="x")
    check_every_way(source, arrays, 3, shuffle=True, **options)


def test_classes_of_archives_of_all_sizes_are_padded(tmp_path, save):
    arrays = {}
    for k, name in enumerate(("cat", "dog", "eel")):
        (tmp_path / name).mkdir()
        for i, (height, width) in enumerate(SHAPES):
            array = some((height, width, 6), seed=10 * k + i)
            save(tmp_path / name / f"{i}.npz", array)
            arrays[k, i] = array
    source = gl.open(tmp_path)
    assert source.classes == ["cat", "dog", "eel"]
    options = {"pad": gl.Pad("max", align="begin"), "extras": ("index", "lengths", "mask")}
    seen = []
    for batch in gl.DataLoader(source, 4, shuffle=True, **options):
        assert batch.x.shape[1:] == (9, 9, 6)
        rows = zip(batch.x, batch.y.tolist(), batch.index.tolist(), batch.lengths, strict=True)
        for x, y, index, lengths in rows:
            array = arrays[y, index % len(SHAPES)]
            assert lengths.tolist() == list(array.shape)
            height, width, _ = array.shape
            np.testing.assert_array_equal(x[:height, :width], array)
            assert not x[height:].any()
            assert not x[:, width:].any()
            seen.append(index)
    assert sorted(seen) == list(range(15))


def test_image_and_mask_of_one_archive_are_cut_alike(tmp_path, on_every_way, save):
    fields = images_and_masks(SHAPES)
    for i, (image, mask) in enumerate(zip(fields["image"], fields["mask"], strict=True)):
        save(tmp_path / f"{i}.npz", image=image, mask=mask)
    keys = {name: name for name in fields}
    source = gl.open(fields=dict.fromkeys(fields, tmp_path), key=keys)
    crop = gl.RandomCrop((4, 4, None), per_array=20)
    made = on_every_way(source, 16, crop=crop, flip=(0, 1), shuffle=True, extras=WHERE)
    assert sum(len(batch.index) for batch in made) == 100
    for batch in made:
        check_field(batch, "image", fields["image"], range(3), crop=crop, flip=(0, 1))
        assert torch.equal(batch.image[..., 0], batch.mask.float())


def test_rows_of_members_are_samples(tmp_path, check_every_way, save):
    arrays = [some((n, 6, 5), seed=n) for n in (3, 1, 4)]
    save_archives(tmp_path, save, arrays)
    source = gl.open(tmp_path, key="x", sample_axis=0)
    rows = list(np.concatenate(arrays))
    crop = gl.RandomCrop((3, 4), per_array=2)
    check_every_way(source, rows, 3, shuffle=True, crop=crop)


def test_loaders_of_one_source_inflate_each_file_once(tmp_path, inflations):
    arrays = ARRAYS["float32"]
    save_archives(tmp_path, np.savez_compressed, arrays)
    source = gl.open(tmp_path, key="x")
    for _ in range(2):
        for _ in range(2):
            for _ in gl.DataLoader(source, 2, crop=gl.RandomCrop((4, 4), per_array=5), threads=3):
                pass
    assert sorted(inflations) == sorted(source.paths)


def test_a_loader_of_some_items_inflates_their_files_alone(tmp_path, inflations):
    save_archives(tmp_path, np.savez_compressed, ARRAYS["float32"])
    source = gl.open(tmp_path, key="x").select([3, 1, 3])
    (batch,) = gl.DataLoader(source, 3, crop=gl.CenterCrop((4, 4)), extras=("path",))
    assert batch.path == list(source.paths)
    assert sorted(inflations) == sorted(set(source.paths))


def test_a_loader_of_archives_is_pickled_and_goes_on(tmp_path, save):
    save_archives(tmp_path, save, ARRAYS["float32"])
    options = {"shuffle": True, "crop": gl.RandomCrop((4, 3), per_array=3)}
    loader = gl.DataLoader(gl.open(tmp_path, key="x"), 4, **options)
    whole = list(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    rest = list(pickle.loads(pickle.dumps(loader)))
    assert all(torch.equal(a, b) for a, b in zip(rest, whole[1:], strict=True))


def test_deflated_members_are_held_where_batches_are_made(tmp_path):
    save_archives(tmp_path, np.savez_compressed, ARRAYS["float32"])
    source = gl.open(tmp_path, key="x")
    options = {"shuffle": True, "crop": gl.RandomCrop((4, 3), per_array=3), "device": "cpu"}
    with gl.DataLoader(source, 4, cache="device", **options) as held:
        for a, b in zip(held, gl.DataLoader(source, 4, **options), strict=True):
            assert torch.equal(a, b)


def test_an_archive_that_breaks_is_left_out(tmp_path):
    save_archives(tmp_path, np.savez, ARRAYS["float32"])
    source = gl.open(tmp_path, key="x")
    (tmp_path / "02.npz").write_bytes((tmp_path / "02.npz").read_bytes()[:200])
    loader = gl.DataLoader(source, 5, pad=gl.Pad(), on_error="skip", extras=("index",))
    (batch,) = loader
    assert batch.index.tolist() == [0, 1, 3, 4]
    assert [failure.index for failure in loader.errors] == [2]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_deflated_archives_are_inflated_at_once_or_not_at_all(tmp_path, on_error):
    save_archives(tmp_path, np.savez_compressed, ARRAYS["float32"])
    with pytest.raises(
        ValueError,
        match=r'on_error: expected "raise" with .*00\.npz, of which arrays are inflated into '
        f'memory at once, got "{on_error}"; leave bad files out by gpuload.open',
    ):
        gl.DataLoader(gl.open(tmp_path, key="x"), 5, pad=gl.Pad(), on_error=on_error)
