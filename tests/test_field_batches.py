"""Windows of sources with several fields: they show the same place in all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paired import SHAPES, WHERE, check_field, check_windows, grid, images_and_masks, save_fields

import gpuload as gl


@pytest.fixture
def pairs(tmp_path):
    """Images (H, W, 3) of float32 and masks (H, W) of int32 of five sizes: the source, and both."""
    fields = images_and_masks()
    return save_fields(tmp_path, fields), fields


# ---- The same window


def test_a_thousand_random_windows_are_the_same_in_both(pairs, on_every_way):
    source, _ = pairs
    batches = on_every_way(
        source, 64, crop=gl.RandomCrop((3, 4, None), per_array=200), shuffle=True, extras=WHERE
    )
    assert sum(len(batch.index) for batch in batches) == 1000
    for batch in batches:
        check_windows(batch, (3, 4))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 4}, {"num_workers": 4}], ids=str)
def test_neither_threads_nor_batches_matter(pairs, options, batch_size):
    source, _ = pairs
    options = {"crop": gl.RandomCrop((3, 4, None), 200), "shuffle": True, "seed": 3} | options
    with gl.DataLoader(source, batch_size, extras=WHERE, **options) as loader:
        batches = list(loader)
    for batch in batches:
        check_windows(batch, (3, 4))
    seen = [torch.cat([getattr(b, name) for b in batches]) for name in ("index", "crop", "mask")]
    alone = gl.DataLoader(source, 50, extras=WHERE, **(options | {"threads": 2}))
    want = list(alone)
    for name, column in zip(("index", "crop", "mask"), seen, strict=True):
        assert torch.equal(column, torch.cat([getattr(b, name) for b in want]))


# Crops of (H, W), and whether windows have one shape.
CROPS = {
    "random": (lambda size: gl.RandomCrop(size((3, 4)), per_array=3), True),
    "rows alone": (lambda size: gl.RandomCrop(size((3, None))), False),
    "center": (lambda size: gl.CenterCrop(size((4, 5))), True),
    "grid": (lambda size: gl.GridCrop(size((3, 4))), True),
    "strides": (lambda size: gl.GridCrop(size((3, 4)), stride=size((2, 3))), True),
}


@pytest.mark.parametrize("channels", ["last", "first"])
@pytest.mark.parametrize(("make", "is_uniform"), CROPS.values(), ids=CROPS)
def test_crops_leave_the_channels_of_one_side_whole(
    tmp_path, on_every_way, make, is_uniform, channels
):
    fields = images_and_masks(channels=channels)
    source = save_fields(tmp_path, fields)
    is_last = channels == "last"
    crop = make(lambda size: (*size, None) if is_last else (None, *size))
    of_mask = (0, 1) if is_last else (1, 2)
    assert source.fields[1].axes == of_mask
    for batch in on_every_way(source, 3 if is_uniform else 1, crop=crop, extras=WHERE):
        check_field(batch, "image", fields["image"], range(3), crop=crop)
        check_field(batch, "mask", fields["mask"], of_mask, crop=make(lambda size: size))
        first = batch.image[..., 0] if is_last else batch.image[:, 0]
        assert torch.equal(first, batch.mask.float())


def test_an_axis_kept_whole_is_that_of_each_pair(tmp_path):
    """Not that of the first pair."""
    fields = {"image": [grid(0, (4, 8)), grid(1, (4, 5))]}
    fields["mask"] = [-x for x in fields["image"]]
    source = save_fields(tmp_path, fields)
    batches = list(gl.DataLoader(source, 1, crop=gl.RandomCrop((2, -1))))
    assert [tuple(b.image.shape) for b in batches] == [(1, 2, 8), (1, 2, 5)]
    for batch in batches:
        assert torch.equal(batch.image, -batch.mask)


# ---- Flips, turns, sizes


# Options of a loader of images, those of its masks alone, and shapes.
MOVES = {
    "flip": ({"flip": (0, 1)}, {}, [(6, 8)] * 5),
    "turn": ({"rot90": (0, 1)}, {}, [(6, 6)] * 5),
    "crop, flip and turn": (
        {"crop": gl.RandomCrop((4, 4, None), 4), "flip": (0, 1), "rot90": (1, 0)},
        {"crop": gl.RandomCrop((4, 4), 4)},
        SHAPES,
    ),
    "flip, turn and pad": (
        {"flip": 1, "rot90": (0, 1), "pad": gl.Pad((12, 12, None))},
        {"pad": gl.Pad((12, 12))},
        SHAPES,
    ),
}


@pytest.mark.parametrize(("options", "of_mask", "shapes"), MOVES.values(), ids=MOVES)
def test_all_fields_are_moved_alike(tmp_path, on_every_way, options, of_mask, shapes):
    fields = images_and_masks(shapes)
    source = save_fields(tmp_path, fields)
    flips, turns = set(), set()
    for epoch in on_every_way(source, 4, epochs=3, seed=2, extras=WHERE, **options):
        for batch in epoch:
            check_field(batch, "image", fields["image"], range(3), **options)
            check_field(batch, "mask", fields["mask"], (0, 1), **(options | of_mask))
            assert torch.equal(batch.image[..., 0], batch.mask.float())
            flips |= set(map(tuple, batch.flip[:, :2].tolist()))
            turns |= set(batch.rot90.tolist())
    assert (len(flips) > 1) == ("flip" in options)
    assert (len(turns) > 1) == ("rot90" in options)


def test_a_flip_of_channels_leaves_a_mask_without_them_as_it_is(pairs):
    source, fields = pairs
    loader = gl.DataLoader(source, 1, flip=2, extras=WHERE)
    batches = [batch for _ in range(4) for batch in loader]
    assert {bool(batch.flip[0, 2]) for batch in batches} == {False, True}
    for batch in batches:
        check_field(batch, "image", fields["image"], range(3), flip=2)
        check_field(batch, "mask", fields["mask"], (0, 1))


def test_masks_of_whole_numbers_are_never_blended(tmp_path, on_every_way):
    image = np.array([0, 1, 2, 3], "f4")
    fields = {"image": [image], "mask": [np.array([0, 0, 4, 4], "u1")]}
    source = save_fields(tmp_path, fields)
    for mode in (None, "linear", {"image": "linear", "mask": "nearest"}):
        (batch,) = on_every_way(source, 1, resize=gl.Resize(8, mode))
        assert (batch.mask.dtype, batch.mask.tolist()) == (
            torch.uint8,
            [[0, 0, 0, 0, 4, 4, 4, 4]],
        )
        want = torch.nn.functional.interpolate(torch.tensor(image)[None, None], 8, mode="linear")
        np.testing.assert_allclose(batch.image, want[0], atol=1e-6)
    for mode in ("linear", "antialias", "area"):
        with pytest.raises(ValueError, match=r"^resize: .* for uint8 .*; labels are never blended"):
            gl.DataLoader(source, 1, resize=gl.Resize(8, {"mask": mode}))


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i4", "i8"])
def test_masks_of_any_whole_numbers_keep_their_values(tmp_path, on_every_way, dtype):
    masks = [(grid(0, shape) * 7 % 5).astype(dtype) for shape in SHAPES]
    fields = {"image": [m.astype("f4")[..., None] for m in masks], "mask": masks}
    source = save_fields(tmp_path, fields)
    for batch in on_every_way(source, 2, resize=gl.Resize((11, 4, None)), extras=WHERE):
        assert batch.mask.dtype == torch.from_numpy(masks[0]).dtype
        for m, i in zip(batch.mask, batch.index.tolist(), strict=True):
            whole = torch.from_numpy(masks[i].astype("f8"))[None, None]
            want = torch.nn.functional.interpolate(whole, (11, 4), mode="nearest")[0, 0]
            np.testing.assert_array_equal(m, want.numpy().astype(dtype))


def test_masks_of_fractions_are_blended_unless_that_is_said(tmp_path, on_every_way):
    soft = np.array([0, 0, 1, 1], "f4")
    source = save_fields(tmp_path, {"image": [soft], "mask": [soft]})
    (batch,) = on_every_way(source, 1, resize=gl.Resize(8))
    assert torch.equal(batch.image, batch.mask)
    assert len(batch.mask.unique()) > 2
    (batch,) = on_every_way(source, 1, resize=gl.Resize(8, {"mask": "nearest"}))
    assert batch.mask.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_what_is_too_large_is_made_smaller_in_all(tmp_path, on_every_way):
    fields = images_and_masks([(4, 8), (8, 4)])
    source = save_fields(tmp_path, fields)
    pad = gl.Pad((4, 6, None), oversize="resize")
    for batch in on_every_way(source, 2, pad=pad, extras=WHERE):
        assert (tuple(batch.image.shape), tuple(batch.mask.shape)) == ((2, 4, 6, 3), (2, 4, 6))
        assert batch.lengths.tolist() == [[4, 6, 3], [4, 4, 3]]
        assert set(batch.mask.unique().tolist()) <= {
            0,
            *grid(0, (4, 8)).flat,
            *grid(1, (8, 4)).flat,
        }


# ---- Padding


PADS = {
    "max": (gl.Pad(), gl.Pad()),
    "batch": (gl.Pad("batch", align="begin"), gl.Pad("batch", align="begin")),
    "multiple": (gl.Pad("multiple:4"), gl.Pad("multiple:4")),
    "shape": (gl.Pad((12, 10, None)), gl.Pad((12, 10))),
    "p50, cut": (gl.Pad("p50", oversize="crop"), gl.Pad("p50", oversize="crop")),
    "reflect": (gl.Pad((11, 12, None), mode="reflect"), gl.Pad((11, 12), mode="reflect")),
    "buckets": (gl.Pad("batch", bucket=True), gl.Pad("batch")),
}


@pytest.mark.parametrize("layout", [None, {"image": "NCHW"}], ids=str)
@pytest.mark.parametrize(("pad", "of_mask"), PADS.values(), ids=PADS)
def test_all_fields_are_padded_alike(pairs, on_every_way, pad, of_mask, layout):
    source, fields = pairs
    for batch in on_every_way(source, 2, pad=pad, layout=layout, extras=WHERE):
        image = None if layout is None else layout["image"]
        check_field(batch, "image", fields["image"], range(3), pad=pad, layout=image)
        check_field(batch, "mask", fields["mask"], (0, 1), pad=of_mask)


def test_values_types_and_layouts_are_said_by_field(pairs, on_every_way):
    source, fields = pairs
    options = {
        "pad": gl.Pad("max", value={"image": 0.5, "mask": -1}),
        "dtype": {"image": "float16", "mask": "int64"},
        "scale": {"image": 1 / 1000},
        "layout": {"image": "channels_first"},
    }
    of_mask = {"pad": gl.Pad("max", value=-1), "dtype": "int64"}
    of_image = {
        name: value[name] if isinstance(value, dict) and name in value else value
        for name, value in options.items()
    }
    of_image |= {"pad": gl.Pad("max", value=0.5), "dtype": "float16", "scale": 1 / 1000}
    of_image["layout"] = "channels_first"
    for batch in on_every_way(source, 3, extras=WHERE, **options):
        assert (batch.image.dtype, batch.mask.dtype) == (torch.float16, torch.int64)
        check_field(batch, "image", fields["image"], range(3), **of_image)
        check_field(batch, "mask", fields["mask"], (0, 1), **of_mask)
        assert (batch.mask[0] == -1).any()


def test_a_bare_value_is_that_of_the_first_field(pairs, on_every_way):
    source, _ = pairs
    options = {"pad": gl.Pad(value=9), "dtype": "float64", "scale": 2.0, "layout": "NCHW"}
    for batch in on_every_way(source, 5, extras=WHERE, **options):
        assert (batch.image.dtype, batch.mask.dtype) == (torch.float64, torch.int32)
        assert tuple(batch.image.shape) == (5, 3, 9, 9)
        assert batch.mask[0, -1].tolist() == [0] * 9  # the shape of item 0 is (6, 9)
        assert batch.image[0, :, -1].tolist() == [[9.0] * 9] * 3


NOT_OF_A_FIELD = {
    "dtype": {"dtype": {"masks": "int64"}},
    "scale": {"scale": {"x": 2}},
    "mean": {"mean": {"x": 2}},
    "std": {"std": {"x": 2}},
    "layout": {"layout": {"y": "NCHW"}},
    "pad": {"pad": gl.Pad(value={"label": 1})},
    "resize": {"resize": gl.Resize((4, 4, None), {"label": "nearest"})},
}


@pytest.mark.parametrize(("what", "options"), NOT_OF_A_FIELD.items(), ids=NOT_OF_A_FIELD)
def test_a_name_that_is_no_field_is_an_error(pairs, what, options):
    source, _ = pairs
    with pytest.raises(
        ValueError, match=rf"^{what}: expected names of fields \(image, mask\), got"
    ):
        gl.DataLoader(source, 1, **options)


# ---- More axes, more fields


def test_three_fields_go_together(tmp_path, on_every_way):
    depths = [grid(i, shape).astype(">f8") for i, shape in enumerate(SHAPES)]
    fields = {
        "depth": depths,
        "flow": [np.stack([d, -d]).astype("f4") for d in depths],
        "mask": [(d[..., None] % 200).astype("u1") for d in depths],
    }
    source = save_fields(tmp_path, fields)
    assert [field.axes for field in source.fields] == [(0, 1), (-1, 0, 1), (0, 1, -1)]
    crop = gl.RandomCrop((4, 4), per_array=5)
    made = on_every_way(source, 4, crop=crop, flip=(0, 1), rot90=(0, 1), shuffle=True, extras=WHERE)
    assert sum(len(batch.index) for batch in made) == 25
    for batch in made:
        assert batch._fields[:3] == ("depth", "flow", "mask")
        check_field(batch, "depth", depths, (0, 1), crop=crop, flip=(0, 1), rot90=(0, 1))
        assert torch.equal(batch.flow[:, 0].double(), batch.depth)
        assert torch.equal(batch.flow[:, 1].double(), -batch.depth)
        assert torch.equal(batch.mask[..., 0], (batch.depth % 200).to(torch.uint8))


def test_channels_of_their_own_may_be_of_another_number(tmp_path, on_every_way):
    """The axis of channels of the first field is one that the other has of its own."""
    fields = images_and_masks()
    fields["mask"] = [np.stack([m, m + 1], -1) for m in fields["mask"]]
    source = save_fields(tmp_path, fields)
    assert source.fields[1].axes == (0, 1, -1)
    for batch in on_every_way(source, 3, crop=gl.RandomCrop((4, 4, None), 2), extras=WHERE):
        assert tuple(batch.mask.shape[1:]) == (4, 4, 2)
        assert torch.equal(batch.mask[..., 1], batch.image[..., 0].int() + 1)


OF_ONE_SIDE = {
    "crop": {"crop": gl.RandomCrop((4, 4, 2))},
    "resize": {"resize": gl.Resize((8, 8, 2))},
    "flip": {"flip": 2},
    "pad": {"crop": gl.RandomCrop((4, 4, None)), "pad": gl.Pad((4, 4, 8))},
}


@pytest.mark.parametrize("options", OF_ONE_SIDE.values(), ids=OF_ONE_SIDE)
def test_channels_that_are_not_shared_cannot_be_cut(tmp_path, options):
    fields = images_and_masks()
    fields["mask"] = [m[..., None] for m in fields["mask"]]
    source = save_fields(tmp_path, fields)
    with pytest.raises(
        ValueError,
        match=r"^crop: expected no crop, resize, flip or pad along axis 2, which image \(6, 9, 3\) "
        r"and mask \(6, 9, 1\) do not share; pass None for it",
    ):
        gl.DataLoader(source, 1, **options)


def test_channels_that_the_mask_lacks_may_be_cut(pairs, on_every_way):
    source, _ = pairs
    for batch in on_every_way(source, 2, crop=gl.CenterCrop((4, 4, 1)), extras=WHERE):
        assert tuple(batch.image.shape) == (len(batch.index), 4, 4, 1)
        assert torch.equal(batch.image[..., 0] - 0.25, batch.mask.float())


def test_a_turn_needs_both_axes_in_every_field(pairs):
    source, _ = pairs
    with pytest.raises(ValueError, match=r"rot90: expected both axes .* got one of them in mask"):
        gl.DataLoader(source, 1, pad=gl.Pad((12, 12, 12)), rot90=(1, 2))


def test_numbers_beside_images_are_delivered_whole(on_every_way):
    images = np.arange(6 * 5 * 4, dtype="f4").reshape(6, 5, 4)
    source = gl.arrays(image=images, age=np.arange(6), pose=np.arange(18.0).reshape(6, 3))
    crop = gl.RandomCrop((3, 2), per_array=2)
    for batch in on_every_way(source, 4, crop=crop, flip=(0, 1), pad=gl.Pad(5), extras=WHERE):
        assert batch.age.tolist() == batch.index.tolist()
        assert batch.pose.tolist() == [
            [3.0 * i, 3 * i + 1, 3 * i + 2] for i in batch.index.tolist()
        ]
