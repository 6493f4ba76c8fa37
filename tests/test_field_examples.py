"""Pairs of any shapes, types and orders of axes, windows made in any way: as NumPy makes them."""

from __future__ import annotations

import numpy as np
from arranged import devices, numbered, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paired import WHERE, check_field, save_fields

import gpuload as gl

KINDS = {  # of an image: shape of (H, W) with channels, axes of it that a mask (H, W) has
    "last": (lambda h, w: (h, w, 3), (0, 1)),
    "first": (lambda h, w: (11, h, w), (1, 2)),
    "none": (lambda h, w: (h, w), (0, 1)),
}
TYPES = ["f4", ">f8", "u1", ">i2", "f2", "i8"]


@st.composite
def pairs(draw):
    """Images and masks, options of a loader of both, and those of the mask alone."""
    kind = draw(st.sampled_from(list(KINDS)))
    make, axes = KINDS[kind]
    sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
    shapes = draw(st.lists(sides, min_size=1, max_size=5))
    image_type, mask_type = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
    images, masks = [], []
    for i, (h, w) in enumerate(shapes):
        image, mask = numbered(make(h, w), image_type, i), numbered((h, w), mask_type, 7 * i)
        images.append(np.asfortranarray(image) if draw(st.booleans()) else image)
        masks.append(np.asfortranarray(mask) if draw(st.booleans()) else mask)

    def along(values):
        """Values for the axes of an image, None for its channels."""
        return tuple(values[axes.index(a)] if a in axes else None for a in range(images[0].ndim))

    both, alone = {}, {}
    size = None
    if draw(st.booleans()):
        size = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
        kinds = [gl.CenterCrop, lambda s: gl.RandomCrop(s, per_array=2)]
        crop = draw(st.sampled_from(kinds))
        both["crop"], alone["crop"] = crop(along(size)), crop(size)
    to = draw(st.sampled_from(["max", "batch", "multiple:4", "p50", (10, 10), (3, 7)]))
    if draw(st.booleans()):
        both["rot90"] = (axes[0], axes[1])
        alone["rot90"] = (0, 1)
        to = (10, 10) if isinstance(to, tuple) else to
    how = {
        "align": draw(st.sampled_from(["center", "begin", "end"])),
        "mode": draw(st.sampled_from(["constant", "edge", "reflect", "wrap"])),
        "oversize": "crop",
    }
    value = draw(st.integers(0, 9))
    to_of_image = along(to) if isinstance(to, tuple) else along((to, to))
    to = to if isinstance(to, tuple) else (to, to)
    both["pad"] = gl.Pad(to_of_image, value={"image": 3, "mask": value}, **how)
    alone["pad"] = gl.Pad(to, value=value, **how)
    image = {"pad": gl.Pad(to_of_image, value=3, **how)}
    flips = draw(st.sampled_from([(), (0,), (1,), (0, 1)]))
    both["flip"], alone["flip"] = tuple(axes[a] for a in flips), flips
    if draw(st.booleans()):
        image["scale"] = 0.5
        both["scale"] = {"image": 0.5}
    if draw(st.booleans()):
        alone["dtype"] = "int64" if mask_type not in ("f4", ">f8", "f2") else "float32"
        both["dtype"] = {"mask": alone["dtype"]}
    if kind != "none" and draw(st.booleans()):
        image["layout"] = "channels_first" if kind == "last" else "channels_last"
        both["layout"] = {"image": image["layout"]}
    image = {n: v for n, v in both.items() if n not in ("scale", "dtype", "layout")} | image
    return {"image": images, "mask": masks}, axes, both, image, alone


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=pairs(), device=st.sampled_from(["cpu", "at once", "late", "kernels"]), data=st.data())
def test_pairs_of_any_kind(tmp_path_factory, host_kernels, case, device, data):
    fields, axes, options, of_image, of_mask = case
    folder = tmp_path_factory.mktemp("pairs")
    source = save_fields(folder, fields)
    on = devices(host_kernels)[device]
    with gl.DataLoader(
        source,
        data.draw(st.integers(1, 4)),
        shuffle=True,
        seed=data.draw(st.integers(0, 5)),
        device=on,
        extras=WHERE,
        io=data.draw(st.sampled_from(["pread", "mmap"])),
        **options,
    ) as loader:
        batches = run(loader, on)
    n = options["crop"].per_array if isinstance(options.get("crop"), gl.RandomCrop) else 1
    assert sum(len(batch.index) for batch in batches) == n * len(source)
    for batch in batches:
        check_field(batch, "image", fields["image"], range(fields["image"][0].ndim), **of_image)
        check_field(batch, "mask", fields["mask"], axes, **of_mask)
