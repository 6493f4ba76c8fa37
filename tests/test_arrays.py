"""gpuload.arrays: arrays and tensors in memory as a source, used where they are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload.sources.axes import share_axes

ROWS = np.arange(5 * 4 * 3, dtype=np.float32).reshape(5, 4, 3)


def addresses(source: gl.Source) -> list[int]:
    return [field.catalog.contents.flat.ctypes.data for field in source.fields]


# ---- What is read

ARRAYS = {
    "C order": ROWS,
    "Fortran order": np.asfortranarray(ROWS),
    "big-endian": ROWS.astype(">f4"),
    "big-endian in Fortran order": np.asfortranarray(ROWS.astype(">i8")),
    "every second row": ROWS[::2],
    "backwards": ROWS[::-1],
    "transposed": ROWS.transpose(2, 0, 1),
    "one row shown many times": np.broadcast_to(ROWS[0], (6, 4, 3)),
    "read-only": np.frombuffer(ROWS.tobytes(), np.float32).reshape(5, 12),
    "numbers": np.arange(5),
    "items without elements": np.zeros((3, 0, 2)),
    "truth values": ROWS % 2 == 0,
    "complex numbers": ROWS + 1j,
    "half precision": ROWS.astype(np.float16),
    "the last of uint64": np.array([2**64 - 1, 0], np.uint64),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_row_i_of_an_array_is_item_i(array):
    source = gl.arrays(array)
    assert len(source) == len(array)
    assert source.nbytes == array.size * array.itemsize
    for i in (*range(len(array)), -1):
        np.testing.assert_array_equal(source[i].numpy(), array[i])
        assert source[i].shape == array[i].shape
    batches = list(gl.DataLoader(source, batch_size=2))
    np.testing.assert_array_equal(torch.cat(batches).numpy(), array)


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays(
        st.sampled_from(["<f8", ">f8", "<i2", ">i2", "u1", "?", "<c8", ">c16"]),
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=4),
    ),
    data=st.data(),
)
def test_any_view_of_any_array_gives_its_rows(array, data):
    view = array.transpose(data.draw(st.permutations(range(array.ndim))))
    view = view[:: data.draw(st.sampled_from([1, 2, -1]))]
    source = gl.arrays(view)
    for i, row in enumerate(view):
        np.testing.assert_array_equal(source[i].numpy(), row)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[-1].numpy(), view[-1])


def test_a_tensor_is_used_where_it_is():
    tensor = torch.arange(12.0).reshape(4, 3)
    source = gl.arrays(tensor)
    assert addresses(source) == [tensor.data_ptr()]
    assert torch.equal(source[2], tensor[2])


def test_bfloat16_tensors_are_taken():
    tensor = torch.tensor([[1.0, -2.5], [3e38, float("inf")]], dtype=torch.bfloat16)
    source = gl.arrays(tensor)
    assert source.dtype == torch.bfloat16
    assert addresses(source) == [tensor.data_ptr()]
    assert torch.equal(source[1], tensor[1])
    assert torch.equal(gl.arrays(tensor.T)[1], tensor[:, 1])
    assert torch.equal(next(iter(gl.DataLoader(source, batch_size=2))), tensor)


def test_tensors_that_are_conjugate_or_negative_by_a_flag_have_their_values():
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(gl.arrays(tensor.conj())[0], torch.tensor(1 - 2j))
    assert gl.arrays(tensor.conj().imag)[0].item() == -2


def test_parameters_are_taken_without_their_gradient():
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))
    source = gl.arrays(parameter)
    assert addresses(source) == [parameter.data_ptr()]
    assert source[1].tolist() == [2, 3]
    assert not source[1].requires_grad


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_memory_map_stays_mapped(tmp_path, order):
    path = tmp_path / "a.npy"
    np.save(path, np.asarray(ROWS, order=order))
    mapped = np.load(path, mmap_mode="r")
    source = gl.arrays(mapped)
    assert addresses(source) == [mapped.ctypes.data]
    np.testing.assert_array_equal(source[3].numpy(), ROWS[3])
    del mapped
    np.testing.assert_array_equal(source[4].numpy(), ROWS[4])


def test_only_data_without_order_are_copied():
    fortran, swapped, view = np.asfortranarray(ROWS), ROWS.astype(">f4"), ROWS[:, ::2]
    source = gl.arrays(ROWS, fortran, swapped, view)
    given = [array.ctypes.data for array in (ROWS, fortran, swapped, view)]
    assert [a == b for a, b in zip(addresses(source), given, strict=True)] == [True] * 3 + [False]


def test_what_is_written_to_the_array_is_seen_by_later_batches():
    array = np.zeros((4, 2), np.int64)
    source = gl.arrays(array)
    loader = gl.DataLoader(source, batch_size=4)
    assert next(iter(loader)).sum() == 0
    array[:] = 7
    assert source[0].tolist() == [7, 7]
    assert next(iter(loader)).tolist() == [[7, 7]] * 4


def test_writing_to_batches_and_items_leaves_the_array_as_it_is():
    array = np.arange(8).reshape(4, 2)
    source = gl.arrays(array)
    source[1].fill_(-1)
    for batch in gl.DataLoader(source, batch_size=3):
        batch.fill_(-1)
    np.testing.assert_array_equal(array, np.arange(8).reshape(4, 2))


def test_batches_of_crops_hold_what_slices_of_the_array_hold():
    array = np.random.default_rng(0).random((9, 30, 20), np.float32)
    loader = gl.DataLoader(
        gl.arrays(array),
        batch_size=4,
        shuffle=True,
        crop=gl.RandomCrop((8, 5), per_array=2),
        extras=("index", "start"),
    )
    seen = 0
    for x, index, start in loader:
        for window, i, (a, b) in zip(x, index.tolist(), start.tolist(), strict=True):
            np.testing.assert_array_equal(window, array[i, a : a + 8, b : b + 5])
            seen += 1
    assert seen == 18


def test_the_data_outlive_every_other_name_of_them():
    source = gl.arrays(np.full((100, 1000), 3.0))
    iterator = iter(gl.DataLoader(source, batch_size=10))
    del source
    assert all(bool((batch == 3).all()) for batch in iterator)


# ---- Several arrays


def test_aligned_arrays_are_fields_of_one_item():
    pictures, vectors = ROWS, np.arange(10, dtype=">i2").reshape(5, 2)
    classes = torch.arange(5, dtype=torch.uint8)
    source = gl.arrays(pictures, vectors, kind=classes)
    assert [field.name for field in source.fields] == ["x1", "x2", "kind"]
    assert source.dtypes == {"x1": torch.float32, "x2": torch.int16, "kind": torch.uint8}
    assert source.nbytes == pictures.nbytes + vectors.nbytes + 5
    x1, x2, kind = source[-2]
    np.testing.assert_array_equal(x1, pictures[3])
    assert (x2.tolist(), kind.item()) == ([6, 7], 3)
    source.labels = [4, 3, 2, 1, 0]
    *_, y = source[0]
    assert (y.item(), y.dtype) == (4, torch.int64)


def test_selections_take_the_same_rows_of_all_arrays():
    source = gl.arrays(ROWS, number=np.arange(5)).select([4, -4, 4])
    assert [item[1].item() for item in source] == [4, 1, 4]
    np.testing.assert_array_equal(source[1][0], ROWS[1])
    train, rest = gl.arrays(ROWS, number=np.arange(5)).split([3, 2], seed=0)
    assert sorted(x[1].item() for part in (train, rest) for x in part) == [0, 1, 2, 3, 4]


NAMES = {
    "one array": (lambda a: gl.arrays(a), ["x"]),
    "two arrays": (lambda a: gl.arrays(a, a), ["x1", "x2"]),
    "a named array": (lambda a: gl.arrays(image=a), ["image"]),
    "one of each": (lambda a: gl.arrays(a, mask=a), ["x", "mask"]),
    "a name that is not English": (lambda a: gl.arrays(größe=a), ["größe"]),
}


@pytest.mark.parametrize(("make", "want"), NAMES.values(), ids=NAMES)
def test_arrays_are_named(make, want):
    source = make(ROWS)
    assert [field.name for field in source.fields] == want
    assert list(source.dtypes) == want
    assert source.paths[0] == f"arrays: {want[0]}"


# Shapes of rows of the first and of another array -> the axes of the other.
AXES = {
    "the same": ((20, 30), (20, 30), (0, 1)),
    "numbers": ((), (), ()),
    "a number beside a vector": ((20,), (), ()),
    "a mask of channels-last pictures": ((20, 30, 3), (20, 30), (0, 1)),
    "a mask of channels-first pictures": ((3, 20, 30), (20, 30), (1, 2)),
    "a cube, leading axes first": ((20, 20, 20), (20, 20), (0, 1)),
    "other channels last": ((20, 30, 3), (20, 30, 1), (0, 1, -1)),
    "other channels first": ((3, 20, 30), (1, 20, 30), (-1, 1, 2)),
    "channels beside a picture without": ((20, 30), (20, 30, 5), (0, 1, -1)),
    "channels before a picture without": ((20, 30), (5, 20, 30), (-1, 0, 1)),
    "another vector": ((20, 30), (10,), (-1,)),
    "another picture": ((20, 30), (20, 31), (-1, -1)),
    "volumes that differ by a slice": ((97, 113, 97), (97, 113, 96), (-1, -1, -1)),
    "two other axes": ((20, 30, 3), (21, 30, 1), (-1, -1, -1)),
    "a number beside a picture": ((20, 30), (), ()),
}


@pytest.mark.parametrize(("first", "other", "want"), AXES.values(), ids=AXES)
def test_rows_share_axes_where_they_can(first, other, want):
    source = gl.arrays(np.zeros((2, *first)), np.zeros((2, *other)))
    assert source.fields[0].axes == tuple(range(len(first)))
    assert source.fields[1].axes == want


RAGGED = {
    "all the same": ([(5, 4), (6, 7)], [(5, 4), (6, 7)], (0, 1)),
    "channels": ([(5, 4, 3), (6, 7, 3)], [(5, 4, 1), (6, 7, 1)], (0, 1, -1)),
    "a mask of channels-first pictures": ([(3, 3, 4), (3, 5, 6)], [(3, 4), (5, 6)], (1, 2)),
    "channels that are not constant": ([(5, 4, 3), (6, 7, 3)], [(5, 4, 1), (6, 7, 2)], 0),
    "the second differs": ([(5, 4), (6, 7)], [(5, 4), (6, 8)], 1),
    "the second mask differs": ([(5, 4, 3), (6, 7, 3)], [(5, 4), (6, 8)], 1),
}


@pytest.mark.parametrize(("first", "other", "want"), RAGGED.values(), ids=RAGGED)
def test_axes_are_shared_by_all_items_or_none(first, other, want):
    assert share_axes(np.array(first, np.int64), np.array(other, np.int64)) == want


# ---- What travels


def test_a_source_of_arrays_is_pickled_with_its_data():
    swapped = np.asfortranarray(np.arange(10).reshape(5, 2).astype(">i4"))
    source = gl.arrays(ROWS, swapped, half=torch.arange(5, dtype=torch.bfloat16))
    source.labels = range(5)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    for item, want in zip(copy, source, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(item, want, strict=True))
    copied = pickle.loads(pickle.dumps(gl.arrays(swapped)))
    np.testing.assert_array_equal(torch.stack(list(copied)).numpy(), swapped)


def test_fingerprints_tell_shapes_and_selections_apart():
    source = gl.arrays(ROWS, ROWS)
    others = [
        gl.arrays(ROWS),
        gl.arrays(ROWS, ROWS[:, :2]),
        gl.arrays(ROWS, other=ROWS),
        source.select([0, 1, 2, 3]),
    ]
    assert gl.arrays(ROWS + 1, ROWS).fingerprint() == source.fingerprint()
    assert source.fingerprint() not in [other.fingerprint() for other in others]


# ---- What is refused

SEVEN, FIVE = np.zeros((7, 2)), np.zeros((5, 2))
BAD = {
    "none": (lambda: gl.arrays(), ValueError, "arrays: expected at least one array, got none"),
    "other lengths": (
        lambda: gl.arrays(FIVE, b=SEVEN),
        ValueError,
        "arrays: b: expected 5 rows as in x, got 7",
    ),
    "no rows": (
        lambda: gl.arrays(FIVE[:0], FIVE[:0]),
        ValueError,
        "arrays: x1: expected at least one row, got none",
    ),
    "a number": (
        lambda: gl.arrays(np.float64(3)),
        TypeError,
        "arrays: x: expected a NumPy array or a CPU tensor, got float64; pass numpy.asarray",
    ),
    "an array of no axes": (
        lambda: gl.arrays(np.array(3)),
        ValueError,
        "arrays: x: expected an axis of items, got a single number",
    ),
    "a tensor of no axes": (lambda: gl.arrays(torch.tensor(3)), ValueError, "got a single number"),
    "a list": (lambda: gl.arrays([1, 2]), TypeError, "got list; pass numpy.asarray of it"),
    "objects": (
        lambda: gl.arrays(np.array([{}, []], object)),
        gl.UnsupportedDtypeError,
        "got objects; pass numbers",
    ),
    "text": (
        lambda: gl.arrays(a=np.array(["a", "bc"])),
        TypeError,
        r"arrays: a: expected one of bool, .*, got str64 \(<U2\); pass numbers",
    ),
    "dates": (lambda: gl.arrays(np.array(["2020"], "M8[D]")), TypeError, "got datetime64"),
    "long doubles": (lambda: gl.arrays(np.zeros(3, np.longdouble)), TypeError, "got float128"),
    "records": (
        lambda: gl.arrays(np.zeros(3, [("a", "f4"), ("b", "f4")])),
        TypeError,
        r"got a structured dtype; pass one of its fields, array\['a'\]",
    ),
    "a masked array": (
        lambda: gl.arrays(np.ma.masked_array([1, 2], [0, 1])),
        TypeError,
        r"got MaskedArray; pass array\.filled\(\)",
    ),
    "a tensor elsewhere": (
        lambda: gl.arrays(torch.zeros(3, device="meta")),
        TypeError,
        r"expected a tensor in host memory, got one on meta; pass tensor\.cpu\(\)",
    ),
    "a sparse tensor": (
        lambda: gl.arrays(torch.eye(3).to_sparse()),
        TypeError,
        "expected a dense tensor, got one that is sparse_coo; pass a dense copy",
    ),
    "a tensor of eight-bit floats": (
        lambda: gl.arrays(torch.zeros(3).to(torch.float8_e4m3fn)),
        TypeError,
        r"got torch\.float8_e4m3fn",
    ),
    "a name twice": (
        lambda: gl.arrays(FIVE, FIVE, x2=FIVE),
        ValueError,
        "arrays: expected names of their own, got 'x2' twice; .* are called x1, x2",
    ),
    "the name of labels": (
        lambda: gl.arrays(FIVE, y=FIVE),
        ValueError,
        r"arrays: expected names other than .*, got 'y'; labels go to .*source\.labels",
    ),
    "the name of a column": (
        lambda: gl.arrays(FIVE, index=FIVE),
        ValueError,
        "arrays: expected names other than those of the columns of a batch, got 'index'$",
    ),
    "no identifier": (
        lambda: gl.arrays(**{"a b": FIVE}),
        ValueError,
        "arrays: expected names that are identifiers and begin with a letter, got 'a b'",
    ),
    "a keyword": (lambda: gl.arrays(**{"class": FIVE}), ValueError, "got 'class'"),
    "a hidden name": (lambda: gl.arrays(_a=FIVE), ValueError, "got '_a'"),
}


@pytest.mark.parametrize(("make", "error", "match"), BAD.values(), ids=BAD)
def test_what_is_no_array_is_refused_in_one_line(make, error, match):
    with pytest.raises(error, match=match) as caught:
        make()
    assert "\n" not in str(caught.value)
