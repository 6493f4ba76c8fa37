"""Images and masks of which every element tells its place, and what a loader must make of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from arranged import Twin, raw

import gpuload as gl

WHERE = ("index", "crop", "start", "lengths", "flip", "rot90")
SHAPES = [(6, 9), (8, 5), (7, 7), (5, 8), (9, 6)]


def grid(i, shape):
    """Numbers that tell the item and the place along each axis."""
    digits = np.zeros(shape, np.int32)
    for along in np.indices(shape):
        digits = digits * 20 + along
    return (i * 20 ** len(shape) + digits).astype(np.int32)


def save_fields(folder, fields, **how):
    """Files 00.npy, 01.npy, ... of each field, opened as its fields."""
    for name, arrays in fields.items():
        (folder / name).mkdir(exist_ok=True)
        for i, array in enumerate(arrays):
            np.save(folder / name / f"{i:02}.npy", array)
    return gl.open(fields={name: folder / name for name in fields}, **how)


def images_and_masks(shapes=SHAPES, channels="last"):
    masks = [grid(i, shape) for i, shape in enumerate(shapes)]
    axis = {"last": -1, "first": 0}[channels]
    images = [np.stack([m, m + 0.25, m + 0.5], axis).astype("f4") for m in masks]
    return {"image": images, "mask": masks}


def check_field(batch, name, arrays, axes, **options):
    """A field of a batch is what the twin makes of its arrays, with what the batch tells of its
    windows. `axes` are those of the first field that its own are."""
    axes = list(axes)
    told = SimpleNamespace(
        index=batch.index, start=batch.start[:, axes], flip=batch.flip[:, axes], rot90=batch.rot90
    )
    want, _, _ = Twin(arrays, **options).batch(told)
    got = raw(getattr(batch, name))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


def check_windows(batch, size):
    """Both show the rows and columns that the batch tells."""
    assert batch.image.shape == (len(batch.index), *size, 3)
    assert torch.equal(batch.image[..., 0], batch.mask.float())
    assert torch.equal(batch.image[..., 2] - 0.5, batch.mask.float())
    for window, i, start in zip(batch.mask, batch.index.tolist(), batch.start, strict=True):
        top, left, _ = start.tolist()
        whole = grid(i, SHAPES[i])
        np.testing.assert_array_equal(window, whole[top : top + size[0], left : left + size[1]])
