"""Values scaled on their way into a batch, and the order of axes."""

from __future__ import annotations

import itertools

import casts
import numpy as np
import pytest
import torch
from arranged import numbered, save, some

import gpuload as gl

NAN = float("nan")


@pytest.fixture
def images(tmp_path):
    """A source of four arrays (3, 5, 4) of uint8, and they."""
    arrays = [some((3, 5, 4), "u1", i) for i in range(4)]
    return save(tmp_path / "images", arrays), arrays


# ---- Known numbers


def test_bytes_become_fractions(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.array([0, 51, 255], "u1")])
    (batch,) = on_every_way(source, scale=1 / 255)
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch[0], np.float32([0, 51, 255]) * np.float32(1 / 255))


def test_mean_and_std_are_those_of_what_was_scaled(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.array([0, 100, 200], "u1")])
    (batch,) = on_every_way(source, scale=0.01, mean=1, std=0.5)
    np.testing.assert_allclose(batch[0], [-2, 0, 2], atol=1e-6)


def test_each_channel_has_its_own(tmp_path, on_every_way):
    image = np.array([[[0, 10, 20]], [[1, 11, 21]]], "f4")
    source = save(tmp_path / "a", [image])
    (batch,) = on_every_way(source, mean=(0, 10, 20), std=(1, 2, 4))
    assert batch[0].tolist() == [[[0, 0, 0]], [[1, 0.5, 0.25]]]
    (batch,) = on_every_way(source, mean=(0, 10, 20), std=(1, 2, 4), layout="NCHW")
    assert batch[0].tolist() == [[[0], [1]], [[0], [0.5]], [[0], [0.25]]]


# ---- Precision and types


@pytest.mark.parametrize("delivered", [None, *casts.FLOATS])
@pytest.mark.parametrize("stored", [*casts.INTEGERS, "bool", "float16", "float32", "float64"])
def test_each_step_is_rounded_once(tmp_path, check_every_way, stored, delivered):
    """In float64 where either type holds more than 24 bits, else in float32."""
    values = casts.samples(stored)
    arrays = [np.stack([values, values[::-1]])]
    source = save(tmp_path / "a", arrays)
    options = {"dtype": delivered, "scale": 1 / 255, "mean": (0.1, -3), "std": (0.3, 7)}
    check_every_way(source, arrays, layout="channels_last", **options)


@pytest.mark.parametrize("stored", ["float16", "float32", "float64"])
def test_floating_values_keep_their_type(tmp_path, on_every_way, stored):
    source = save(tmp_path / "a", [np.ones((2, 2), stored)])
    (batch,) = on_every_way(source, scale=2)
    assert batch.dtype == getattr(torch, stored)


def test_bits_of_bfloat16_are_scaled(tmp_path, check_every_way):
    bits = casts.samples("bfloat16")
    source = save(tmp_path / "a", [bits.view("V2")], dtype="bfloat16")
    for dtype in (None, "float16", "float64"):
        check_every_way(source, [bits], stored="bfloat16", dtype=dtype, scale=0.1, mean=3, std=7)


@pytest.mark.parametrize("source", ["float32", "int32", "float64", "int64", "uint8", "bool"])
def test_values_that_are_only_cast_beside_other_changes(tmp_path, check_every_way, source):
    """Truncated toward zero, saturated, NaN to 0; whole numbers wrap."""
    values = casts.samples(source)
    arrays = [values[:-3], values[3:-1]]
    saved = save(tmp_path / "a", arrays)
    for to in ("uint8", "int64", "float16", "bfloat16", "float32", "complex64", "bool"):
        check_every_way(saved, arrays, dtype=to, pad=gl.Pad())


def test_known_casts_beside_padding(tmp_path, on_every_way):
    values = np.array([-1, -1.23, 0.9, 255, 256, 300, 1e10, NAN, np.inf], "f4")
    source = save(tmp_path / "a", [values])
    (batch,) = on_every_way(source, dtype="uint8", pad=gl.Pad(10, align="begin", value=9))
    assert batch[0].tolist() == [0, 0, 0, 255, 255, 255, 255, 0, 255, 9]


BYTE_ORDERS = [">u2", ">i4", ">f2", ">f4", ">f8", "<f4"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("stored", BYTE_ORDERS)
def test_either_byte_order_and_order_of_axes(tmp_path, check_every_way, stored, order):
    arrays = [np.asarray(some((4, 5, 3), seed=i), stored, order=order) for i in range(3)]
    source = save(tmp_path / "a", arrays)
    scaling = {"scale": 0.5, "mean": (1, 2, 3), "std": (3, 2, 1)}
    for layout, crop in itertools.product((None, "NCHW"), (None, gl.RandomCrop((3, 2, None), 2))):
        check_every_way(source, arrays, layout=layout, crop=crop, **scaling)


SCALINGS = {
    "scale": {"scale": 1 / 255},
    "mean": {"mean": 0.1},
    "std": {"std": 0.3},
    "mean and std": {"mean": 0.1, "std": 0.3},
    "a mean for each channel": {"mean": (0.1, 0.2, 0.3, 0.4)},
    "std for each channel": {"std": (0.1, 0.2, 0.3, 0.4), "scale": 3},
    "one mean, std for each": {"mean": 5, "std": (0.1, 0.2, 0.3, 0.4)},
    "tensors": {"mean": torch.tensor([1.0, 2, 3, 4]), "std": torch.tensor([4.0, 3, 2, 1])},
    "arrays of their own axes": {"mean": np.arange(4).reshape(1, 1, 4)},
    "less than nothing": {"scale": -2, "std": -0.5},
    "a scale of 0": {"scale": 0, "mean": 1},
}


@pytest.mark.parametrize("options", SCALINGS.values(), ids=SCALINGS)
def test_any_of_scale_mean_and_std(images, check_every_way, options):
    source, arrays = images
    for layout in (None, "NCHW"):
        check_every_way(source, arrays, layout=layout, **options)
        check_every_way(source, arrays, layout=layout, pad=gl.Pad((5, 5, None)), **options)


def test_which_axis_counts_channels(tmp_path, check_every_way):
    arrays = [some((3, 5, 4), seed=1), some((3, 5, 4), seed=2)]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, mean=(1, 2, 3))
    check_every_way(source, arrays, mean=(1, 2, 3, 4))
    arrays = [some((3, 5, 3), seed=1), some((3, 5, 3), seed=2)]
    source = save(tmp_path / "b", arrays)
    for layout in ("channels_first", "channels_last"):
        check_every_way(source, arrays, mean=(1, 2, 3), layout=layout)


def test_of_one_axis_each_element_may_have_its_own(tmp_path, check_every_way):
    arrays = [some((4,), seed=i) for i in range(5)]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, mean=(1, 2, 3, 4), std=(4, 3, 2, 1))


def test_by_name_of_the_field(images, on_every_way):
    source, _ = images
    named = on_every_way(source, scale={"x": 0.5}, mean={"x": 1}, dtype={"x": "float16"})
    assert torch.equal(named[0], on_every_way(source, scale=0.5, mean=1, dtype="float16")[0])


# ---- The order of axes

LAYOUTS = {
    "NCHW": (3, (2, 0, 1)),
    "channels_first": (3, (2, 0, 1)),
    "NHWC": (3, (1, 2, 0)),
    "channels_last": (3, (1, 2, 0)),
    "NCDHW": (4, (3, 0, 1, 2)),
    "NDHWC": (4, (1, 2, 3, 0)),
    "NCL": (2, (1, 0)),
    "NLC": (2, (1, 0)),
    "NC": (1, (0,)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_of_axes(tmp_path, on_every_way, check_every_way, layout):
    ndim, order = LAYOUTS[layout]
    arrays = [numbered((2, 3, 4, 5)[:ndim], start=i) for i in range(4)]
    source = save(tmp_path / "a", arrays)
    batch, _ = on_every_way(source, layout=layout)
    np.testing.assert_array_equal(batch, np.stack([a.transpose(order) for a in arrays[:3]]))
    check_every_way(source, arrays, layout=layout)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("ndim", [0, 1, 2, 5, 8])
def test_items_of_any_rank_are_laid_out(tmp_path, check_every_way, ndim, layout):
    arrays = [some((2, 3, 1, 2, 2, 1, 2, 3)[:ndim], ">i2", i) for i in range(3)]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, layout=layout)
    check_every_way(source, arrays, layout=layout, scale=0.1)


def test_lengths_and_mask_are_those_of_what_is_delivered(tmp_path, on_every_way):
    arrays = [some((h, w, 3), seed=h) for h, w in ((4, 7), (5, 2))]
    source = save(tmp_path / "a", arrays)
    extras = ("mask", "lengths", "start")
    (batch,) = on_every_way(source, layout="NCHW", pad=gl.Pad(), extras=extras)
    assert batch.x.shape == (2, 3, 5, 7)
    assert batch.mask.shape == (2, 1, 5, 7)
    assert batch.lengths.tolist() == [[3, 4, 7], [3, 5, 2]]
    assert batch.mask.sum((1, 2, 3)).tolist() == [28, 10]


def test_batches_are_dense(images, on_every_way):
    source, _ = images
    assert on_every_way(source, layout="NCHW")[0].is_contiguous()


# ---- Errors

BAD = {
    "no number": ({"scale": "a"}, TypeError, "scale: expected a number .*, got 'a'"),
    "infinite": ({"mean": float("inf")}, ValueError, "mean: expected finite numbers, got inf"),
    "not a number": ({"std": NAN}, ValueError, "std: expected finite numbers, got nan"),
    "none at all": ({"mean": []}, ValueError, r"mean: expected finite numbers, got \[\]"),
    "several scales": (
        {"scale": (1, 2)},
        ValueError,
        r"scale: expected one number, got \(1, 2\); pass std= for each channel",
    ),
    "division by zero": (
        {"std": (1, 1, 1, 0)},
        ValueError,
        "std: expected numbers other than 0, got 0",
    ),
    "other numbers of them": (
        {"mean": (1, 2, 3), "std": (1, 2, 3, 4)},
        ValueError,
        "std: expected as many numbers as in mean, got 4 and 3",
    ),
    "no such axis": (
        {"mean": (1, 2)},
        ValueError,
        r"mean: expected one axis of 2 channels, first or last, got none in items of shape "
        r"\(3, 5, 4\); pass one number",
    ),
    "not in the middle": ({"mean": [1] * 5}, ValueError, "mean: expected one axis of 5 channels"),
    "not where the layout says": (
        {"mean": (1, 2, 3), "layout": "NCHW"},
        ValueError,
        "mean: expected one axis of 3 channels, first or last, got none",
    ),
    "as whole numbers": (
        {"scale": 2, "dtype": "uint8"},
        ValueError,
        "dtype: expected one of float16, bfloat16, float32, float64 for scaled values, got uint8",
    ),
    "no type": ({"dtype": "decimal"}, TypeError, "dtype: expected"),
    "no layout": (
        {"layout": "HWC"},
        ValueError,
        'layout: expected "channels_first", "channels_last", or axes such as "NCHW" or "NHWC", '
        "got 'HWC'",
    ),
    "no text": ({"layout": (2, 0, 1)}, TypeError, 'layout: expected text such as "NCHW", got'),
    "channels in the middle": ({"layout": "NHCW"}, ValueError, "layout: expected"),
    "more axes": (
        {"layout": "NCDHW"},
        ValueError,
        "layout: expected 4 axes for items of 3, got 5 in 'NCDHW'",
    ),
    "fewer axes": ({"layout": "NC"}, ValueError, "layout: expected 4 axes for items of 3, got 2"),
    **{
        f"{name} of no field": (
            {name: {"mask": value}},
            ValueError,
            rf"{name}: expected names of fields \(x\), got 'mask'",
        )
        for name, value in (
            ("dtype", "uint8"),
            ("scale", 1),
            ("mean", 1),
            ("std", 1),
            ("layout", "NCHW"),
        )
    },
}


@pytest.mark.parametrize(("options", "error", "rule"), BAD.values(), ids=BAD)
def test_what_cannot_be_done_is_an_error_of_one_line(images, options, error, rule):
    source, _ = images
    with pytest.raises(error, match=f"^{rule}") as caught:
        gl.DataLoader(source, 2, **options)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


def test_either_end_could_count_channels(tmp_path):
    source = save(tmp_path / "a", [some((3, 5, 3), seed=1)])
    rule = (
        r"^mean: expected one axis of 3 channels, first or last, got more than one in items of "
        r'shape \(3, 5, 3\); pass layout="channels_first" or "channels_last"$'
    )
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, mean=(1, 2, 3))


def test_channels_of_all_files_must_be_alike(tmp_path):
    source = save(tmp_path / "a", [some((3, 5, 4), seed=1), some((3, 5, 6), seed=1)])
    with pytest.raises(ValueError, match=r"^mean: expected one axis of 4 channels"):
        gl.DataLoader(source, mean=(1, 2, 3, 4))


@pytest.mark.parametrize("options", [{"scale": 2}, {"mean": 1}, {"std": 2}], ids=str)
def test_complex_values_are_not_scaled(tmp_path, options):
    source = save(tmp_path / "a", [some((3,), "c8")])
    with pytest.raises(TypeError, match=r"^scale: expected real values, got complex64$"):
        gl.DataLoader(source, **options)
    with pytest.raises(TypeError, match=r"^dtype: expected complex64 or complex128 for complex64"):
        gl.DataLoader(source, dtype="float32", pad=gl.Pad(4))


def test_the_loader_says_what_it_does_to_values(images):
    source, _ = images
    with gl.DataLoader(source, scale=1 / 255) as loader:
        assert "uint8 -> float32 scaled" in loader.describe()


@pytest.mark.parametrize(
    "options",
    [
        {"crop": gl.RandomCrop((4, 4, 2))},
        {"pad": gl.Pad((8, 9, 4), oversize="crop")},
        {"resize": gl.Resize((None, None, 12), "nearest")},
    ],
    ids=["crop", "pad", "resize"],
)
def test_numbers_for_each_channel_want_all_channels(tmp_path, options):
    source = save(tmp_path / "a", [some((8, 9, 6), seed=1)])
    rule = r"^crop, resize or pad: expected other axes than that of channels with mean= or std="
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, mean=tuple(range(6)), **options)


def test_channels_that_are_there_already_are_not_moved(tmp_path):
    first = save(tmp_path / "a", [some((3, 20, 30), seed=1)])
    last = save(tmp_path / "b", [some((20, 30, 3), seed=1)])
    with pytest.raises(ValueError, match="layout: expected channels along the last axis of items"):
        gl.DataLoader(first, layout="NCHW")
    with pytest.raises(ValueError, match="layout: expected channels along the first axis of items"):
        gl.DataLoader(last, layout="channels_last")


def test_only_arrays_in_use_count(tmp_path):
    source = save(tmp_path / "a", [some((5, 6, n), seed=1) for n in (3, 3, 2)]).select([0, 1])
    (batch,) = gl.DataLoader(source, 2, mean=(1, 2, 3), pad=gl.Pad())
    assert batch.x.shape == (2, 5, 6, 3) if hasattr(batch, "x") else batch.shape == (2, 5, 6, 3)
