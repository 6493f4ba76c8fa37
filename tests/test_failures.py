"""Files that change under a running loader: what is raised, when, and what arrives before it."""

from __future__ import annotations

import contextlib
import os
import re

import numpy as np
import pytest

import gpuload as gl

SHAPE = (64, 64)  # of float32: 16 KiB, four pages and the header
HEADER = 128


def truncate(path):
    os.truncate(path, 100)


def cut_in_the_middle(path):
    os.truncate(path, HEADER + 2 * 64 * 64)


def delete(path):
    os.unlink(path)


def empty(path):
    os.truncate(path, 0)


def grow(path):
    with open(path, "ab") as file:
        file.write(bytes(10))


def replace_by_a_smaller_one(path):
    np.save(path + ".new.npy", np.zeros((2, 2), np.float32))
    os.replace(path + ".new.npy", path)


def replace_by_a_folder(path):
    os.unlink(path)
    os.mkdir(path)


def replace_by_a_dangling_link(path):
    os.unlink(path)
    os.symlink(path + ".gone", path)


# What was done to the file -> what the error says: expected and found.
DAMAGE = {
    truncate: r"expected 16512 bytes as when .*, got 100; the file was truncated",
    cut_in_the_middle: r"expected 16512 bytes as when .*, got 8320; the file was truncated",
    empty: r"expected 16512 bytes as when .*, got 0; the file was truncated",
    grow: r"expected 16512 bytes as when .*, got 16522; the file was changed",
    replace_by_a_smaller_one: r"expected 16512 bytes as when .*, got 144; the file was truncated",
    delete: r"expected the file that was there when the source was opened, got none",
    replace_by_a_dangling_link: r"expected the file that was there .*, got none",
    replace_by_a_folder: r"expected 16512 bytes as when .*, got \d+",
}
each_damage = pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
each_io = pytest.mark.parametrize("io", ["pread", "mmap"])


@pytest.fixture
def files(save_arrays):
    directory, arrays = save_arrays(12, SHAPE)
    return gl.open(directory, labels=np.arange(12)), arrays


@each_io
@each_damage
def test_an_error_comes_at_its_batch_and_names_the_file(files, io, damage):
    source, arrays = files
    damage(source.paths[7])
    got = []
    with gl.DataLoader(source, 2, io=io, threads=2) as loader:
        with pytest.raises(gl.ReadError, match=DAMAGE[damage]) as caught:
            got.extend(loader)
        assert str(caught.value).startswith(f"{source.paths[7]}: ")
        assert caught.value.filename == source.paths[7]
    assert len(got) == 3
    for i, (x, y) in enumerate(got):
        np.testing.assert_array_equal(x, arrays[2 * i : 2 * i + 2])
        assert y.tolist() == [2 * i, 2 * i + 1]


@each_io
@each_damage
@pytest.mark.parametrize("window", [None, gl.CenterCrop(9)], ids=["whole", "crop"])
def test_an_error_in_a_window_of_part_of_a_file_is_the_same(files, io, damage, window):
    source, _ = files
    damage(source.paths[3])
    with (
        gl.DataLoader(source, 4, io=io, crop=window, dtype="float64") as loader,
        pytest.raises(gl.ReadError, match=DAMAGE[damage]),
    ):
        next(iter(loader))


@each_damage
def test_a_damaged_item_cannot_be_read_by_itself(files, damage):
    source, arrays = files
    damage(source.paths[0])
    with pytest.raises(gl.ReadError, match=DAMAGE[damage]):
        source[0]
    np.testing.assert_array_equal(source[1][0], arrays[1])


@each_io
def test_permission_is_named(files, run_python, io):
    source, _ = files
    os.chmod(os.path.dirname(source.paths[0]), 0o755)
    done = run_python(
        """
        import os, sys
        import gpuload as gl

        os.chdir(sys.argv[1])
        source = gl.open(sorted(os.listdir()))
        os.chmod("00005.npy", 0)
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
        try:
            list(gl.DataLoader(source, 2, io=sys.argv[2]))
        except gl.ReadError as error:
            print(error, error.errno)
        """,
        os.path.dirname(source.paths[0]),
        io,
    )
    assert done.stdout.startswith("00005.npy: ")
    assert "Permission denied" in done.stdout
    assert done.stdout.endswith(" 13\n")
    assert done.stderr == ""


@each_io
def test_after_an_error_the_iterator_is_over_and_the_loader_goes_on(files, io):
    source, arrays = files
    with open(source.paths[6], "rb") as file:
        whole = file.read()
    truncate(source.paths[6])
    with gl.DataLoader(source, 2, io=io) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        with pytest.raises(gl.ReadError, match="truncated"):
            next(iterator)
        assert next(iterator, None) is None
        with pytest.raises(gl.ReadError, match="truncated"):
            list(loader)
        with open(source.paths[6], "wb") as file:
            file.write(whole)
        batches = list(loader)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), arrays)


# During the epoch: items so large that only a few are read ahead.


@pytest.fixture
def large(save_arrays):
    return save_arrays(10, (512, 1024))


@each_io
@pytest.mark.parametrize("damage", [truncate, cut_in_the_middle, empty, delete, grow])
def test_damage_during_the_epoch_is_an_error_not_a_signal(large, io, damage):
    directory, arrays = large
    source = gl.open(directory)
    got = []
    with gl.DataLoader(source, 1, io=io, prefetch=2, threads=1) as loader:
        iterator = iter(loader)
        got.append(next(iterator))
        damage(source.paths[8])
        if io == "pread" and damage in (delete, grow):  # it may be open already, and whole
            with contextlib.suppress(gl.ReadError):
                got.extend(iterator)
        else:
            with pytest.raises(gl.ReadError, match=r"00008\.npy: expected"):
                got.extend(iterator)
    assert len(got) in (8, 10)
    np.testing.assert_array_equal(np.concatenate(got), arrays[: len(got)])


@pytest.mark.parametrize("window", [None, gl.RandomCrop(64, per_array=4)], ids=["whole", "crops"])
def test_a_mapped_file_that_is_cut_is_an_error_not_a_signal(large, window):
    """The file is mapped in the first epoch and shorter in the second."""
    directory, _ = large
    source = gl.open(directory)
    with gl.DataLoader(source, 2, io="mmap", crop=window, threads=2) as loader:
        n_before = sum(len(x) for x in loader)
        for path in source.paths:
            os.truncate(path, 5000)
        with pytest.raises(
            gl.ReadError,
            match=r"\.npy: expected 2097280 bytes as when it was mapped, got 5000; the file was "
            "truncated",
        ):
            list(loader)
    assert n_before in (10, 40)


@each_io
def test_rows_that_are_left_in_a_cut_file_arrive_first(tmp_path, io):
    """The file stays open, or mapped, from the first epoch to the second."""
    rows = np.arange(400_000, dtype=np.float32).reshape(1000, 400)
    np.save(tmp_path / "rows.npy", rows)
    source = gl.open(tmp_path / "rows.npy", sample_axis=0)
    got = []
    with gl.DataLoader(source, 10, io=io, threads=1) as loader:
        list(loader)
        os.truncate(tmp_path / "rows.npy", 128 + 512 * 1600)
        with pytest.raises(
            gl.ReadError, match=r"rows\.npy: expected .*, got .*truncated"
        ) as caught:
            got.extend(loader)
    kept = np.concatenate(got)
    if io == "pread":  # up to the last whole batch, and the error says where it ends
        assert len(kept) == 510
        assert re.search(r"expected \d+ bytes at byte 81\d{4}, got 3200;", str(caught.value))
    else:  # the last page of a map is whole, so that up to one page more may be there
        assert 510 <= len(kept) <= 520
    np.testing.assert_array_equal(kept[:510], rows[:510])


FAULT_HANDLERS = {
    "before": "faulthandler.enable(); list(loader)",
    "after": "list(loader); faulthandler.enable()",
    "before and after": "faulthandler.enable(); list(loader); faulthandler.enable()",
    "in between": "list(loader); faulthandler.disable(); faulthandler.enable(); list(loader)",
    "during the epoch": "list(loader); during = faulthandler.enable",
}


@pytest.mark.parametrize("how", FAULT_HANDLERS.values(), ids=FAULT_HANDLERS)
def test_a_cut_map_is_an_error_with_faulthandler_too(large, run_python, how):
    directory, _ = large
    done = run_python(
        f"""
        import faulthandler, glob, os, sys
        import gpuload as gl

        def during(): pass

        loader = gl.DataLoader(gl.open(sys.argv[1]), 1, io="mmap", threads=2)
        {how}
        iterator = iter(loader)
        next(iterator)
        during()
        for path in glob.glob(sys.argv[1] + "/*"):
            os.truncate(path, 5000)
        try:
            list(iterator)
        except gl.ReadError as error:
            print(error)
        """,
        directory,
    )
    assert done.returncode == 0, done.stderr
    if "during" not in how:  # then it says so, and hands on to us
        assert done.stderr == ""
    assert "as when it was mapped, got 5000" in done.stdout


FOREIGN = {
    "without faulthandler": "list(loader)",
    "with it": "faulthandler.enable(); list(loader)",
    "with it on both sides": "list(loader); faulthandler.enable(); list(loader)",
    "with it before and after": (
        "faulthandler.enable(); list(loader); faulthandler.enable(); list(loader)"
    ),
}


@pytest.mark.parametrize("how", FOREIGN.values(), ids=FOREIGN)
def test_a_bus_error_of_others_still_ends_the_process(save_arrays, tmp_path, run_python, how):
    directory, _ = save_arrays(4, (8, 8))
    (tmp_path / "other").write_bytes(bytes(100_000))
    done = run_python(
        f"""
        import faulthandler, mmap, os, sys
        import gpuload as gl

        loader = gl.DataLoader(gl.open(sys.argv[1]), 1, io="mmap")
        {how}
        with open("other", "r+b") as file:
            theirs = mmap.mmap(file.fileno(), 0)
        os.truncate("other", 0)
        theirs[50_000]
        """,
        directory,
        timeout_s=20,
    )
    assert done.returncode == -7, done.stderr[-500:]  # SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == ("faulthandler" in how)
