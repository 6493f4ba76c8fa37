"""Samples of different shapes in one batch: how large they are, where data lie, what is filled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from arranged import TOLD, numbered, save, some

import gpuload as gl

NAN = float("nan")
SHAPES = [(5, 3), (2, 7), (4, 4), (6, 1), (3, 3), (1, 2), (5, 5), (2, 2)]


@pytest.fixture
def ragged(tmp_path):
    """A source of 8 arrays of different shapes, and they."""
    arrays = [numbered(shape, start=100 * i + 1) for i, shape in enumerate(SHAPES)]
    return save(tmp_path / "ragged", arrays), arrays


# ---- Known numbers


def test_rows_and_columns_of_zeros_follow_smaller_arrays(tmp_path, on_every_way):
    arrays = [np.array(rows) for rows in ([[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]])]
    source = save(tmp_path / "a", [*arrays, np.array([[1, 2], [3, 4], [5, 6]])])
    (batch,) = on_every_way(source, pad=gl.Pad(align="begin"), extras=("mask", "lengths"))
    assert batch.x.tolist() == [
        [[1, 2, 0], [3, 4, 0], [0, 0, 0]],
        [[1, 2, 3], [4, 5, 6], [0, 0, 0]],
        [[1, 2, 0], [3, 4, 0], [5, 6, 0]],
    ]
    assert batch.lengths.tolist() == [[2, 2], [2, 3], [3, 2]]
    assert torch.equal(batch.mask, batch.x != 0)
    assert (batch.mask.dtype, batch.lengths.dtype) == (torch.bool, torch.int64)


OF_ROWS = {
    "max": (gl.Pad(align="begin"), [[1, 2, 3], [2, 0, 0], [2, 4, 0]]),
    "at the end": (gl.Pad(align="end"), [[1, 2, 3], [0, 0, 2], [0, 2, 4]]),
    "in the middle": (gl.Pad(), [[1, 2, 3], [0, 2, 0], [2, 4, 0]]),
    "a multiple": (
        gl.Pad("multiple:4", align="begin"),
        [[1, 2, 3, 0], [2, 0, 0, 0], [2, 4, 0, 0]],
    ),
    "minus one": (gl.Pad(align="begin", value=-1), [[1, 2, 3], [2, -1, -1], [2, 4, -1]]),
    "edges": (gl.Pad(5, mode="edge"), [[1, 1, 2, 3, 3], [2, 2, 2, 2, 2], [2, 2, 4, 4, 4]]),
}


@pytest.mark.parametrize(("pad", "want"), OF_ROWS.values(), ids=OF_ROWS)
def test_rows_of_numbers(tmp_path, on_every_way, pad, want):
    source = save(tmp_path / "a", [np.array(row, "f4") for row in ([1, 2, 3], [2], [2, 4])])
    (batch,) = on_every_way(source, pad=pad, extras="lengths")
    assert batch.x.tolist() == want
    assert batch.lengths.tolist() == [3, 1, 2]


def test_nan_marks_what_is_no_data(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.array(row, "f4") for row in ([1, 2, 3], [2])])
    (batch,) = on_every_way(source, pad=gl.Pad(value=NAN), extras="mask")
    assert torch.equal(batch.x.isnan(), ~batch.mask)
    assert batch.mask.tolist() == [[True] * 3, [False, True, False]]


# ---- How large samples are

TO = {
    "max": ("max", {(6, 7)}),
    "one number": (9, {(9, 9)}),
    "a shape": ((6, 8), {(6, 8)}),
    "the largest of the batch": ("batch", {(5, 7), (6, 3), (5, 5)}),
    "a multiple": ("multiple:4", {(8, 8), (8, 4)}),
    "a multiple of one": ("multiple:1", {(5, 7), (6, 3), (5, 5)}),
    "one for each axis": (("max", 8), {(6, 8)}),
    "of several kinds": (("batch", "multiple:3"), {(5, 9), (6, 3), (5, 6)}),
    "a percentile and the batch": (("p100", "batch"), {(6, 7), (6, 3), (6, 5)}),
    "all of a percentile": ("p100", {(6, 7)}),
    "fractions of percent": ("p99.5", {(6, 7)}),
}


@pytest.mark.parametrize(("to", "want"), TO.values(), ids=TO)
def test_samples_are_as_large_as_is_said(ragged, check_every_way, to, want):
    source, arrays = ragged
    batches = check_every_way(source, arrays, pad=gl.Pad(to))
    assert {tuple(batch.x.shape[1:]) for batch in batches} == want


PERCENTILES = {"p0": (1, 1), "p50": (4, 3), "p75": (5, 5), "p95": (6, 7), "p100": (6, 7)}


@pytest.mark.parametrize(("to", "want"), PERCENTILES.items(), ids=PERCENTILES)
def test_percentiles_are_shapes_that_occur(ragged, check_every_way, to, want):
    source, arrays = ragged
    batches = check_every_way(source, arrays, pad=gl.Pad(to, oversize="crop"))
    assert {tuple(batch.x.shape[1:]) for batch in batches} == {want}


def test_percentiles_count_items_as_often_as_they_occur(ragged, check_every_way):
    source, arrays = ragged
    items = [3, 3, 3, 3, 1, 6]  # (6, 1) four times, (2, 7), (5, 5)
    for to, shape in (("p50", (6, 1)), ("p75", (6, 5)), ("p95", (6, 7))):
        pad = gl.Pad(to, oversize="crop")
        (batch,) = check_every_way(source.select(items), [arrays[i] for i in items], 6, pad=pad)
        assert tuple(batch.x.shape[1:]) == shape


def test_what_a_selection_leaves_out_does_not_count(ragged, check_every_way):
    source, arrays = ragged
    batches = check_every_way(source.select([2, 4]), [arrays[2], arrays[4]], pad=gl.Pad())
    assert batches[0].x.shape == (2, 4, 4)


def test_a_list_serves_as_a_tuple(ragged, on_every_way):
    source, _ = ragged
    (batch, *_) = on_every_way(source, pad=gl.Pad([7, 8]))
    assert batch.shape == (3, 7, 8)


@pytest.mark.parametrize("whole", [None, -1])
def test_axes_may_be_left_alone(tmp_path, check_every_way, whole):
    arrays = [some((n, 4), seed=n) for n in (3, 5, 2)]
    source = save(tmp_path / "a", arrays)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad(("max", None)))
    assert batch.x.shape == (3, 5, 4)
    assert batch.mask.shape == (3, 5, 1)
    with gl.DataLoader(source, 3, pad=gl.Pad((5, whole)), device="cpu") as loader:
        assert next(iter(loader)).shape == (3, 5, 4)


def test_axes_that_are_left_alone_must_be_alike_in_a_batch(ragged):
    source, _ = ragged
    rule = (
        r"001\.npy: expected windows of shape \(5, 3\) as in .*000\.npy, got \(2, 7\); pass crop="
    )
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, 2, pad=gl.Pad(("max", None)))


def test_in_batches_of_one_nothing_must_be_alike(ragged, check_every_way):
    source, arrays = ragged
    for to in (("max", None), "batch", "multiple:2", (None, None)):
        batches = check_every_way(source, arrays, 1, pad=gl.Pad(to))
        assert len(batches) == 8
    assert [tuple(batch.x.shape[1:]) for batch in batches] == SHAPES


# ---- Where data lie, and what fills the rest

MODES = ["constant", "edge", "reflect", "symmetric", "wrap"]


@pytest.mark.parametrize("align", ["center", "begin", "end"])
@pytest.mark.parametrize("mode", MODES)
def test_modes_are_those_of_numpy(ragged, check_every_way, mode, align):
    source, arrays = ragged
    check_every_way(source, arrays, 4, pad=gl.Pad((13, 9), align, mode, value=7))
    check_every_way(source, arrays, 4, pad=gl.Pad("batch", align, mode, value=7))


def test_of_an_odd_rest_the_larger_half_follows(tmp_path, on_every_way):
    source = save(tmp_path / "a", [numbered((n,)) for n in (1, 2, 3, 4)])
    (batch,) = on_every_way(source, 4, pad=gl.Pad(4))
    assert [(row != 0).nonzero()[0].item() for row in batch] == [1, 1, 0, 0]


VALUES = [
    ("uint8", 255, 0),
    ("int8", -128, 127),
    ("uint16", 65535, 1),
    ("int32", -(2**31), 2**31 - 1),
    ("int64", -(2**63), 2**63 - 1),
    ("uint64", 2**64 - 1, 2**63),
    ("float16", 0.1, -65504),
    ("bfloat16", 0.1, -3.0),
    ("float32", 1 / 3, float("inf")),
    ("float64", 1 / 3, NAN),
    ("bool", True, 1.0),
]


@pytest.mark.parametrize(("dtype", "one", "other"), VALUES, ids=[row[0] for row in VALUES])
def test_every_type_is_padded_with_its_own_values(tmp_path, check_every_way, dtype, one, other):
    arrays = [np.ones(n, "u1") for n in (3, 5)]
    source = save(tmp_path / "a", arrays)
    for value in (one, other, np.array(one)):
        check_every_way(source, arrays, dtype=dtype, pad=gl.Pad(value=value))


def test_complex_values_are_padded_with_complex_ones(tmp_path, check_every_way):
    arrays = [some(n, "c8") for n in ((3,), (5,))]
    source = save(tmp_path / "a", arrays)
    for dtype, value in ((None, 1 - 2j), ("complex128", 3), ("complex64", NAN)):
        check_every_way(source, arrays, dtype=dtype, pad=gl.Pad(value=value))


def test_a_value_is_in_units_of_what_is_delivered(tmp_path, on_every_way):
    source = save(tmp_path / "a", [np.full(n, 255, "u1") for n in (1, 2)])
    pad = gl.Pad(value=0.5, align="begin")
    (batch,) = on_every_way(source, pad=pad, scale=1 / 255, mean=3.0)
    assert batch.tolist() == [[-2, 0.5], [-2, -2]]


def test_values_of_a_field_may_be_given_by_name(tmp_path, on_every_way):
    source = save(tmp_path / "a", [numbered((n,)) for n in (1, 2)])
    (batch,) = on_every_way(source, pad=gl.Pad(value={"x": 9}, align="begin"))
    assert batch.tolist() == [[1, 9], [1, 2]]


# ---- Arrays that are too large


def test_arrays_that_are_too_large_are_an_error_at_once(ragged):
    source, _ = ragged
    rule = (
        r"000\.npy: expected windows of at most \(4, 4\) \(pad\), got \(5, 3\); 4 of 8 arrays are "
        r'too large, pass oversize="crop" or "resize"$'
    )
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, 2, pad=gl.Pad(4))
    with pytest.raises(ValueError, match=r"001\.npy: .* at most \(None, 5\) .* 1 of 8 arrays"):
        gl.DataLoader(source, pad=gl.Pad((None, 5)))


@pytest.mark.parametrize(
    ("align", "starts"), [("center", [0, 1, 3]), ("begin", [0, 0, 0]), ("end", [0, 3, 6])]
)
def test_what_is_too_large_is_cut_where_it_is_aligned(tmp_path, on_every_way, align, starts):
    arrays = [numbered((n,)) for n in (2, 6, 9)]
    source = save(tmp_path / "a", arrays)
    pad = gl.Pad(3, align=align, oversize="crop")
    (batch,) = on_every_way(source, pad=pad, extras=("start", "lengths"))
    assert batch.start.flatten().tolist() == starts
    assert batch.lengths.tolist() == [2, 3, 3]
    for row, start in zip(batch.x[1:].tolist(), starts[1:], strict=True):
        assert row == [start + 1, start + 2, start + 3]


def test_of_a_crop_too_the_middle_is_kept(ragged, check_every_way):
    source, arrays = ragged
    for align in ("center", "begin", "end"):
        pad = gl.Pad((4, 2), align, oversize="crop")
        check_every_way(source, arrays, crop=gl.RandomCrop((5, 3), 2), pad=pad, epochs=2)


@pytest.mark.parametrize("mode", ["antialias", "nearest", "area"])
def test_what_is_too_large_is_made_smaller(ragged, check_every_way, mode):
    source, arrays = ragged
    pad = gl.Pad((4, 3), oversize="resize", resize_mode=mode)
    batches = check_every_way(source, arrays, pad=pad)
    assert batches[0].lengths.tolist() == [[4, 3], [2, 3], [4, 3]]
    assert batches[1].lengths.tolist() == [[4, 1], [3, 3], [1, 2]]


def test_nothing_is_too_large_for_the_largest(ragged, on_every_way):
    source, _ = ragged
    want = on_every_way(source, pad=gl.Pad(), extras=TOLD)
    for oversize in ("crop", "resize"):
        got = on_every_way(source, pad=gl.Pad(oversize=oversize), extras=TOLD)
        assert all(torch.equal(a.x, b.x) for a, b in zip(got, want, strict=True))


# ---- Crops


def test_a_crop_larger_than_the_sample_ends_where_that_ends(tmp_path, on_every_way):
    arrays = [numbered((n,)) for n in (3, 5, 8)]
    source = save(tmp_path / "a", arrays)
    with pytest.raises(ValueError, match=r"000\.npy: expected at least the crop \(5,\) .* \(3,\)"):
        gl.DataLoader(source, 3, crop=gl.RandomCrop(5))
    pad = gl.Pad(align="begin")
    (batch,) = on_every_way(source, crop=gl.RandomCrop(5), pad=pad, extras=("start", "lengths"))
    start = batch.start[2].item()
    assert batch.x.tolist() == [
        [1, 2, 3, 0, 0],
        [1, 2, 3, 4, 5],
        list(range(start + 1, start + 6)),
    ]
    assert batch.lengths.tolist() == [3, 5, 5]
    assert batch.start[:2].flatten().tolist() == [0, 0]


CENTERS = [(5, 2, 1), (4, 3, 0), (9, 4, 2), (11, 8, 1), (3, 8, -2)]


@pytest.mark.parametrize(("n", "size", "start"), CENTERS)
def test_the_middle_is_found_alike_within_and_around(tmp_path, on_every_way, n, size, start):
    source = save(tmp_path / "a", [np.arange(1, n + 1)])
    (batch,) = on_every_way(source, 1, crop=gl.CenterCrop(size), pad=gl.Pad())
    around = np.pad(np.arange(1, n + 1), 9)[9 + start : 9 + start + size]
    assert batch.tolist() == [around.tolist()]


def test_one_axis_of_three_may_be_too_small(tmp_path, check_every_way):
    arrays = [some(shape, seed=1) for shape in ((6, 7, 2), (6, 7, 9), (3, 8, 5))]
    source = save(tmp_path / "a", arrays)
    for crop in (gl.RandomCrop((4, 5, 4), 3), gl.CenterCrop(4), gl.GridCrop((4, 4, 4))):
        pad = gl.Pad(("max", "max", "max"))
        batches = check_every_way(source, arrays, 2, shuffle=True, crop=crop, pad=pad)
        size = (4, 5, 4) if isinstance(crop, gl.RandomCrop) else (4, 4, 4)
        assert {tuple(batch.x.shape[1:]) for batch in batches} == {size}


def test_axes_that_a_crop_keeps_whole_are_padded(tmp_path, on_every_way):
    source = save(tmp_path / "a", [numbered((4, 8)), numbered((4, 5))])
    crop = gl.RandomCrop((2, None))
    alone = on_every_way(source, 1, crop=crop)
    assert [tuple(batch.shape) for batch in alone] == [(1, 2, 8), (1, 2, 5)]
    (batch,) = on_every_way(source, 2, crop=crop, pad=gl.Pad(), extras="lengths")
    assert batch.x.shape == (2, 2, 8)
    assert batch.lengths.tolist() == [[2, 8], [2, 5]]


# ---- Channels


def folder_of(tmp_path, *shapes):
    return save(tmp_path / "a", [some(shape, seed=i) for i, shape in enumerate(shapes)])


def test_one_text_for_all_axes_leaves_channels_alone(tmp_path, check_every_way):
    last = [some((h, w, 6), seed=h) for h, w in ((4, 7), (5, 3), (2, 2))]
    for i, arrays in enumerate((last, [np.moveaxis(array, -1, 0) for array in last])):
        source = save(tmp_path / str(i), arrays)
        for to in ("max", "batch", "multiple:4", "p95"):
            (batch,) = check_every_way(source, arrays, pad=gl.Pad(to, oversize="crop"))
            assert batch.x.shape[-1 if i == 0 else 1] == 6
            assert batch.mask.shape[-1 if i == 0 else 1] == 1


def test_five_channels_among_files_of_six_are_an_error(tmp_path):
    source = folder_of(tmp_path, (4, 5, 6), (5, 4, 6), (3, 3, 5), (2, 4, 6))
    rule = (
        r"002\.npy: expected 6 elements along axis 2 as in .*000\.npy and 2 more, got 5; leave it "
        r"out with source\.select, or pass to= with an entry for each axis to pad it$"
    )
    for to in ("max", "batch", "multiple:4", "p95"):
        with pytest.raises(ValueError, match=rule):
            gl.DataLoader(source, 2, pad=gl.Pad(to))
    with gl.DataLoader(source, 4, pad=gl.Pad(("max",) * 3), extras="lengths") as loader:
        (batch,) = loader
    assert (batch.x.shape, batch.lengths[2].tolist()) == ((4, 5, 5, 6), [3, 3, 5])
    with gl.DataLoader(source.select([0, 1, 3]), 3, pad=gl.Pad()) as loader:
        assert next(iter(loader)).shape == (3, 5, 5, 6)


def test_channels_first_are_told_from_heights(tmp_path):
    source = folder_of(tmp_path, (6, 40, 50), (5, 44, 50), (6, 41, 53))
    with pytest.raises(ValueError, match=r"001\.npy: expected 6 elements along axis 0 as in"):
        gl.DataLoader(source, 2, pad=gl.Pad())


def test_volumes_of_any_shape_are_padded_along_all_axes(tmp_path, check_every_way):
    arrays = [some(shape, seed=i) for i, shape in enumerate([(4, 5, 6), (3, 7, 5), (2, 2, 4)])]
    source = save(tmp_path / "a", arrays)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad())
    assert batch.x.shape == (3, 4, 7, 6)


def test_a_number_is_meant_for_every_axis(tmp_path, check_every_way):
    arrays = [some((n, 3, 2), seed=n) for n in (2, 3)]
    source = save(tmp_path / "a", arrays)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad(4))
    assert batch.x.shape == (2, 4, 4, 4)


# ---- What it says


def test_ranks_that_differ_are_refused_when_files_are_opened(tmp_path):
    with pytest.raises(ValueError, match=r"001\.npy: expected"):
        save(tmp_path / "a", [numbered((2, 2)), numbered((2, 2, 1))])


def test_the_loader_says_that_it_pads(ragged):
    source, _ = ragged
    with gl.DataLoader(source, 2, pad=gl.Pad()) as loader:
        assert "5x3 and other shapes, padded to 6x7, float32" in loader.describe()
    with gl.DataLoader(source, 2, pad=gl.Pad("batch")) as loader:
        assert "padded to at most 6x7" in loader.describe()


def test_a_file_of_fewer_channels_is_named_also_where_other_axes_are_short(tmp_path):
    arrays = [np.zeros((8, n, c), "f4") for n, c in ((5, 6), (9, 6), (7, 5), (8, 6))]
    source = save(tmp_path / "a", arrays)
    rule = r"002\.npy: expected 6 elements along axis 2 as in .*000\.npy and 2 more, got 5"
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, 2, pad=gl.Pad("max"))
