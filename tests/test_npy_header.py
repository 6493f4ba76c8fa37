"""Headers of NPY files: every legal form is understood as NumPy does, every other is refused."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from npyfile import MAGIC, header, numpy_reads, write_npy

import gpuload as gl

DATA = np.array([1.5, -2.0, 3.25], "<f4").tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
def test_versions_1_to_3_are_read(tmp_path, version):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    np.testing.assert_array_equal(gl.open(tmp_path / "a.npy")[0], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("version", [(4, 0), (0, 0), (1, 1), (3, 1), (255, 255)], ids=str)
def test_other_versions_are_refused_by_number(tmp_path, version):
    path = write_npy(tmp_path / "a.npy", header(), DATA, version=version)
    wanted = rf"a\.npy: expected NPY version 1.0, 2.0 or 3.0, got .* {version[0]}\.{version[1]}$"
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(path)


LEGAL = {
    "other key order": "{'shape': (3,), 'fortran_order': False, 'descr': '<f4'}",
    "double quotes": '{"descr": "<f4", "fortran_order": False, "shape": (3,)}',
    "mixed quotes": "{\"descr\": '<f4', 'fortran_order': False, \"shape\": (3,)}",
    "no spaces": "{'descr':'<f4','fortran_order':False,'shape':(3,)}",
    "many spaces": " { 'descr'  :\t'<f4' , 'fortran_order' : False ,\n 'shape' : ( 3 , ) } ",
    "no last comma": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
    "last comma": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,),}",
    "trailing newlines": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\n\n",
    "a longer shape with a last comma": "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3,)}",
    "no axes": "{'descr': '<f4', 'fortran_order': False, 'shape': ()}",
    "no elements": "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7)}",
    "Python 2's unicode keys": "{u'descr': u'<f4', u'fortran_order': False, u'shape': (3,)}",
    "Python 2's whole numbers": "{'descr': '<f4', 'fortran_order': False, 'shape': (3L,)}",
    "Python 2's long shape": "{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 3L)}",
    "hexadecimal": "{'descr': '<f4', 'fortran_order': False, 'shape': (0x3,)}",
    "binary": "{'descr': '<f4', 'fortran_order': False, 'shape': (0b1_1,)}",
    "a repeated key: the last one holds": (
        "{'shape': (9,), 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}"
    ),
    "text in two parts": "{'des' 'cr': '<f' '4', 'fortran_order': False, 'shape': (3,)}",
    "an escape": r"{'desc\x72': '<f4', 'fortran_order': False, 'shape': (3,)}",
    "a comment": "{'descr': '<f4', # four bytes\n 'fortran_order': False, 'shape': (3,)}",
    "brackets around": "({'descr': '<f4', 'fortran_order': False, 'shape': (3,)})",
    "no byte order": "{'descr': 'f4', 'fortran_order': False, 'shape': (3,)}",
    "native byte order": "{'descr': '=f4', 'fortran_order': False, 'shape': (3,)}",
    "a dtype by its name": "{'descr': 'float32', 'fortran_order': False, 'shape': (3,)}",
    "a long name of a dtype": (
        "{'descr': 'float32', 'fortran_order': False, 'shape': (3,), 'descr': 'complex64'}"
    ).replace("(3,)", "(1,)"),
}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
@pytest.mark.parametrize("text", LEGAL.values(), ids=LEGAL)
def test_unusual_but_legal_headers_are_read_as_numpy_does(tmp_path, text, version):
    if "Python 2's" in next(name for name, t in LEGAL.items() if t == text) and version[0] == 3:
        version = (2, 0)  # Python 2 never wrote version 3
    path = write_npy(tmp_path / "a.npy", text, DATA, version=version)
    np.testing.assert_array_equal(gl.open(path)[0].numpy(), numpy_reads(path), strict=True)


def test_an_array_as_element_adds_its_axes_behind(tmp_path):
    text = header(("<f4", (3, 2)), (4,))
    data = np.arange(24, dtype="<f4")
    path = write_npy(tmp_path / "a.npy", text, data.tobytes())
    np.testing.assert_array_equal(gl.open(path)[0], data.reshape(4, 3, 2))


@pytest.mark.parametrize("data_at", [68, 69, 70, 79, 128, 511, 512, 513, 4096, 16384, 65535 + 10])
def test_data_may_begin_at_any_byte(tmp_path, data_at):
    text = "{'descr':'<f4','fortran_order':False,'shape':(3,)}"
    path = write_npy(tmp_path / "a.npy", text, DATA, data_at=data_at)
    assert path.stat().st_size == data_at + len(DATA)
    np.testing.assert_array_equal(gl.open(path)[0], numpy_reads(path))


@pytest.mark.parametrize(
    ("version", "name"),
    [((3, 0), "mesuré"), ((3, 0), "温度"), ((1, 0), "grün")],
    ids=["accent", "beyond Latin-1", "Latin-1 in version 1"],
)
def test_fields_may_have_accents(tmp_path, version, name):
    record = np.array([(1, 2.5), (3, 4.5)], [("n", "<i2"), (name, "<f8")])
    path = write_npy(
        tmp_path / "a.npy",
        header(np.lib.format.dtype_to_descr(record.dtype), (2,)),
        record.tobytes(),
        version=version,
    )
    np.testing.assert_array_equal(gl.open(path, member=name)[0], [2.5, 4.5])


def test_python_2_numbers_do_not_change_the_names_of_fields(tmp_path):
    text = "{'descr': [('10L', '<f4')], 'fortran_order': False, 'shape': (3L,)}"
    path = write_npy(tmp_path / "a.npy", text, DATA)
    np.testing.assert_array_equal(gl.open(path, member="10L")[0], numpy_reads(path)["10L"])


@pytest.mark.parametrize(("n_fields", "version"), [(2000, (1, 0)), (4000, (2, 0))])
def test_a_table_of_thousands_of_fields_is_read_by_member(tmp_path, n_fields, version):
    path = tmp_path / "wide.npy"
    record = np.dtype([(f"field_{i:04}", "<f4") for i in range(n_fields)])
    table = np.arange(3 * n_fields, dtype="<f4").view(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of version 2
        np.save(path, table)
    assert tuple(path.read_bytes()[6:8]) == version
    assert path.stat().st_size > 23 * n_fields + table.nbytes
    for name in (record.names[0], record.names[n_fields // 2], record.names[-1]):
        np.testing.assert_array_equal(gl.open(path, member=name)[0], table[name])


def test_a_wide_table_without_member_lists_its_fields(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2, [("b", "f4"), ("a", [("x", "i2"), ("y", "i2")])]))
    wanted = r"expected plain numbers, got a structured dtype; pass member= one of b, a\.x, a\.y$"
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(tmp_path / "a.npy")


def test_messages_about_wide_tables_stay_short(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(1, [(f"field_{i}", "<f4") for i in range(400)]))
    with pytest.raises(gl.FormatError, match=r"one of field_0, .*, field_11 and 388 more$"):
        gl.open(tmp_path / "a.npy")
    with pytest.raises(gl.FormatError, match=r"'x', got field_0, .*, field_11 and 388 more$"):
        gl.open(tmp_path / "a.npy", member="x")


def test_headers_of_several_forms_and_byte_orders_mix(tmp_path):
    write_npy(tmp_path / "0.npy", LEGAL["other key order"], DATA)
    write_npy(tmp_path / "1.npy", LEGAL["text in two parts"], DATA)
    write_npy(tmp_path / "2.npy", header(">f4"), np.frombuffer(DATA, "<f4").astype(">f4").tobytes())
    write_npy(tmp_path / "3.npy", header(), DATA, version=(3, 0), data_at=4096)
    source = gl.open(tmp_path)
    for tensor in source:
        np.testing.assert_array_equal(tensor, np.frombuffer(DATA, "<f4"))


def test_each_of_many_files_keeps_its_own_shape(tmp_path):
    arrays = [np.full((i % 5, 1 + i % 3), i, np.int16) for i in range(300)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i:03}.npy", np.asfortranarray(array) if i % 2 else array)
    source = gl.open(tmp_path)
    assert source.shapes.tolist() == [list(array.shape) for array in arrays]
    for i in (0, 1, 4, 7, 63, 64, 65, 150, 299):
        np.testing.assert_array_equal(source[i], arrays[i])


# ---- Headers that are not legal, or claim what is not there

ONE_ELEMENT = np.zeros(1, "<f4").tobytes()
BROKEN = {
    "no dictionary": ("hello", r"expected a dictionary in its NPY header, got 'hello'"),
    "a list": ("['descr']", "expected descr, fortran_order and shape in its NPY header"),
    "an open bracket": (header()[:-1], "expected a dictionary in its NPY header"),
    "a call": ("dict(descr='<f4')", "expected a dictionary in its NPY header"),
    "code": ("__import__('os').abort()", "expected a dictionary in its NPY header"),
    "zero bytes": (header() + "\0\0", "expected a dictionary in its NPY header"),
    "two dictionaries": (header() * 2, "expected a dictionary in its NPY header"),
    "empty": ("", "expected a dictionary in its NPY header, got ''"),
    "deep brackets": ("(" * 5000 + ")" * 5000, "expected a dictionary in its NPY header"),
    "a key is missing": ("{'descr': '<f4', 'shape': (1,)}", "expected descr, fortran_order and"),
    "a key too many": (header()[:-1] + "'more': 1}", "expected descr, fortran_order and shape"),
    "a negative axis": (header(shape=(-1, 3)), r"expected axes of 0 or more .* got \(-1, 3\)"),
    "a list as shape": (header(shape=[3]), "expected a tuple of whole numbers .* as its shape"),
    "a number as shape": (header(shape=3), "expected a tuple of whole numbers .* as its shape"),
    "a number in brackets as shape": (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "expected a tuple of whole numbers .* as its shape",
    ),
    "a fraction in the shape": (header(shape=(3.0,)), "expected a tuple of whole numbers"),
    "a truth value in the shape": (header(shape=(True,)), "expected a tuple of whole numbers"),
    "an axis beyond 63 bits": (
        header(shape=(2**70, 0)),
        r"expected .* whole numbers below 2\*\*63",
    ),
    "an axis of a thousand digits": (
        header(shape="X").replace("'X'", "(0x" + "f" * 5000 + ",)"),
        r"expected .* whole numbers below 2\*\*63",
    ),
    "strides beyond 63 bits": (
        header(shape=(2**62, 2**62, 0)),
        r"expected axes that span less than 2\*\*62 bytes, got \(",
    ),
    "33 axes": (header(shape=(1,) * 33), "expected at most 32 axes, got 33"),
    "a thousand large axes": (header(shape=(2**62,) * 1000), "expected at most 32 axes, got 1000"),
    "1 as fortran_order": (header(fortran=1), "expected True or False as fortran_order, got 1"),
    "None as fortran_order": (header(fortran=None), "expected True or False as fortran_order"),
    "no such dtype": (header("<f3"), "expected a NumPy dtype in its header, got '<f3'"),
    "a number as dtype": (header(4), "expected a NumPy dtype in its header, got 4"),
    "None as dtype": (header(None), "expected a NumPy dtype in its header, got None"),
    "a dictionary as dtype": (header({"a": "<f4"}), "expected a NumPy dtype in its header"),
    "a field without a type": (header([("a",)]), "expected a NumPy dtype in its header"),
    "a field named by a number": (header([(1, "<f4")]), "expected a NumPy dtype in its header"),
    "a field twice": (header([("a", "<f4"), ("a", "<f4")]), "expected a NumPy dtype"),
    "an element of 2**70 parts": (header(("<f4", (2**70,))), "expected a NumPy dtype"),
    "a negative axis among thousands": (header(shape=(-1,) * 5000), "expected axes of 0 or more"),
    "a long text as dtype": (header("x" * 5000), "expected a NumPy dtype in its header, got 'x"),
    "a long text as fortran_order": (header(fortran="x" * 5000), "expected True or False as fortr"),
    "too little data": (header(shape=(1000,)), "expected 40[0-9]{2} bytes by its header"),
    "64 bits overflow": (header("<f8", (2**32, 2**32)), r"expected 14757395258967641\d+ bytes"),
    "a shape of 1 TiB": (header("<f8", (2**37,)), r"expected 1099511627\d+ bytes .* got \d+; the"),
}


@pytest.mark.parametrize(("text", "wanted"), BROKEN.values(), ids=BROKEN)
def test_a_broken_header_is_refused_with_its_path(tmp_path, text, wanted):
    path = write_npy(tmp_path / "a.npy", text, ONE_ELEMENT)
    with pytest.raises(gl.FormatError, match=r"a\.npy: " + wanted):
        gl.open(path)


@pytest.mark.parametrize(("text", "wanted"), BROKEN.values(), ids=BROKEN)
def test_a_broken_header_is_refused_after_good_ones_too(tmp_path, text, wanted):
    np.save(tmp_path / "0.npy", np.zeros((1,) * 3, "<f4"))
    write_npy(tmp_path / "1.npy", text, ONE_ELEMENT)
    source = gl.open(tmp_path, on_error="skip")
    assert len(source) == 1
    assert len(source.errors) == 1
    assert source.errors[0].startswith(f"{tmp_path / '1.npy'}: expected ")
    assert "\n" not in source.errors[0]
    assert len(source.errors[0]) < len(str(tmp_path)) + 300


@pytest.fixture
def growth():
    """Measures how many bytes the peak of resident memory lies above the memory at the start."""

    def resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident now
    before = resident("VmRSS")
    return lambda: resident("VmHWM") - before


FOUR_GIB = b"\xff\xff\xff\xff"
CLAIMS = {
    "4 GiB of header in 12 bytes": (MAGIC + b"\2\0" + FOUR_GIB, "at least 4294967307 bytes, got a"),
    "4 GiB of header in version 3": (
        MAGIC + b"\3\0" + FOUR_GIB + b"{'descr'",
        "at least 4294967307 bytes, got a file of 20 bytes; the file was truncated",
    ),
    "64 kB of header": (MAGIC + b"\1\0\xff\xff{", "at least 65545 bytes, got a file of 11 bytes"),
    "2 MiB of header that are there": (
        MAGIC + b"\2\0" + (2 << 20).to_bytes(4, "little") + b" " * (2 << 20),
        "expected an NPY header of at most 1 MiB, got 2097164 bytes",
    ),
    "version 2 without its length": (
        MAGIC + b"\2\0\1\0",
        "at least 12 bytes, got a file of 10 bytes",
    ),
    "version 2 with half its length": (
        MAGIC + b"\2\0\1\0\0",
        "at least 12 bytes, got a file of 11 bytes",
    ),
}


@pytest.mark.parametrize(("content", "wanted"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_beyond_the_file_takes_neither_time_nor_memory(tmp_path, growth, content, wanted):
    (tmp_path / "a.npy").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(gl.FormatError, match=wanted):
        gl.open(tmp_path / "a.npy")
    assert time.perf_counter() - start < 1
    assert growth() < 10 << 20


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**37,), (2**61, 2, 4)], ids=str)
@pytest.mark.parametrize("sample_axis", [None, 0])
def test_a_huge_shape_takes_neither_time_nor_memory(tmp_path, growth, shape, sample_axis):
    path = write_npy(tmp_path / "a.npy", header("<f8", shape), bytes(64))
    start = time.perf_counter()
    with pytest.raises(gl.FormatError, match="the file was truncated or is not written yet"):
        gl.open(path, sample_axis=sample_axis)
    assert time.perf_counter() - start < 1
    assert growth() < 10 << 20


def test_a_trillion_rows_without_elements_take_no_memory(tmp_path, growth):
    path = write_npy(tmp_path / "a.npy", header(shape=(2**40, 0)))
    source = gl.open(path, sample_axis=0)
    assert len(source) == 2**40
    assert source.nbytes == 0
    assert source[2**40 - 1].shape == (0,)
    assert source.paths[2**39] == source.paths[-1] == str(path)
    assert growth() < 10 << 20


def test_axes_whose_product_overflows_after_a_good_file_are_refused(tmp_path):
    np.save(tmp_path / "0.npy", np.zeros((1,) * 20, "<f4"))
    write_npy(tmp_path / "1.npy", header(shape=(2**62,) * 19 + (0,)))
    with pytest.raises(gl.FormatError, match=r"1\.npy: expected axes that span less than"):
        gl.open(tmp_path)
