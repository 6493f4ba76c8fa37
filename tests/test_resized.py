"""Windows resized on their way into a batch: the numbers of torch, labels never blended."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from arranged import TOLD, numbered, save, some
from interpolation import interpolate

import gpuload as gl

MODES = ["nearest", "nearest-exact", "linear", "antialias", "area"]

# ---- Known numbers

F4 = np.float32
KNOWN = {
    "nearest 5 to 3": (np.arange(5, dtype=F4), 3, "nearest", [0, 1, 3]),
    "nearest 5 to 8": (np.arange(5, dtype=F4), 8, "nearest", [0, 0, 1, 1, 2, 3, 3, 4]),
    "nearest-exact 5 to 3": (np.arange(5, dtype=F4), 3, "nearest-exact", [0, 2, 4]),
    "nearest-exact 5 to 2": (np.arange(5, dtype=F4), 2, "nearest-exact", [1, 3]),
    "linear 10 to 1": (np.arange(10, dtype=F4), 1, "linear", [4.5]),
    "linear 4 to 8": (
        np.arange(4, dtype=F4),
        8,
        "linear",
        [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3],
    ),
    "area 5 to 2": (np.arange(5, dtype=F4), 2, "area", [1, 3]),
    "uint8 is rounded": (np.array([0, 255], "u1"), 3, "linear", [0, 128, 255]),
    "nearest of int64": (np.arange(5) << 40, 3, "nearest", [0, 1 << 40, 3 << 40]),
    "nearest of uint16": (np.arange(5, dtype="u2"), 3, "nearest", [0, 1, 3]),
    "linear of int64": (np.array([0, 0, 4, 4]), 8, "linear", [0, 0, 0, 1, 3, 4, 4, 4]),
    "linear of big-endian uint16": (np.array([0, 100], ">u2"), 3, "linear", [0, 50, 100]),
    "4x4 to 3x1": (
        numbered((4, 4)),
        (3, 1),
        "linear",
        [[3.1667], [8.5], [13.8333]],
    ),
    "4x4 to 2x2": (numbered((4, 4)), 2, "linear", [[3.5, 5.5], [11.5, 13.5]]),
    "4x4 to 2x2, antialiased": (
        numbered((4, 4)),
        2,
        "antialias",
        [[4.5714, 6.1429], [10.8571, 12.4286]],
    ),
}


@pytest.mark.parametrize(("array", "size", "mode", "want"), KNOWN.values(), ids=KNOWN)
def test_known_numbers(tmp_path, on_every_way, array, size, mode, want):
    source = save(tmp_path / "a", [array])
    (batch,) = on_every_way(source, resize=gl.Resize(size, mode))
    assert batch.numpy().dtype == array.dtype.newbyteorder("=")
    np.testing.assert_allclose(batch[0], want, atol=1e-4)


def test_labels_are_never_blended(tmp_path, on_every_way):
    """An image and its mask, resized in one call."""
    save(tmp_path / "image", [np.array([0, 0, 4, 4], "f4")])
    save(tmp_path / "mask", [np.array([0, 0, 4, 4])])
    source = gl.open(fields={"image": tmp_path / "image", "mask": tmp_path / "mask"})
    for mode in (None, "linear", {"image": "linear", "mask": "nearest"}):
        (batch,) = on_every_way(source, resize=gl.Resize(8, mode))
        assert batch.mask.dtype == torch.int64
        assert batch.mask.tolist() == [[0, 0, 0, 0, 4, 4, 4, 4]]
        np.testing.assert_allclose(batch.image[0], [0, 0, 0, 1, 3, 4, 4, 4], atol=1e-6)
    for mode in ("linear", "antialias", "area"):
        with pytest.raises(ValueError, match=r'^resize: expected "nearest" or "nearest-exact" for'):
            gl.DataLoader(source, resize=gl.Resize(8, {"mask": mode}))


# ---- As torch

SIZES = {
    "larger": (9, 11),
    "smaller": (2, 3),
    "one element": 1,
    "one axis": (4, None),
    "the other axis": (None, 8),
    "as it is": (5, 7),
    "larger and smaller": (8, 2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_windows_are_those_of_torch(tmp_path, check_every_way, size, mode):
    arrays = [some((5, 7), seed=i) for i in range(4)]
    source = save(tmp_path / "a", arrays)
    resize = gl.Resize(size, mode)
    check_every_way(source, arrays, resize=resize)
    check_every_way(source, arrays, resize=resize, crop=gl.RandomCrop((5, 4), 2), shuffle=True)


def test_one_batch_is_torchs_own(tmp_path, on_every_way):
    arrays = [some((3, 6, 7), seed=i) for i in range(2)]
    source = save(tmp_path / "a", arrays)
    stacked = torch.from_numpy(np.stack(arrays))
    (batch,) = on_every_way(source, resize=gl.Resize((None, 4, 9), "linear"))
    want = torch.nn.functional.interpolate(stacked, (4, 9), mode="bilinear", align_corners=False)
    torch.testing.assert_close(batch, want, rtol=0, atol=1e-3)
    (batch,) = on_every_way(source, resize=gl.Resize((None, 4, 9), "area"))
    want = torch.nn.functional.interpolate(stacked, (4, 9), mode="area")
    torch.testing.assert_close(batch, want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("mode", ["nearest", "linear", "antialias"])
def test_arrays_of_different_shapes_become_alike(tmp_path, check_every_way, mode):
    shapes = [(5, 3, 4), (2, 7, 4), (9, 9, 4), (6, 8, 4), (1, 1, 4)]
    arrays = [some(shape, seed=i) for i, shape in enumerate(shapes)]
    source = save(tmp_path / "a", arrays)
    batches = check_every_way(source, arrays, resize=gl.Resize((6, 8, None), mode), layout="NCHW")
    assert {tuple(batch.x.shape[1:]) for batch in batches} == {(4, 6, 8)}


def test_three_axes_of_volumes(tmp_path, check_every_way):
    arrays = [some((4, 5, 6, 2), seed=i) for i in range(3)]
    source = save(tmp_path / "a", arrays)
    for mode in MODES:
        check_every_way(source, arrays, resize=gl.Resize((6, 3, 4, None), mode))


TYPES = ["uint8", "int16", ">i4", ">u2", "float16", ">f8", "f4"]


@pytest.mark.parametrize("dtype", [None, "float32", "float64", "float16", "uint8"])
@pytest.mark.parametrize("stored", TYPES)
def test_types_that_are_stored_and_delivered(tmp_path, check_every_way, stored, dtype):
    arrays = [np.abs(some((6, 5), seed=i)).astype(stored) for i in range(3)]
    source = save(tmp_path / "a", arrays)
    for mode in ("nearest", "antialias"):
        check_every_way(source, arrays, resize=gl.Resize((4, 8), mode), dtype=dtype)


def test_bits_of_bfloat16(tmp_path, check_every_way):
    bits = np.arange(16000, 16024, dtype="u2").reshape(4, 6)
    source = save(tmp_path / "a", [bits.view("V2")], dtype="bfloat16")
    for mode in ("nearest", "linear"):
        options = {"stored": "bfloat16", "resize": gl.Resize(5, mode)}
        check_every_way(source, [bits], **options)
        check_every_way(source, [bits], dtype="float32", **options)


def test_fractions_of_bytes_are_kept_where_they_are_scaled(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.array([0, 255], "u1")])
    (batch,) = on_every_way(source, resize=gl.Resize(4, "linear"), scale=1 / 255)
    np.testing.assert_allclose(batch[0], [0, 0.25, 0.75, 1], atol=1e-6)


def test_large_whole_numbers_stay_what_they_are(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.full(3, 2**62 + 1), np.full(5, -(2**61) - 1)])
    (batch,) = on_every_way(source, resize=gl.Resize(4, "nearest"))
    assert batch.tolist() == [[2**62 + 1] * 4, [-(2**61) - 1] * 4]


@pytest.mark.parametrize("mode", ["antialias", "nearest"])
def test_resized_windows_are_flipped_turned_scaled_and_padded(tmp_path, check_every_way, mode):
    arrays = [some((5 + i, 9 - i, 3), "u1", i) for i in range(6)]
    source = save(tmp_path / "a", arrays)
    options = {"flip": (0, 1), "rot90": (0, 1), "scale": 0.1, "mean": (1, 2, 3), "epochs": 2}
    pad = gl.Pad((9, 9, None), mode="reflect")
    check_every_way(source, arrays, resize=gl.Resize((4, 7, None), mode), pad=pad, **options)
    crop = gl.RandomCrop((5, 4, None), 2)
    resize = gl.Resize((6, 6, None), mode)
    check_every_way(source, arrays, crop=crop, resize=resize, layout="NCHW", **options)


def test_what_is_padded_is_what_was_resized(tmp_path, check_every_way):
    arrays = [some((10, 10), seed=i) for i in range(3)]
    source = save(tmp_path / "a", arrays)
    options = {"crop": gl.RandomCrop(8), "resize": gl.Resize(4)}
    (batch,) = check_every_way(source, arrays, pad=gl.Pad(), **options)
    assert batch.x.shape == (3, 4, 4)
    assert batch.mask.shape == (3, 1, 1)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad(6), **options)
    assert batch.x.shape == (3, 6, 6)


@pytest.mark.parametrize("align", ["center", "begin", "end"])
@pytest.mark.parametrize("mode", MODES)
def test_arrays_that_are_too_large_are_made_smaller(tmp_path, check_every_way, mode, align):
    shapes = [(12, 3), (2, 9), (4, 4), (10, 11), (1, 1)]
    arrays = [some(shape, seed=i) for i, shape in enumerate(shapes)]
    source = save(tmp_path / "a", arrays)
    for to in ((6, 5), ("p50", 5), (5, "batch")):
        pad = gl.Pad(to, align, value=3, oversize="resize", resize_mode=mode)
        check_every_way(source, arrays, pad=pad)


def test_modes_are_chosen_for_floating_values(tmp_path, on_every_way):
    array = some((9, 7))
    source = save(tmp_path / "a", [array])
    (batch,) = on_every_way(source, resize=gl.Resize((4, 3)))
    want = interpolate(array, (0, 1), (4, 3), "antialias")
    np.testing.assert_allclose(batch[0], want, atol=1e-3)
    (batch,) = on_every_way(source, pad=gl.Pad((4, 3), oversize="resize"), extras=TOLD)
    np.testing.assert_allclose(batch.x[0], want, atol=1e-3)


def test_an_array_without_elements_gives_zeros(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.zeros((0, 3), "f4"), np.ones((2, 2), "f4")])
    (batch,) = on_every_way(source, resize=gl.Resize(3, "linear"))
    assert batch.tolist() == [[[0.0] * 3] * 3, [[1.0] * 3] * 3]


# ---- Errors

BAD = {
    "no Resize": (8, TypeError, "resize: expected gpuload.Resize or None, got int"),
    "true": (gl.Resize(True), TypeError, "resize: expected a whole number as size, got True"),
    "a fraction": (gl.Resize((2, 0.5)), TypeError, "resize: expected a whole .* size, got 0.5"),
    "nothing": (gl.Resize(0), ValueError, "resize: expected a size of 1 or more, got 0"),
    "less": (gl.Resize((3, -2)), ValueError, "resize: expected a size of 1 or more, got -2"),
    "too much": (gl.Resize(1 << 31), ValueError, f"resize: expected a size of 1.*, got {1 << 31}"),
    "one axis of two": (
        gl.Resize((3,)),
        ValueError,
        r"resize: expected a size of 2 axes as in .*000\.npy, got \(3,\); write None for an axis "
        "that keeps its extent",
    ),
    "an unknown mode": (
        gl.Resize(3, "cubic"),
        ValueError,
        'resize: expected one of "nearest", "nearest-exact", "linear", "antialias", "area" as '
        "mode, got 'cubic'",
    ),
    "a list of modes": (gl.Resize(3, ["area"]), ValueError, "resize: expected one of .* as mode"),
    "a mode of no field": (
        gl.Resize(3, {"mask": "nearest"}),
        ValueError,
        r"resize: expected names of fields \(x\), got 'mask'",
    ),
}


@pytest.mark.parametrize(("resize", "error", "rule"), BAD.values(), ids=BAD)
def test_what_is_no_resize_is_an_error_of_one_line(tmp_path, resize, error, rule):
    source = save(tmp_path / "a", [numbered((2, 2))] * 2)
    with pytest.raises(error, match=f"^{rule}") as caught:
        gl.DataLoader(source, 2, resize=resize)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


def test_whole_numbers_of_the_first_field_need_a_mode(tmp_path):
    source = save(tmp_path / "a", [some((4, 4), "u1")])
    rule = (
        '^resize: expected mode= for uint8 values, got none; pass "nearest" for labels, '
        '"antialias" or "area" for images$'
    )
    for options in (
        {"resize": gl.Resize(3)},
        {"pad": gl.Pad(3, oversize="resize")},
        {"pad": gl.Pad("p0", oversize="resize"), "crop": None, "resize": gl.Resize((2, None))},
    ):
        with pytest.raises(ValueError, match=rule):
            gl.DataLoader(source, **options)
    with gl.DataLoader(source, pad=gl.Pad(oversize="resize")) as loader:  # nothing is too large
        assert next(iter(loader)).shape == (1, 4, 4)


def test_pad_and_resize_agree_on_a_mode(tmp_path):
    source = save(tmp_path / "a", [numbered((4, 4))])
    pad = gl.Pad((None, 3), oversize="resize", resize_mode="area")
    rule = "^resize: expected one mode, got 'linear' and resize_mode='area' of pad$"
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, resize=gl.Resize((3, None), "linear"), pad=pad)
    with gl.DataLoader(source, resize=gl.Resize((3, None), "area"), pad=pad) as loader:
        assert next(iter(loader)).shape == (1, 3, 3)


def test_four_axes_are_too_many(tmp_path):
    source = save(tmp_path / "a", [numbered((2, 2, 2, 2))])
    rule = "^resize: expected at most 3 axes to resize, got 4; write None for those that keep their"
    for options in ({"resize": gl.Resize(3)}, {"pad": gl.Pad((1,) * 4, oversize="resize")}):
        with pytest.raises(ValueError, match=rule):
            gl.DataLoader(source, **options)


def test_complex_values_are_not_resized(tmp_path):
    source = save(tmp_path / "a", [some((4,), "c8")])
    with pytest.raises(TypeError, match=r"^resize: expected real values, got complex64$"):
        gl.DataLoader(source, resize=gl.Resize(3, "nearest"))


def test_items_of_many_axes_are_not_resized(tmp_path):
    source = save(tmp_path / "a", [numbered((1,) * 9)])
    with pytest.raises(ValueError, match=r"^resize: expected items of at most 8 axes, got 9 in x$"):
        gl.DataLoader(source, resize=gl.Resize((3, *[None] * 8)))
    with pytest.raises(ValueError, match=r"^pad: expected items of at most 8 axes with this mode"):
        gl.DataLoader(source, pad=gl.Pad((3, *[None] * 8), mode="edge"))
