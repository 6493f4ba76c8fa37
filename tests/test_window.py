"""Crops: which boxes they show, how many, and what they refuse."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import center_start, grid_starts, looks_even, random_starts

import gpuload as gl
from gpuload import _native
from gpuload.window import resolve


@pytest.fixture
def open_arrays(tmp_path):
    """A source of these arrays, one file each."""

    def open_arrays(*arrays):
        for i, array in enumerate(arrays):
            np.save(tmp_path / f"{i:03}.npy", array)
        return gl.open(tmp_path)

    return open_arrays


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def windows_of(source, crop, **options):
    """(item, crop, start, values) of every window of an epoch, one at a time."""
    loader = gl.DataLoader(source, crop=crop, extras=("index", "crop", "start"), **options)
    return [(int(b.index), int(b.crop), tuple(b.start[0].tolist()), b.x[0].numpy()) for b in loader]


def cut(array, start, shape):
    return array[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))]


def drawn(crop, shapes, *, seed=0, epoch=0):
    """(item, crop, start) of every window of items of these shapes, without files."""
    shapes = np.array(shapes, np.int64)
    geometry = resolve(crop, shapes, "item {}".format)
    ends = None if geometry.per_item is not None else np.cumsum(geometry.counts)
    windows = geometry.native(ends)
    n = int(geometry.counts.sum())
    made = _native.Epoch(seed, epoch, 0, 1, 1, n, 0, 0, 1, n, 1, None, None, None)
    items, crops, _ = made.samples(windows, 0, n)
    starts = made.starts(windows, items, crops.astype(np.uint32), shapes[items])
    return items, crops, starts, geometry


# ---- RandomCrop

RANDOM = {
    "1-d": ((9,), (3,)),
    "2-d": ((5, 6), (2, 3)),
    "2-d, an axis whole": ((5, 6), (2, None)),
    "3-d": ((3, 4, 5), (2, 2, 3)),
    "5-d": ((2, 3, 2, 3, 4), (1, 2, 2, 1, 3)),
}


@pytest.mark.parametrize(("shape", "size"), RANDOM.values(), ids=RANDOM)
def test_a_random_crop_reaches_every_start_equally_often(open_arrays, shape, size):
    array = numbers(*shape)
    extent = tuple(n if k is None else k for n, k in zip(shape, size, strict=True))
    legal = np.array(shape) - extent + 1
    per_array = 100 * int(legal.prod())
    loader = gl.DataLoader(
        open_arrays(array), per_array, crop=gl.RandomCrop(size, per_array), extras="start"
    )
    counts = np.zeros(legal, np.int64)
    for x, start in loader:
        np.add.at(counts, tuple(start.numpy().T), 1)
        for values, at in zip(x.numpy()[:200], start.numpy()[:200], strict=True):
            assert np.array_equal(values, cut(array, at, extent))
    assert counts.sum() == per_array
    assert counts.min() > 0
    assert looks_even(counts.reshape(-1))


@settings(max_examples=100, deadline=None)
@given(
    axes=st.lists(
        st.integers(1, 50).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32),
)
def test_random_starts_equal_their_twin(axes, seed, epoch):
    shape, size = zip(*axes, strict=True)
    items, crops, starts, _ = drawn(
        gl.RandomCrop(size, per_array=3), [shape] * 2, seed=seed, epoch=epoch
    )
    for item, crop, start in zip(items, crops, starts, strict=True):
        want = random_starts(shape, size, seed=seed, epoch=epoch, item=int(item), crop=int(crop))
        assert tuple(start) == want
        assert all(0 <= s <= n - k for s, n, k in zip(start, shape, size, strict=True))


def test_starts_of_huge_arrays_reach_their_ends():
    n = 2**62
    _, _, starts, _ = drawn(gl.RandomCrop(1, per_array=5000), [(n, n)])
    assert starts.min() >= 0
    assert starts.max() < n
    assert looks_even(np.bincount((starts.reshape(-1) // (n // 16)), minlength=16))


def test_items_crops_and_epochs_are_drawn_independently():
    crop = gl.RandomCrop(1, per_array=4)
    tables = [drawn(crop, [(10**6,)] * 16, epoch=epoch)[2] for epoch in range(2)]
    assert len(np.unique(np.concatenate(tables))) == 2 * 16 * 4
    again = drawn(crop, [(10**6,)] * 16, epoch=1)[2]
    assert np.array_equal(again, tables[1])


def test_more_crops_per_array_leave_the_first_ones_as_they_are(open_arrays):
    source = open_arrays(numbers(50, 50), numbers(50, 50))
    few = windows_of(source, gl.RandomCrop(5, per_array=2), seed=4)
    many = windows_of(source, gl.RandomCrop(5, per_array=7), seed=4)
    by_sample = {(item, crop): start for item, crop, start, _ in many}
    assert all(by_sample[item, crop] == start for item, crop, start, _ in few)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_each_item_comes_as_often_as_asked(open_arrays, shuffle):
    source = open_arrays(*[numbers(6, 6)] * 10)
    loader = gl.DataLoader(
        source, 3, shuffle=shuffle, crop=gl.RandomCrop(2, per_array=8), extras=("index", "crop")
    )
    for _ in range(2):
        seen = Counter((i, c) for b in loader for i, c in zip(*map(torch_list, b[1:]), strict=True))
        assert seen == Counter((item, crop) for item in range(10) for crop in range(8))


def torch_list(tensor):
    return tensor.tolist()


@pytest.mark.parametrize(
    "crop",
    [gl.RandomCrop((4, 7)), gl.CenterCrop((4, 7)), gl.GridCrop((4, 7)), gl.RandomCrop(None), None],
    ids=str,
)
def test_a_crop_as_large_as_the_item_is_the_item(open_arrays, crop):
    array = numbers(4, 7)
    ((_, _, start, values),) = windows_of(open_arrays(array), crop)
    assert start == (0, 0)
    assert np.array_equal(values, array)


# ---- CenterCrop

CENTERS = {(5, 2): 1, (4, 3): 0, (9, 4): 2, (11, 8): 1, (6, 6): 0, (7, 1): 3}


@pytest.mark.parametrize(("lengths", "start"), CENTERS.items(), ids=map(str, CENTERS))
def test_a_center_crop_starts_at_the_floor_of_half_the_rest(open_arrays, lengths, start):
    n, size = lengths
    ((_, _, at, values),) = windows_of(open_arrays(numbers(n)), gl.CenterCrop(size))
    assert at == (start,)
    assert values.tolist() == list(range(start, start + size))


def test_a_center_crop_differs_from_axis_to_axis_and_item_to_item(open_arrays):
    arrays = [numbers(5, 4), numbers(9, 11)]
    crop = gl.CenterCrop((2, 3))
    for item, _, start, values in windows_of(open_arrays(*arrays), crop):
        assert start == center_start(arrays[item].shape, (2, 3))
        assert np.array_equal(values, cut(arrays[item], start, (2, 3)))


# ---- GridCrop

GRIDS = {
    "the last one is moved inwards": ((5,), gl.GridCrop(3), [(0,), (2,)]),
    "no rest": ((6,), gl.GridCrop(2), [(0,), (2,), (4,)]),
    "overlapping": ((7,), gl.GridCrop(3, stride=2), [(0,), (2,), (4,)]),
    "overlapping, with a rest": ((6,), gl.GridCrop(3, stride=2), [(0,), (2,), (3,)]),
    "apart": ((10,), gl.GridCrop(2, stride=4), [(0,), (4,), (8,)]),
    "a stride past the end": ((5,), gl.GridCrop(2, stride=9), [(0,), (3,)]),
    "an axis whole": ((2, 5), gl.GridCrop((None, 3)), [(0, 0), (0, 2)]),
    "an axis whole, with a stride": ((2, 5), gl.GridCrop((-1, 3), stride=2), [(0, 0), (0, 2)]),
    "last axis fastest": ((4, 4), gl.GridCrop(2), [(0, 0), (0, 2), (2, 0), (2, 2)]),
    "no stride along an axis is its size": (
        (4, 3),
        gl.GridCrop(2, stride=(None, 1)),
        [(0, 0), (0, 1), (2, 0), (2, 1)],
    ),
}


@pytest.mark.parametrize(("shape", "crop", "want"), GRIDS.values(), ids=GRIDS)
def test_a_grid_starts_where_it_should(open_arrays, shape, crop, want):
    array = numbers(*shape)
    windows = windows_of(open_arrays(array), crop)
    assert [start for _, _, start, _ in windows] == want
    assert [number for _, number, _, _ in windows] == list(range(len(want)))
    for _, _, start, values in windows:
        assert np.array_equal(values, cut(array, start, values.shape))


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
)
def test_a_grid_covers_ragged_items_without_repeating_a_window(data, sizes):
    size, stride = zip(*((k, min(k, step)) for k, step in sizes), strict=True)
    shape = st.tuples(*(st.integers(k, 20) for k in size))
    shapes = data.draw(st.lists(shape, min_size=1, max_size=4))
    items, _, starts, geometry = drawn(gl.GridCrop(size, stride), shapes)
    for item, shape in enumerate(shapes):
        mine = [tuple(start) for start in starts[items == item]]
        assert mine == grid_starts(shape, size, stride)
        assert len(set(mine)) == len(mine) == geometry.counts[item]
        covered = np.zeros(shape, bool)
        for start in mine:
            cut(covered, start, size)[...] = True
        assert covered.all()


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_ragged_items_give_their_own_number_of_windows(open_arrays, shuffle):
    arrays = [numbers(4, 4), numbers(5, 9), numbers(2, 2), numbers(2, 3)]
    source = open_arrays(*arrays)
    loader = gl.DataLoader(
        source, 4, crop=gl.GridCrop(2), shuffle=shuffle, extras=("index", "start")
    )
    assert len(loader) == 6  # 4 + 15 + 1 + 2 windows
    seen = []
    for batch in loader:
        for x, item, start in zip(*batch, strict=True):
            assert np.array_equal(x, cut(arrays[int(item)], start, (2, 2)))
            seen.append((int(item), *start.tolist()))
    want = [
        (item, *start)
        for item, array in enumerate(arrays)
        for start in grid_starts(array.shape, (2, 2), (2, 2))
    ]
    assert sorted(seen) == want


# ---- Items of different shapes


@pytest.mark.parametrize("size", [(2, None), (2, -1), [2, None]], ids=str)
def test_a_whole_axis_is_each_items_own(open_arrays, size):
    arrays = [numbers(4, 8), numbers(4, 5)]
    windows = windows_of(open_arrays(*arrays), gl.RandomCrop(size))
    assert [values.shape for *_, values in windows] == [(2, 8), (2, 5)]
    for item, _, start, values in windows:
        assert np.array_equal(values, cut(arrays[item], start, values.shape))


def test_windows_of_different_shapes_do_not_fit_one_batch(open_arrays):
    source = open_arrays(numbers(4, 8), numbers(4, 5))
    with pytest.raises(
        ValueError,
        match=r"001\.npy: expected windows of shape \(2, 8\) as in .*000\.npy, got \(2, 5\); "
        r"pass crop= with a size for each axis, or batch_size=1",
    ):
        gl.DataLoader(source, batch_size=2, crop=gl.RandomCrop((2, None)))


def test_whole_items_of_different_shapes_come_one_by_one(open_arrays):
    arrays = [numbers(3), numbers(7), numbers(1)]
    got = [x[0].tolist() for x in gl.DataLoader(open_arrays(*arrays))]
    assert got == [array.tolist() for array in arrays]


# ---- What is refused

WRONG = {
    "larger than an item": (
        gl.RandomCrop(5),
        ValueError,
        r"000\.npy: expected at least the crop \(5, 5\) along each axis, got shape \(3, 6\); "
        r"1 of 3 arrays are too small",
    ),
    "one axis larger": (
        gl.CenterCrop((4, 1)),
        ValueError,
        r"000\.npy: expected at least the crop \(4, 1\) along each axis, got shape \(3, 6\)",
    ),
    "a grid larger": (gl.GridCrop((1, 7)), ValueError, r"the crop \(1, 7\).*got shape \(3, 6\)"),
    "too few axes": (
        gl.RandomCrop((2,)),
        ValueError,
        r"crop: expected a size of 2 axes as in .*000\.npy \(3, 6\), got \(2,\); write None",
    ),
    "too many axes": (gl.GridCrop((2, 2, 2)), ValueError, r"a size of 2 axes .* got \(2, 2, 2\)"),
    "strides of another number of axes": (
        gl.GridCrop(2, stride=(1,)),
        ValueError,
        r"crop: expected a stride of 2 axes",
    ),
    "zero": (gl.RandomCrop(0), ValueError, "crop: expected a size of 1 or more, got 0"),
    "negative": (gl.RandomCrop((2, -2)), ValueError, "a size of 1 or more, got -2"),
    "stride zero": (gl.GridCrop(2, stride=0), ValueError, "a stride of 1 or more, got 0"),
    "no crops": (gl.RandomCrop(2, 0), ValueError, "crop: expected a per_array of 1 or more, got 0"),
    "half an element": (gl.CenterCrop(1.5), TypeError, "a whole number as size, got 1.5"),
    "text": (gl.CenterCrop("20"), TypeError, "a whole number as size, got '20'"),
    "a truth": (gl.CenterCrop(True), TypeError, "a whole number as size, got True"),
    "half a crop": (gl.RandomCrop(2, 1.5), TypeError, "a whole number as per_array, got 1.5"),
    "no crop at all": (
        (2, 2),
        TypeError,
        "crop: expected RandomCrop, CenterCrop, GridCrop or None",
    ),
    "the type in place of a crop": (gl.RandomCrop, TypeError, "crop: expected RandomCrop"),
}


@pytest.mark.parametrize(("crop", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_crop_is_refused_at_construction(open_arrays, crop, error, message):
    source = open_arrays(numbers(3, 6), numbers(6, 9), numbers(8, 8))
    with pytest.raises(error, match=message):
        gl.DataLoader(source, crop=crop)


def test_only_items_in_use_must_be_large_enough(open_arrays):
    source = open_arrays(numbers(3), numbers(5), numbers(8)).select([1, 2])
    assert [x.shape for x in gl.DataLoader(source, crop=gl.RandomCrop(5))] == [(1, 5)] * 2


@pytest.mark.parametrize(
    "size", [np.int64(2), (np.int32(2), 2), np.array([2, 2])], ids=["int64", "tuple", "array"]
)
def test_sizes_may_be_numpy_numbers(open_arrays, size):
    ((_, _, _, values),) = windows_of(open_arrays(numbers(3, 6)), gl.CenterCrop(size))
    assert values.tolist() == [[2, 3], [8, 9]]
