"""The resize kernel: the numbers of torch.nn.functional.interpolate, for every real type.

Every (block, thread) of a launch runs on the host; the CPU executor must give the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from casts import COMPLEX, FLOATS, INTEGERS, from_bfloat16, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from interpolation import NEAREST, interpolate

from gpuload.devices import Resize, cpu
from gpuload.devices.arguments import RESIZE_MODES, pack_resize
from gpuload.dtypes import DTYPES

REAL = [name for name in DTYPES if name not in COMPLEX]


def resize(host_kernels, values, axes, extents, mode, name=None, to=None) -> np.ndarray:
    """Resize an array, given and returned as stored; the CPU executor must agree."""
    name = name or values.dtype.name
    to = to or name
    shape = list(values.shape)
    for axis, n in zip(axes, extents, strict=True):
        shape[axis] = n
    out = np.zeros(shape, stored(to))
    numbers = [DTYPES[n].number for n in (name, to)]
    op = Resize(
        torch.from_numpy(np.ascontiguousarray(values).reshape(-1).view(np.uint8)),
        torch.from_numpy(out.reshape(-1).view(np.uint8)),
        *numbers,
        tuple(shape),
        values.shape,
        np.ascontiguousarray(values).strides,
        out.strides,
        tuple(axes),
        mode,
    )
    host_kernels.run(pack_resize(op))
    native = np.zeros_like(out)
    cpu.run(dataclasses.replace(op, dst=torch.from_numpy(native.reshape(-1).view(np.uint8))))
    assert out.tobytes() == native.tobytes(), "not as the CPU executor"
    return out


# ---- Known numbers

F4 = np.float32
KNOWN = {
    "nearest 5 to 3": (np.arange(5, dtype=F4), 3, "nearest", [0, 1, 3]),
    "nearest 5 to 2": (np.arange(5, dtype=F4), 2, "nearest", [0, 2]),
    "nearest 5 to 8": (np.arange(5, dtype=F4), 8, "nearest", [0, 0, 1, 1, 2, 3, 3, 4]),
    "nearest-exact 5 to 3": (np.arange(5, dtype=F4), 3, "nearest-exact", [0, 2, 4]),
    "nearest-exact 5 to 2": (np.arange(5, dtype=F4), 2, "nearest-exact", [1, 3]),
    "nearest-exact 5 to 8": (np.arange(5, dtype=F4), 8, "nearest-exact", [0, 0, 1, 2, 2, 3, 4, 4]),
    "linear 10 to 1": (np.arange(10, dtype=F4), 1, "linear", [4.5]),
    "linear 4 to 8": (
        np.arange(4, dtype=F4),
        8,
        "linear",
        [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3],
    ),
    "uint8 rounds to nearest": (np.array([0, 255], np.uint8), 3, "linear", [0, 128, 255]),
    "nearest of int64": (np.arange(5) << 40, 3, "nearest", [0, 1 << 40, 3 << 40]),
    "nearest of uint16": (np.arange(5, dtype=np.uint16), 3, "nearest", [0, 1, 3]),
    "labels are copied": (np.array([0, 0, 4, 4]), 8, "nearest", [0, 0, 0, 0, 4, 4, 4, 4]),
    "labels are blended when asked": (
        np.array([0, 0, 4, 4]),
        8,
        "linear",
        [0, 0, 0, 1, 3, 4, 4, 4],
    ),
    "large integers stay what they are": (
        np.full(3, 2**24 + 1, np.int32),
        7,
        "linear",
        [2**24 + 1] * 7,
    ),
    "bool": (np.array([False, True]), 4, "linear", [False, False, True, True]),
    "area 5 to 2": (np.arange(5, dtype=F4), 2, "area", [1, 3]),
}


@pytest.mark.parametrize(("values", "n", "mode", "want"), KNOWN.values(), ids=KNOWN)
def test_known_numbers(host_kernels, values, n, mode, want):
    got = resize(host_kernels, values, (0,), (n,), mode)
    assert got.dtype == values.dtype
    np.testing.assert_allclose(got, want, atol=1e-6)


KNOWN_2D = {
    "linear to 3x1": ((3, 1), "linear", [3.1667, 8.5, 13.8333]),
    "linear to 2x2": ((2, 2), "linear", [3.5, 5.5, 11.5, 13.5]),
    "antialias to 2x2": ((2, 2), "antialias", [4.5714, 6.1429, 10.8571, 12.4286]),
}


@pytest.mark.parametrize(("extents", "mode", "want"), KNOWN_2D.values(), ids=KNOWN_2D)
def test_known_numbers_of_two_axes(host_kernels, extents, mode, want):
    values = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    got = resize(host_kernels, values, (0, 1), extents, mode)
    np.testing.assert_allclose(got.reshape(-1), want, atol=1e-4)


# ---- As torch

EXTENTS = [1, 2, 3, 4, 5, 7, 8, 11, 16, 30, 33]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_one_axis_of_every_extent_to_every_extent(host_kernels, mode, dtype):
    rng = np.random.default_rng(0)
    for source, n in itertools.product(EXTENTS, repeat=2):
        values = rng.uniform(-100, 100, (3, source)).astype(dtype)
        got = resize(host_kernels, values, (1,), (n,), mode)
        want = interpolate(values, (1,), (n,), mode)
        assert got.dtype == want.dtype
        if mode in NEAREST:
            np.testing.assert_array_equal(got, want, f"{source} to {n}")
        else:
            np.testing.assert_allclose(got, want, atol=200e-5, err_msg=f"{source} to {n}")


@pytest.mark.parametrize("mode", NEAREST)
def test_the_nearest_element_is_found_as_torch_finds_it(host_kernels, mode):
    """torch counts in float32: its choice at half-way points, and where they are missed."""
    for source in (*range(1, 130), 999, 1024, 4097):
        values = np.arange(source, dtype=np.float32)
        for n in (1, 2, 3, source // 2 + 1, source - 1, source, source + 1, 2 * source, 100, 257):
            if n > 0:
                got = resize(host_kernels, values, (0,), (n,), mode)
                want = interpolate(values[None], (1,), (n,), mode)[0]
                np.testing.assert_array_equal(got, want, f"{source} to {n}")


@st.composite
def resizes(draw):
    shape = tuple(
        draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 7, 9, 12]), min_size=1, max_size=4))
    )
    axes = draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=3))
    extents = tuple(draw(st.sampled_from([1, 2, 3, 5, 6, 8, 13])) for _ in axes)
    return shape, tuple(sorted(axes)), extents, draw(st.sampled_from(RESIZE_MODES))


@settings(deadline=None, max_examples=300)
@given(case=resizes(), seed=st.integers(0, 1000))
def test_up_to_three_axes_of_a_box(host_kernels, case, seed):
    shape, axes, extents, mode = case
    values = np.random.default_rng(seed).uniform(0, 1, shape).astype(np.float32)
    got = resize(host_kernels, values, axes, extents, mode)
    want = interpolate(values, axes, extents, mode)
    if mode in NEAREST:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, atol=1e-5)


# ---- Every type


def some_values(name: str, shape, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """As stored, and as float64."""
    rng = np.random.default_rng(seed)
    if name == "bool":
        values = rng.integers(0, 2, shape).astype(np.bool_)
    elif name in INTEGERS:
        info = np.iinfo(name)
        low, high = (max(info.min, -(2**40)), min(info.max, 2**40))
        values = rng.integers(low, high, shape, dtype=name, endpoint=True)
    else:
        values = rng.uniform(-300, 300, shape)
        if name == "bfloat16":
            values = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
            return values, from_bfloat16(values).astype(np.float64)
        values = values.astype(name)
    return values, values.astype(np.float64)


def tolerance(name: str, exact: np.ndarray) -> float:
    """1e-5 of the range of values, and half a step of the delivered type."""
    reach = float(np.ptp(exact)) or 1.0
    if name in INTEGERS:
        return 0.5 + 1e-5 * reach
    half_step = {"float16": 2**-11, "bfloat16": 2**-8}.get(name, 0) * float(np.abs(exact).max())
    return half_step + 1e-5 * reach


@pytest.mark.parametrize("mode", RESIZE_MODES)
@pytest.mark.parametrize("name", REAL)
def test_every_type_in_both_forms(host_kernels, name, mode):
    """As itself and as float32, against the result in float64."""
    stored_values, wide = some_values(name, (2, 9, 10))
    axes, extents = (1, 2), (5, 17)
    for to in dict.fromkeys((name, "float32")):
        got = resize(host_kernels, stored_values, axes, extents, mode, name, to)
        if mode in NEAREST:
            want = interpolate(np.arange(180.0).reshape(2, 9, 10), axes, extents, mode)
            picked = stored_values.reshape(-1)[want.astype(int)]
            if to != name:
                picked = (from_bfloat16(picked) if name == "bfloat16" else picked).astype(
                    np.float32
                )
            np.testing.assert_array_equal(got, picked.astype(got.dtype))
            continue
        exact = interpolate(wide, axes, extents, mode)
        values = from_bfloat16(got) if to == "bfloat16" else got
        if to == "bool":
            sure = np.abs(exact - 0.5) > 1e-5
            np.testing.assert_array_equal(values[sure], (exact > 0.5)[sure])
        else:
            off = np.abs(values.astype(np.float64) - exact).max()
            assert off <= tolerance(to, exact)


@pytest.mark.parametrize("name", [*INTEGERS, "bool", *FLOATS])
@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_one_value_everywhere_stays(host_kernels, name, mode):
    """Weights add up to one, and no type loses digits on the way."""
    limits = [np.iinfo(name).min, np.iinfo(name).max] if name in INTEGERS else [1]
    for value in limits:
        if name in ("int64", "uint64"):
            value = value >> 20  # far within what float64 holds
        if name == "bfloat16":
            value = 0x4049  # 3.14
        values = np.full((6, 7), value, stored(name))
        got = resize(host_kernels, values, (0, 1), (4, 11), mode, name)
        if name in FLOATS and name != "bfloat16":
            np.testing.assert_allclose(got, values[0, 0], rtol=1e-3 if name == "float16" else 1e-6)
        else:
            np.testing.assert_array_equal(got, values[0, 0])


# ---- What is refused

REFUSED = {
    "an unknown mode": ({"mode": "cubic"}, "resize: mode: expected one of nearest, .* got cubic"),
    "an axis twice": ({"axes": (0, 0)}, r"resize: expected at most 3 axes, each once, got \(0"),
    "four axes": ({"axes": (0, 1, 2, 3)}, "resize: expected at most 3 axes, each once"),
    "a carried axis of another extent": (
        {"axes": (0,)},
        "resize: expected 6 elements along axis 1",
    ),
    "an empty source": ({"src_shape": (4, 0)}, r"resize: expected a source of 1 element or more"),
    "another type": ({"to_dtype": 1}, "resize: expected real values, .* got float32 to uint8"),
    "complex values": ({"from_dtype": 13, "to_dtype": 13}, "resize: expected real values"),
    "a long axis": ({"src_shape": (4, 1 << 31)}, r"resize: expected axes of fewer than 2\*\*31"),
    "many rows": ({"shape": (1 << 30, 1 << 20)}, r"resize: expected fewer than 2\*\*32 rows"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_kernel_cannot_take_is_refused(change, message):
    memory = torch.zeros(16, dtype=torch.uint8)
    number = DTYPES["float32"].number
    op = Resize(memory, memory, number, number, (4, 7), (4, 6), (24, 4), (28, 4), (0, 1), "linear")
    with pytest.raises(ValueError, match=message):
        pack_resize(dataclasses.replace(op, **change))
