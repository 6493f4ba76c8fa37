"""Labels in CSV files: in order, or by the names of files; numbers and names of classes."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from numbered_files import labels_of, save_numbered

import gpuload as gl


@pytest.fixture
def deep(tmp_path):
    """a/1.npy, a/2.npy, b/1.npy and 3.npy, filled with 1, 2, 3 and 4."""
    names = ("a/1.npy", "a/2.npy", "b/1.npy", "3.npy")
    return save_numbered(tmp_path / "deep", {name: i for i, name in enumerate(names, 1)})


# ---- CSV with one column

COLUMNS = {
    "whole numbers": (["3", "1", "2", "0"], [3, 1, 2, 0], np.int64, None),
    "signs": (["-1", "+1", "0", "-3"], [-1, 1, 0, -3], np.int64, None),
    "fractions": (["0.5", "1", "2e3", "-.25"], [0.5, 1, 2000, -0.25], np.float64, None),
    "numbers under any heading": (["age", "3", "1", "2", "0"], [3, 1, 2, 0], np.int64, None),
    "fractions under a heading": (["Label", ".5", "1", "2", "0"], [0.5, 1, 2, 0], np.float64, None),
    "names": (["b", "a", "B", "b"], [2, 1, 0, 2], np.uint8, ["B", "a", "b"]),
    "names under a heading": (["class", "b", "a", "a", "b"], [1, 0, 0, 1], np.uint8, ["a", "b"]),
    "a heading that comes again": (["y", "n", "n", "y"], [1, 0, 0, 1], np.uint8, ["n", "y"]),
    "quotes and spaces": (['"b, c"', " a ", '"a"', "a"], [1, 0, 0, 0], np.uint8, ["a", "b, c"]),
    "empty lines": (["", "3", "", "1", "2", "0", " "], [3, 1, 2, 0], np.int64, None),
    "names in other scripts": (["ж", "é", "z", "ж"], [2, 1, 0, 2], np.uint8, ["z", "é", "ж"]),
}


@pytest.mark.parametrize(("lines", "want", "dtype", "classes"), COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_one_column_is_one_label_per_item(four, table, lines, want, dtype, classes, end):
    source = gl.open(four, labels=table(*lines, end=end))
    assert source.labels.tolist() == want
    assert source.labels.dtype == dtype
    assert source.classes == classes


# ---- CSV with names of files

TABLES = {
    "stems": ["2,22", "0,20", "10,30", "1,21"],
    "names": ["2.npy,22", "0.npy,20", "10.npy,30", "1.npy,21"],
    "paths": ["./2.npy,22", "four/0.npy,20", "four/10,30", "1.npy,21"],
    "a heading of each kind": ["label,Stem", "22,2", "20,0", "30,10", "21,1"],
    "a heading of the label only": ["target,image", "22,2", "20,0", "30,10", "21,1"],
    "a heading of the file only": ["age,id", "22,2", "20,0", "30,10", "21,1"],
    "unknown headings": ["image,age", "2,22", "0,20", "10,30", "1,21"],
    "more columns": ["2,x,,22", "0,y,1,20", "10,,1,30", "1,x,,21"],
    "an index and other columns": [
        ",split,label,file,fold",
        "0,train,22,2.npy,9",
        "1,test,20,0.npy,9",
        "2,,30,10.npy,9",
        "3,,21,1.npy,9",
    ],
    "the best of several headings": [
        "id,y,class,name",
        "0,0,22,2",
        "0,0,20,0",
        "0,0,30,10",
        "0,0,21,1",
    ],
    "semicolons": ["name;label", "2;22", "0;20", "10;30", "1;21"],
    "tabs": ["2\t22", "0\t20", "10\t30", "1\t21"],
    "quotes": ['"2.npy","22"', "0, 20", '10, "30"', "1 ,21"],
}


@pytest.mark.parametrize("lines", TABLES.values(), ids=TABLES)
def test_rows_are_matched_by_name_in_any_order(four, table, lines):
    source = gl.open(four, labels=table(*lines))
    assert labels_of(source) == {0: 20, 1: 21, 2: 22, 10: 30}
    assert source.labels.dtype == np.int64
    assert source.classes is None


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_name(four, table):
    path = table("2,22", "0,20", "10,30", "1,21", encoding="utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf2")
    assert labels_of(gl.open(four, labels=path)) == {0: 20, 1: 21, 2: 22, 10: 30}


def test_names_that_are_not_utf8_are_matched(tmp_path, table):
    name = os.fsdecode(b"caf\xe9")
    np.save(tmp_path / "a.npy", [7.0])
    os.rename(tmp_path / "a.npy", tmp_path / f"{name}.npy")
    assert labels_of(gl.open(tmp_path, labels=table(f"{name},3"))) == {7: 3}


DEEP = {
    "paths below the folder": ["a/1.npy", "a/2.npy", "b/1.npy", "3.npy"],
    "paths without suffix": ["a/1", "a/2", "b/1", "3"],
    "names where one file has them": ["a/1", "2.npy", "b/1", "3"],
}


@pytest.mark.parametrize("names", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("relative", [False, True])
def test_files_in_sub_folders_are_matched(deep, table, monkeypatch, names, relative):
    monkeypatch.chdir(deep)
    path = table(*(f"{name},{i * 10}" for i, name in enumerate(names, 1)))
    for where in ("." if relative else deep, [deep], f"{deep}/**/*.npy"):
        assert labels_of(gl.open(where, labels=path)) == {1: 10, 2: 20, 3: 30, 4: 40}


def test_whole_paths_are_matched_however_the_folder_is_written(deep, table, monkeypatch):
    monkeypatch.chdir(deep)
    path = table(*(f"{deep}/{name},{i}" for i, name in enumerate(DEEP["paths without suffix"], 1)))
    for where in (".", deep, f"../deep/../{deep.name}/"):
        assert labels_of(gl.open(where, labels=path)) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_path_below_the_folder_goes_before_the_end_of_another(tmp_path, table):
    for name in ("1.npy", "b/1.npy", "c/b/1.npy"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "x" / name, [name.count("/")])
    path = table("1,10", "b/1,11", "c/b/1,12")
    assert labels_of(gl.open(tmp_path / "x", labels=path)) == {0: 10, 1: 11, 2: 12}
    with pytest.raises(gl.FormatError, match="line 1: expected a name of one file, got '1' for"):
        gl.open(f"{tmp_path}/x/**/*.npy", labels=path)


def test_a_name_goes_before_a_stem(tmp_path, table):
    for number, name in enumerate(("a.npy", "a.npy.npy")):
        np.save(tmp_path / name, [number])
    assert labels_of(gl.open(tmp_path, labels=table("a.npy,5", "a.npy.npy,6"))) == {0: 5, 1: 6}


def test_a_file_that_is_listed_twice_has_one_row(four, table):
    where = [four / "1.npy", four / "0.npy", f"{four}/../four/1.npy"]
    source = gl.open(where, labels=table("0,20", "1,21"))
    assert source.labels.tolist() == [21, 20, 21]


def test_each_row_of_a_file_has_the_label_of_its_name(rows, table):
    source = gl.open(rows, labels=table("b,dog", "a,cat"), sample_axis=0)
    assert labels_of(source) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}
    assert source.classes == ["cat", "dog"]


def test_files_of_class_folders_get_the_labels_of_the_table(tmp_path, table):
    for number, name in enumerate(("cat/1", "dog/1")):
        (tmp_path / name).parent.mkdir()
        np.save(tmp_path / name, [number])
    source = gl.open(tmp_path, labels=table("dog/1,0.5", "cat/1,1.5"))
    assert labels_of(source) == {0: 1.5, 1: 0.5}
    assert source.classes is None


# ---- Names of classes

CLASSES = {
    "text order": ({}, ["c10", "c2", "d"]),
    "text order said": ({"order": "text"}, ["c10", "c2", "d"]),
    "natural order": ({"order": "natural"}, ["c2", "c10", "d"]),
    "a list": ({"classes": ["d", "c2", "c10"]}, ["d", "c2", "c10"]),
    "a list with more": ({"classes": ["b", "d", "c10", "c2"]}, ["b", "d", "c10", "c2"]),
}


@pytest.mark.parametrize(("options", "classes"), CLASSES.values(), ids=CLASSES)
def test_names_in_a_table_are_numbered(four, table, options, classes):
    source = gl.open(four, labels=table("2,d", "0,c2", "10,c10", "1,c2"), **options)
    assert source.classes == classes
    assert source.class_to_idx == {name: i for i, name in enumerate(classes)}
    named = {number: classes[label] for number, label in labels_of(source).items()}
    assert named == {0: "c2", 1: "c2", 2: "d", 10: "c10"}
    assert source.labels.dtype == np.uint8
    with gl.DataLoader(source, 4) as loader:
        (batch,) = loader
    assert batch.y.dtype == torch.int64
    assert batch.y.tolist() == source.labels.tolist()
    copy = pickle.loads(pickle.dumps(source.select([3, 0])))
    assert copy.classes == classes
    assert copy.labels.tolist() == source.labels[[3, 0]].tolist()
    assert f"{classes[-1]} ({named_count(named, classes[-1])})" in source.summary()


def named_count(named: dict[int, str], name: str) -> int:
    return list(named.values()).count(name)


def test_numbers_in_a_table_are_names_of_an_explicit_list(four, table):
    source = gl.open(four, labels=table("7", "3", "7", "7"), classes=["7", "3"])
    assert source.labels.tolist() == [0, 1, 0, 0]
    assert source.classes == ["7", "3"]


# ---- Tables that are wrong

GOOD = ["0,20", "1,21", "2,22"]
BAD_TABLES = {
    "empty": ([], "expected rows with labels, got an empty file"),
    "a header alone": (
        ["file,label"],
        r"expected a row for each of 4 files, got none for .*/0\.npy",
    ),
    "a row too few": (GOOD, r"expected a row for each of 4 files, got none for .*/10\.npy; add"),
    "rows too few": (
        GOOD[:1],
        r"expected .* of 4 files, got none for .*/1\.npy and 2 more",
    ),
    "a strange row": (
        [*GOOD, "10,30", "x,3"],
        "line 5: expected the path, name or stem of one of 4 files, got 'x'; remove such lines",
    ),
    "strange rows": (
        ["file,y", "x,3", *GOOD, "z,2"],
        "line 2: expected .*, got 'x' and 1 more; rem",
    ),
    "another suffix": ([*GOOD, "10.png,3"], r"line 4: .* of 4 files, got '10\.png'; remove"),
    "another folder": ([*GOOD, "five/10.npy,3"], "line 4: .* of 4 files, got 'five/10.npy'"),
    "a row twice": (
        [*GOOD, "10,30", "1.npy,7"],
        r"line 5: expected one row .*/1\.npy as in line 2; ",
    ),
    "an empty label": ([*GOOD, "10,"], "line 4: expected a label, got an empty cell"),
    "an empty name": ([*GOOD, ",30"], "line 4: expected the name of a file, got an empty cell"),
    "a short row": ([*GOOD, "10"], "line 4: expected 2 columns as in line 1, got 1"),
    "a long row": ([*GOOD, "10,30,1"], "line 4: expected 2 columns as in line 1, got 3"),
    "a name among numbers": (
        [*GOOD, "10,n/a"],
        "line 4: expected a number as in line 1, got 'n/a'; pass classes= if all are class names",
    ),
    "a large number": ([*GOOD, f"10,{2**63}"], f"line 4: expected a number of int64, got {2**63}"),
    "very many digits": (
        [*GOOD, f"10,{'9' * 5000}"],
        "line 4: expected a number of int64, got 999",
    ),
    "an open quote": ([*GOOD, '10,"30'], 'line 4: expected CSV, got "unexpected end of data"'),
    "a huge cell": ([*GOOD, "10," + "x" * 200_000], "line 4: expected CSV, got .field larger than"),
}


@pytest.mark.parametrize(("lines", "wanted"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_table_names_the_line(four, table, lines, wanted):
    with pytest.raises(gl.FormatError, match=rf"/labels\.csv: {wanted}"):
        gl.open(four, labels=table(*lines))


def test_a_stem_of_several_files_names_two_of_them(deep, table):
    wanted = (
        r"line 2: expected a name of one file, got '1' for .*/a/1\.npy and .*/b/1\.npy; write more"
    )
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(deep, labels=table("a/2,1", "1,2", "3,3"))


def test_a_name_that_is_not_in_the_list_names_the_line_and_the_list(four, table):
    path = table("file,class", "0,cat", "1,cow", "2,dog", "10,cat")
    wanted = r"/labels\.csv: line 3: expected one of the classes \['cat', 'dog'\], got 'cow'"
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(four, labels=path, classes=["cat", "dog"])


@pytest.mark.parametrize("n", [3, 5])
def test_another_number_of_rows_in_one_column_is_named(four, table, n):
    wanted = rf"/labels\.csv: expected one row for each of 4 items, got \({n},\)"
    with pytest.raises(ValueError, match=wanted):
        gl.open(four, labels=table("y", *map(str, range(n))))


def test_files_of_one_name_in_many_folders_are_matched(tmp_path, table):
    for i in range(300):
        (tmp_path / "x" / f"{i}").mkdir(parents=True)
        np.save(tmp_path / "x" / f"{i}" / "scan.npy", np.array([i]))
    source = gl.open(tmp_path / "x", labels=table(*(f"{i}/scan.npy,{i}" for i in range(300)[::-1])))
    assert labels_of(source) == {i: i for i in range(300)}
