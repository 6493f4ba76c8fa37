"""The resize kernel: batches of boxes from anywhere in memory to anywhere.

Every (block, thread) of a launch runs on the host; the CPU executor must give the same bits.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from boxes import GUARD, layouts, view
from hypothesis import given, settings
from hypothesis import strategies as st
from interpolation import interpolate

from gpuload.devices import Resize, cpu
from gpuload.devices.arguments import RESIZE_MODES, pack_resize
from gpuload.dtypes import DTYPES

TYPES = ("uint8", "float32", "float64", "int16")


@st.composite
def batches(draw):
    """(operation, [(source offset, shape, strides), ...], destination offsets) of 1 to 3 pieces."""
    name = draw(st.sampled_from(TYPES))
    dtype, width = np.dtype(name), np.dtype(name).itemsize
    ndim = draw(st.integers(1, 4))
    axes = tuple(sorted(draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=3))))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
    kind, n = draw(st.sampled_from(["steps", "table", "shapes"])), draw(st.integers(1, 3))

    def source():
        inner = tuple(draw(st.integers(1, 7)) if i in axes else e for i, e in enumerate(shape))
        offset, stride, nbytes = draw(layouts(inner, width, may_overlap=True))
        return inner, offset, stride, nbytes

    dst_offset, dst_stride, dst_nbytes = draw(layouts(shape, width, may_overlap=False))
    dst_step = dst_nbytes + draw(st.integers(0, 3))
    first = source()
    gap, end = draw(st.integers(0, 3)), 0
    sources = []
    for i in range(n):
        inner, offset, stride, nbytes = source() if kind == "shapes" and i else first
        sources.append((end + offset, inner, stride))
        end += nbytes + gap
    where = {"src_step": first[3] + gap, "dst_step": dst_step, "src_offset": first[1]}
    if kind != "steps":
        rows = [
            [offset - 3, i * dst_step, *(inner + stride) * (kind == "shapes")]
            for i, (offset, inner, stride) in enumerate(sources)
        ]
        where = {"table": torch.tensor(rows, dtype=torch.int64), "src_offset": 3}
    seed = draw(st.integers(0, 100))
    memory = np.zeros(end + 16, np.uint8)
    numbers = np.random.default_rng(seed).integers(0, 100, len(memory) // width + 1).astype(dtype)
    memory[:] = numbers.view(np.uint8)[: len(memory)]
    op = Resize(
        torch.from_numpy(memory),
        torch.full((n * dst_step,), GUARD, dtype=torch.uint8),
        DTYPES[name].number,
        DTYPES[name].number,
        shape,
        first[0],
        first[2],
        dst_stride,
        axes,
        draw(st.sampled_from(RESIZE_MODES)),
        dst_offset=dst_offset,
        swap=draw(st.booleans()),
        n_pieces=n,
        **where,
    )
    return op, sources, [dst_offset + i * dst_step for i in range(n)], dtype


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@settings(deadline=None, max_examples=300)
@given(case=batches())
def test_batches_from_anywhere_to_anywhere(host_kernels, case):
    """Sources of one shape or of many, unaligned, flipped, of either byte order."""
    check(host_kernels, *case)


def check(host_kernels, op, sources, targets, dtype) -> None:
    """Run a launch, and compare it with torch and with the CPU executor."""
    src = op.src.numpy()
    for offset, shape, stride in sources:  # numbers, whichever bytes they share
        box = view(src, dtype, offset, shape, stride)
        box[...] = np.arange(box.size).reshape(shape) * 7 % 101
    if op.swap:
        for box in [view(src, f"V{dtype.itemsize}", *source) for source in sources]:
            swapped = box.copy().reshape(-1).view(dtype).byteswap().view(box.dtype)
            box[...] = swapped.reshape(box.shape)
    order = dtype.newbyteorder() if op.swap else dtype
    inputs = [view(src, order, *source).astype(dtype) for source in sources]
    want, before = op.dst.numpy().copy(), src.copy()
    native = op.dst.clone()
    host_kernels.run(pack_resize(op))
    got = op.dst.numpy().copy()
    for at, values in zip(targets, inputs, strict=True):
        extents = tuple(op.shape[axis] for axis in op.axes)
        with np.errstate(all="ignore"):
            exact = interpolate(values.astype(np.float64), op.axes, extents, op.mode)
        where = dtype, at, op.shape, op.dst_stride
        box = view(got, *where)
        finite = np.isfinite(exact)
        reach = np.abs(exact[finite]).max(initial=1)
        rounding = 0.5 if dtype.kind in "iu" else 0
        off = np.abs(box.astype(np.float64) - exact)[finite]
        assert off.max(initial=0) <= rounding + 1e-5 * reach
        view(want, *where)[...] = box
    np.testing.assert_array_equal(got, want, "bytes outside the boxes")
    np.testing.assert_array_equal(src, before)
    cpu.run(dataclasses.replace(op, dst=native))
    np.testing.assert_array_equal(native.numpy(), got, "not as the CPU executor")


GRIDS = [(1, 1), (2, 1), (50, 3)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_does_all_the_work(host_kernels, grid):
    values = np.random.default_rng(0).uniform(0, 1, (3, 20, 30)).astype(np.float32)
    out = np.zeros((3, 40, 500), np.float32)
    op = Resize(
        torch.from_numpy(values.reshape(-1).view(np.uint8)),
        torch.from_numpy(out.reshape(-1).view(np.uint8)),
        DTYPES["float32"].number,
        DTYPES["float32"].number,
        out.shape[1:],
        values.shape[1:],
        values.strides[1:],
        out.strides[1:],
        (0, 1),
        n_pieces=3,
        table=torch.tensor([[i * values.strides[0], i * out.strides[0]] for i in range(3)]),
    )
    launch = pack_resize(op)
    assert launch.grid[0] > 2
    assert launch.grid[1] == 3
    host_kernels.run(dataclasses.replace(launch, grid=grid))
    np.testing.assert_allclose(out, interpolate(values, (1, 2), (40, 500), "linear"), atol=1e-5)


def test_an_empty_source_gives_zeros(host_kernels):
    """Of a batch of many shapes: what is delivered is never what memory held before."""
    for mode in RESIZE_MODES:
        op = Resize(
            torch.ones(8, dtype=torch.uint8),
            torch.full((8,), GUARD, dtype=torch.uint8),
            1,
            1,
            (4,),
            (8,),
            (1,),
            (1,),
            (0,),
            mode,
            n_pieces=2,
            table=torch.tensor([[0, 0, 0, 1], [0, 4, 8, 1]]),
        )
        host_kernels.run(pack_resize(op))
        assert op.dst.tolist() == [0] * 4 + [1] * 4
