"""The saved index of headers: what it spares, when it is stale, and where it is kept."""

from __future__ import annotations

import os

import numpy as np
import pytest
from indexed import NAMES, assert_same

import gpuload as gl


@pytest.fixture
def folder(tmp_path):
    """Files 0.npy to 4.npy; file i has the shape (i + 1, 2) and is full of i."""
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(5):
        np.save(folder / f"{i}.npy", np.full((i + 1, 2), i, np.float32))
    return folder


@pytest.fixture
def index(tmp_path):
    return tmp_path / "cache" / "index.npz"


# ---- What it spares


def test_the_second_open_reads_no_header(folder, index, scanned):
    gl.open(folder, index=index)
    assert scanned() == NAMES
    written = index.stat().st_mtime_ns, index.read_bytes()
    source = gl.open(folder, index=str(index))
    assert scanned() == []
    assert (index.stat().st_mtime_ns, index.read_bytes()) == written
    assert_same(source, gl.open(folder))


@pytest.mark.parametrize(
    "arguments",
    [{"sample_axis": 0}, {"labels": None}, {"labels": [4, 3, 2, 1, 0]}, {"on_error": "skip"}],
    ids=repr,
)
def test_it_serves_every_way_to_open_the_same_files(folder, index, scanned, arguments):
    gl.open(folder, index=index)
    scanned()
    source = gl.open(folder, index=index, **arguments)
    assert scanned() == []
    assert source.shapes.tolist() == gl.open(folder, **arguments).shapes.tolist()


def test_class_trees_and_lists_share_it(tmp_path, index, scanned):
    for i in range(4):
        (tmp_path / "tree" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "tree" / f"c{i % 2}" / f"{i}.npy", np.zeros(3))
    source = gl.open(tmp_path / "tree", index=index)
    assert scanned() == ["0.npy", "2.npy", "1.npy", "3.npy"]
    reverse = list(source.paths)[::-1]
    again = gl.open(reverse, index=index)
    assert scanned() == []
    assert list(again.paths) == reverse


RECORD = np.dtype([("n", "<i8"), ("x", ">f2", (2,))])


def test_headers_that_only_python_understands_are_kept_too(tmp_path, index, scanned):
    want = np.arange(6 * RECORD.itemsize, dtype=np.uint8).view(RECORD)
    np.save(tmp_path / "0.npy", want)
    np.save(tmp_path / "1.npy", want[::-1])
    gl.open(tmp_path, member="n", index=index)
    assert scanned() == ["0.npy", "1.npy"]
    for member in ("n", "x"):
        source = gl.open(tmp_path, member=member, index=index)
        assert scanned() == []
        np.testing.assert_array_equal(source[0], want[member])
        np.testing.assert_array_equal(source[1], want[::-1][member])
    with pytest.raises(gl.FormatError, match="pass member= one of n, x"):
        gl.open(tmp_path, index=index)


def test_a_changed_plain_file_among_structured_ones_is_read_anew(tmp_path, index, scanned):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(4, i, RECORD))
    gl.open(tmp_path, member="n", index=index)
    scanned()
    np.save(tmp_path / "1.npy", np.full((4, 3, 2), 1, RECORD))
    with pytest.raises(gl.FormatError, match=r"1\.npy: expected 1 axes as in .*0\.npy"):
        gl.open(tmp_path, member="n", index=index)
    assert scanned() == ["1.npy"]
    np.save(tmp_path / "1.npy", np.full(5, 7, RECORD))
    source = gl.open(tmp_path, member="n", index=index)
    assert scanned() == ["1.npy"]
    assert [source[i].tolist() for i in range(3)] == [[0] * 4, [7] * 5, [2] * 4]


# ---- When it is stale


def test_a_file_of_another_size_is_read_again(folder, index, scanned):
    gl.open(folder, index=index)
    scanned()
    np.save(folder / "2.npy", np.zeros((9, 9), np.float32))
    source = gl.open(folder, index=index)
    assert scanned() == ["2.npy"]
    assert_same(source, gl.open(folder))
    scanned()
    gl.open(folder, index=index)
    assert scanned() == []


def test_a_file_of_the_same_size_but_another_time_is_read_again(folder, index, scanned):
    gl.open(folder, index=index)
    scanned()
    before = (folder / "2.npy").stat()
    np.save(folder / "2.npy", np.full((2, 3), 8, np.float32))
    assert (folder / "2.npy").stat().st_size == before.st_size
    os.utime(folder / "2.npy", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    source = gl.open(folder, index=index)
    assert scanned() == ["2.npy"]
    assert source.shapes[2].tolist() == [2, 3]
    assert_same(source, gl.open(folder))


def test_added_and_removed_files_are_noticed(folder, index, scanned):
    gl.open(folder, index=index)
    scanned()
    (folder / "1.npy").unlink()
    np.save(folder / "25.npy", np.full((2, 2), 25, np.float32))
    source = gl.open(folder, index=index)
    assert scanned() == ["25.npy"]
    assert_same(source, gl.open(folder))
    scanned()
    gl.open(folder, index=index)
    assert scanned() == []


def test_an_array_of_more_axes_widens_the_table(folder, index, scanned):
    gl.open(folder, index=index)
    scanned()
    np.save(folder / "5.npy", np.full((1, 2, 3, 4), 5, np.float32))
    source = gl.open(folder, index=index, on_error="skip")
    assert scanned() == ["5.npy"]
    assert len(source) == 5
    assert "expected 2 axes" in source.errors[0]


def test_a_bad_file_is_looked_at_each_time_until_it_is_good(folder, index, scanned):
    whole = (folder / "3.npy").read_bytes()
    (folder / "3.npy").write_bytes(b"not yet")
    for _ in range(2):
        with pytest.raises(gl.FormatError, match=r"3\.npy: expected an NPY file"):
            gl.open(folder, index=index)
        assert "3.npy" in scanned()
    (folder / "3.npy").write_bytes(whole)
    source = gl.open(folder, index=index)
    assert scanned() == ["3.npy"]
    assert_same(source, gl.open(folder))


def test_a_file_that_vanished_is_an_error_not_an_old_row(folder, index):
    files = [folder / name for name in NAMES]
    gl.open(files, index=index)
    (folder / "4.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"4\.npy: expected"):
        gl.open(files, index=index)


# ---- Where "auto" keeps it


def test_auto_keeps_one_index_per_place_in_the_cache_folder(folder, tmp_path, monkeypatch, scanned):
    monkeypatch.setenv("GPULOAD_CACHE_DIR", str(tmp_path / "cache"))
    for where in (folder, folder / "0.npy", f"{folder}/*.npy", [folder], os.fsencode(folder)):
        gl.open(where, index="auto")
        assert scanned() or where in ([folder], os.fsencode(folder))
        gl.open(where, index="auto")
        assert scanned() == []
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 3


def test_auto_finds_its_index_from_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    gl.open("data", index="auto")
    monkeypatch.chdir(folder)
    gl.open("../data", index="auto")
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1


def test_auto_falls_back_to_the_users_cache_folder(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("GPULOAD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    gl.open(folder, index="auto")
    assert len(list((tmp_path / "xdg" / "gpuload").rglob("*.npz"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    gl.open(folder, index="auto")
    assert len(list((tmp_path / "home" / ".cache" / "gpuload").rglob("*.npz"))) == 1
