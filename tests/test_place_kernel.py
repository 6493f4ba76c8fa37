"""The place kernel: boxes of a batch as NumPy copies, casts and scales them, and as the CPU does.

Every (block, thread) of a launch runs on the host.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from boxes import GUARD, view
from casts import PAIRS, samples
from hypothesis import given, settings
from hypothesis import strategies as st
from placed import Piece, batches, check, memory, operation, place_by_numpy

from gpuload.devices import Affine
from gpuload.devices.arguments import pack_place, place_kernel
from gpuload.dtypes import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


# ---- Batches of boxes, anywhere


@settings(deadline=None, max_examples=150)
@given(batch=batches(st.sampled_from([(name, name) for name in DTYPES])))
def test_batches_of_one_type_are_copied_as_numpy_does(host_kernels, batch):
    check(host_kernels, *batch)


@settings(deadline=None, max_examples=150)
@given(batch=batches(st.sampled_from(PAIRS)))
def test_batches_are_cast_as_numpy_does(host_kernels, batch):
    check(host_kernels, *batch)


# ---- Every pair of types

PLACES = {  # (source offset, source stride beyond an element, destination offset, and stride)
    "both sides aligned": (0, 0, 0, 0),
    "source unaligned": (1, 0, 0, 0),
    "destination unaligned": (0, 0, 3, 0),
    "aligned to elements, not to packs": (16, 0, 16, 0),
    "source strided": (0, 16, 0, 0),
    "destination strided": (0, 0, 0, 16),
    "both odd": (5, 3, 7, 5),
}


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_every_pair_of_types_wherever_it_lies(host_kernels, source, target):
    values = samples(source)[:200] if source == target else samples(source)
    n, widths = len(values), [DTYPES[name].nbytes for name in (source, target)]
    for (src_offset, src_gap, dst_offset, dst_gap), swap in itertools.product(
        PLACES.values(), (False, True)
    ):
        steps = widths[0] + src_gap, widths[1] + dst_gap
        src = np.zeros(src_offset + n * steps[0], np.uint8)
        dst = np.full(dst_offset + n * steps[1] + 3, GUARD, np.uint8)
        raw = (values.byteswap() if swap else values).view(f"V{widths[0]}")
        view(src, raw.dtype, src_offset, (n,), steps[:1])[...] = raw
        piece = Piece((n,), src_offset, steps[:1], dst_offset, steps[1:])
        op = operation(
            src,
            dst,
            (source, target),
            shape=(n,),
            src_stride=steps[:1],
            dst_stride=steps[1:],
            src_offset=src_offset,
            dst_offset=dst_offset,
            swap=swap,
        )
        check(host_kernels, op, [piece], (source, target))


# ---- Rows and blocks

ROWS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025]


@pytest.mark.parametrize("pair", [("uint8", "uint8"), ("uint16", "float32"), ("float64", "uint8")])
@pytest.mark.parametrize("n", ROWS)
def test_rows_of_every_length(host_kernels, n, pair):
    """Shorter than a pack, than a group and than a segment, and longer."""
    widths = [DTYPES[name].nbytes for name in pair]
    for rows, gap in ((1, 0), (3, 0), (3, 16), (70, 1)):
        strides = [(n * width + gap, width) for width in widths]
        src, dst = memory(rows * strides[0][0]), np.full(rows * strides[1][0], GUARD, np.uint8)
        op = operation(
            src, dst, pair, shape=(rows, n), src_stride=strides[0], dst_stride=strides[1]
        )
        check(host_kernels, op, [Piece((rows, n), 0, strides[0], 0, strides[1])], pair)


GRIDS = {
    "one block": (1, 1),
    "two blocks, one piece": (2, 1),
    "more blocks than rows": (50, 3),
    "more of both than there are": (7, 11),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("order", ["rows", "across"])
def test_any_grid_does_all_the_work(host_kernels, order, grid):
    """Threads go on with what the grid has no thread for."""
    shape, pair = (9, 23, 301), ("int16", "float32")
    src_stride = (23 * 301 * 2, 602, 2) if order == "rows" else (23 * 301 * 2, 2, 46)
    dst_stride = (23 * 301 * 4 + 8, 1204, 4)
    src, n = memory(9 * 23 * 301 * 2), 9 * dst_stride[0]
    dst = np.full(n, GUARD, np.uint8)
    rows = [[i * src_stride[0], (8 - i) * dst_stride[0]] for i in range(9)]
    op = operation(
        src,
        dst,
        pair,
        shape=shape[1:],
        src_stride=src_stride[1:],
        dst_stride=dst_stride[1:],
        n_pieces=9,
        table=torch.tensor(rows),
    )
    launch = pack_place(op)
    assert launch.grid[0] > 2
    assert launch.grid[1] == 9
    assert launch.params.is_across == (order == "across")
    pieces = [Piece(shape[1:], a, src_stride[1:], b, dst_stride[1:]) for a, b in rows]
    want = place_by_numpy(src, dst, pieces, pair)
    host_kernels.run(dataclasses.replace(launch, grid=grid))
    np.testing.assert_array_equal(dst, want)


def test_more_pieces_than_a_grid_has(host_kernels):
    n = 70_000
    src, dst = memory(n + 3), np.full(3 * n, GUARD, np.uint8)
    table = torch.stack((torch.arange(n), 3 * torch.arange(n)), dim=1)
    pair = ("uint8", "uint8")
    op = operation(
        src, dst, pair, shape=(2,), src_stride=(1,), dst_stride=(1,), n_pieces=n, table=table
    )
    launch = pack_place(op)
    assert launch.grid[1] < n
    host_kernels.run(launch)
    want = np.full((n, 3), GUARD, np.uint8)
    want[:, 0], want[:, 1] = src[:n], src[1 : n + 1]
    np.testing.assert_array_equal(dst, want.reshape(-1))


# ---- Orders of axes

LAYOUTS = [*itertools.permutations(range(3))]


@pytest.mark.parametrize("axes", LAYOUTS, ids=str)
@pytest.mark.parametrize("flip", [(), (0,), (1, 2)], ids=str)
@pytest.mark.parametrize("pair", [("uint8", "float32"), ("float32", "float32")], ids="-".join)
def test_layouts_and_flips(host_kernels, pair, flip, axes):
    """Windows of a batch, flipped at the source, their axes in another order in the batch."""
    shape, n = (5, 19, 33), 4
    stored_values = memory(n * math.prod(shape) * DTYPES[pair[0]].nbytes).view(pair[0])
    array = np.nan_to_num(stored_values).reshape(n, *shape)
    out = np.zeros([n, *(shape[axis] for axis in axes)], pair[1])
    flipped = np.flip(array, [axis + 1 for axis in flip])
    target = out.transpose(0, *(axes.index(axis) + 1 for axis in range(3)))
    offset = flipped.__array_interface__["data"][0] - array.ctypes.data
    bytes_of = (a.reshape(-1).view(np.uint8) for a in (array, out))
    op = operation(
        *bytes_of,
        pair,
        shape=shape,
        src_stride=flipped.strides[1:],
        dst_stride=target.strides[1:],
        src_offset=offset,
        n_pieces=n,
        src_step=flipped.strides[0],
        dst_step=target.strides[0],
    )
    host_kernels.run(pack_place(op))
    np.testing.assert_array_equal(target, flipped.astype(pair[1]))


def test_eight_axes_that_do_not_lie_together(host_kernels):
    shape = (2, 3, 2, 2, 3, 2, 2, 2)
    array = memory(math.prod(2 * n for n in shape)).reshape([2 * n for n in shape])
    part = array[tuple(slice(1, 1 + n) for n in shape)]
    out = np.zeros(shape, np.uint8).transpose(7, 2, 5, 0, 4, 1, 6, 3)
    part = part.transpose(7, 2, 5, 0, 4, 1, 6, 3)
    op = operation(
        array.reshape(-1),
        out.base.reshape(-1),
        ("uint8", "uint8"),
        shape=part.shape,
        src_stride=part.strides,
        dst_stride=out.strides,
        src_offset=part.__array_interface__["data"][0] - array.ctypes.data,
    )
    host_kernels.run(pack_place(op))
    np.testing.assert_array_equal(out, part)


@pytest.mark.parametrize("channel_axis", [None, 0, 1, 8], ids=str)
def test_nine_axes_of_which_one_counts_pieces(host_kernels, channel_axis):
    shape, pair = (2, 3) + (2,) * 6, ("uint8", "float32")
    n, strides = math.prod(shape), [math.prod([2 * n for n in shape][i + 1 :]) for i in range(8)]
    src = memory(3 * strides[0] * 2 * shape[0])
    affine = None
    if channel_axis is not None:
        n_channels = ([3, *shape])[channel_axis]
        channels = torch.arange(1.0, 1 + 2 * n_channels, dtype=torch.float64).reshape(-1, 2)
        affine = Affine(0.5, channels, channel_axis)
    whole = (3, *shape)
    src_stride = (strides[0] * 2 * shape[0], *strides)
    dst_stride = np.zeros(whole, np.float32).strides
    op = operation(
        src,
        np.full(4 * 3 * n, GUARD, np.uint8),
        pair,
        shape=whole,
        src_stride=src_stride,
        dst_stride=dst_stride,
        affine=affine,
    )
    launch = check(host_kernels, op, [Piece(whole, 0, src_stride, 0, dst_stride)], pair)
    assert launch.params.n_pieces > 1


@pytest.mark.parametrize("flip", [(), (0,), (1,), (0, 1)], ids=str)
def test_a_flip_does_not_change_the_way_through_memory(flip):
    array, out = np.zeros((20, 300), np.int16), np.zeros((20, 300), np.int16)
    flipped = np.flip(array, flip)
    op = operation(
        *(a.reshape(-1).view(np.uint8) for a in (array, out)),
        ("int16", "int16"),
        shape=(20, 300),
        src_stride=flipped.strides,
        dst_stride=out.strides,
    )
    params = pack_place(op).params
    assert not params.is_across
    assert params.dst_stride[params.ndim - 1] == 2


# ---- Which kernel, and what is refused


SHARED = {  # types that move the same bits -> their kernel
    ("float32", "float32"): "place_4",
    ("int32", "uint32"): "place_4",
    ("bool", "bool"): "place_1",
    ("bfloat16", "bfloat16"): "place_2",
    ("complex64", "complex64"): "place_complex64_to_complex64",  # its halves are swapped apart
    ("int64", "int16"): "place_uint64_to_uint16",
    ("int16", "uint64"): "place_int16_to_uint64",
    ("uint16", "int64"): "place_uint16_to_uint64",
    ("int8", "bool"): "place_uint8_to_bool",
    ("bool", "int8"): "place_bool_to_uint8",
    ("float32", "int8"): "place_float32_to_int8",  # saturates
    ("int8", "float32"): "place_int8_to_float32",
}


@pytest.mark.parametrize(("pair", "name"), SHARED.items(), ids=map("-".join, SHARED))
def test_types_that_move_the_same_bits_share_a_kernel(pair, name):
    nothing = np.zeros(64, np.uint8)
    op = operation(nothing, nothing, pair, shape=(1,), src_stride=(8,), dst_stride=(8,))
    assert place_kernel(op).name == name


def test_a_box_of_too_many_rows_is_refused():
    one = np.zeros(1, np.uint8)
    shape = (1 << 16, 1 << 16, 2)
    stride = {"src_stride": (0, 0, 0), "dst_stride": (1 << 20, 4, 1)}
    op = operation(one, one, ("uint8", "uint8"), shape=shape, **stride)
    with pytest.raises(ValueError, match=r"place: expected fewer than 2\*\*32 rows .* smaller win"):
        pack_place(op)


def test_a_box_of_too_many_axes_is_refused():
    one = np.zeros(1, np.uint8)
    strides = {"src_stride": (0,) * 10, "dst_stride": tuple(3**i for i in range(10))}
    op = operation(one, one, ("uint8", "uint8"), shape=(2,) * 10, **strides)
    with pytest.raises(ValueError, match="place: expected at most 8 axes that do not lie together"):
        pack_place(op)
