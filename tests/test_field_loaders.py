"""Loaders of several fields: names of batches, selections, resuming, broken files, caches."""

from __future__ import annotations

import math
import os
import pickle

import numpy as np
import pytest
import torch
from arranged import devices, run
from paired import SHAPES, WHERE, check_field, check_windows, images_and_masks, save_fields

import gpuload as gl


@pytest.fixture
def pairs(tmp_path):
    """Images (H, W, 3) of float32 and masks (H, W) of int32 of five sizes: the source, and both."""
    fields = images_and_masks()
    return save_fields(tmp_path, fields), fields


# ---- Batches


def test_a_batch_is_named_by_its_fields_then_labels_then_extras(pairs):
    source, _ = pairs
    source.labels = [5, 6, 7, 8, 9]
    options = {"crop": gl.RandomCrop((4, 4, None))}
    for extras, names in (
        ((), ("image", "mask", "y")),
        (("index", "path", "valid"), ("image", "mask", "y", "index", "path", "valid")),
    ):
        (batch,) = gl.DataLoader(source, 5, extras=extras, **options)
        assert batch._fields == names
        assert isinstance(batch, tuple)
        assert batch.y.tolist() == [5, 6, 7, 8, 9]
    for image, mask, y in gl.DataLoader(source, 2, **options):
        assert len(image) == len(mask) == len(y)
    assert [os.path.basename(path) for path in batch.path] == [f"{i:02}.npy" for i in range(5)]
    again = pickle.loads(pickle.dumps(batch))
    assert again._fields == batch._fields
    assert torch.equal(again.mask, batch.mask)


def test_one_field_with_a_name_is_a_batch_with_a_name(tmp_path, on_every_way):
    arrays = images_and_masks()["image"]
    source = save_fields(tmp_path, {"image": arrays})
    for batch in on_every_way(source, 2, crop=gl.CenterCrop((3, 3, None))):
        assert batch._fields == ("image",)


def test_the_column_mask_is_asked_for_where_no_field_is_named_so(tmp_path, on_every_way):
    fields = images_and_masks()
    source = save_fields(tmp_path, {"image": fields["image"], "labels": fields["mask"]})
    for batch in on_every_way(source, 5, pad=gl.Pad(), extras=("mask",)):
        assert batch._fields == ("image", "labels", "mask")
        assert tuple(batch.mask.shape) == (5, 9, 9, 1)
        assert batch.mask.sum(dim=(1, 2, 3)).tolist() == [math.prod(shape) for shape in SHAPES]


def test_a_field_and_an_extra_of_one_name_are_refused(pairs):
    source, _ = pairs
    with pytest.raises(ValueError, match=r"^extras: .*mask"):
        gl.DataLoader(source, 1, extras=("mask",))


def test_selections_and_splits_keep_pairs_together(pairs, on_every_way):
    source, _ = pairs
    source.labels = range(5)
    first, last = source.select([4, 1, 1, 0]).split([0.5, 0.5])
    for part, want in ((first, [4, 1]), (last, [1, 0])):
        (batch,) = on_every_way(part, 2, crop=gl.RandomCrop((4, 4, None)))
        assert batch.y.tolist() == want
        assert torch.equal(batch.image[..., 0], batch.mask.float())
        assert (batch.mask // 400).amax(dim=(1, 2)).tolist() == want


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_paired_files_are_paired_samples(tmp_path, on_every_way, turned):
    images = [np.arange(n * 24, dtype="f4").reshape(n, 4, 6) + 1000 * n for n in (3, 1, 5)]
    fields = {"image": images, "mask": [x.astype("i8") for x in images]}
    if turned:
        fields["mask"] = [np.asfortranarray(x) for x in fields["mask"]]
    source = save_fields(tmp_path, fields, sample_axis=0)
    rows = np.concatenate(images)
    made = on_every_way(source, 4, crop=gl.RandomCrop((2, 3)), shuffle=True, extras=WHERE)
    for batch in made:
        check_field(batch, "image", list(rows), (0, 1), crop=gl.RandomCrop((2, 3)))
        assert torch.equal(batch.mask, batch.image.long())


def test_class_folders_of_pairs_give_labels(tmp_path):
    for k, name in enumerate(("cat", "dog")):
        for i in range(3):
            for field, value in (("images", [[10 * k + i] * 2] * 2), ("masks", [[k] * 2] * 2)):
                path = tmp_path / field / name / f"{i}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, np.array(value, "f4"))
    source = gl.open(fields={"image": tmp_path / "images", "mask": tmp_path / "masks"})
    for image, mask, y in gl.DataLoader(source, 4, shuffle=True):
        assert torch.equal(mask[:, 0, 0].long(), y)
        assert torch.equal(image[:, 0, 0].long() // 10, y)


# ---- A loader's life


def test_a_loader_of_pairs_is_pickled_and_goes_on(pairs):
    source, _ = pairs
    options = {
        "crop": gl.RandomCrop((4, 4, None), per_array=3),
        "flip": (0, 1),
        "shuffle": True,
        "dtype": {"mask": "int64"},
        "extras": WHERE,
    }
    whole = list(gl.DataLoader(source, 4, **options))
    loader = gl.DataLoader(source, 4, **options)
    iterator = iter(loader)
    next(iterator), next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    rest = list(copy)
    assert len(rest) == len(whole) - 2
    for batch, want in zip(rest, whole[2:], strict=True):
        for a, b in zip(batch, want, strict=True):
            assert torch.equal(a, b)


def test_shards_of_pairs_make_up_the_epoch(pairs):
    source, _ = pairs
    options = {"crop": gl.RandomCrop((4, 4, None), per_array=8), "shuffle": True, "extras": WHERE}
    seen = []
    for rank in range(2):
        for batch in gl.DataLoader(source, 4, rank=rank, world_size=2, **options):
            check_windows(batch, (4, 4))
            seen += zip(batch.index.tolist(), batch.crop.tolist(), strict=True)
    assert sorted(seen) == [(i, c) for i in range(5) for c in range(8)]


@pytest.mark.parametrize("io", ["pread", "mmap"])
@pytest.mark.parametrize("field", ["image", "mask"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_pair_of_which_one_is_broken_is_left_out(tmp_path, host_kernels, on_error, field, io):
    fields = images_and_masks()
    source = save_fields(tmp_path, fields)
    path = tmp_path / field / "02.npy"
    path.write_bytes(path.read_bytes()[:-64])
    for device in devices(host_kernels).values():
        with gl.DataLoader(
            source,
            4,
            crop=gl.RandomCrop((4, 4, None), per_array=2),
            extras=WHERE,
            device=device,
            on_error=on_error,
            io=io,
        ) as loader:
            batches = run(loader, device)
        indices = torch.cat([batch.index for batch in batches]).tolist()
        assert 2 not in indices
        assert len(indices) == {"skip": 8, "replace": 10}[on_error]
        for batch in batches:
            check_windows(batch, (4, 4))
        assert {failure.index for failure in loader.errors} == {2}
        assert all(f"{field}/02.npy" in failure.message for failure in loader.errors)


@pytest.mark.parametrize("field", ["image", "mask"])
def test_a_broken_file_of_any_field_is_named(tmp_path, field):
    source = save_fields(tmp_path, images_and_masks())
    path = tmp_path / field / "03.npy"
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(gl.ReadError, match=rf"{field}/03\.npy: expected "):
        list(gl.DataLoader(source, 2, crop=gl.RandomCrop((4, 4, None))))


def test_shapes_that_do_not_fit_are_named_before_a_loader_is_made(tmp_path):
    fields = {"image": [np.zeros((6, 6))], "mask": [np.zeros((6, 5))]}
    with pytest.raises(
        gl.FormatError, match=r"mask/00\.npy: .*\(6, 6\) \(image\).*\(6, 5\) \(mask"
    ):
        save_fields(tmp_path, fields)


def test_cached_pairs_are_those_of_files(pairs):
    source, _ = pairs
    options = {"crop": gl.RandomCrop((4, 4, None), 3), "shuffle": True, "flip": 0, "extras": WHERE}
    want = list(gl.DataLoader(source, 4, **options))
    with gl.DataLoader(source, 4, cache="device", device="cpu", **options) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            for batch, other in zip(loader, want, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


def test_pairs_are_not_cached_on_a_device(pairs, host_kernels):
    source, _ = pairs
    for device in list(devices(host_kernels).values())[1:]:
        with pytest.raises(ValueError, match=r"^cache: .* several fields; pass cache=None"):
            gl.DataLoader(source, 1, cache="device", device=device)
