"""Casts between all element types: the values of NumPy and PyTorch; float -> integer saturates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from casts import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    PAIRS,
    assert_same,
    from_bfloat16,
    reference,
    samples,
    stored,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl
from gpuload import _native
from gpuload.dtypes import DTYPES


def convert(values: np.ndarray, source: str, target: str, *, swap=False, step=None) -> np.ndarray:
    """Cast a vector by the native code; with `step`, from elements that many bytes apart."""
    width = values.dtype.itemsize
    step = step or width
    records = np.zeros(len(values), [("value", values.dtype), ("gap", f"V{step - width}")])
    records["value"] = values
    if swap:
        records["value"] = values.byteswap()
    out = np.zeros(len(values), stored(target))
    _native.place(
        out.ctypes.data,
        records.ctypes.data,
        DTYPES[source].number,
        DTYPES[target].number,
        [len(values)],
        [out.itemsize],
        [step],
        swap,
    )
    return out


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_every_pair_of_types_in_both_byte_orders_dense_and_strided(source, target):
    values = samples(source)
    want = reference(values, source, target)
    for swap, gap in itertools.product((False, True), (0, 1, 8)):
        got = convert(values, source, target, swap=swap, step=values.itemsize + gap)
        assert_same(got, want, target)


# ---- Exhaustive

EVERY_16_BITS = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("target", [n for n in DTYPES if n not in COMPLEX])
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_every_two_byte_float_to_every_type(source, target):
    values = EVERY_16_BITS.view(stored(source))
    assert_same(convert(values, source, target), reference(values, source, target), target)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("through", ["float32", "float64"])
def test_every_two_byte_float_survives_the_way_there_and_back(source, through):
    values = EVERY_16_BITS.view(stored(source))
    back = convert(convert(values, source, through), through, source)
    assert_same(back, values, source)


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_every_rounding_edge_of_float16(source):
    with np.errstate(all="ignore"):
        halves = EVERY_16_BITS.view(np.float16).astype(source)
        finite = np.sort(halves[np.isfinite(halves)])
        ties = np.append((finite[1:] + finite[:-1]) / 2, [65520, -65520]).astype(source)
        inf = np.array(np.inf, source)
        edges = [finite, ties, np.nextafter(ties, inf), np.nextafter(ties, -inf)]
        values = np.concatenate([*edges, np.nextafter(finite, inf), np.nextafter(finite, -inf)])
    assert_same(convert(values, source, "float16"), reference(values, source, "float16"), "float16")


def test_float64_to_float16_is_rounded_once():
    # A hair above a tie: by way of float32 it would be taken for the tie and go to the even side.
    values = np.array([1 + 2**-11 + 2**-40, 1 + 3 * 2**-11 - 2**-40, 2**-25 + 2**-60])
    want = np.array([1 + 2**-10, 1 + 2**-10, 2**-24], np.float16)
    np.testing.assert_array_equal(convert(values, "float64", "float16"), want)
    np.testing.assert_array_equal(values.astype(np.float16), want)


def test_every_rounding_edge_of_bfloat16():
    high = EVERY_16_BITS.astype(np.uint32) << 16
    lows = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    values = np.concatenate([high | low for low in lows]).view(np.float32)
    want = reference(values, "float32", "bfloat16")
    assert_same(convert(values, "float32", "bfloat16"), want, "bfloat16")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = values.astype(np.float64)
    assert_same(convert(wide, "float64", "bfloat16"), want, "bfloat16")


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_floats_around_the_ends_of_integers_saturate(source, target):
    info = np.iinfo(target)
    values = []
    for end in (info.min, info.max, info.max + 1, 0):
        for more in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2):
            with np.errstate(over="ignore"):
                near = np.float32(end + more) if source == "bfloat16" else stored(source).type(end)
            values += [near, np.nextafter(near, type(near)(0)), near + more]
    with np.errstate(all="ignore"):
        values = np.array(values, np.float64)
        bits = convert(values, "float64", source)
    exact = (from_bfloat16(bits) if source == "bfloat16" else bits).astype(np.float64)
    want = [
        0
        if math.isnan(v)
        else min(max(math.trunc(v) if math.isfinite(v) else v, info.min), info.max)
        for v in exact.tolist()
    ]
    want = [info.max if v == math.inf else info.min if v == -math.inf else v for v in want]
    assert convert(bits, source, target).tolist() == want


# ---- Known hard values

HARD = {
    "float32 to uint8": (
        np.array([-1, -1.23, 0.9, 255, 256, 300, 1e10, np.nan, np.inf], np.float32),
        "uint8",
        [0, 0, 0, 255, 255, 255, 255, 0, 255],
    ),
    "int32 to uint8 wraps": (np.array([300, 1_000_000, -1], np.int32), "uint8", [44, 64, 255]),
    "float64 to float16": (np.array([70000, 65504, 1e-8]), "float16", [np.inf, 65504, 0]),
    "int64 to float32": (np.array([16777217]), "float32", [16777216]),
    "float to int64 truncates": (np.array([0.5, 1.5, -0.5, 2.999]), "int64", [0, 1, 0, 2]),
    "uint16 to float32": (
        np.array([0, 1, 32767, 32768, 65535], np.uint16),
        "float32",
        [0, 1, 32767, 32768, 65535],
    ),
    "uint32 to float64": (
        np.array([0, 2**31, 2**32 - 1], np.uint32),
        "float64",
        [0, 2147483648, 4294967295],
    ),
    "NaN to bool is true": (np.array([0.0, -0.0, np.nan, 1e-45], np.float32), "bool", [0, 0, 1, 1]),
}


@pytest.mark.parametrize(("values", "target", "want"), HARD.values(), ids=HARD)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_hard_values_come_out_of_a_loader_as_documented(tmp_path, io, values, target, want):
    np.save(tmp_path / "a.npy", values)
    with gl.DataLoader(gl.open(tmp_path / "a.npy"), dtype=target, io=io) as loader:
        (batch,) = loader
    assert batch.dtype == getattr(torch, target)
    np.testing.assert_array_equal(batch[0].numpy(), np.array(want, target))


# ---- From files

FILES = [
    ("uint16", "float32"),
    ("float32", "uint8"),
    ("float64", "float32"),
    ("float32", "float16"),
]
FILES += [("int16", "bfloat16"), ("bool", "float32"), ("float16", "float64"), ("int64", "int16")]
FILES += [("complex64", "complex128"), ("float32", "complex64"), ("float32", "bool")]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("source", "target"), FILES, ids=[f"{a}-{b}" for a, b in FILES])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_casts_from_files_of_every_layout(tmp_path, io, source, target):
    values = samples(source)[:600].reshape(20, 30)
    want = reference(values.reshape(-1), source, target).reshape(20, 30)
    for byte_order, order, member in itertools.product("<>", "CF", (None, "x")):
        array = np.asarray(values.astype(values.dtype.newbyteorder(byte_order)), order=order)
        if member:
            table = np.zeros(array.shape, [("n", "u1"), ("x", array.dtype), ("m", "V2")], order)
            table["x"] = array
            array = table
        np.save(tmp_path / "a.npy", array)
        opened = gl.open(tmp_path / "a.npy", member=member)
        crop = gl.CenterCrop((7, 11))
        with gl.DataLoader(opened, dtype=target, io=io, crop=crop, extras="start") as loader:
            (batch,) = loader
        top, left = batch.start[0].tolist()
        got = batch.x[0]
        if target == "bfloat16":
            got = got.view(torch.uint16)
        part = want[top : top + 7, left : left + 11]
        assert_same(got.numpy().reshape(-1), part.reshape(-1), target)


@pytest.mark.parametrize("spec", ["float32", np.float32, np.dtype("<f4"), torch.float32, "f4"])
def test_a_type_may_be_named_in_every_usual_way(tmp_path, spec):
    np.save(tmp_path / "a.npy", np.arange(3))
    (batch,) = gl.DataLoader(gl.open(tmp_path / "a.npy"), dtype=spec)
    assert batch.dtype == torch.float32


@pytest.mark.parametrize("spec", ["float31", "S4", object, np.longdouble, torch.qint8, 3], ids=str)
def test_a_type_that_is_none_is_refused_with_those_there_are(tmp_path, spec):
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(TypeError, match=r"dtype: expected one of bool, uint8, .*complex128, got "):
        gl.DataLoader(gl.open(tmp_path / "a.npy"), dtype=spec)


@pytest.mark.parametrize("target", ["float32", "int64", "bool"])
@pytest.mark.parametrize("stored_as", ["<c8", ">c16"])
def test_complex_to_real_is_a_type_error_at_construction(tmp_path, stored_as, target):
    np.save(tmp_path / "a.npy", np.zeros(3, stored_as))
    source = gl.open(tmp_path / "a.npy")
    with pytest.raises(TypeError, match=r"dtype: expected complex64 or complex128 for complex.* d"):
        gl.DataLoader(source, dtype=target)


# ---- Anything


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@settings(deadline=None, max_examples=200)
@given(
    pair=st.sampled_from([p for p in PAIRS if p[0] != "bool"]),
    n=st.sampled_from([1, 2, 3, 15, 16, 17, 31, 255, 256, 257, 511, 512, 513, 1000]),
    seed=st.integers(0, 2**32 - 1),
    swap=st.booleans(),
    gap=st.sampled_from([0, 0, 1, 3, 4, 8, 100]),
)
def test_random_bits_are_cast_as_numpy_and_torch_do(pair, n, seed, swap, gap):
    source, target = pair
    dtype = stored(source)
    values = np.random.default_rng(seed).integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)
    got = convert(values, source, target, swap=swap, step=dtype.itemsize + gap)
    assert_same(got, reference(values, source, target), target)
