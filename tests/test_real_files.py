"""Files that others made: faces and a disparity map of scikit-image, brains of nilearn.

They are read from the packages as installed; nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from paired import WHERE, check_field

import gpuload as gl


def folder_of(package):
    """Where a package lies. It is not imported: of nilearn only the data are used."""
    return Path(importlib.util.find_spec(package).origin).parent


# ---- 200 faces in one file


@pytest.fixture
def faces():
    path = folder_of("skimage") / "data" / "lfw_subset.npy"
    return gl.open(path, sample_axis=0), np.load(path)


def test_faces_are_rows_of_one_file(faces):
    source, array = faces
    assert (len(source), source.dtype, array.shape) == (200, torch.float64, (200, 25, 25))
    for i in (0, 99, -1):
        np.testing.assert_array_equal(source[i], array[i])
    batches = list(gl.DataLoader(source, batch_size=32))
    np.testing.assert_array_equal(torch.cat(batches), array)


def test_faces_and_their_labels_are_shuffled_together(faces):
    source, array = faces
    source.labels = np.arange(200) < 100  # the first hundred are faces
    seen = []
    for x, y, index in gl.DataLoader(source, 32, shuffle=True, extras=("index",), dtype="float32"):
        np.testing.assert_array_equal(x, array[index].astype("f4"))
        assert torch.equal(y.bool(), index < 100)
        seen += index.tolist()
    assert sorted(seen) == list(range(200))
    assert seen != sorted(seen)


def test_patches_of_faces(faces, check_every_way):
    source, array = faces
    options = {"crop": gl.RandomCrop(16, per_array=2), "flip": 1, "shuffle": True}
    check_every_way(source, list(array), 64, **options)
    check_every_way(source, list(array), 64, pad=gl.Pad(32, mode="reflect"), dtype="float32")
    same = gl.arrays(array)
    for a, b in zip(
        gl.DataLoader(source, 50, **options), gl.DataLoader(same, 50, **options), strict=True
    ):
        assert torch.equal(a, b)


def test_faces_are_loaded_whole(faces):
    source, array = faces
    x, y = gl.load(source, dtype="float32", progress=False)
    np.testing.assert_array_equal(x, array.astype("f4"))
    assert y is None


# ---- A disparity map, deflated, infinite where nothing is known


@pytest.fixture
def disparity():
    path = folder_of("skimage") / "data" / "motorcycle_disp.npz"
    return gl.open(path), np.load(path)["arr_0"]


def test_a_deflated_map_is_read_by_itself_and_by_key(disparity):
    source, array = disparity
    assert (len(source), source.dtype, array.shape) == (1, torch.float32, (500, 741))
    np.testing.assert_array_equal(source[0], array)
    assert np.isinf(array).any()
    named = gl.open(source.paths[0], key="arr_0")
    np.testing.assert_array_equal(named[0], array)


def test_crops_of_a_deflated_map(disparity):
    source, array = disparity
    with gl.DataLoader(
        source, 16, crop=gl.RandomCrop((64, 48), per_array=100), extras=("start",)
    ) as loader:
        for x, start in loader:
            for window, (a, b) in zip(x, start.tolist(), strict=True):
                np.testing.assert_array_equal(window, array[a : a + 64, b : b + 48])


def test_tiles_of_a_deflated_map_cover_it(disparity):
    source, array = disparity
    seen = np.zeros(array.shape, bool)
    for x, start in gl.DataLoader(source, 8, crop=gl.GridCrop(128), extras=("start",)):
        for window, (a, b) in zip(x, start.tolist(), strict=True):
            np.testing.assert_array_equal(window, array[a : a + 128, b : b + 128])
            seen[a : a + 128, b : b + 128] = True
    assert seen.all()


def test_infinite_values_saturate_as_bytes(disparity):
    source, array = disparity
    (x,) = gl.DataLoader(source, 1, dtype="uint8", pad=gl.Pad((512, 768)))
    want = np.where(np.isinf(array), 255, np.minimum(array, 255).astype("u1"))
    np.testing.assert_array_equal(x[0], np.pad(want, ((6, 6), (13, 14))))


# ---- A brain and where its grey matter is


def brain(kind):
    name = f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
    image = nibabel.load(folder_of("nilearn") / "datasets" / "data" / name)
    return np.asanyarray(image.dataobj)


@pytest.fixture(scope="module")
def brains(tmp_path_factory):
    """The T1 and grey-matter volumes, saved as pairs of .npy files and of deflated members: in the
    order of axes that nibabel gives, and in C order, cut."""
    t1, grey = brain("t1"), brain("gm")
    assert t1.shape == grey.shape == (197, 233, 189)
    folder = tmp_path_factory.mktemp("brains")
    parts = [(t1, grey), (np.ascontiguousarray(t1[:180]), np.ascontiguousarray(grey[:180]))]
    for i, (image, mask) in enumerate(parts):
        for name, array in (("image", image), ("mask", mask)):
            (folder / name).mkdir(exist_ok=True)
            np.save(folder / name / f"subject{i}.npy", array)
        np.savez_compressed(folder / f"subject{i}.npz", t1=image, grey=mask)
    return folder, [image for image, _ in parts], [mask for _, mask in parts]


@pytest.fixture(params=["npy", "npz"])
def subjects(brains, request):
    """The pairs as a source, and as arrays."""
    folder, images, masks = brains
    if request.param == "npy":
        source = gl.open(fields={"image": folder / "image", "mask": folder / "mask"})
    else:
        files = [folder / "subject0.npz", folder / "subject1.npz"]
        fields = {"image": files, "mask": files}
        source = gl.open(fields=fields, key={"image": "t1", "mask": "grey"})
    return source, images, masks


def test_brains_come_in_pairs(subjects):
    source, images, masks = subjects
    assert source.dtypes == {"image": torch.uint8, "mask": torch.uint8}
    assert source.shapes.tolist() == [[197, 233, 189], [180, 233, 189]]
    for i in range(2):
        image, mask = source[i]
        np.testing.assert_array_equal(image, images[i])
        np.testing.assert_array_equal(mask, masks[i])


@pytest.mark.parametrize("threads", [1, 3])
def test_patches_of_brains_are_at_one_place(subjects, threads):
    source, images, masks = subjects
    options = {"crop": gl.RandomCrop((48, 40, 32), per_array=30), "flip": (0, 1, 2)}
    n = 0
    with gl.DataLoader(source, 4, shuffle=True, threads=threads, extras=WHERE, **options) as loader:
        for batch in loader:
            check_field(batch, "image", images, range(3), **options)
            check_field(batch, "mask", masks, range(3), **options)
            n += len(batch.index)
    assert n == 60


def test_patches_are_scaled_while_masks_are_not(subjects):
    source, images, masks = subjects
    loader = gl.DataLoader(
        source,
        4,
        crop=gl.RandomCrop((32, 32, 32), per_array=10),
        scale={"image": 1 / 255},
        dtype={"mask": "int64"},
        extras=WHERE,
    )
    for batch in loader:
        assert (batch.image.dtype, batch.mask.dtype) == (torch.float32, torch.int64)
        crop = gl.RandomCrop((32, 32, 32))
        check_field(batch, "image", images, range(3), crop=crop, scale=1 / 255)
        check_field(batch, "mask", masks, range(3), crop=crop, dtype="int64")


def test_whole_brains_are_padded_in_pairs(subjects):
    source, images, masks = subjects
    pad = gl.Pad("multiple:16", value={"mask": 255})
    (batch,) = gl.DataLoader(source, 2, pad=pad, flip=0, extras=("lengths", "flip"))
    assert tuple(batch.image.shape) == tuple(batch.mask.shape) == (2, 208, 240, 192)
    assert batch.lengths.tolist() == [[197, 233, 189], [180, 233, 189]]
    for x, arrays, value in ((batch.image, images, 0), (batch.mask, masks, 255)):
        for sample, array, flip in zip(x, arrays, batch.flip[:, 0].tolist(), strict=True):
            free = [to - n for to, n in zip(sample.shape, array.shape, strict=True)]
            around = [(n // 2, n - n // 2) for n in free]
            seen = array[::-1] if flip else array
            np.testing.assert_array_equal(sample, np.pad(seen, around, constant_values=value))


def test_brains_are_made_smaller_without_blending_the_mask(subjects):
    source, images, masks = subjects
    resize = gl.Resize((64, 64, 64), {"image": "area"})
    (batch,) = gl.DataLoader(source, 2, resize=resize)
    for x, array in zip(batch.mask, masks, strict=True):
        whole = torch.from_numpy(np.ascontiguousarray(array))[None, None]
        want = torch.nn.functional.interpolate(whole, (64, 64, 64), mode="nearest")
        np.testing.assert_array_equal(x, want[0, 0])
    for x, array in zip(batch.image, images, strict=True):
        whole = torch.from_numpy(array.astype("f4"))[None, None]
        want = torch.nn.functional.interpolate(whole, (64, 64, 64), mode="area")
        assert (x.float() - want[0, 0]).abs().max() <= 0.5001


def test_slices_of_brains_are_samples(brains):
    folder, images, masks = brains
    source = gl.open(fields={"image": folder / "image", "mask": folder / "mask"}, sample_axis=0)
    assert len(source) == 197 + 180
    slices = [[row for volume in volumes for row in volume] for volumes in (images, masks)]
    loader = gl.DataLoader(source, 32, shuffle=True, crop=gl.CenterCrop((128, 96)), extras=WHERE)
    for batch in loader:
        check_field(batch, "image", slices[0], (0, 1), crop=gl.CenterCrop((128, 96)))
        check_field(batch, "mask", slices[1], (0, 1), crop=gl.CenterCrop((128, 96)))
