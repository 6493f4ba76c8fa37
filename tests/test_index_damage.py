"""A saved index that is damaged, foreign or written by several at once does no harm."""

from __future__ import annotations

import os
import random
import threading
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_no_pickle_is_in_it(folder, index):
    gl.open(folder, index=index)
    with zipfile.ZipFile(index) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            assert array.dtype.kind in "iu"


DAMAGE = {
    "cut in half": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "empty": lambda content: b"",
    "a flipped bit in a path": lambda content: content.replace(b"/3.npy", b"/1.npy"),
    "no directory of members": lambda content: content[:-600] + bytes(600),
    "another compression": lambda content: content.replace(
        b"PK\1\2\x2d\3\x2d\0\0\0\0\0", b"PK\1\2\x2d\3\x2d\0\0\0\x63\0"
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_index_is_left_out_with_a_warning_and_written_anew(
    folder, index, scanned, damage
):
    gl.open(folder, index=index)
    scanned()
    damaged = damage(index.read_bytes())
    assert damaged != index.read_bytes()
    index.write_bytes(damaged)
    with pytest.warns(UserWarning, match=r"index\.npz: expected a saved index, got .*; read") as w:
        source = gl.open(folder, index=index)
    assert w[0].filename == __file__
    assert "\n" not in str(w[0].message)
    assert scanned() == NAMES
    assert_same(source, gl.open(folder))
    scanned()
    gl.open(folder, index=index)
    assert scanned() == []


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_never_gives_wrong_headers(folder, index, seed):
    gl.open(folder, index=index)
    whole = index.read_bytes()
    want = gl.open(folder).shapes.tolist()
    rng = random.Random(seed)
    for _ in range(40):
        at = rng.randrange(64, len(whole))
        junk = rng.randbytes(rng.randrange(1, 20))
        index.write_bytes(whole[:at] + junk + whole[at + rng.choice([0, len(junk), 300]) :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert gl.open(folder, index=index).shapes.tolist() == want


def rewrite(index: Path, **columns: object) -> None:
    with np.load(index) as saved:
        np.savez(index, **{name: saved[name] for name in saved} | columns)


FOREIGN = {
    "another schema": {"gpuload_index": np.int64(99)},
    "a schema of text": {"gpuload_index": np.array("one")},
    "too few rows": {"status": np.zeros(3, np.int32)},
    "too few headers": {"text_ends": np.zeros(3, np.int64)},
}


@pytest.mark.parametrize("columns", FOREIGN.values(), ids=FOREIGN)
def test_an_index_of_another_version_is_left_out_with_a_warning(folder, index, scanned, columns):
    gl.open(folder, index=index)
    scanned()
    rewrite(index, **columns)
    with pytest.warns(UserWarning, match=r"index\.npz: expected a saved index, got "):
        source = gl.open(folder, index=index)
    assert scanned() == NAMES
    assert_same(source, gl.open(folder))


def test_objects_in_an_index_are_never_unpickled(folder, index, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "marker"),)

    gl.open(folder, index=index)
    with np.load(index) as saved:
        columns = {name: saved[name] for name in saved}
    columns["shape"] = np.array([Bomb()] * 5, object)
    np.savez(index, allow_pickle=True, **columns)
    with pytest.warns(UserWarning, match="expected a saved index, got Object arrays cannot be"):
        gl.open(folder, index=index)
    assert not (tmp_path / "marker").exists()


OTHERS = {
    "text": lambda path: path.write_text("my notes"),
    "an array": lambda path: path.write_bytes(b"\x93NUMPY\1\0" + bytes(200)),
    "arrays": lambda path: np.savez(path, x=np.arange(3)),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_another_file_in_its_place_is_kept(folder, index, make):
    index.parent.mkdir()
    make(index)
    before = index.read_bytes() if index.is_file() else None
    with pytest.warns(UserWarning, match="expected a saved index, got (another file|.* directory)"):
        source = gl.open(folder, index=index)
    assert_same(source, gl.open(folder))
    if before is not None:
        assert index.read_bytes() == before


def test_an_index_that_cannot_be_written_is_a_warning(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="expected a saved index, got .*Not a directory"):
        source = gl.open(folder, index=tmp_path / "file" / "index.npz")
    with pytest.warns(UserWarning, match="expected to save the index there, got .*No such file"):
        gl.open(folder, index="/proc/nowhere/index.npz")
    assert_same(source, gl.open(folder))


# ---- Writers


def test_no_temporary_file_is_left(folder, index, monkeypatch):
    gl.open(folder, index=index)
    assert os.listdir(index.parent) == ["index.npz"]

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuload.sources.headers.os.replace", full_disk)
    np.save(folder / "5.npy", np.zeros((6, 2), np.float32))
    before = index.read_bytes()
    with pytest.warns(UserWarning, match="expected to save the index there, got .*No space left"):
        gl.open(folder, index=index)
    assert os.listdir(index.parent) == ["index.npz"]
    assert index.read_bytes() == before


def test_concurrent_writers_leave_a_whole_index(folder, index, scanned):
    barrier = threading.Barrier(8)

    def open_some(i: int) -> list[list[int]]:
        barrier.wait(timeout=20)
        return [len(gl.open(f"{folder}/[{i % 4}-4].npy", index=index)) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        lengths = list(pool.map(open_some, range(8)))
    assert lengths == [[5 - i % 4] * 20 for i in range(8)]
    assert os.listdir(index.parent) == ["index.npz"]
    scanned()
    assert_same(gl.open(folder, index=index), gl.open(folder))
