"""The native parser of NPY headers against the one in Python, and both against NumPy."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npyfile import header, numpy_reads, write_npy

import gpuload as gl
from gpuload import _native
from gpuload.catalog import Paths
from gpuload.sources.npy import parse_header

SPACES = st.sampled_from(["", " ", "  ", "\t", "\n"])
DTYPES = ["|b1", "<i1", "|u1", "<u2", ">i4", "<f2", ">f4", "<f8", "<c8", ">c16", "=i8"]


@st.composite
def legal_headers(draw, dtypes=tuple(DTYPES)):
    """The text of a header, with the dtype and shape that it gives."""
    descr = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    fortran = draw(st.booleans())

    def space() -> str:
        return draw(SPACES)

    def quoted(text: str) -> str:
        quote = draw(st.sampled_from("'\""))
        return f"{quote}{text}{quote}"

    numbers = f"{space()},{space()}".join(map(str, shape))
    last = "," if len(shape) == 1 or (shape and draw(st.booleans())) else ""
    entries = {
        "descr": quoted(descr),
        "fortran_order": str(fortran),
        "shape": f"({space()}{numbers}{space()}{last}{space()})",
    }
    keys = draw(st.permutations(sorted(entries)))
    pairs = [f"{space()}{quoted(key)}{space()}:{space()}{entries[key]}" for key in keys]
    comma = draw(st.sampled_from(["", ",", " , "]))
    text = f"{space()}{{{','.join(pairs)}{comma}{space()}}}{space()}"
    return text, descr, fortran, shape


def scan(*names: str) -> dict[str, np.ndarray]:
    paths = Paths.of(names)
    return _native.scan_npy(paths.blob, paths.ends, 1)


def test_a_header_left_to_python_leaves_nothing_in_the_columns(tmp_path):
    long = "x" * 40
    paths = []
    for i, text in enumerate((header(long), header(shape=(1,) * 40), header(shape=(2, "3")))):
        paths.append(str(write_npy(tmp_path / f"{i}.npy", text)))
    columns = scan(*paths)
    assert columns["status"].tolist() == [1, 1, 1]
    assert columns["shape"].size == 0
    assert not columns["descr"].any()
    assert columns["texts"][0].decode() == header(long)


@settings(deadline=None)
@given(legal=legal_headers())
def test_the_native_parser_agrees_with_the_one_in_python(tmp_path_factory, legal):
    text, descr, fortran, shape = legal
    path = write_npy(tmp_path_factory.getbasetemp() / "parsers.npy", text)
    columns = scan(str(path))
    assert columns["status"][0] == 0, "left to Python"
    native = (
        columns["descr"][0].tobytes().rstrip(b"\0").decode(),
        bool(columns["fortran"][0]),
        tuple(columns["shape"][0, : columns["ndim"][0]].tolist()),
    )
    assert native == (descr, fortran, shape)
    assert native == parse_header(text.encode(), 1, "a.npy")


@settings(deadline=None)
@given(
    legal=legal_headers(),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    padding=st.integers(0, 200),
    more=st.integers(0, 20),
)
def test_any_legal_form_is_read_as_numpy_does(tmp_path_factory, legal, version, padding, more):
    text, descr, _, shape = legal
    nbytes = int(np.prod(shape)) * np.dtype(descr).itemsize
    data = np.random.default_rng(nbytes).integers(0, 2, nbytes + more, np.uint8).tobytes()
    path = tmp_path_factory.getbasetemp() / "legal.npy"
    write_npy(path, text, data, version=version, data_at=len(text) + 13 + padding)
    want = numpy_reads(path)
    got = gl.open(path)[0].numpy()
    np.testing.assert_array_equal(got, want.astype(want.dtype.newbyteorder("=")), strict=True)


@settings(deadline=None)
@given(
    legal=legal_headers(dtypes=("<f4", ">i2", "|u1")),
    edits=st.lists(
        st.tuples(
            st.integers(0, 90),
            st.integers(0, 2),
            st.text(st.sampled_from("{}()[],:'\"0159 LfFTrue<>\\-_#x\n\0ué"), max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_damaged_header_is_read_as_numpy_does_or_refused(tmp_path_factory, legal, edits):
    text = legal[0]
    for at, n_cut, added in edits:
        text = text[:at] + added + text[at + n_cut :]
    path = write_npy(tmp_path_factory.getbasetemp() / "damaged.npy", text, bytes(2000))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except Exception:  # NumPy raises many kinds here
        with pytest.raises(gl.FormatError, match="expected "):
            gl.open(path)
        return
    if want.dtype.kind in "biufc" and want.dtype.name != "float128":
        got = gl.open(path)[0].numpy()
        np.testing.assert_array_equal(got, want.astype(want.dtype.newbyteorder("=")))
    else:
        with pytest.raises(gl.FormatError, match="expected "):
            gl.open(path)
