"""Padding of arrays of any rank, as they may be stored."""

from __future__ import annotations

import numpy as np
import pytest
from arranged import save, some

import gpuload as gl

SHAPES = [(5, 3), (2, 7), (4, 4), (6, 1), (3, 3), (1, 2), (5, 5), (2, 2)]


RANKS = {
    "1-D": [(3,), (7,), (1,)],
    "2-D": [(3, 2), (1, 7), (4, 4)],
    "3-D": [(3, 2, 4), (1, 7, 5), (4, 4, 6)],
    "5-D": [(1, 2, 3, 2, 1), (2, 1, 1, 3, 2), (1, 1, 2, 2, 3)],
    "8-D": [(1, 2, 1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1, 2, 1)],
    "0-D": [(), (), ()],
    "empty": [(0, 3), (2, 0), (0, 0)],
    "the first is empty": [(0, 2), (3, 1), (2, 2)],
}


@pytest.mark.parametrize("shapes", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_items_of_any_rank(tmp_path, check_every_way, shapes, mode):
    arrays = [some(shape, "i2", i) for i, shape in enumerate(shapes)]
    source = save(tmp_path / "a", arrays)
    for to in (("max",) * len(shapes[0]), ("batch",) * len(shapes[0])):
        check_every_way(source, arrays, 2, shuffle=True, pad=gl.Pad(to, mode=mode, value=5))


STORED = {
    "Fortran order": lambda a: np.asfortranarray(a),
    "big-endian": lambda a: a.astype(">f4"),
    "big-endian, Fortran order": lambda a: np.asfortranarray(a.astype(">i8")),
    "uint8": lambda a: a.astype("u1"),
    "float64": lambda a: a.astype("f8"),
    "bool": lambda a: a > 3,
    "complex": lambda a: a.astype(">c16"),
}


@pytest.mark.parametrize("dtype", [None, "float32", "complex64"])
@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_arrays_as_they_may_be_stored(tmp_path, check_every_way, stored, dtype):
    arrays = [stored(some(shape, seed=i)) for i, shape in enumerate(SHAPES)]
    if np.iscomplexobj(arrays[0]) and dtype == "float32":
        return
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, dtype=dtype, pad=gl.Pad(value=1))


def test_files_of_both_orders(tmp_path, check_every_way):
    arrays = [
        np.asarray(some((*shape, 3), seed=i), ">f4" if i % 3 else "<f4", order="FC"[i % 2])
        for i, shape in enumerate(SHAPES)
    ]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, crop=gl.RandomCrop((4, 4, None)), pad=gl.Pad(mode="wrap"))


def test_members_of_records(tmp_path, check_every_way):
    record = np.dtype([("a", "u1"), ("b", "<f4", (2,)), ("c", ">i2")])
    arrays = [np.zeros(shape, record) for shape in SHAPES]
    for i, array in enumerate(arrays):
        array["b"], array["c"] = some((*SHAPES[i], 2), seed=i), some(SHAPES[i], "i2", i)
    for member in "bc":
        source = save(tmp_path / "a", arrays, member=member)
        check_every_way(source, [array[member] for array in arrays], pad=gl.Pad(value=3))


def test_rows_of_files(tmp_path, check_every_way):
    files = [some((n, 5, 2), seed=n) for n in (4, 2, 3)]
    source = save(tmp_path / "a", files, sample_axis=0)
    rows = [row for file in files for row in file]
    check_every_way(source, rows, 4, shuffle=True, pad=gl.Pad((7, None)))
    check_every_way(source, rows, 4, shuffle="block", pad=gl.Pad(6), crop=gl.RandomCrop(4, 2))


def test_bits_of_bfloat16(tmp_path, check_every_way):
    arrays = [np.arange(16000, 16000 + n, dtype="u2").view("V2") for n in (3, 5)]
    source = save(tmp_path / "a", arrays, dtype="bfloat16")
    bits = [array.view("u2") for array in arrays]
    for dtype in (None, "float32"):
        check_every_way(source, bits, stored="bfloat16", dtype=dtype, pad=gl.Pad(value=1.5))
