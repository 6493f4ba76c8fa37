"""Labels given in an NPY file, for items or files, or as names of a list of classes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numbered_files import labels_of

import gpuload as gl

# ---- NPY

ARRAYS = {
    "uint8": (np.array([3, 1, 2, 0], np.uint8), torch.int64),
    "big-endian": (np.array([3, -1, 2, 0], ">i4"), torch.int64),
    "float32": (np.array([0.5, 1, 2, 3], np.float32), torch.float32),
    "truth values": (np.array([True, False, True, True]), torch.bool),
    "rows in column-major order": (np.asfortranarray(np.arange(12.0).reshape(4, 3)), torch.float64),
}


@pytest.mark.parametrize(("array", "dtype"), ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("kind", [str, Path])
def test_an_npy_file_gives_one_row_per_item(four, tmp_path, array, dtype, kind):
    np.save(tmp_path / "y.npy", array)
    source = gl.open(four, labels=kind(tmp_path / "y.npy"))
    np.testing.assert_array_equal(source.labels, array)
    assert source.classes is None
    with gl.DataLoader(source, 3, shuffle=True, extras="index") as loader:
        for batch in loader:
            assert batch.y.dtype == dtype
            np.testing.assert_array_equal(batch.y, array[batch.index.numpy()])


BAD_NPY = {
    "too few rows": (np.arange(3), ValueError, r"expected one row for each of 4 items, got \(3,\)"),
    "no rows": (
        np.zeros((0, 4)),
        ValueError,
        r"expected one row for each of 4 items, got \(0,",
    ),
    "no axis": (np.array(3), ValueError, r"expected one row for each of 4 items, got \(\)"),
    "objects": (
        np.array([1, None, 2, 3], object),
        TypeError,
        "expected numbers, got an object arr",
    ),
    "text": (np.array(["a", "b", "c", "d"]), TypeError, r"expected one of bool, .*, got str32 \("),
    "dates": (
        np.array(["2020"] * 4, "M8[D]"),
        TypeError,
        "expected one of bool, .*, got datetime6",
    ),
    "large numbers": (np.full(4, 2**63, np.uint64), ValueError, r"expected numbers below 2\*\*63"),
}


@pytest.mark.parametrize(("array", "error", "wanted"), BAD_NPY.values(), ids=BAD_NPY)
def test_a_bad_npy_file_of_labels_is_named(four, tmp_path, array, error, wanted):
    np.save(tmp_path / "y.npy", array)
    with pytest.raises(error, match=rf"/y\.npy: {wanted}"):
        gl.open(four, labels=tmp_path / "y.npy")


def test_a_truncated_file_of_labels_is_named(four, tmp_path):
    np.save(tmp_path / "y.npy", np.arange(4))
    os.truncate(tmp_path / "y.npy", 150)
    with pytest.raises(gl.FormatError, match=r"/y\.npy: expected .* bytes"):
        gl.open(four, labels=tmp_path / "y.npy")


def test_an_archive_is_no_npy_file_of_labels(four, tmp_path):
    with zipfile.ZipFile(tmp_path / "y.npy", "w") as file:
        file.writestr("a.npy", b"")
    with pytest.raises(gl.FormatError, match=r"/y\.npy: expected"):
        gl.open(four, labels=tmp_path / "y.npy")


@pytest.mark.parametrize("name", ["gone.npy", "gone.csv", "gone/y.csv"])
def test_a_missing_file_of_labels_is_named(four, tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"/{name}: expected") as caught:
        gl.open(four, labels=tmp_path / name)
    assert isinstance(caught.value, gl.ReadError)
    assert caught.value.filename == str(tmp_path / name)


def test_a_folder_is_no_file_of_labels(four, tmp_path):
    (tmp_path / "y.csv").mkdir()
    with pytest.raises(gl.ReadError, match=r'/y\.csv: expected a readable file, got "Is a direct'):
        gl.open(four, labels=tmp_path / "y.csv")


@pytest.mark.parametrize("name", ["labels.txt", "labels", "labels.npz", Path("labels.json")])
def test_another_kind_of_file_is_refused(four, name):
    with pytest.raises(
        ValueError, match=r"labels: expected .*the path of a \.npy or \.csv file, or a f"
    ):
        gl.open(four, labels=name)


# ---- One row per item or per file


@pytest.mark.parametrize("given", ["list", "npy", "csv"])
def test_labels_of_files_are_those_of_their_rows(rows, tmp_path, table, given):
    np.save(tmp_path / "y.npy", [7, 8])
    labels = {"list": [7, 8], "npy": tmp_path / "y.npy", "csv": table("7", "8")}[given]
    source = gl.open(rows, labels=labels, sample_axis=0)
    assert labels_of(source) == {0: 7, 1: 7, 2: 8, 3: 8, 4: 8}


@pytest.mark.parametrize("given", ["list", "npy", "csv"])
def test_labels_of_rows_are_taken_in_order(rows, tmp_path, table, given):
    np.save(tmp_path / "y.npy", [5, 6, 7, 8, 9])
    labels = {"list": range(5, 10), "npy": tmp_path / "y.npy", "csv": table(*"56789")}[given]
    source = gl.open(rows, labels=labels, sample_axis=0)
    assert labels_of(source) == {0: 5, 1: 6, 2: 7, 3: 8, 4: 9}


@pytest.mark.parametrize("given", ["list", "npy", "csv"])
def test_another_number_of_labels_says_both_numbers(rows, tmp_path, table, given):
    np.save(tmp_path / "y.npy", [5, 6, 7])
    labels = {"list": [5, 6, 7], "npy": tmp_path / "y.npy", "csv": table(*"567")}[given]
    wanted = r": expected one row for each of 5 items or 2 files, got \(3,\)"
    with pytest.raises(ValueError, match=wanted):
        gl.open(rows, labels=labels, sample_axis=0)


@pytest.mark.parametrize("by", ["row", "name", "name without the bad one", "function"])
def test_labels_stay_with_their_files_when_one_is_left_out(four, table, by):
    (four / "1.npy").write_bytes(b"no array")
    labels = {
        "row": table("10", "11", "20", "12"),
        "name": table("2,12", "10,20", "1,11", "0,10"),
        "name without the bad one": table("2,12", "10,20", "0,10"),
        "function": lambda path: 10 + int(Path(path).stem),
    }
    source = gl.open(four, labels=labels[by], on_error="skip")
    assert labels_of(source) == {0: 10, 2: 12, 10: 20}


# ---- Names of classes

NAMED = {
    "names": (["dog", "cat", "dog", "dog"], [1, 0, 1, 1]),
    "an array of names": (np.array(["dog", "cat", "cat", "cat"]), [1, 0, 0, 0]),
    "numbers": ([1, 0, 1, 1], [1, 0, 1, 1]),
    "a tensor": (torch.tensor([0, 1, 0, 0]), [0, 1, 0, 0]),
    "a function": (lambda path: "dog" if Path(path).stem == "2" else "cat", [0, 0, 0, 1]),
}


@pytest.mark.parametrize(("labels", "want"), NAMED.values(), ids=NAMED)
def test_labels_may_be_names_or_numbers_of_an_explicit_list(four, labels, want):
    source = gl.open(four, labels=labels, classes=["cat", "dog"])
    assert source.labels.tolist() == want
    assert source.labels.dtype == np.uint8
    assert source.classes == ["cat", "dog"]


BAD_NAMES = {
    "a name": (["cat", "cow", "dog", "cat"], ValueError, "got 'cow'"),
    "a number": ([0, 1, 2, 0], ValueError, "got 2"),
    "a negative number": ([0, 1, -1, 0], ValueError, "got -1"),
    "fractions": ([0.5, 1, 0, 0], TypeError, "got float64"),
    "a name of a function": (lambda path: Path(path).stem, ValueError, "got '0'"),
}


@pytest.mark.parametrize(("labels", "error", "got"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_label_that_is_not_in_the_list_is_named(four, labels, error, got):
    wanted = rf"labels: expected names or numbers of classes=\['cat', 'dog'\], {got}"
    with pytest.raises(error, match=wanted):
        gl.open(four, labels=labels, classes=["cat", "dog"])
