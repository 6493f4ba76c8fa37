"""The pad kernel: what lies outside the inner box of a piece is filled as by numpy.pad.

Every (block, thread) of a launch runs on the host; the CPU executor must write the same bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from boxes import GUARD, layouts, view
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.devices import Pad, cpu
from gpuload.devices.arguments import PAD_MODES, pack_pad

WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
VALUE = bytes(range(200, 216))


def numbered(shape, dtype) -> np.ndarray:
    """An array of which neighbours differ."""
    return ((np.arange(math.prod(shape)) % 199) + 1).astype(dtype).reshape(shape)


def slices(begin, extent) -> tuple[slice, ...]:
    return tuple(slice(b, b + e) for b, e in zip(begin, extent, strict=True))


def padded(inner, shape, begin, mode, value) -> np.ndarray:
    """numpy.pad of the inner box to a whole piece."""
    behind = [n - b - e for n, b, e in zip(shape, begin, inner.shape, strict=True)]
    width = list(zip(begin, behind, strict=True))
    if mode == "constant" or 0 in inner.shape:
        out = np.full(shape, value, inner.dtype)
        out[slices(begin, inner.shape)] = inner
        return out
    return np.pad(inner, width, mode=mode) if width else inner


def check(host_kernels, op: Pad, boxes, grid=None) -> None:
    """Fill the inner boxes, launch, and compare all of memory with NumPy and the CPU executor.

    Args:
        boxes: (offset of the piece, begin, extent) for each piece.
    """
    dtype = np.dtype(WIDTHS[op.item_nbytes])
    value = np.frombuffer((op.value + bytes(16))[: op.item_nbytes], dtype)[0]
    dst = op.dst.numpy()
    want = dst.copy()
    for offset, begin, extent in boxes:
        inner = numbered(extent, dtype)
        view(dst, dtype, offset, op.shape, op.dst_stride)[slices(begin, extent)] = inner
        whole = padded(inner, op.shape, begin, op.mode, value)
        view(want, dtype, offset, op.shape, op.dst_stride)[...] = whole
    native = dst.copy()
    launch = pack_pad(op)
    host_kernels.run(launch if grid is None else dataclasses.replace(launch, grid=grid))
    np.testing.assert_array_equal(dst, want)
    cpu.run(dataclasses.replace(op, dst=torch.from_numpy(native)))
    np.testing.assert_array_equal(native, want, "not as the CPU executor")


# ---- Any width, any number of axes

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=4) | st.lists(
    st.integers(1, 2), min_size=5, max_size=8
)


@st.composite
def pads(draw):
    width = draw(st.sampled_from(sorted(WIDTHS)))
    shape = tuple(draw(SHAPES))
    if draw(st.integers(0, 3)) == 0:
        shape = (*shape[:2], draw(st.sampled_from([40, 130, 600])))
    offset, stride, nbytes = draw(layouts(shape, width, may_overlap=False))
    n, step = draw(st.integers(1, 3)), nbytes + draw(st.integers(0, 5))
    is_table = draw(st.booleans())
    boxes = []
    for i in range(n):
        if i == 0 or is_table:
            extent = tuple(draw(st.integers(0 if i == 2 else 1, e)) for e in shape)
            begin = tuple(draw(st.integers(0, e - x)) for e, x in zip(shape, extent, strict=True))
        boxes.append((offset + i * step, begin, extent))
    where = {"begin": begin, "extent": extent}
    if is_table:
        rows = [[*b, *e] for _, b, e in boxes]
        where = {"table": torch.tensor(rows, dtype=torch.int64).reshape(n, -1)}
    op = Pad(
        torch.full((n * step,), GUARD, dtype=torch.uint8),
        width,
        shape,
        stride,
        mode=draw(st.sampled_from(PAD_MODES)),
        value=VALUE[: draw(st.integers(0, width))],
        dst_offset=offset,
        n_pieces=n,
        dst_step=step,
        **where,
    )
    return op, boxes


@settings(deadline=None, max_examples=400)
@given(case=pads())
def test_pieces_are_padded_as_numpy_does(host_kernels, case):
    check(host_kernels, *case)


def dense(shape, width, n=1, **options) -> Pad:
    """Pieces that lie behind one another."""
    stride = np.zeros(shape, WIDTHS[width]).strides
    step = width * math.prod(shape)
    memory = torch.full((n * step,), GUARD, dtype=torch.uint8)
    return Pad(memory, width, shape, stride, n_pieces=n, dst_step=step, **options)


NARROW = [*itertools.product(range(1, 5), range(0, 14, 3), range(14))]


@pytest.mark.parametrize("mode", PAD_MODES)
def test_padding_wider_than_the_array(host_kernels, mode):
    """Reflections of reflections; one element under reflect."""
    for n, before, behind in NARROW:
        op = dense((before + n + behind,), 2, begin=(before,), extent=(n,), mode=mode, value=b"ab")
        check(host_kernels, op, [(0, (before,), (n,))])


KNOWN = {
    "constant": [7, 7, 7, 1, 2, 3, 7, 7, 7, 7],
    "edge": [1, 1, 1, 1, 2, 3, 3, 3, 3, 3],
    "reflect": [2, 3, 2, 1, 2, 3, 2, 1, 2, 3],
    "symmetric": [3, 2, 1, 1, 2, 3, 3, 2, 1, 1],
    "wrap": [1, 2, 3, 1, 2, 3, 1, 2, 3, 1],
}


@pytest.mark.parametrize(("mode", "want"), KNOWN.items(), ids=KNOWN)
def test_known_values(host_kernels, mode, want):
    memory = torch.tensor([0, 0, 0, 1, 2, 3, 0, 0, 0, 0], dtype=torch.uint8)
    op = Pad(memory, 1, (10,), (1,), (3,), (3,), mode=mode, value=b"\7")
    host_kernels.run(pack_pad(op))
    assert memory.tolist() == want


# ---- Rows, packs and blocks


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("offset", range(0, 18, 3))
def test_rows_of_every_length_at_every_byte(host_kernels, width, offset):
    """Constants are stored 16 bytes at a time where that fits, beginning anywhere."""
    for n in (1, 2, 5, 15, 16, 17, 33, 64, 100):
        memory = torch.full((offset + 3 * n * width + 19,), GUARD, dtype=torch.uint8)
        shape, stride = (3, n), (n * width, width)
        op = Pad(memory, width, shape, stride, (1, n // 3), (1, n // 2), "constant", VALUE[:width])
        op = dataclasses.replace(op, dst_offset=offset)
        check(host_kernels, op, [(offset, op.begin, op.extent)])


GRIDS = [(1, 1), (2, 1), (3, 5), (60, 2)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("mode", PAD_MODES)
def test_any_grid_does_all_the_work(host_kernels, mode, grid):
    op = dense((7, 30, 700), 1, n=3, mode=mode, value=b"\5")
    boxes = [((2, 3, 50), (3, 20, 400)), ((0, 0, 0), (7, 30, 700)), ((6, 29, 0), (1, 1, 1))]
    table = torch.tensor([[*begin, *extent] for begin, extent in boxes])
    op = dataclasses.replace(op, table=table)
    assert pack_pad(op).grid[0] > 2
    check(host_kernels, op, [(i * op.dst_step, *box) for i, box in enumerate(boxes)], grid)


def test_more_pieces_than_a_grid_has(host_kernels):
    n = 66_000
    memory = torch.zeros(4 * n, dtype=torch.uint8)
    memory[1::4] = 9
    op = Pad(memory, 1, (4,), (1,), (1,), (1,), "edge", n_pieces=n, dst_step=4)
    assert pack_pad(op).grid[1] < n
    host_kernels.run(pack_pad(op))
    assert memory.unique().tolist() == [9]


def test_a_piece_that_is_all_inside_is_not_touched(host_kernels):
    op = dense((5, 6), 4, n=2, begin=(0, 0), extent=(5, 6), mode="reflect")
    before = op.dst.clone()
    host_kernels.run(pack_pad(op))
    assert torch.equal(op.dst, before)


def test_axes_in_the_order_of_another_layout(host_kernels):
    """Channels last: the dense axis is not the last that is named."""
    inner, width = numbered((3, 4, 5), np.float32), ((0, 0), (2, 1), (1, 3))
    want = np.pad(inner, width, mode="symmetric")
    out = np.zeros((7, 9, 3), np.float32)
    piece = out.transpose(2, 0, 1)
    piece[:, 2:6, 1:6] = inner
    memory = torch.from_numpy(out.reshape(-1).view(np.uint8))
    op = Pad(memory, 4, piece.shape, piece.strides, (0, 2, 1), inner.shape, "symmetric")
    params = pack_pad(op).params
    assert params.dst_stride[params.ndim - 1] == 4
    host_kernels.run(pack_pad(op))
    np.testing.assert_array_equal(piece, want)


# ---- What is refused

REFUSED = {
    "an unknown mode": ({"mode": "mirror"}, "pad: mode: expected one of constant, .*, got mirror"),
    "an element of 3 bytes": ({"item_nbytes": 3}, "pad: expected elements of 1, 2, .* got 3"),
    "a value too long": ({"value": bytes(5)}, "pad: expected a value of 4 bytes, got 5"),
    "a box behind the end": ({"begin": (1, 4)}, r"pad: expected an inner box within \(4, 6\), g"),
    "a box before the start": ({"begin": (-1, 0)}, "pad: expected an inner box within .* got -1"),
    "a negative box": ({"extent": (3, -1)}, "pad: expected an inner box within .* got 0 [+] -1"),
    "a long axis": (
        {"shape": (4, 1 << 31), "extent": (3, 3)},
        r"pad: expected axes of fewer than 2\*\*31 elements, got",
    ),
    "many rows": (
        {"shape": (1 << 30, 1 << 20), "extent": (3, 3)},
        r"pad: expected fewer than 2\*\*32 rows in a box",
    ),
    "nine axes": (
        {"shape": (2,) * 9, "dst_stride": (1,) * 9, "begin": (0,) * 9, "extent": (1,) * 9},
        "pad: expected at most 8 axes that do not lie together, got 9",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_kernel_cannot_take_is_refused(change, message):
    op = dense((4, 6), 4, begin=(1, 0), extent=(3, 3))
    with pytest.raises(ValueError, match=message):
        pack_pad(dataclasses.replace(op, **change))
