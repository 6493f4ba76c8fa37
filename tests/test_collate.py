"""collate(): batches are those of torch's default_collate, and what that hides is an error."""

from __future__ import annotations

import collections
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from gpuload.collate import collate

Pair = collections.namedtuple("Pair", "image label")


class Bag(dict):
    """A dict of another kind."""


def same(mine, right):
    assert type(mine) is type(right)
    if isinstance(right, torch.Tensor):
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        assert torch.equal(mine, right)
    elif isinstance(right, dict):
        assert list(mine) == list(right)
        for key in right:
            same(mine[key], right[key])
    elif isinstance(right, list | tuple):
        assert len(mine) == len(right)
        for a, b in zip(mine, right, strict=True):
            same(a, b)
    else:
        assert mine == right


LIKE_TORCH = {
    "tensors": [torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.int64)],
    "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.ones((2, 3), np.int16)],
    "arrays of bool": [np.array([True, False]), np.array([False, False])],
    "complex arrays": [np.array([1 + 2j]), np.array([3j])],
    "0-d arrays": [np.array(1.5), np.array(2.5)],
    "arrays without elements": [np.empty((0, 3)), np.empty((0, 3))],
    "tensors without elements": [torch.empty(0, 3), torch.empty(0, 3)],
    "floats": [0.1, 0.2],
    "ints": [1, -(2**63)],
    "bools": [True, False],
    "np.float32": [np.float32(1), np.float32(0.1)],
    "np.float64": [np.float64(1), np.float64(0.1)],
    "np.float16": [np.float16(1), np.float16(0.1)],
    "np.bool_": [np.bool_(True), np.bool_(False)],
    "np.uint16": [np.uint16(1), np.uint16(65535)],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "tuples": [(1, 2.0), (3, 4.0)],
    "lists": [[1, 2.0], [3, 4.0]],
    "ranges": [range(2), range(2, 4)],
    "empty tuples": [(), ()],
    "NamedTuples": [Pair(torch.ones(2), 1), Pair(torch.zeros(2), 0)],
    "dicts": [{"a": 1, "b": torch.ones(1)}, {"b": torch.zeros(1), "a": 2}],
    "dicts of another kind": [Bag(a=1), Bag(a=2)],
    "OrderedDicts": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "nested": [
        {"x": [torch.ones(2), (1, {"deep": 2.0})]},
        {"x": [torch.ones(2), (3, {"deep": 4.0})]},
    ],
    "one item": [(torch.ones(2), 3)],
    "16777217": [16777217, 16777219],
}


@pytest.mark.parametrize("items", LIKE_TORCH.values(), ids=LIKE_TORCH)
def test_batches_are_those_of_torch(items):
    same(collate(items, range(len(items))), default_collate(items))


def test_strings_within_tuples_are_a_list():
    assert collate([(1, "a"), (2, "b")], [0, 1])[1] == ["a", "b"]


UNUSUAL = {
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "reversed": lambda a: a[::-1].copy()[::-1],
    "of the other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "in Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_arrays_that_torch_refuses_or_warns_of_are_taken(change):
    arrays = [change(np.arange(6, dtype=np.float32).reshape(2, 3) + i) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = collate(arrays, range(3))
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch, np.stack(arrays))


def test_memory_maps_are_taken(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    batch = collate([mapped, mapped], [0, 1])
    assert batch.tolist() == [[0, 1, 2, 3]] * 2
    batch += 1  # it is ours


@pytest.mark.parametrize("make", [torch.ones, lambda n: np.ones(n)], ids=["tensor", "array"])
def test_a_batch_of_one_shares_no_memory_with_its_item(make):
    item = make(3)
    batch = collate([item], [0])
    batch += 1
    assert item.tolist() == [1, 1, 1]


F32, F64 = np.ones(2, np.float32), np.ones(2)
WRONG = {
    "a longer list": (
        [["X"], ["X", "Y"]],
        ValueError,
        r"batch: expected 1 elements as in item 7, got 2 in item 9; give all items as many",
    ),
    "a shorter tuple": (
        [(1, (1, 2)), (1, (1,))],
        ValueError,
        r"batch\[1\]: expected 2 elements as in item 7, got 1 in item 9",
    ),
    "a key that is missing": (
        [{"a": 1, "b": 2}, {"a": 1}],
        ValueError,
        r"batch: expected key 'b' as in item 7, got none in item 9; give all items the same keys",
    ),
    "a key that is more": (
        [{"a": 1}, {"a": 1, "c": 2}],
        ValueError,
        r"batch: expected no other keys than as in item 7, got 'c' in item 9",
    ),
    "a key of an inner dict": (
        [(0, {"b": 2}), (0, {})],
        ValueError,
        r"batch\[1\]: expected key 'b' as in item 7, got none in item 9",
    ),
    "other fields": (
        [Pair(1, 2), collections.namedtuple("Other", "x y")(1, 2)],
        ValueError,
        r"batch: expected fields \('image', 'label'\) as in item 7, got \('x', 'y'\) in item 9",
    ),
    "None": (
        [(1, None), (2, None)],
        TypeError,
        r"batch\[1\]: expected a value in each item, item 7 is None",
    ),
    "None in one": (
        [{"m": 1}, {"m": None}],
        TypeError,
        r"batch\['m'\]: expected a value in each item, item 9 is None",
    ),
    "float32 and float64": (
        [F32, F64],
        TypeError,
        r"batch: expected float32 as in item 7, got float64 in item 9; give all items one",
    ),
    "float64 and float32": (
        [F64, F32],
        TypeError,
        r"batch: expected float64 as in item 7, got float32 in item 9",
    ),
    "int and float": (
        [16777217, 1.5],
        TypeError,
        r"batch: expected int64 as in item 7, got float64 in item 9",
    ),
    "bool and int": (
        [True, 2],
        TypeError,
        r"batch: expected bool as in item 7, got int64 in item 9",
    ),
    "int64 and float32 tensors": (
        [torch.tensor(16777217), torch.tensor(1.5)],
        TypeError,
        r"batch: expected torch.int64 as in item 7, got torch.float32 in item 9",
    ),
    "tensors of other shapes": (
        [Pair(torch.ones(2, 3), 0), Pair(torch.ones(2, 4), 0)],
        ValueError,
        r"batch\.image: expected shape \(2, 3\) as in item 7, got \(2, 4\) in item 9; pad or crop",
    ),
    "arrays of other shapes": (
        [np.ones(2), np.ones((2, 1))],
        ValueError,
        r"batch: expected shape \(2,\) as in item 7, got \(2, 1\) in item 9",
    ),
    "a string and a number": (
        ["a", 1],
        TypeError,
        r"batch: expected str as in item 7, got int in item 9; give all items the same kinds",
    ),
    "a tensor and an array": (
        [torch.ones(2), F32],
        TypeError,
        r"batch: expected Tensor as in item 7, got ndarray in item 9",
    ),
    "a dict and a list": (
        [{"a": 1}, [1]],
        TypeError,
        r"batch: expected dict as in item 7, got list in item 9",
    ),
    "an object": (
        [object(), object()],
        TypeError,
        r"batch: expected tensors, arrays, numbers.* got object in item 7; pass collate_fn=",
    ),
    "complex": (
        [1j, 2j],
        TypeError,
        r"batch: expected tensors, arrays, numbers.* got complex in item 7",
    ),
    "objects in an array": (
        [np.array([None, 1])] * 2,
        TypeError,
        r"batch: expected numbers, got object in item 7",
    ),
    "text in an array": (
        [np.array(["a", "b"])] * 2,
        TypeError,
        r"batch: expected numbers, got <U1 in item 7",
    ),
    "dates": (
        [np.datetime64("2024-01-01")] * 2,
        TypeError,
        r"batch: expected numbers, got datetime64\[D\] in item 7",
    ),
    "long doubles": (
        [np.longdouble(1)] * 2,
        TypeError,
        r"batch: expected numbers, got float128 in item 7",
    ),
    "a number over 64 bits": (
        [1, 2**63],
        ValueError,
        r"batch: expected numbers of 64 bits, got 9223372036854775808 in item 9",
    ),
    "a tensor on a device": (
        [torch.ones(2), torch.ones(2, device="meta")],
        TypeError,
        r"batch: expected tensors on the CPU, got one on meta in item 9; a dataset must",
    ),
    "a sparse tensor": (
        [torch.eye(2).to_sparse()],
        TypeError,
        r"batch: expected dense tensors, got a tensor \(torch.sparse_coo\) in item 7",
    ),
}


@pytest.mark.parametrize(("items", "error", "match"), WRONG.values(), ids=WRONG)
def test_what_torch_hides_or_puts_into_other_words_names_place_and_item(items, error, match):
    with pytest.raises(error, match=match):
        collate(items, [7, 9])
