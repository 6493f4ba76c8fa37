"""Class folders: the order of their names, lists of classes, numbers, folders that are wrong."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl


def make_tree(root: Path, names: list[str], n_files: int = 1) -> Path:
    """Class folders made in this order; each file holds the position of its folder in `names`."""
    for i, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for k in range(n_files):
            np.save(root / name / f"{k}.npy", np.full(2, i, np.int16))
    return root


@pytest.fixture
def twelve(tmp_path):
    """Class folders 11 to 0, made in this order; a file of folder n holds 11 - n."""
    return make_tree(tmp_path / "twelve", [str(n) for n in range(11, -1, -1)])


# ---- Order

NAMES = {
    "numbers": (["11", "2", "10", "1"], ["1", "10", "11", "2"], ["1", "2", "10", "11"]),
    "letters": (["c", "B", "a"], ["B", "a", "c"], ["B", "a", "c"]),
    "numbers in names": (
        ["v10_b", "v2_b", "v10_a", "w1", "v"],
        ["v", "v10_a", "v10_b", "v2_b", "w1"],
        ["v", "v2_b", "v10_a", "v10_b", "w1"],
    ),
    "zeros before numbers": (
        ["010", "9", "2", "02"],
        ["010", "02", "2", "9"],
        ["02", "2", "9", "010"],
    ),
    "numbers and words": (["b", "10", "9", "a"], ["10", "9", "a", "b"], ["9", "10", "a", "b"]),
    "longer than an int64": (
        ["3" + "0" * 30, "2" + "0" * 31],
        ["2" + "0" * 31, "3" + "0" * 30],
        ["3" + "0" * 30, "2" + "0" * 31],
    ),
}


@pytest.mark.parametrize("order", ["text", "natural"])
@pytest.mark.parametrize(("made", "text", "natural"), NAMES.values(), ids=NAMES)
def test_classes_are_numbered_in_the_order_asked_for(tmp_path, made, text, natural, order):
    source = gl.open(make_tree(tmp_path, made), order=order)
    want = {"text": text, "natural": natural}[order]
    assert source.classes == want
    assert source.class_to_idx == {name: i for i, name in enumerate(want)}
    assert [made[int(x[0])] for x, _ in source] == want
    assert [int(y) for _, y in source] == list(range(len(want)))


def test_ten_is_class_ten_in_natural_order_and_class_two_in_text_order(twelve):
    natural = gl.open(twelve, order="natural")
    assert (natural.class_to_idx["10"], natural.class_to_idx["2"]) == (10, 2)
    x, y = natural[10]
    assert (x.tolist(), int(y)) == ([1, 1], 10)
    assert gl.open(twelve, order="text").class_to_idx["10"] == 2


FILES = ["10.npy", "9.npy", "a1.npy", "a10.npy", "a2.npy"]
NATURAL = ["9.npy", "10.npy", "a1.npy", "a2.npy", "a10.npy"]


WHERE = {
    "a folder": (lambda f: f, lambda names: names),
    "a glob": (lambda f: f"{f}/*.npy", lambda names: names),
    "a list keeps its own": (
        lambda f: [f / "a2.npy", f, f / "9.npy"],
        lambda names: ["a2.npy", *names, "9.npy"],
    ),
}


@pytest.mark.parametrize(("where", "listed"), WHERE.values(), ids=WHERE)
def test_files_are_in_the_order_asked_for(tmp_path, where, listed):
    for name in FILES:
        np.save(tmp_path / name, [1])
    for order, want in (("text", FILES), (None, FILES), ("natural", NATURAL)):
        source = gl.open(where(tmp_path), order=order)
        assert [Path(path).name for path in source.paths] == listed(want)


def test_files_of_classes_and_sub_folders_are_in_natural_order(tmp_path):
    for name in ("b/10/x.npy", "b/9/x.npy", "b/10.npy", "b/9.npy", "a/10.npy", "a/9.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, [1])
    want = ["a/9.npy", "a/10.npy", "b/9.npy", "b/10.npy", "b/9/x.npy", "b/10/x.npy"]
    source = gl.open(tmp_path, order="natural")
    assert [str(Path(path).relative_to(tmp_path)) for path in source.paths] == want
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("order", ["Natural", "", 1, ["text"], True])
def test_another_order_is_refused(twelve, order):
    with pytest.raises(ValueError, match='order: expected "text" or "natural", got '):
        gl.open(twelve, order=order)


# ---- The warning


def test_numbers_in_text_order_are_warned_of_once_with_the_remedy(twelve):
    with pytest.warns(UserWarning, match=r"\['0', '1', '10'\] get 0, 1, 2; pass order=.natural. "):
        gl.open(twelve)
    gl.open(twelve)  # warnings are errors here
    gl.open(f"{twelve}/../{twelve.name}")


def test_another_folder_is_warned_of_again(tmp_path):
    for name in ("a", "b"):
        with pytest.warns(UserWarning, match=f"/{name}: class folders are numbers"):
            gl.open(make_tree(tmp_path / name, ["10", "9"]))


def test_the_warning_as_an_error_comes_every_time(twelve):
    for _ in range(2):
        with pytest.raises(UserWarning, match='order="natural"'):
            gl.open(twelve)


@pytest.mark.parametrize("names", [["9", "8"], ["09", "10"], ["10", "9", "a"]], ids=" ".join)
def test_names_that_are_right_in_either_order_are_not_warned_of(tmp_path, names):
    gl.open(make_tree(tmp_path, names))


# ---- An explicit list


def test_the_label_is_the_position_in_an_explicit_list(twelve):
    names = ["5", "11", "0", "10", "1", "2", "3", "4", "6", "7", "8", "9"]
    source = gl.open(twelve, classes=names)
    assert source.classes == names
    assert source.class_to_idx == {name: i for i, name in enumerate(names)}
    for x, y in source:
        assert names[int(y)] == str(11 - int(x[0]))


@pytest.mark.parametrize(
    "make", [tuple, np.array, lambda names: names], ids=["tuple", "array", "list"]
)
def test_a_list_of_classes_may_be_any_sequence(tmp_path, make):
    source = gl.open(make_tree(tmp_path, ["a", "b"]), classes=make(["b", "a"]))
    assert source.classes == ["b", "a"]
    assert all(type(name) is str for name in source.classes)


BAD_CLASSES = {
    "a folder that is not in it": (
        ["dog", "cat"],
        gl.FormatError,
        r"/horse: expected a class folder named in classes=\['dog', 'cat'\], got 'horse'; add",
    ),
    "a name without a folder": (
        ["cat", "dog", "horse", "cow"],
        gl.FormatError,
        r"expected a folder for each of classes=\['cat', .*'cow'\], got none for 'cow'; remove",
    ),
    "a name in other letters": (["Cat", "dog", "horse"], gl.FormatError, "/cat: expected a class"),
    "a name twice": (["cat", "dog", "cat"], ValueError, "classes: expected each name once, got 'c"),
    "numbers": ([0, 1, 2], TypeError, "classes: expected names as text, got 0"),
    "one text": ("cat", TypeError, "classes: expected a list of class names, got 'cat'"),
    "a set": ({"cat"}, TypeError, "classes: expected a list of class names, got {'cat'}"),
    "a mapping": ({"cat": 0}, TypeError, "classes: expected a list of class names, got {'cat': 0}"),
    "nothing": ([], ValueError, "classes: expected at least one class name, got an empty list"),
}


@pytest.mark.parametrize(("classes", "error", "wanted"), BAD_CLASSES.values(), ids=BAD_CLASSES)
def test_a_bad_list_of_classes_is_refused(tmp_path, classes, error, wanted):
    make_tree(tmp_path, ["cat", "dog", "horse"])
    with pytest.raises(error, match=wanted):
        gl.open(tmp_path, classes=classes)


def test_a_long_list_of_classes_is_cut_in_the_message(twelve):
    names = [f"class {i}" for i in range(300)]
    with pytest.raises(gl.FormatError, match=r"/0: .*, 'class 19', \.\.\.\] \(300\), got '0'; add"):
        gl.open(twelve, classes=names)


def test_a_list_of_classes_needs_class_folders_or_labels(tmp_path):
    tree = make_tree(tmp_path, ["a", "b"])
    for where in (tree / "a", [tree]):
        with pytest.raises(
            ValueError, match=r"classes: expected a folder of class folders, .*0\.npy"
        ):
            gl.open(where, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"classes: expected labels of .*, got labels=None"):
        gl.open(tree, classes=["a", "b"], labels=None)


# ---- What lies beside


def test_hidden_and_stray_files_and_folders_are_no_classes(tmp_path):
    make_tree(tmp_path, ["b", "a", ".git", ".ipynb_checkpoints"])
    for name in ("README.txt", ".DS_Store", "labels.csv", "a/.DS_Store", "a/notes.md", ".x.npy"):
        (tmp_path / name).write_text("not an array")
    for classes in (None, ["a", "b"]):
        source = gl.open(tmp_path, classes=classes)
        assert source.classes == ["a", "b"]
        assert [(int(x[0]), int(y)) for x, y in source] == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    "options", [{}, {"order": "natural"}, {"classes": ["dog", "cat"]}], ids=str
)
def test_a_class_folder_of_other_files_is_named_with_their_number(tmp_path, options):
    make_tree(tmp_path, ["cat"])
    for name in ("dog/1.png", "dog/2.png", "dog/more/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    wanted = r"/dog: expected \.npy.* files in a class folder, got none \(3 other files\); remove"
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(tmp_path, **options)


@pytest.mark.parametrize("labels", ["auto", None])
def test_class_folders_of_other_files_only_say_how_many_were_seen(tmp_path, labels):
    for name in ("cat/1.png", "dog/2.png", "dog/more/3.zip", "list.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    wanted = rf"{tmp_path}: expected \.npy.* files .*, got none \(4 other files, 2 folders\)"
    with pytest.raises(FileNotFoundError, match=wanted):
        gl.open(tmp_path, labels=labels)


# ---- Numbers

TYPES = {1: np.uint8, 256: np.uint8, 257: np.uint16}


@pytest.mark.parametrize(("n", "dtype"), TYPES.items(), ids=TYPES)
def test_class_numbers_are_small_in_memory_and_int64_in_tensors(tmp_path, n, dtype):
    names = [f"{i:03}" for i in range(n)]
    source = gl.open(make_tree(tmp_path, names))
    assert source.labels.dtype == dtype
    assert source.labels.tolist() == list(range(n))
    y = source[-1][1]
    assert (y.dtype, y.shape, int(y)) == (torch.int64, (), n - 1)
    with gl.DataLoader(source, 50, shuffle=True) as loader:
        batches = list(loader)
    assert all(batch.y.dtype == torch.int64 for batch in batches)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(x[:, 0].to(torch.int64), y)
    assert sorted(y.tolist()) == list(range(n))


def test_small_numbers_go_with_parts_copies_and_the_summary(tmp_path):
    source = gl.open(make_tree(tmp_path, ["b", "a"], n_files=3), order="natural")
    parts = [*source.split([4, 2]), source.select([5, 0]), pickle.loads(pickle.dumps(source))]
    assert [part.labels.tolist() for part in parts] == [
        [0, 0, 0, 1],
        [1, 1],
        [1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert all(part.labels.dtype == np.uint8 and part.classes == ["a", "b"] for part in parts)
    assert "classes: a (3), b (1)" in parts[0].summary()


def test_a_source_with_classes_may_be_given_other_labels(tmp_path):
    source = gl.open(make_tree(tmp_path, ["b", "a"]))
    source.labels = np.eye(2, dtype=np.float32)
    assert source[1][1].tolist() == [0, 1]
    assert source.summary().startswith("2 items in 2 files")
