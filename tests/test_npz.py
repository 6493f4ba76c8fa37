"""NPZ files: which member is read, where its bytes are, and what is wrong with it."""

from __future__ import annotations

import io
import os
import pickle
import struct
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload import system
from gpuload.sources import inflated

GRID = np.arange(6 * 5 * 4, dtype=np.float32).reshape(6, 5, 4)
SAVE = {"stored": np.savez, "deflated": np.savez_compressed}
each_way = pytest.mark.parametrize("save", SAVE.values(), ids=SAVE)


@pytest.fixture
def inflations(monkeypatch):
    """Members that were inflated whole, in turn."""
    seen = []
    whole = inflated.inflate

    def counting(member):
        seen.append((Path(member.path).name, member.key))
        return whole(member)

    monkeypatch.setattr(inflated, "inflate", counting)
    return seen


def write_zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


# ---- What is read

ARRAYS = {
    "C order": GRID,
    "Fortran order": np.asfortranarray(GRID),
    "big-endian": GRID.astype(">f4"),
    "bytes": GRID.astype(np.uint8),
    "truth values": GRID % 2 == 0,
    "complex numbers": GRID + 1j,
    "no elements": np.zeros((3, 0)),
}


@each_way
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_member_is_what_numpy_loads(tmp_path, save, array):
    save(tmp_path / "a.npz", x=array, other=np.zeros(3))
    whole = gl.open(tmp_path / "a.npz", key="x")
    np.testing.assert_array_equal(whole[0].numpy(), np.load(tmp_path / "a.npz")["x"])
    assert list(whole.paths) == [str(tmp_path / "a.npz")]
    rows = gl.open(tmp_path / "a.npz", key="x", sample_axis=0)
    assert len(rows) == len(array)
    for i, row in enumerate(array):
        np.testing.assert_array_equal(rows[i].numpy(), row)
    batches = list(gl.DataLoader(rows, batch_size=4))
    np.testing.assert_array_equal(torch.cat(batches).numpy(), array)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    array=hnp.arrays(
        st.sampled_from(["<f8", ">f8", "<i2", ">i2", "u1", "?", "<c8"]),
        hnp.array_shapes(min_dims=0, max_dims=4, max_side=5),
    ),
    fortran=st.booleans(),
    save=st.sampled_from([np.savez, np.savez_compressed]),
)
def test_any_array_comes_back_from_an_archive(tmp_path, array, fortran, save):
    save(tmp_path / "a.npz", first=np.arange(7), x=np.asfortranarray(array) if fortran else array)
    np.testing.assert_array_equal(gl.open(tmp_path / "a.npz", key="x")[0].numpy(), array)


@each_way
def test_fields_of_records_and_bfloat16_are_read_as_of_npy_files(tmp_path, save):
    records = np.zeros(4, [("id", "<u2"), ("image", ">f4", (2, 3))])
    records["image"] = np.arange(24).reshape(4, 2, 3)
    bits = torch.arange(6, dtype=torch.bfloat16).view(torch.int16).numpy().view("V2")
    save(tmp_path / "a.npz", records=records, half=bits)
    images = gl.open(tmp_path / "a.npz", key="records", member="image", sample_axis=0)
    np.testing.assert_array_equal(images[2].numpy(), records["image"][2])
    half = gl.open(tmp_path / "a.npz", key="half", dtype="bfloat16")
    assert torch.equal(half[0], torch.arange(6, dtype=torch.bfloat16))


@each_way
def test_crops_of_many_archives_hold_what_slices_hold(tmp_path, save):
    arrays = np.random.default_rng(0).random((20, 30, 20), np.float32)
    for i, array in enumerate(arrays):
        save(tmp_path / f"{i:02}.npz", x=array)
    loader = gl.DataLoader(
        gl.open(tmp_path),
        batch_size=8,
        shuffle=True,
        crop=gl.RandomCrop((8, 5)),
        extras=("index", "start"),
    )
    for x, index, start in loader:
        for window, i, (a, b) in zip(x, index.tolist(), start.tolist(), strict=True):
            np.testing.assert_array_equal(window, arrays[i, a : a + 8, b : b + 5])


def test_stored_and_deflated_archives_may_be_mixed(tmp_path, inflations):
    np.savez(tmp_path / "0.npz", x=GRID)
    np.savez_compressed(tmp_path / "1.npz", x=GRID + 1)
    np.savez(tmp_path / "2.npz", x=GRID + 2)
    source = gl.open(tmp_path)
    batch = next(iter(gl.DataLoader(source, batch_size=3)))
    np.testing.assert_array_equal(batch, [GRID, GRID + 1, GRID + 2])
    assert inflations == [("1.npz", "x")]


def test_class_folders_of_archives_give_labels(tmp_path):
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "0.npz", GRID + k)
    source = gl.open(tmp_path)
    assert (source.classes, source.labels.tolist()) == (["cat", "dog"], [0, 1])
    np.testing.assert_array_equal(source[1][0], GRID + 1)


def test_an_archive_with_64_bit_sizes_is_read(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w") as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy(GRID))
    np.testing.assert_array_equal(gl.open(tmp_path / "a.npz")[0].numpy(), GRID)


def test_a_long_header_in_an_archive_is_read_whole(tmp_path):
    names = [(f"a_rather_long_name_of_a_field_{i}", "<f4") for i in range(300)]
    records = np.zeros(3, names)
    records[names[299][0]] = [1, 2, 3]
    for save in SAVE.values():
        save(tmp_path / "a.npz", records)
        source = gl.open(tmp_path / "a.npz", member=names[299][0])
        assert source[0].tolist() == [1, 2, 3]


def test_forked_processes_read_their_own_members(tmp_path, run_python):
    np.savez(tmp_path / "a.npz", **{f"a{i}": np.full(20000, i) for i in range(40)})
    done = run_python(
        """
        import os, sys
        import gpuload as gl
        source = gl.open([f"{sys.argv[1]}::a{i}" for i in range(40)])
        assert int(source[7][0]) == 7
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                wrong = sum(bool((source[i] != i).any()) for i in range(40))
                os._exit(wrong)
            children.append(child)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        """,
        tmp_path / "a.npz",
    )
    assert done.stdout.strip() == "[0, 0, 0, 0]"


# ---- Which member

KEYS = {
    "the only one": ({"x": GRID}, {}, GRID),
    "the only one without a name": ({"arr_0": GRID}, {}, GRID),
    "one of two": ({"x": GRID, "y": GRID + 1}, {"key": "y"}, GRID + 1),
    "one with its suffix": ({"x": GRID, "y": GRID + 1}, {"key": "y.npy"}, GRID + 1),
    "one in a folder": ({"a/x": GRID, "a/y": GRID + 1}, {"key": "a/y"}, GRID + 1),
    "one with colons": ({"a::x": GRID, "x": GRID + 1}, {"key": "a::x"}, GRID),
}


@pytest.mark.parametrize(("arrays", "arguments", "want"), KEYS.values(), ids=KEYS)
def test_a_key_names_a_member(tmp_path, arrays, arguments, want):
    np.savez(tmp_path / "a.npz", **arrays)
    np.testing.assert_array_equal(gl.open(tmp_path / "a.npz", **arguments)[0].numpy(), want)


def test_a_path_may_name_the_member(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=GRID + i, y=GRID - i)
    assert gl.open(f"{tmp_path}/1.npz::y")[0][0, 0, 0] == -1
    listed = gl.open([f"{tmp_path}/2.npz::x", [f"{tmp_path}/2.npz::y"]])
    assert [int(x[0, 0, 0]) for x in listed] == [2, -2]
    assert [int(x[0, 0, 0]) for x in gl.open(f"{tmp_path}/*.npz::x")] == [0, 1, 2]
    assert [int(x[0, 0, 0]) for x in gl.open(f"{tmp_path}::y")] == [0, -1, -2]
    with pytest.raises(TypeError, match=r"key: expected not to be passed with .*npz::x, which"):
        gl.open(f"{tmp_path}/1.npz::x", key="y")


def test_a_file_with_colons_in_its_name_is_itself(tmp_path):
    np.save(tmp_path / "a::x.npy", GRID)
    assert gl.open(tmp_path / "a::x.npy")[0].shape == GRID.shape


def test_members_that_are_no_arrays_are_left_alone(tmp_path):
    members = {"README.txt": b"hello", "x.npy": npy(GRID), "data/": b""}
    np.testing.assert_array_equal(gl.open(write_zip(tmp_path / "a.npz", members))[0].numpy(), GRID)


@each_way
def test_a_pickled_member_is_refused_and_the_others_are_read(tmp_path, save):
    save(tmp_path / "a.npz", x=GRID, names=np.array(["a", None], object))
    assert gl.open(tmp_path / "a.npz", key="x")[0].shape == GRID.shape
    with pytest.raises(
        gl.UnsupportedDtypeError, match=r"a\.npz::names: expected numbers, got an object array"
    ):
        gl.open(tmp_path / "a.npz", key="names")


# ---- Inflated once


def test_rows_of_a_deflated_member_cost_one_inflation(tmp_path, inflations):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((200, 200)), y=np.ones(3))
    source = gl.open(tmp_path / "a.npz", key="x", sample_axis=0)
    assert (source.shapes.shape, source.nbytes, inflations) == ((200, 1), 320_000, [])
    for i in (0, 7, 199, 7, -1):
        assert source[i].shape == (200,)
    assert sum(len(batch) for batch in gl.DataLoader(source, batch_size=64)) == 200
    assert source.select([3, 4])[1].sum() == 0
    assert inflations == [("a.npz", "x")]


def test_a_look_at_one_item_inflates_its_file_alone(tmp_path, inflations):
    for i in range(6):
        np.savez_compressed(tmp_path / f"{i}.npz", x=np.full(9, i))
    source = gl.open(tmp_path)
    assert source[4].tolist() == [4] * 9
    assert inflations == [("4.npz", "x")]
    part = source.select([5, 4, 2])
    batch = next(iter(gl.DataLoader(part, batch_size=3)))
    assert batch[:, 0].tolist() == [5, 4, 2]
    assert sorted(inflations) == [("2.npz", "x"), ("4.npz", "x"), ("5.npz", "x")]
    assert [int(item[0]) for item in source] == [0, 1, 2, 3, 4, 5]
    assert len(inflations) == 6


def test_threads_that_ask_at_once_inflate_once(tmp_path, inflations):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((500, 500)))
    source = gl.open(tmp_path / "a.npz", sample_axis=0)
    threads = [threading.Thread(target=lambda: source[3]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(inflations) == 1


def test_pickles_leave_the_data_behind(tmp_path, inflations):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((500, 500)))
    source = gl.open(tmp_path / "a.npz", sample_axis=0)
    assert source[3].sum() == 0
    pickled = pickle.dumps(source)
    assert len(pickled) < 10_000
    copy = pickle.loads(pickled)
    assert copy[3].sum() == 0
    assert copy.fingerprint() == source.fingerprint()
    assert len(inflations) == 2


def test_what_does_not_fit_is_refused_before_it_is_inflated(tmp_path, inflations, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((500, 500)))
    source = gl.open(tmp_path / "a.npz")
    monkeypatch.setattr(system, "free_nbytes", lambda: 1_500_000)
    wanted = (
        r"a\.npz: expected 2\.0 MB of deflated arrays to fit in memory \(1 files\), got 1\.5 MB "
        r"free; select fewer items, or save them with numpy\.savez"
    )
    with pytest.raises(gl.ReadError, match=wanted):
        source[0]
    with pytest.raises(gl.ReadError, match=wanted):
        next(iter(gl.DataLoader(source)))
    assert inflations == []


def test_stored_members_take_no_memory(tmp_path):
    np.savez(tmp_path / "a.npz", x=GRID)
    assert gl.open(tmp_path / "a.npz").catalog.contents is None


@each_way
def test_fingerprints_tell_members_of_one_shape_apart(tmp_path, save):
    save(tmp_path / "a.npz", x=GRID, y=GRID)
    prints = [gl.open(tmp_path / "a.npz", key=key).fingerprint() for key in ("x", "y", "x")]
    assert prints[0] == prints[2] != prints[1]


# ---- What is wrong with a file


def damage(path: Path, at: int, by: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= by
    path.write_bytes(data)


def encrypted(path: Path) -> None:
    write_zip(path, {"x.npy": npy(GRID)})
    directory = path.read_bytes().rindex(b"PK\1\2")
    damage(path, directory + 8, by=1)  # the lowest of the flags


def without_local_header(path: Path) -> None:
    np.savez(path, x=GRID)
    damage(path, 0)
    path.write_bytes(b"PK\3\4" + b"\0" * 60 + path.read_bytes())  # members are where they are not


def past_the_end(path: Path) -> None:
    write_zip(path, {"x.npy": npy(GRID)})
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\1\2")
    struct.pack_into("<II", data, directory + 20, 1 << 20, 1 << 20)
    path.write_bytes(data)


BAD = {
    "no key": (
        lambda p: np.savez(p, x=GRID, y=GRID),
        {},
        r"a\.npz: expected one array, got keys \['x', 'y'\]; pass key= one of them",
    ),
    "positional arrays": (
        lambda p: np.savez(p, GRID, GRID),
        {},
        r"got keys \['arr_0', 'arr_1'\]; pass key=",
    ),
    "many keys": (
        lambda p: np.savez(p, **{f"k{i}": np.zeros(1) for i in range(40)}),
        {},
        r"'k11'\] and 28 more; pass key=",
    ),
    "another key": (
        lambda p: np.savez(p, x=GRID, y=GRID),
        {"key": "z"},
        r"a\.npz: expected a key 'z', got keys \['x', 'y'\]",
    ),
    "an empty archive": (lambda p: np.savez(p), {}, "expected an array, got an empty archive"),
    "no arrays": (
        lambda p: write_zip(p, {"README.txt": b"hello", "a.csv": b"1"}),
        {"key": "x"},
        "expected a key 'x', got an archive of 2 other files",
    ),
    "text": (
        lambda p: p.write_text("1 2 3\n"),
        {},
        r"a\.npz: expected an NPZ file, got a file of 6 bytes that is not one; save it with",
    ),
    "nothing": (lambda p: p.touch(), {}, "expected an NPZ file, got a file of 0 bytes that is not"),
    "HDF5": (
        lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 600),
        {},
        r"a\.npz: expected an NPZ file, got an HDF5 file; this version reads NPY and NPZ$",
    ),
    "a truncated archive": (
        lambda p: np.savez(p, GRID) or os.truncate(p, 300),
        {},
        r"expected an NPZ file, got 300 bytes without a directory of members .*; the file was trun",
    ),
    "an encrypted member": (encrypted, {}, r"a\.npz::x: expected a plain member, got an encrypted"),
    "bzip2": (
        lambda p: write_zip(p, {"x.npy": npy(GRID)}, zipfile.ZIP_BZIP2),
        {},
        r"a\.npz::x: expected a member that is stored or deflated, got compression bzip2; save it",
    ),
    "a member that is not there": (
        without_local_header,
        {},
        r"a\.npz::x: expected a member at byte \d+, got none; the file is damaged",
    ),
    "a member past the end": (
        past_the_end,
        {},
        r"a\.npz::x: expected 1048576 bytes at byte \d+, got a file of \d+ bytes; the file is dam",
    ),
    "a member of text": (
        lambda p: write_zip(p, {"x.npy": b"1 2 3\n"}),
        {},
        r"a\.npz::x: expected an NPY file .*, got a file of 6 bytes that is not one",
    ),
    "an empty member": (
        lambda p: write_zip(p, {"x.npy": b""}),
        {},
        r"a\.npz::x: expected an NPY header of at least 10 bytes, got a file of 0 bytes",
    ),
    "a member cut in its header": (
        lambda p: write_zip(p, {"x.npy": npy(GRID)[:50]}),
        {},
        r"a\.npz::x: expected an NPY header of at least 128 bytes, got a file of 50 bytes",
    ),
    "a deflated member cut in its data": (
        lambda p: write_zip(p, {"x.npy": npy(GRID)[:200]}, zipfile.ZIP_DEFLATED),
        {},
        r"a\.npz::x: expected 608 bytes by its header \(shape \(6, 5, 4\)\), got 200; the file",
    ),
    "another version of NPY": (
        lambda p: write_zip(p, {"x.npy": b"\x93NUMPY\x09\0" + npy(GRID)[8:]}),
        {},
        r"a\.npz::x: expected NPY version 1\.0, 2\.0 or 3\.0, got unsupported version 9\.0",
    ),
    "long doubles": (
        lambda p: np.savez(p, x=np.zeros(3, np.longdouble)),
        {},
        r"a\.npz::x: expected one of bool, .*, got float128",
    ),
    "NPY and a key": (
        lambda p: p.write_bytes(npy(GRID)),
        {"key": "x"},
        r"a\.npz: expected an NPZ file for the key 'x', got an NPY file; leave out the key",
    ),
}


@pytest.mark.parametrize(("make", "arguments", "match"), BAD.values(), ids=BAD)
def test_a_bad_archive_is_named_with_what_is_wrong(tmp_path, make, arguments, match):
    make(tmp_path / "a.npz")
    with pytest.raises(gl.FormatError, match=match) as caught:
        gl.open(tmp_path / "a.npz", **arguments)
    assert "\n" not in str(caught.value)
    np.savez(tmp_path / "b.npz", **{arguments.get("key", "x"): GRID})
    good = gl.open(tmp_path, on_error="skip", **arguments)
    assert [Path(path).name for path in good.paths] == ["b.npz"]
    assert len(good.errors) == 1


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(gl.MissingError, match=r"a\.npz: expected a file, .*, got nothing there"):
        gl.open(tmp_path / "a.npz")
    (tmp_path / "a.npz").symlink_to(tmp_path / "gone.npz")
    with pytest.raises(gl.MissingError, match=r'a\.npz: expected a readable file, got "No such'):
        gl.open(tmp_path)


def test_npy_files_named_npz_are_read_and_the_reverse_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(npy(GRID))
    np.testing.assert_array_equal(gl.open(tmp_path / "a.npz")[0].numpy(), GRID)
    np.savez(tmp_path / "b.npz", GRID)
    assert len(gl.open(tmp_path)) == 2
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(gl.FormatError, match=r"b\.npy: expected an NPY .*, got an NPZ file; name"):
        gl.open(tmp_path / "b.npy")
    (tmp_path / "b.npy").rename(tmp_path / "b.data")
    np.testing.assert_array_equal(gl.open(tmp_path / "b.data")[0].numpy(), GRID)


def test_hdf5_files_named_npy_are_named(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 600)
    with pytest.raises(gl.FormatError, match=r"a\.npy: .*, got an HDF5 file; this version reads"):
        gl.open(tmp_path / "a.npy")


def test_npy_and_npz_files_are_not_mixed(tmp_path):
    np.save(tmp_path / "0.npy", GRID)
    np.savez(tmp_path / "1.npz", GRID)
    with pytest.raises(gl.FormatError, match=r"1\.npz: expected \.npy as of .*0\.npy, got \.npz"):
        gl.open(tmp_path)
    with pytest.raises(gl.FormatError, match=r"0\.npy: expected \.npz as of .*1\.npz, got \.npy"):
        gl.open([tmp_path / "1.npz", tmp_path / "0.npy"])


def test_archives_of_other_kinds_are_compared(tmp_path):
    np.savez(tmp_path / "0.npz", x=GRID)
    np.savez_compressed(tmp_path / "1.npz", x=GRID.astype(np.int32))
    with pytest.raises(gl.FormatError, match=r"1\.npz::x: expected float32 as in .*0\.npz::x, got"):
        gl.open(tmp_path)


def test_saved_headers_are_for_npy_files_alone(tmp_path):
    np.savez(tmp_path / "a.npz", GRID)
    with pytest.raises(ValueError, match=r"index: expected None for NPZ files such as .*a\.npz, "):
        gl.open(tmp_path / "a.npz", index=tmp_path / "headers.npz")


def test_headers_saved_beside_the_data_are_no_data(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", GRID)
    for _ in range(3):
        assert len(gl.open(tmp_path, index=tmp_path / "headers.npz")) == 3
    assert len(gl.open(f"{tmp_path}/*", index=tmp_path / "headers.npz")) == 3


def big_deflated(tmp_path: Path) -> Path:
    random = np.random.default_rng(0).integers(0, 100, 100_000, np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=random)
    return tmp_path / "a.npz"


def test_damaged_bytes_are_found_when_they_are_inflated(tmp_path):
    path = big_deflated(tmp_path)
    directory = path.read_bytes().rindex(b"PK\1\2")
    damage(path, directory + 16)  # the CRC
    source = gl.open(path)
    with pytest.raises(gl.FormatError, match=r"a\.npz::x: expected the bytes .*, got CRC-32 \w{8}"):
        source[0]
    damage(path, directory + 16)
    source = gl.open(path)
    damage(path, 40_000)
    with pytest.raises(gl.FormatError, match=r"a\.npz::x: expected the bytes .* file is damaged"):
        source[0]
    damage(path, 40_000)
    assert source[0].shape == (100_000,)


def test_an_archive_that_has_changed_since_is_named(tmp_path):
    path = big_deflated(tmp_path)
    source = gl.open(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(gl.ReadError, match=r"a\.npz: expected \d+ bytes as when .*, got \d+; the"):
        source[0]
    path.unlink()
    with pytest.raises(gl.MissingError, match=r'a\.npz: expected a readable file, got "No such'):
        source[0]


def test_a_stored_archive_that_was_truncated_since_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", GRID)
    source = gl.open(tmp_path / "a.npz")
    os.truncate(tmp_path / "a.npz", 400)
    with pytest.raises(gl.ReadError, match=r"a\.npz: expected \d+ bytes as when the source was op"):
        source[0]


def test_a_member_that_inflates_to_more_than_it_says_is_refused(tmp_path):
    path = big_deflated(tmp_path)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    member = gl.open(path).catalog.contents.members[0]
    small = inflated.Deflated(
        member.path, "x", member.offset, member.stored_nbytes, 5000, info.CRC, member.file_nbytes
    )
    with pytest.raises(gl.FormatError, match="got more than 5000 bytes; the file is damaged"):
        inflated.inflate(small)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_all_bad_files_are_told_of_at_once(tmp_path, suffix):
    for i in range(40):
        if i % 4:
            np.savez(tmp_path / f"{i:02}.npz", GRID)
        else:
            (tmp_path / f"{i:02}.npz").write_text("text")
        if suffix == ".npy":
            data = npy(GRID) if i % 4 else b"text"
            (tmp_path / f"{i:02}.npz").rename(tmp_path / f"{i:02}.npy")
            (tmp_path / f"{i:02}.npy").write_bytes(data)
    with pytest.raises(gl.FormatError, match=f"/00{suffix}: expected an NP. file") as caught:
        gl.open(tmp_path)
    (note,) = caught.value.__notes__
    first, *others = note.splitlines()
    assert first == "and 9 other bad files:"
    assert [Path(line.partition(":")[0]).name for line in others] == [
        f"{i:02}{suffix}" for i in range(4, 40, 4)
    ]
