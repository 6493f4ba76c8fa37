"""Batches of boxes for the place kernel, and what NumPy and the CPU executor make of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from boxes import GUARD, layouts, view
from casts import COMPLEX, assert_same, from_bfloat16, reference, stored
from hypothesis import strategies as st

from gpuload.devices import Affine, Place, cpu
from gpuload.devices.arguments import pack_place
from gpuload.dtypes import DTYPES

WIDE = {"int32", "uint32", "int64", "uint64", "float64"}  # more than 24 bits of precision
REAL = [name for name in DTYPES if name not in COMPLEX]


@dataclasses.dataclass
class Piece:
    """A box on both sides: offsets and strides in bytes."""

    shape: tuple[int, ...]
    src_offset: int
    src_stride: tuple[int, ...]
    dst_offset: int
    dst_stride: tuple[int, ...]

    def moved(self, src_step: int, dst_step: int) -> Piece:
        return Piece(
            self.shape,
            self.src_offset + src_step,
            self.src_stride,
            self.dst_offset + dst_step,
            self.dst_stride,
        )


def operation(src, dst, pair, **options) -> Place:
    numbers = [DTYPES[name].number for name in pair]
    return Place(torch.from_numpy(src), torch.from_numpy(dst), *numbers, **options)


def place_by_numpy(src, dst, pieces, pair, *, swap=False, affine=None):
    """What `dst` must hold afterwards."""
    want = dst.copy()
    source, target = pair
    for p in pieces:
        elements = np.dtype(f"V{DTYPES[source].nbytes}")
        values = view(src, elements, p.src_offset, p.shape, p.src_stride).copy()
        values = values.reshape(-1).view(stored(source))
        if swap:
            values = values.byteswap()
        if affine is not None:
            values = scaled(values.reshape(p.shape), pair, affine).reshape(-1)
        elif source != target:
            values = reference(values, *pair)
        values = np.ascontiguousarray(values).view(f"V{DTYPES[target].nbytes}").reshape(p.shape)
        view(want, values.dtype, p.dst_offset, p.shape, p.dst_stride)[...] = values
    return want


def scaled(values, pair, affine):
    """(x * scale - mean) / std, each step in the precision that kernels/transform.h states."""
    source, target = pair
    name = "float64" if set(pair) & WIDE else "float32"
    real = np.dtype(name).type
    with np.errstate(all="ignore"):
        x = from_bfloat16(values) if source == "bfloat16" else values
        x = np.asarray(x.astype(real) * real(affine.scale))
        if affine.channels is not None:
            sides = [-1 if axis == affine.axis else 1 for axis in range(x.ndim)]
            mean, std = (c.astype(real).reshape(sides) for c in affine.channels.numpy().T)
            x = np.asarray((x - mean) / std)
        return x if name == target else reference(x, name, target)


def assert_placed(got, want, pieces, target):
    """The same bytes; NaNs may be any where values were cast."""
    outside = np.ones(len(got), bool)
    for p in pieces:
        dtype = stored(target)
        boxes = [
            view(m, f"V{dtype.itemsize}", p.dst_offset, p.shape, p.dst_stride) for m in (got, want)
        ]
        assert_same(*(box.reshape(-1).view(dtype) for box in boxes), target)
        inside = np.zeros_like(got)
        view(inside, f"V{dtype.itemsize}", p.dst_offset, p.shape, p.dst_stride)[...] = np.void(
            b"\1" * dtype.itemsize
        )
        outside &= inside == 0
    np.testing.assert_array_equal(got[outside], want[outside], "bytes outside the box")


def check(host_kernels, op, pieces, pair):
    """Run a launch, and compare it with NumPy and with the CPU executor."""
    src, dst = op.src.numpy(), op.dst.numpy()
    want = place_by_numpy(src, dst, pieces, pair, swap=op.swap, affine=op.affine)
    before, native = src.copy(), dst.copy()
    launch = pack_place(op)
    host_kernels.run(launch)
    if pair[0] == pair[1] and op.affine is None:
        np.testing.assert_array_equal(dst, want)
    else:
        assert_placed(dst, want, pieces, pair[1])
    np.testing.assert_array_equal(src, before)
    cpu.run(dataclasses.replace(op, dst=torch.from_numpy(native)))
    np.testing.assert_array_equal(dst, native, "not as the CPU executor")
    return launch


SHAPES = st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 17, 40]), max_size=5).map(
    lambda shape: tuple(shape) if math.prod(shape) <= 1500 else tuple(shape[:2])
)


def memory(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, nbytes]).integers(0, 256, nbytes, np.uint8)


@st.composite
def batches(draw, pairs):
    """(operation, its pieces, pair) of one to four boxes, said in one of three ways."""
    pair = draw(pairs)
    widths = [DTYPES[name].nbytes for name in pair]
    shape = draw(SHAPES)
    kind = draw(st.sampled_from(["steps", "table", "shapes"]))
    n = draw(st.integers(1, 4))
    dst_offset, dst_stride, dst_nbytes = draw(layouts(shape, widths[1], may_overlap=False))
    src_layout = draw(layouts(shape, widths[0], may_overlap=True))
    dst_step = dst_nbytes + draw(st.integers(0, 9))
    common = {"shape": shape, "dst_stride": dst_stride, "n_pieces": n, "swap": draw(st.booleans())}
    dst = np.full(n * dst_step, GUARD, np.uint8)
    if kind == "steps":
        src_offset, src_stride, src_nbytes = src_layout
        src_step = draw(st.sampled_from([0, src_nbytes, src_nbytes + 3]))
        src = memory(src_nbytes + (n - 1) * src_step)
        pieces = [
            Piece(
                shape, src_offset + i * src_step, src_stride, dst_offset + i * dst_step, dst_stride
            )
            for i in range(n)
        ]
        steps = {"src_step": src_step, "dst_step": dst_step}
        offsets = {"src_offset": src_offset, "dst_offset": dst_offset, "src_stride": src_stride}
        return operation(src, dst, pair, **common, **offsets, **steps), pieces, pair
    pieces, end = [], 0
    for where in draw(st.permutations(range(n))):
        inner, (src_offset, src_stride, src_nbytes) = shape, src_layout
        if kind == "shapes":
            inner = tuple(draw(st.integers(0, extent)) for extent in shape)
            src_offset, src_stride, src_nbytes = draw(layouts(inner, widths[0], may_overlap=True))
        at = dst_offset + where * dst_step
        pieces.append(Piece(inner, end + src_offset, src_stride, at, dst_stride))
        end += src_nbytes
    rows = [
        [p.src_offset - 5, p.dst_offset - 7, *(p.shape + p.src_stride) * (kind == "shapes")]
        for p in pieces
    ]
    where = {"src_offset": 5, "dst_offset": 7, "src_stride": src_layout[1]}
    table = torch.tensor(rows, dtype=torch.int64)
    return operation(memory(end), dst, pair, **common, **where, table=table), pieces, pair


@st.composite
def scaled_batches(draw, pairs):
    pair = draw(pairs)
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 33]), min_size=0, max_size=4)))
    if math.prod(shape) > 3000:
        shape = shape[:2]
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    channels = None
    if draw(st.booleans()):
        n_channels = 1 if axis is None else shape[axis]
        rng = np.random.default_rng(n_channels)
        columns = [rng.normal(0, 100, n_channels), rng.uniform(0.01, 30, n_channels)]
        channels = torch.from_numpy(np.stack(columns, axis=1))
    scale = draw(st.sampled_from([1.0, 1 / 255, 0.1, -3.7, 1e-3]))
    widths = [DTYPES[name].nbytes for name in pair]
    src_offset, src_stride, src_nbytes = draw(layouts(shape, widths[0], may_overlap=True))
    dst_offset, dst_stride, dst_nbytes = draw(layouts(shape, widths[1], may_overlap=False))
    n = draw(st.integers(1, 3))
    op = operation(
        memory(n * src_nbytes),
        np.full(n * dst_nbytes, GUARD, np.uint8),
        pair,
        shape=shape,
        src_stride=src_stride,
        dst_stride=dst_stride,
        src_offset=src_offset,
        dst_offset=dst_offset,
        n_pieces=n,
        src_step=src_nbytes,
        dst_step=dst_nbytes,
        swap=draw(st.booleans()),
        affine=Affine(scale, channels, axis),
    )
    pieces = [
        Piece(
            shape, src_offset + i * src_nbytes, src_stride, dst_offset + i * dst_nbytes, dst_stride
        )
        for i in range(n)
    ]
    return op, pieces, pair
