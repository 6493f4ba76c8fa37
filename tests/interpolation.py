"""torch's interpolate along any axes of an array."""

from __future__ import annotations

import math

import numpy as np
import torch

NEAREST = ("nearest", "nearest-exact")
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def interpolate(values: np.ndarray, axes: tuple[int, ...], extents: tuple[int, ...], mode: str):
    """torch's interpolate of float32 or float64 values along some axes.

    torch antialiases two axes at a time, and not as it should where the last has one element: so
    one axis is made after another, each beside one of one element that comes before it.
    """
    if mode == "antialias":
        for axis, n in zip(axes, extents, strict=True):
            beside = np.expand_dims(values, 0)
            values = _interpolate(beside, (0, axis + 1), (1, n), mode)[0]
        return values
    return _interpolate(values, axes, extents, mode) if axes else values.copy()


def _interpolate(values, axes, extents, mode):
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    carried, spatial = moved.shape[: -len(axes)], moved.shape[-len(axes) :]
    batch = torch.from_numpy(np.ascontiguousarray(moved)).reshape(1, math.prod(carried), *spatial)
    names = {"linear": LINEAR[len(axes)], "antialias": "bilinear"}
    options = {} if mode in (*NEAREST, "area") else {"align_corners": False}
    out = torch.nn.functional.interpolate(
        batch, extents, mode=names.get(mode, mode), antialias=mode == "antialias", **options
    )
    return np.moveaxis(out.reshape(*carried, *extents).numpy(), range(-len(axes), 0), axes)
