"""NPY files as items: rows of files, members, and files that are damaged or do not fit together."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from npyfile import header, write_npy

import gpuload as gl

# ---- Rows of files as items


@pytest.fixture
def uneven(tmp_path):
    """Files of 5, 5 and 3 rows of 2; each row holds its number among all rows, twice."""
    rows = np.repeat(np.arange(13), 2).reshape(13, 2)
    for i, part in enumerate((rows[:5], rows[5:10], rows[10:])):
        np.save(tmp_path / f"{i}.npy", part)
    return tmp_path


def test_rows_of_uneven_files_are_items(uneven):
    source = gl.open(uneven, sample_axis=0)
    assert len(source) == 13
    assert [source[i].tolist() for i in range(13)] == [[i, i] for i in range(13)]
    assert source[-1].tolist() == [12, 12]
    assert source[-13].tolist() == [0, 0]
    assert source.shapes.tolist() == [[2]] * 13
    assert source.paths[12] == str(uneven / "2.npy")
    assert source.paths[9:11] == [str(uneven / "1.npy"), str(uneven / "2.npy")]
    assert source.nbytes == 13 * 16


@pytest.mark.parametrize("i", [13, -14, 2**70])
def test_a_row_past_the_end_is_an_index_error(uneven, i):
    with pytest.raises(IndexError, match=rf"source: expected an index of \[-13, 13\), got {i}"):
        gl.open(uneven, sample_axis=0)[i]


def test_one_row_reads_only_its_own_bytes(uneven):
    source = gl.open(uneven, sample_axis=0)
    with gl.DataLoader(source, sampler=[7], io="pread") as loader:
        assert [batch.tolist() for batch in loader] == [[[7, 7]]]
        assert loader.stats().read_nbytes == 16


def test_files_without_rows_among_others_are_passed_over(uneven):
    np.save(uneven / "0a.npy", np.zeros((0, 2), int))
    np.save(uneven / "9.npy", np.zeros((0, 2), int))
    source = gl.open(uneven, sample_axis=0)
    assert [source[i][0].item() for i in range(len(source))] == list(range(13))


def test_files_without_any_rows_are_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 2)))
    with pytest.raises(
        gl.FormatError, match=r"a\.npy: expected at least one row along sample_axis"
    ):
        gl.open(tmp_path, sample_axis=0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_lie_along_any_axis(tmp_path, axis, order):
    array = np.arange(24).reshape(2, 3, 4)
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    source = gl.open(tmp_path, sample_axis=axis)
    assert len(source) == array.shape[axis]
    for i in range(len(source)):
        np.testing.assert_array_equal(source[i], array.take(i, axis))


def test_rows_of_another_shape_name_both_files_and_shapes(uneven):
    np.save(uneven / "3.npy", np.zeros((4, 3), int))
    wanted = r"3\.npy: expected rows like those of .*0\.npy \(5, 2\), got \(4, 3\); pass on_error="
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(uneven, sample_axis=0)


# ---- Damaged files, as interrupted copies and full disks leave them


@pytest.fixture
def hundred(tmp_path):
    """(10, 10) int32 in 528 bytes."""
    path = tmp_path / "hundred.npy"
    np.save(path, np.arange(100, dtype=np.int32).reshape(10, 10))
    assert path.stat().st_size == 528
    return path


CUTS = {
    "150 bytes are missing": (
        378,
        r"expected 528 bytes .*shape \(10, 10\)\), got 378; the file wa",
    ),
    "one byte is missing": (
        527,
        r"expected 528 bytes by its header .*, got 527; the file was trun",
    ),
    "only the header": (128, "expected 528 bytes by its header .*, got 128"),
    "within the header": (40, "header of at least 128 bytes, got a file of 40 bytes; the file was"),
    "within the length of the header": (9, "header of at least 10 bytes, got a file of 9 bytes"),
    "within the magic": (3, "expected an NPY header of at least 10 bytes, got a file of 3 bytes"),
    "nothing": (0, "expected an NPY header of at least 10 bytes, got a file of 0 bytes"),
}


@pytest.mark.parametrize(("nbytes", "wanted"), CUTS.values(), ids=CUTS)
def test_a_truncated_file_names_its_path_and_both_sizes(hundred, nbytes, wanted):
    os.truncate(hundred, nbytes)
    for sample_axis in (None, 0):  # rows that are whole do not help
        with pytest.raises(gl.FormatError, match=r"/hundred\.npy: .*" + wanted) as caught:
            gl.open(hundred, sample_axis=sample_axis)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [b"\0", b"abc", bytes(5000)], ids=len)
def test_bytes_behind_the_data_do_no_harm(hundred, more):
    with hundred.open("ab") as file:
        file.write(more)
    np.testing.assert_array_equal(gl.open(hundred)[0], np.arange(100).reshape(10, 10))


@pytest.mark.parametrize("text", ["1 2 3\n4 5 6\n", "x", "\x93NUMBY\1\0v\0"])
def test_a_file_that_is_no_npy_file_is_named(tmp_path, text):
    (tmp_path / "a.npy").write_bytes(text.encode("latin1"))
    wanted = (
        rf"/a\.npy: expected an NPY file .* got a file of {len(text)} bytes that is not one; sa"
    )
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(tmp_path)


def test_a_pipe_named_like_an_array_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(gl.GpuloadError, match=r"a\.npy: expected"):
        gl.open(tmp_path)


def test_a_list_with_a_missing_file_names_it(hundred):
    gone = hundred.with_name("gone.npy")
    with pytest.raises(FileNotFoundError, match=r"gone\.npy: expected"):
        gl.open([hundred, gone])


# ---- Nothing is ever unpickled


class Bomb:
    """Makes a marker file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_an_object_array_is_refused_and_no_code_runs(tmp_path):
    marker = tmp_path / "marker"
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}, None, Bomb(marker)], object), allow_pickle=True)
    for arguments in ({}, {"member": "a"}, {"sample_axis": 0}, {"dtype": "bfloat16"}):
        with pytest.raises(TypeError, match=r"a\.npy: .* an object array, pickle is not loaded"):
            gl.open(path, **arguments)
    assert not marker.exists()
    with path.open("rb") as file:  # the bomb is live
        file.seek(128)
        pickle.load(file)
    assert marker.exists()


def test_a_file_that_is_a_pickle_is_refused_and_no_code_runs(tmp_path):
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with pytest.raises(gl.FormatError, match="expected an NPY file"):
        gl.open(tmp_path / "a.npy")
    assert not (tmp_path / "marker").exists()


def test_objects_in_a_member_are_refused_even_beside_the_one_asked_for(tmp_path):
    record = np.array([(1.0, None)], [("x", "f4"), ("o", "O")])
    np.save(tmp_path / "a.npy", record, allow_pickle=True)
    with pytest.raises(TypeError, match="object array, pickle is not loaded"):
        gl.open(tmp_path / "a.npy", member="x")


# ---- Element types

UNSUPPORTED = {
    "S4": np.array([b"ab"], "S4"),
    "U4": np.array(["ab"], "U4"),
    "datetime64": np.array(["2020-01-01"], "M8[D]"),
    "timedelta64": np.array([1], "m8[s]"),
    "float128": np.array([1], np.longdouble),
    "complex256": np.array([1], np.clongdouble),
    "V2": np.array([b"ab"], "V2"),
    "V5": np.array([b"abcde"], "V5"),
    "object": np.array([None], object),
}


@pytest.mark.parametrize(("name", "array"), UNSUPPORTED.items(), ids=UNSUPPORTED)
@pytest.mark.parametrize("as_member", [False, True], ids=["plain", "member"])
def test_an_unsupported_dtype_is_a_type_error_at_open(tmp_path, name, array, as_member):
    if as_member:
        array, plain = np.zeros(1, [("n", "i4"), ("x", array.dtype)]), array
        array["x"] = plain
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(TypeError, match=rf"a\.npy: expected .*{name}") as caught:
        gl.open(tmp_path / "a.npy", member="x" if as_member else None)
    assert isinstance(caught.value, gl.FormatError)


def test_two_byte_voids_are_bfloat16_when_told_so(tmp_path):
    want = torch.tensor([1.1640625, -2.0, float("inf"), 3e38]).to(torch.bfloat16)
    bits = want.view(torch.int16).numpy().view("V2")
    np.save(tmp_path / "a.npy", bits)
    np.save(tmp_path / "b.npy", np.rec.fromarrays([[0] * 4, bits], names="n,x"))
    for name in ("bfloat16", torch.bfloat16):
        source = gl.open(tmp_path / "a.npy", dtype=name)
        assert source.dtype == torch.bfloat16
        assert torch.equal(source[0], want)
    assert torch.equal(gl.open(tmp_path / "b.npy", member="x", dtype="bfloat16")[0], want)
    with pytest.raises(TypeError, match=r'a\.npy: .* \|V2; .* pass dtype="bfloat16" to gpuload'):
        gl.open(tmp_path / "a.npy", dtype="float16")


# ---- Members of records

INNER = np.dtype([("b", ">i2"), ("c", "<f4", (2, 3))])
PADDED = np.dtype(
    {
        "names": ["n", "a", "v"],
        "formats": ["<i8", INNER, ("<f8", (2,))],
        "offsets": [3, 16, 50],
        "itemsize": 77,
    }
)
MEMBERS = {
    "n": lambda t: t["n"],
    "a.b": lambda t: t["a"]["b"],
    "a.c": lambda t: t["a"]["c"],
    "v": lambda t: t["v"],
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("member", "field"), MEMBERS.items(), ids=MEMBERS)
def test_a_member_of_a_padded_record_is_read(tmp_path, member, field, order):
    raw = np.random.default_rng(0).integers(0, 64, 6 * PADDED.itemsize, np.uint8)
    table = np.asarray(raw.view(PADDED).reshape(2, 3), order=order)
    np.save(tmp_path / "a.npy", table)
    want = field(np.load(tmp_path / "a.npy"))
    source = gl.open(tmp_path / "a.npy", member=member)
    assert source.shapes.tolist() == [list(want.shape)]
    assert source.nbytes == want.nbytes
    np.testing.assert_array_equal(source[0], want)
    rows = gl.open(tmp_path / "a.npy", member=member, sample_axis=0)
    np.testing.assert_array_equal(rows[1], want[1])


BAD_MEMBERS = {
    "none": (None, r"got a structured dtype; pass member= one of n, a\.b, a\.c, v$"),
    "half of a nested one": ("a", r"got a structured dtype; pass member= one of b, a?"),
    "unknown": ("x", "expected a structured dtype with a member 'x', got"),
    "unknown within": ("a.x", "expected a structured dtype with a member 'x', got"),
    "below a leaf": ("n.x", "expected a structured dtype with a member 'x', got int64"),
    "empty": ("", r"got a structured dtype; pass member= one of n, "),
}


@pytest.mark.parametrize(("member", "wanted"), BAD_MEMBERS.values(), ids=BAD_MEMBERS)
def test_a_bad_member_is_named(tmp_path, member, wanted):
    np.save(tmp_path / "a.npy", np.zeros(2, PADDED))
    with pytest.raises(gl.FormatError, match=r"a\.npy: .*" + wanted):
        gl.open(tmp_path / "a.npy", member=member)


def test_a_member_inside_an_array_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2, [("a", [("b", "f4")], (3,))]))
    with pytest.raises(
        gl.FormatError, match=r"expected a member that is not inside an array, got 'a"
    ):
        gl.open(tmp_path / "a.npy", member="a.b")


# ---- Files that do not fit together

MIXED = {
    "dtypes": (
        np.zeros((2, 3), "f8"),
        r"expected float32 as in .*0\.npy, got float64; pass on_err",
    ),
    "kinds": (np.zeros((2, 3), "i4"), r"expected float32 as in .*0\.npy, got int32; pass on_error"),
    "ranks": (np.zeros((2, 3, 1), "f4"), r"2 axes as in .*0\.npy \(2, 3\), got 3 \(2, 3, 1\); pas"),
    "records": (np.zeros((2, 3), [("a", "f4")]), "expected plain numbers, got a structured dtype"),
}


@pytest.mark.parametrize(("other", "wanted"), MIXED.values(), ids=MIXED)
def test_files_that_do_not_fit_together_name_both(tmp_path, other, wanted):
    np.save(tmp_path / "0.npy", np.zeros((2, 3), "f4"))
    np.save(tmp_path / "1.npy", other)
    with pytest.raises(gl.FormatError, match=r"/1\.npy: .*" + wanted):
        gl.open(tmp_path)


def test_records_of_another_layout_are_named(tmp_path):
    np.save(tmp_path / "0.npy", np.zeros(2, [("a", "f4"), ("b", "i4")]))
    np.save(tmp_path / "1.npy", np.zeros(2, [("b", "i4"), ("a", "f4")]))
    with pytest.raises(
        gl.FormatError, match=r"1\.npy: expected the record layout of .*0\.npy, got"
    ):
        gl.open(tmp_path, member="a")


def test_shapes_and_memory_orders_and_byte_orders_may_differ(tmp_path):
    arrays = [np.arange(6, dtype="<i4").reshape(2, 3), np.arange(8, dtype=">i4").reshape(4, 2)]
    arrays.append(np.asfortranarray(np.arange(10, dtype=">i4").reshape(5, 2)))
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    source = gl.open(tmp_path)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(source[i], array)


def test_skip_leaves_bad_files_out_and_lists_them(tmp_path):
    for i in range(7):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[i % 2] / f"{i}.npy", np.full((2, 3), i, np.float32))
    os.truncate(tmp_path / "a" / "0.npy", 130)
    (tmp_path / "b" / "3.npy").write_text("text")
    np.save(tmp_path / "b" / "5.npy", np.zeros(3, np.float32))
    write_npy(tmp_path / "a" / "4.npy", header("|O", (1,)), b"12345678")
    source = gl.open(tmp_path, on_error="skip")
    assert [int(x[0, 0]) for x, _ in source] == [2, 6, 1]
    assert source.labels.tolist() == [0, 0, 1]
    assert source.classes == ["a", "b"]
    assert [message.partition(":")[0] for message in source.errors] == [
        str(tmp_path / name) for name in ("a/0.npy", "a/4.npy", "b/3.npy", "b/5.npy")
    ]
    assert source.summary().splitlines()[-1].startswith("left out: 4 files, such as ")
    assert source.select([0]).errors == source.errors


def test_skip_with_nothing_left_says_so(tmp_path):
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_text("text")
    wanted = r"expected at least one readable file of 2, got none; first: .*a\.npy: expected an NPY"
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(tmp_path, on_error="skip")


def test_labels_given_for_all_files_follow_those_that_are_left(tmp_path):
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.full(2, i))
    (tmp_path / "1.npy").write_text("text")
    source = gl.open(tmp_path, on_error="skip", labels=[10, 11, 12, 13])
    assert [(int(x[0]), int(y)) for x, y in source] == [(0, 10), (2, 12), (3, 13)]
