"""Casts by NumPy and PyTorch: what every pair of element types must give, and values to try."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from gpuload.dtypes import DTYPES

INTEGERS = [name for name in DTYPES if "int" in name]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
PAIRS = [(a, b) for a, b in itertools.product(DTYPES, repeat=2) if a not in COMPLEX or b in COMPLEX]


def stored(name: str) -> np.dtype:
    """NumPy's form of an element type; bfloat16 is kept as its bits."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reference(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """The same cast by NumPy and PyTorch, with float -> integer as documented."""
    wide = from_bfloat16(values) if source == "bfloat16" else values
    with np.errstate(all="ignore"):
        if target == "bfloat16":
            return torch.from_numpy(wide).to(torch.bfloat16).view(torch.uint16).numpy()
        if source in FLOATS and target in INTEGERS:
            return saturate(wide.astype(np.float64), np.dtype(target))
        return wide.astype(target)


def saturate(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Truncate float64 toward zero; what is beyond an integer type becomes its nearest end."""
    info = np.iinfo(dtype)
    inside = (values > float(info.min)) & (values < float(info.max))  # the ends may round up
    out = np.where(inside, values, 0).astype(dtype)
    out[values >= float(info.max)] = info.max
    out[values <= float(info.min)] = info.min
    return out


def assert_same(got: np.ndarray, want: np.ndarray, target: str) -> None:
    """The same bits, but for NaNs, which may be any."""
    assert got.dtype == want.dtype
    as_values = from_bfloat16 if target == "bfloat16" else np.asarray
    parts = [(got, want)]
    if target in COMPLEX:
        parts = [(got.real, want.real), (got.imag, want.imag)]
    for a, b in parts:
        bits = [np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (a, b)]
        nans = np.isnan(as_values(a)) & np.isnan(as_values(b))
        at = np.flatnonzero((bits[0] != bits[1]) & ~nans)[:5]
        assert not len(at), f"at {at}: got {a[at]}, expected {b[at]}"


def float_samples(dtype: np.dtype) -> np.ndarray:
    info = np.finfo(dtype)
    some = [0.0, 0.5, 0.9, 1.0, 1.23, 1.5, 2.5, 2.999, 127.5, 128, 255, 255.5, 256, 300, 65504]
    some += [65519, 65520, 70000, 1e8, 1e10, 1e18, 1e25, 3.4e38, 3.5e38, math.inf, math.nan]
    some += [float(info.max), float(info.smallest_normal), float(info.smallest_subnormal), 1e-8]
    with np.errstate(over="ignore"):
        powers = (2.0 ** np.arange(-30, 66)).astype(dtype)
        ends = np.concatenate([powers, np.nextafter(powers, dtype.type(0)), np.array(some, dtype)])
    return np.concatenate([ends, -ends])


def samples(name: str) -> np.ndarray:
    """Values at and around every limit, then random ones: more than the native code's blocks."""
    rng = np.random.default_rng(1)
    dtype = stored(name)
    if name == "bool":
        return rng.integers(0, 2, 700).astype(np.bool_)
    if name == "bfloat16":
        limits = float_samples(np.dtype(np.float32))
        bits = torch.from_numpy(limits).to(torch.bfloat16).view(torch.uint16).numpy()
        return np.concatenate([bits, rng.integers(0, 1 << 16, 700, np.uint16)])
    if name in COMPLEX:
        part = samples("float32" if name == "complex64" else "float64")
        return (part[::-1].astype(dtype) * 1j) + np.where(np.isfinite(part), part, 0)
    if name in FLOATS:
        bits = rng.integers(0, 256, 700 * dtype.itemsize, np.uint8).view(dtype)
        return np.concatenate([float_samples(dtype), bits])
    info = np.iinfo(dtype)
    powers = [sign * 2**k + d for k in range(65) for d in (-1, 0, 1) for sign in (1, -1)]
    limits = [n for n in [0, 16777217, *powers] if info.min <= n <= info.max]
    return np.concatenate([np.array(limits, dtype), rng.integers(info.min, info.max, 700, dtype)])
