"""The kernels on a real GPU, beside the CPU device: casts, boxes, pad, resize, unshuffle.

Needs a CUDA device. The first run compiles some 250 kernels, in threads.
"""

from __future__ import annotations

import dataclasses
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from casts import COMPLEX, PAIRS, assert_same, from_bfloat16, samples, stored

from gpuload.devices import Affine, Pad, Place, Resize, Unshuffle
from gpuload.devices.arguments import MAX_PIECES, PAD_MODES, RESIZE_MODES, row_major
from gpuload.devices.cpu import run
from gpuload.devices.programs import FLOATS
from gpuload.dtypes import DTYPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is found"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

REAL = [name for name in DTYPES if name not in COMPLEX]
GUARD = 0xA5
N_BOXES = 60  # random ones
N_PADS = 12  # of each mode
LARGE = (1 << 31) + 4099  # bytes, twice on the device
RESIZE_TOLERANCE = 1e-5


def on_gpu(gpu, operation):
    """Run an operation on the GPU, on copies of its memory. What `dst` holds then, on the host."""
    moved = moved_to(gpu, operation)
    gpu.current_stream().launch(moved)
    return moved.dst.cpu()


def moved_to(gpu, operation):
    parts = {f.name: getattr(operation, f.name) for f in dataclasses.fields(operation)}
    there = {k: v.to(gpu.torch) for k, v in parts.items() if isinstance(v, torch.Tensor)}
    affine = parts.get("affine")
    if affine is not None and affine.channels is not None:
        there["affine"] = dataclasses.replace(affine, channels=affine.channels.to(gpu.torch))
    return dataclasses.replace(operation, **there)


def on_cpu(operation):
    """The same on the CPU device."""
    copied = dataclasses.replace(operation, dst=operation.dst.clone())
    run(copied)
    return copied.dst


def prepare(gpu, operations):
    """Compile what they need, many at a time."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(gpu.prepare, operations))


def bytes_of(array):
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())


def numbers_of(*names):
    return [DTYPES[name].number for name in names]


# ---- Casts


def cast_of(source, target, n=None, *, skip=0, swap=False, affine=None):
    values = samples(source)[:n]
    dst = torch.full((len(values) * DTYPES[target].nbytes + 64,), GUARD, dtype=torch.uint8)
    src = torch.cat([torch.zeros(skip, dtype=torch.uint8), bytes_of(values)])
    return Place(
        src,
        dst,
        *numbers_of(source, target),
        (len(values),),
        (DTYPES[source].nbytes,),
        (DTYPES[target].nbytes,),
        src_offset=skip,
        dst_offset=skip,
        swap=swap,
        affine=affine,
    )


def check_cast(gpu, operation, target):
    got, want = on_gpu(gpu, operation).numpy(), on_cpu(operation).numpy()
    skip, n = operation.dst_offset, operation.shape[0] * DTYPES[target].nbytes
    parts = [part[skip : skip + n].copy().view(stored(target)) for part in (got, want)]
    assert_same(*parts, target)
    assert (got[:skip] == GUARD).all()
    assert (got[skip + n :] == GUARD).all()


@pytest.mark.timeout(300)
def test_every_cast_gives_the_bits_of_the_cpu(gpu):
    prepare(gpu, [cast_of(*pair) for pair in PAIRS])
    for source, target in PAIRS:
        for n in (None, 1, 333):
            check_cast(gpu, cast_of(source, target, n), target)
        check_cast(gpu, cast_of(source, target, skip=3), target)
        check_cast(gpu, cast_of(source, target, swap=True), target)


@pytest.mark.timeout(300)
def test_scaled_values_are_those_of_the_cpu(gpu):
    pairs = [(source, target) for source in REAL for target in FLOATS]
    channels = torch.tensor([[1.5, 0.3]], dtype=torch.float64)
    affines = [Affine(1 / 3), Affine(0.1, channels)]
    prepare(gpu, [cast_of(*pair, affine=affines[0]) for pair in pairs])
    for source, target in pairs:
        for affine in affines:
            check_cast(gpu, cast_of(source, target, affine=affine), target)


def test_channels_are_scaled_one_by_one(gpu):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, (5, 3, 40, 41), np.uint8)
    channels = torch.from_numpy(rng.random((3, 2)) + 0.5)
    for axis_order in ((0, 1, 2, 3), (0, 2, 3, 1)):  # channels first, and last in the batch
        shape = values.shape
        out = np.empty([shape[i] for i in axis_order], np.float32)
        strides = [out.strides[axis_order.index(i)] for i in range(4)]
        operation = Place(
            bytes_of(values),
            bytes_of(out),
            *numbers_of("uint8", "float32"),
            shape,
            values.strides,
            tuple(strides),
            affine=Affine(1 / 255, channels, axis=1),
        )
        assert torch.equal(on_gpu(gpu, operation), on_cpu(operation))


# ---- Boxes


def random_box(rng, table):
    """Windows of a random array, transposed, flipped, in steps, into an array of another order."""
    source, target = (
        str(rng.choice(["uint8", "int16", "float32", "float64", "bfloat16"])) for _ in range(2)
    )
    ndim = int(rng.integers(1, 6))
    shape = tuple(int(n) for n in rng.integers(1, {1: 5000, 2: 90, 3: 25}.get(ndim, 9), ndim))
    size, out_size = DTYPES[source].nbytes, DTYPES[target].nbytes
    steps = [int(n) for n in rng.integers(1, 3, ndim)]
    whole = [n * step + int(rng.integers(0, 3)) for n, step in zip(shape, steps, strict=True)]
    order = rng.permutation(ndim)
    strides = [0] * ndim
    nbytes = size
    for axis in order:
        strides[axis] = nbytes
        nbytes *= whole[axis]
    src_stride = [s * step for s, step in zip(strides, steps, strict=True)]
    offset = int(rng.integers(0, 2)) * size
    begin = offset
    for axis in range(ndim):
        if rng.integers(0, 4) == 0:
            begin += src_stride[axis] * (shape[axis] - 1)
            src_stride[axis] *= -1
    dst_order = rng.permutation(ndim) if rng.integers(0, 2) else np.arange(ndim)
    dst_stride, total = [0] * ndim, out_size
    for axis in reversed(dst_order):
        dst_stride[axis] = total
        total *= shape[axis]
    n_pieces = int(rng.integers(1, 5))
    gap = int(rng.integers(0, 2)) * 4
    src = rng.integers(0, 256, offset + n_pieces * nbytes + 64, np.uint8)
    dst = torch.full((n_pieces * (total + gap) + 64,), GUARD, dtype=torch.uint8)
    rows = None
    if table:
        pieces = rng.permutation(n_pieces)
        rows = [[int(k) * nbytes, i * (total + gap)] for i, k in enumerate(pieces)]
        if table == "whole":
            rows = [[*row, *shape, *src_stride] for row in rows]
        rows = torch.tensor(rows, dtype=torch.int64)
    return Place(
        torch.from_numpy(src),
        dst,
        *numbers_of(source, target),
        shape,
        tuple(src_stride),
        tuple(dst_stride),
        begin,
        0,
        swap=bool(rng.integers(0, 2)),
        n_pieces=n_pieces,
        src_step=nbytes,
        dst_step=total + gap,
        table=rows,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("table", [None, "offsets", "whole"])
def test_boxes_are_placed_as_on_the_cpu(gpu, table):
    rng = np.random.default_rng(11)
    boxes = [random_box(rng, table) for _ in range(N_BOXES)]
    prepare(gpu, boxes)
    for i, box in enumerate(boxes):
        got, want = (out.numpy() for out in (on_gpu(gpu, box), on_cpu(box)))
        target = list(DTYPES)[box.to_dtype]
        end = len(got) // DTYPES[target].nbytes * DTYPES[target].nbytes
        try:
            assert_same(*(out[:end].view(stored(target)) for out in (got, want)), target)
        except AssertionError as error:
            raise AssertionError(f"box {i}: {box}") from error
        assert np.array_equal(got[end:], want[end:])


def test_more_pieces_than_a_grid_has_rows(gpu):
    n, length = MAX_PIECES + 4711, 3
    values = np.random.default_rng(0).integers(0, 256, (n, length), np.uint8)
    table = torch.stack([torch.arange(n).flip(0) * length, torch.arange(n) * length], 1)
    operation = Place(
        bytes_of(values), torch.zeros(n * length, dtype=torch.uint8), *numbers_of("uint8", "uint8"),
        (length,), (1,), (1,), n_pieces=n, table=table,
    )  # fmt: skip
    assert np.array_equal(on_gpu(gpu, operation).view(n, length).numpy(), values[::-1])


def test_offsets_beyond_two_gigabytes(gpu):
    src = torch.randint(0, 256, (LARGE,), dtype=torch.uint8, device=gpu.torch)
    dst = torch.zeros_like(src)
    number = DTYPES["uint8"].number
    whole = Place(src, dst, number, number, (LARGE,), (1,), (1,))
    gpu.current_stream().launch(whole)
    assert torch.equal(src, dst)
    dst.zero_()
    flipped = dataclasses.replace(whole, src_stride=(-1,), src_offset=LARGE - 1)
    gpu.current_stream().launch(flipped)
    assert torch.equal(src[:4096].flip(0), dst[-4096:])
    assert torch.equal(src[-4096:].flip(0), dst[:4096])
    assert src.sum(dtype=torch.int64) == dst.sum(dtype=torch.int64)


# ---- Pad


def random_pad(rng, mode, nbytes, n_pieces, is_listed):
    ndim = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, {1: 3000, 2: 70, 3: 20}.get(ndim, 9), ndim))
    boxes = []
    for _ in range(n_pieces):
        extent = [int(rng.integers(1, n + 1)) for n in shape]
        begin = [int(rng.integers(0, n - e + 1)) for n, e in zip(shape, extent, strict=True)]
        boxes.append((begin, extent))
    stride, total = row_major(shape, nbytes)
    dst = rng.integers(0, 256, n_pieces * total + 16, np.uint8)
    table = torch.tensor([[*b, *e] for b, e in boxes], dtype=torch.int64)
    return Pad(
        torch.from_numpy(dst),
        nbytes,
        shape,
        stride,
        begin=() if is_listed else tuple(boxes[0][0]),
        extent=() if is_listed else tuple(boxes[0][1]),
        mode=mode,
        value=bytes(range(100, 100 + nbytes)),
        n_pieces=n_pieces,
        dst_step=total,
        table=table if is_listed else None,
    )


@pytest.mark.parametrize("mode", PAD_MODES)
@pytest.mark.parametrize("is_listed", [False, True], ids=["alike", "listed"])
def test_pieces_are_padded_as_on_the_cpu(gpu, mode, is_listed):
    rng = np.random.default_rng(5)
    for nbytes in (1, 2, 4, 8, 16):
        for k in range(N_PADS):
            operation = random_pad(rng, mode, nbytes, 1 + k % 4, is_listed)
            assert torch.equal(on_gpu(gpu, operation), on_cpu(operation)), operation


# ---- Resize

RESIZED = {  # axes -> (source, delivered)
    (0,): ((501,), (77,)),
    (1,): ((7, 33, 5), (7, 90, 5)),
    (0, 1): ((40, 50), (63, 21)),
    (0, 1, 2): ((17, 20, 15), (9, 33, 15)),
    (1, 2): ((3, 64, 64, 2), (3, 224, 17, 2)),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_arrays_are_resized_as_on_the_cpu(gpu, mode):
    rng = np.random.default_rng(2)
    operations = []
    for name in REAL:
        for to in dict.fromkeys((name, "float32")):
            for axes, (source, shape) in RESIZED.items():
                values = (rng.random(source) * 120).astype(np.float32)
                operations.append(resize_of(values, name, to, axes, shape, mode))
    prepare(gpu, operations[:: len(RESIZED)])
    for operation in operations:
        got, want = on_gpu(gpu, operation), on_cpu(operation)
        to = list(DTYPES)[operation.to_dtype]
        assert_close(got.numpy().view(stored(to)), want.numpy().view(stored(to)), to)


def resize_of(values, name, to, axes, shape, mode):
    if name == "bfloat16":
        kept = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    else:
        kept = (values > 60 if name == "bool" else values).astype(stored(name))
    stride, nbytes = row_major(shape, DTYPES[to].nbytes)
    dst = torch.zeros(nbytes, dtype=torch.uint8)
    numbers = numbers_of(name, to)
    return Resize(
        bytes_of(kept), dst, *numbers, shape, kept.shape, kept.strides, stride, axes, mode
    )


def assert_close(got, want, name):
    """Within the tolerance; integers are rounded, and may fall to the other side."""
    if name == "bfloat16":
        got, want = from_bfloat16(got), from_bfloat16(want)
    got, want = got.astype(np.float64), want.astype(np.float64)
    steps = {"float16": 2**-10, "bfloat16": 2**-7, "float32": RESIZE_TOLERANCE}
    steps["float64"] = RESIZE_TOLERANCE
    np.testing.assert_allclose(got, want, rtol=steps.get(name, 0), atol=steps.get(name, 1))


# ---- Unshuffle


@pytest.mark.parametrize("item_nbytes", [1, 2, 3, 4, 7, 8, 12, 16, 33])
def test_chunks_are_unshuffled_as_on_the_cpu(gpu, item_nbytes):
    rng = np.random.default_rng(item_nbytes)
    sizes = [100_003, 1, 4096, 0, item_nbytes * 999]
    begins = np.cumsum([5, *sizes[:-1]])
    rows = [[int(b), int(b) + 11, n] for b, n in zip(begins, sizes, strict=True)]
    src = torch.from_numpy(rng.integers(0, 256, sum(sizes) + 64, np.uint8))
    listed = Unshuffle(
        src,
        torch.full((len(src),), GUARD, dtype=torch.uint8),
        item_nbytes,
        max(sizes),
        n_pieces=len(rows),
        table=torch.tensor(rows),
    )
    alike = dataclasses.replace(
        listed, nbytes=1000, n_pieces=9, src_step=1000, dst_step=1001, table=None
    )
    for operation in (listed, alike):
        assert torch.equal(on_gpu(gpu, operation), on_cpu(operation))


def test_nothing_to_do_is_nothing_done(gpu):
    empty = torch.zeros(16, dtype=torch.uint8)
    shape = (0, 3)
    number = DTYPES["float32"].number
    operation = Place(empty, empty + 7, number, number, shape, (12, 4), (12, 4))
    assert math.prod(shape) == 0
    assert (on_gpu(gpu, operation) == 7).all()
