"""gpuload.open: which files are found, in which order, and what their labels are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl


def save(path: Path, array: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


@pytest.fixture
def flat(tmp_path):
    """A folder with 0.npy, 1.npy, 2.npy and 10.npy, each [its number] * 4 as float32."""
    folder = tmp_path / "flat"
    for number in (10, 2, 0, 1):
        save(folder / f"{number}.npy", np.full(4, number, np.float32))
    return folder


def numbers(source: gl.Source) -> list[int]:
    items = (item[0] if isinstance(item, tuple) else item for item in source)
    return [int(tensor.reshape(-1)[0]) for tensor in items]


# ---- One file, a list, a glob, a folder

WHERE = {
    "a file": (lambda f: f / "2.npy", [2]),
    "a file as text": (lambda f: str(f / "2.npy"), [2]),
    "a file as bytes": (lambda f: os.fsencode(f / "2.npy"), [2]),
    "a list in its own order": (lambda f: [f / "2.npy", str(f / "0.npy"), f / "2.npy"], [2, 0, 2]),
    "a tuple": (lambda f: (f / "1.npy", f / "0.npy"), [1, 0]),
    "a list of lists, globs and folders": (
        lambda f: [[f / "10.npy"], f"{f}/[12].npy", f],
        [10, 1, 2, 0, 1, 10, 2],
    ),
    "a glob": (lambda f: f"{f}/1*.npy", [1, 10]),
    "a glob of folders and files": (lambda f: f"{f.parent}/**", [0, 1, 10, 2]),
    "a folder": (lambda f: f, [0, 1, 10, 2]),
    "a folder with a slash": (lambda f: f"{f}/", [0, 1, 10, 2]),
}


@pytest.mark.parametrize(("where", "want"), WHERE.values(), ids=WHERE)
def test_files_are_found_in_text_order(flat, where, want):
    source = gl.open(where(flat))
    assert numbers(source) == want
    assert len(source) == len(source.paths) == len(want)
    assert [Path(path).name for path in source.paths] == [f"{n}.npy" for n in want]
    assert source.labels is None
    assert source.classes is None


def test_a_relative_path_is_kept_as_given(flat, monkeypatch):
    monkeypatch.chdir(flat)
    assert list(gl.open("2.npy").paths) == ["2.npy"]
    assert sorted(gl.open(".").paths) == ["./0.npy", "./1.npy", "./10.npy", "./2.npy"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path):
    save(tmp_path / "a[1].npy", [7.0])
    save(tmp_path / "a1.npy", [8.0])
    assert numbers(gl.open(tmp_path / "a[1].npy")) == [7]


def test_a_file_may_have_any_suffix_when_it_is_named(tmp_path):
    save(tmp_path / "a.npy", [3.0]).rename(tmp_path / "a.data")
    assert numbers(gl.open(tmp_path / "a.data")) == [3]


def test_names_that_are_not_utf8_are_read(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npy")
    save(tmp_path / "a.npy", [3.0]).rename(name)
    source = gl.open(tmp_path, index="auto")
    assert list(source.paths) == [name]
    assert numbers(source) == [3]


def test_the_error_of_a_file_whose_name_is_not_utf8_names_it(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npy")
    save(tmp_path / "a.npy", [3.0]).rename(name)
    source = gl.open(name)
    os.unlink(name)
    with pytest.raises(gl.GpuloadError, match=r"caf.*\.npy: expected"):
        source[0]


def test_hidden_files_folders_and_other_suffixes_are_left_out(flat):
    save(flat / ".hidden.npy", np.zeros((9, 9)))
    save(flat / ".cache" / "a.npy", np.zeros((9, 9)))
    save(flat / "LARGE.NPY", np.full(4, 3, np.float32))
    (flat / "readme.txt").write_text("numbers")
    (flat / "empty").mkdir()
    assert numbers(gl.open(flat)) == [0, 1, 10, 2, 3]


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path):
    save(tmp_path / "a" / "1.npy", [1.0])
    save(tmp_path / "a" / "deep" / "2.npy", [2.0])
    (tmp_path / "a" / "deep" / "up").symlink_to(tmp_path / "a")
    assert numbers(gl.open(tmp_path)) == [1, 2]


# ---- Class folders


@pytest.fixture
def tree(tmp_path):
    """Class folders 0 to 11, made in reverse order, each with a file that holds its number."""
    for number in range(11, -1, -1):
        save(tmp_path / "tree" / f"{number}" / "x.npy", np.full(2, number, np.int16))
    return tmp_path / "tree"


def test_class_folders_are_numbered_in_text_order_with_a_warning(tree):
    text_order = sorted(map(str, range(12)))
    with pytest.warns(UserWarning, match="class folders are numbers .* in text order") as caught:
        source = gl.open(tree)
    assert caught[0].filename == __file__
    assert source.classes == text_order
    assert source.class_to_idx == {name: i for i, name in enumerate(text_order)}
    assert source.class_to_idx["10"] == 2
    assert source.labels.tolist() == list(range(12))
    x, y = source[source.class_to_idx["10"]]
    assert x.tolist() == [10, 10]
    assert isinstance(y, torch.Tensor)
    assert (y.dtype, y.item()) == (torch.int64, 2)


def test_numbers_padded_with_zeros_do_not_warn(tmp_path):
    for number in range(12):
        save(tmp_path / f"{number:02}" / "x.npy", [number])
    assert gl.open(tmp_path).labels.tolist() == list(range(12))


def test_class_names_are_sorted_as_text_with_capitals_first(tmp_path):
    for name in ("c", "a", "B", "é"):
        save(tmp_path / name / "x.npy", [1])
    assert gl.open(tmp_path).classes == ["B", "a", "c", "é"]


def test_files_at_any_depth_below_a_class_folder_belong_to_it(tmp_path):
    save(tmp_path / "cat" / "2.npy", [2])
    save(tmp_path / "cat" / "day" / "1.npy", [1])
    save(tmp_path / "dog" / "night" / "late" / "3.npy", [3])
    source = gl.open(tmp_path)
    assert source.classes == ["cat", "dog"]
    assert numbers(source) == [2, 1, 3]
    assert source.labels.tolist() == [0, 0, 1]


def test_rows_of_class_files_have_the_label_of_their_file(tmp_path):
    save(tmp_path / "a" / "x.npy", np.zeros((2, 3)))
    save(tmp_path / "b" / "x.npy", np.zeros((3, 3)))
    source = gl.open(tmp_path, sample_axis=0)
    assert source.labels.tolist() == [0, 0, 1, 1, 1]


def test_an_empty_class_folder_is_named(tmp_path):
    save(tmp_path / "cat" / "x.npy", [1])
    (tmp_path / "dog").mkdir()
    with pytest.raises(gl.FormatError, match=r"/dog: expected .* in a class folder, got none \("):
        gl.open(tmp_path)
    assert numbers(gl.open(tmp_path, labels=None)) == [1]


def test_files_beside_class_folders_are_an_error(tmp_path):
    save(tmp_path / "cat" / "x.npy", [1])
    save(tmp_path / "y.npy", [2])
    with pytest.raises(
        gl.FormatError, match=r"expected either \.npy or \.npz files or class folders, got 1"
    ):
        gl.open(tmp_path)
    source = gl.open(tmp_path, labels=None)
    assert numbers(source) == [1, 2]
    assert source.classes is None


def test_a_list_of_class_trees_has_no_labels(tree):
    assert gl.open([tree]).labels is None


# ---- Labels given

SIXTEEN_BYTES = np.arange(4) * (1 + 1j)
LABELS = {
    "a list": ([3, 1, 2, 0], torch.int64),
    "a tuple of numbers": ((0.5, 1.5, 2.5, 3.5), torch.float64),
    "an array": (np.array([3, 1, 2, 0], np.int16), torch.int64),
    "a big-endian array": (np.array([3, 1, 2, 0], ">u4"), torch.int64),
    "a float32 array": (np.array([0.5, 1, 2, 3], np.float32), torch.float32),
    "a big-endian float array": (np.array([0.5, 1, 2, 3], ">f4"), torch.float32),
    "truth values": (np.array([True, False, True, True]), torch.bool),
    "complex numbers": (SIXTEEN_BYTES, torch.complex128),
    "a tensor": (torch.tensor([3, 1, 2, 0]), torch.int64),
    "rows": (np.arange(8).reshape(4, 2), torch.int64),
    "rows in column-major order": (np.asfortranarray(np.arange(12.0).reshape(4, 3)), torch.float64),
    "rows of a tensor": (torch.arange(24.0).reshape(4, 3, 2), torch.float32),
}


@pytest.mark.parametrize(("labels", "dtype"), LABELS.values(), ids=LABELS)
def test_labels_given_are_delivered_item_by_item(flat, labels, dtype):
    source = gl.open(flat, labels=labels)
    for i in (0, 3, -1):
        y = source[i][1]
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, np.asarray(labels)[i])
    batch = next(iter(gl.DataLoader(source, batch_size=4)))
    assert batch.y.dtype == dtype
    np.testing.assert_array_equal(batch.y, np.asarray(labels))


def test_a_function_of_the_path_gives_labels(flat):
    source = gl.open(flat, labels=lambda path: 2 * int(Path(path).stem))
    assert source.labels.tolist() == [0, 2, 20, 4]


def test_a_function_is_asked_once_for_each_file_of_rows(tmp_path):
    asked = []
    for number in (0, 1):
        save(tmp_path / f"{number}.npy", np.zeros((2 + number, 1)))
    source = gl.open(tmp_path, sample_axis=0, labels=lambda path: asked.append(path) or len(asked))
    assert source.labels.tolist() == [1, 1, 2, 2, 2]
    assert asked == [str(tmp_path / "0.npy"), str(tmp_path / "1.npy")]


def test_no_labels_when_none_are_wanted(tree):
    source = gl.open(tree, labels=None)
    assert source.labels is None
    assert source.class_to_idx is None
    assert isinstance(source[0], torch.Tensor)


BAD_LABELS = {
    "too few": ([1, 2, 3], ValueError, r"expected one row for each of 4 items, got \(3,\)"),
    "too many": (np.zeros((5, 2)), ValueError, r".* for each of 4 items, got \(5, 2\)"),
    "none": ([], ValueError, r"expected one row for each of 4 items, got \(0,\)"),
    "one number": (7, ValueError, r"expected one row for each of 4 items, got \(\)"),
    "another word": ("folders", ValueError, "expected \"auto\", None, .*, got 'folders'"),
    "text": (["a", "b", "c", "d"], TypeError, "expected numbers, got <U1; map the names to"),
    "objects": ([None] * 4, TypeError, "expected numbers, got object; map"),
    "dates": (np.array(["2020"] * 4, "M8[D]"), TypeError, r"expected numbers, got datetime64\[D\]"),
    "long doubles": (np.zeros(4, np.longdouble), TypeError, "expected numbers, got float128"),
    "rows of several lengths": ([[1], [1, 2], [3], [4]], ValueError, "expected rows of one shape"),
    "a function that gives text": (lambda path: path, TypeError, "expected numbers, got <U"),
    "a function that gives several lengths": (
        lambda path: [0] * int(Path(path).stem),
        ValueError,
        "expected rows of one shape, got rows of several",
    ),
}


@pytest.mark.parametrize(("labels", "error", "wanted"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels_are_refused_at_the_door(flat, labels, error, wanted):
    with pytest.raises(error, match="labels: " + wanted):
        gl.open(flat, labels=labels)


def test_an_error_in_a_label_function_comes_through(flat):
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        gl.open(flat, labels=lambda path: 1 / int(Path(path).stem))


# ---- Nothing to load


def test_a_missing_path_is_named(tmp_path):
    for name in ("gone", "gone.npy", "gone/x.npy"):
        with pytest.raises(FileNotFoundError, match=f"/{name}: expected .*, got nothing") as caught:
            gl.open(tmp_path / name)
        assert isinstance(caught.value, gl.ReadError)
        assert caught.value.filename == str(tmp_path / name)


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "a.npy").symlink_to(tmp_path / "gone.npy")
    with pytest.raises(FileNotFoundError, match=r'a\.npy: expected a readable file, got "No such'):
        gl.open(tmp_path)


def test_an_empty_folder_is_named_with_what_was_seen(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"expected \.npy or \.npz files .* got none \(0 other files"
    ):
        gl.open(tmp_path)


def test_a_folder_of_other_files_says_how_many(tmp_path):
    for name in ("a.txt", "b.png", "c.zip"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"got none \(3 other files, 1 folders\)"):
        gl.open(tmp_path)


def test_a_glob_without_matches_is_named(flat):
    with pytest.raises(FileNotFoundError, match=r"/\*\.np: expected at least one file that matche"):
        gl.open(f"{flat}/*.np")


ARGUMENTS = {
    "where: a number": ({"where": 5}, TypeError, "where: expected a path, a glob or a list"),
    "where: nothing": ({"where": None}, TypeError, "where: expected a path, .*, got NoneType"),
    "where: an empty list": ({"where": []}, FileNotFoundError, "where: expected at least one path"),
    "where: an empty text": ({"where": ""}, FileNotFoundError, "where: expected a path, .* got an"),
    "sample_axis: text": (
        {"sample_axis": "0"},
        ValueError,
        "sample_axis: expected None or an axis",
    ),
    "sample_axis: negative": ({"sample_axis": -1}, ValueError, "sample_axis: .*, got -1"),
    "sample_axis: a fraction": ({"sample_axis": 0.5}, ValueError, "sample_axis: .*, got 0.5"),
    "sample_axis: True": ({"sample_axis": True}, ValueError, "sample_axis: .*, got True"),
    "sample_axis: too large": (
        {"sample_axis": 1},
        gl.FormatError,
        r"an axis 1 .* got shape \(4,\)",
    ),
    "member: a number": ({"member": 0}, TypeError, "member: expected the name of a field, got 0"),
    "member: of plain numbers": ({"member": "a"}, gl.FormatError, "a member 'a', got float32"),
    "dtype: text": ({"dtype": "S4"}, TypeError, "dtype: expected one of bool, .*, got bytes32"),
    "dtype: another": ({"dtype": "float64"}, gl.FormatError, "to cast pass dtype= to DataLoader"),
    "on_error: another": ({"on_error": "replace"}, ValueError, 'on_error: expected "raise" or "sk'),
}


@pytest.mark.parametrize(("arguments", "error", "wanted"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_bad_argument_is_refused_by_name(flat, arguments, error, wanted):
    with pytest.raises(error, match=wanted):
        gl.open(**{"where": flat} | arguments)


@pytest.mark.parametrize("name", ["a.h5", "a.hdf5", "a.nc", "a.zarr", "a.h5::images/x"])
def test_other_formats_are_refused_clearly(tmp_path, name):
    (tmp_path / name.partition("::")[0]).touch()
    for where in (tmp_path / name, [str(tmp_path / name)]):
        with pytest.raises(
            gl.FormatError, match=r"a\.\w+: expected NPY or NPZ files, got \.\w+.*; this"
        ):
            gl.open(where)
