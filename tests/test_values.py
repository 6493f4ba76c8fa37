"""The contract of every reader: a batch holds the bytes that NumPy reads from the same file."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from npyfile import header, write_npy

import gpuload as gl
from gpuload.dtypes import DTYPES
from gpuload.readers import posix

IO = ["mmap", "pread"]
SHAPE = (6, 7, 5)
N_FILES = 3

# Window sizes for the last axes of an item; the axes of a member that is an array stay whole.
WINDOWS = {
    "whole": lambda fit: None,
    "random": lambda fit: gl.RandomCrop(fit(3, 4, 2), per_array=3),
    "centre": lambda fit: gl.CenterCrop(fit(2, 3, 3)),
    "grid": lambda fit: gl.GridCrop(fit(4, 3, 2), stride=fit(3, 3, 1)),
    "whole axes": lambda fit: gl.RandomCrop(fit(2, None, 3), per_array=2),
    "one element": lambda fit: gl.RandomCrop(fit(1, 1, 1), per_array=2),
}


def number(name: str) -> np.dtype:
    """NumPy's form of an element type, as numpy.save writes it."""
    return np.dtype("V2" if name == "bfloat16" else name)


def random_array(dtype: np.dtype, shape: tuple[int, ...], order: str, seed: int) -> np.ndarray:
    """Random bits in an array of this dtype, laid out as `order` says."""
    rng = np.random.default_rng(seed)
    shape = shape[::-1] if order == "transposed" else shape
    n = int(np.prod(shape)) * dtype.itemsize
    array = rng.integers(0, 2 if dtype == np.bool_ else 256, n, np.uint8).view(dtype).reshape(shape)
    return array.transpose() if order == "transposed" else np.asarray(array, order=order)


def plain(dtype: np.dtype) -> np.dtype:
    return dtype


def record(dtype: np.dtype) -> np.dtype:
    return np.dtype([("n", "u1"), ("x", dtype), ("m", "V3")])


def parts(dtype: np.dtype) -> np.dtype:
    return np.dtype([("n", "u1"), ("x", dtype, (2,)), ("m", "V3")])


LAYOUTS = [("C", "<"), ("C", ">"), ("F", "<"), ("transposed", ">")]

# What an item is: dtype of the file, arguments of open, axes of the array that an item has.
KINDS = {
    "files": (plain, {}, 3),
    "rows": (plain, {"sample_axis": 0}, 2),
    "rows of the last axis": (plain, {"sample_axis": 2}, 2),
    "members": (record, {"member": "x"}, 3),
    "rows of members": (record, {"member": "x", "sample_axis": 0}, 2),
    "members that are arrays": (parts, {"member": "x"}, 4),
}


def bits(values: np.ndarray | torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes in the machine's order: NaNs count by their bits."""
    if isinstance(values, torch.Tensor):
        values = values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
        values = values.numpy()
    elif values.dtype.kind != "V":
        values = values.astype(values.dtype.newbyteorder("="))
    return values.shape, values.tobytes()


def items_of(arrays: list[np.ndarray], arguments: dict[str, object]) -> list[np.ndarray]:
    axis = arguments.get("sample_axis")
    if "member" in arguments:
        arrays = [array[arguments["member"]] for array in arrays]
    if axis is None:
        return arrays
    return [array.take(i, axis) for array in arrays for i in range(array.shape[axis])]


def assert_windows(source: gl.Source, items: list[np.ndarray], crop: object, **options) -> int:
    """Every window of an epoch is NumPy's slice of its item; returns how many there were.

    All items have as many, and none comes twice.
    """
    seen = []
    with gl.DataLoader(
        source, crop=crop, extras=("index", "crop", "start"), threads=2, **options
    ) as loader:
        for x, index, number, start in loader:
            assert x.is_contiguous()
            for window, i, k, at in zip(x, index.tolist(), number.tolist(), start, strict=True):
                box = tuple(slice(a, a + n) for a, n in zip(at.tolist(), window.shape, strict=True))
                assert bits(window) == bits(items[i][box]), f"item {i} at {at.tolist()}"
                seen.append((i, k))
    assert len(set(seen)) == len(seen)
    assert {i for i, _ in seen} == set(range(len(items)))
    assert len(set(Counter(i for i, _ in seen).values())) == 1
    return len(seen)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("wrap", "arguments", "ndim"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("io", IO)
def test_every_window_of_every_layout_is_numpys_slice(tmp_path, io, wrap, arguments, ndim, name):
    def fit(*size):
        size = (*size, None) if ndim == 4 else size
        return size[-ndim:]

    stored_as = arguments | ({"dtype": "bfloat16"} if name == "bfloat16" else {})
    for order, byte_order in LAYOUTS:
        dtype = wrap(number(name).newbyteorder(byte_order))
        for i in range(N_FILES):
            np.save(tmp_path / f"{i}.npy", random_array(dtype, SHAPE, order, seed=i))
        source = gl.open(tmp_path, **stored_as)
        items = items_of([np.load(tmp_path / f"{i}.npy") for i in range(N_FILES)], arguments)
        for i in (0, len(items) // 2, -1):
            assert bits(source[i]) == bits(items[i])
        for make in WINDOWS.values():
            assert_windows(source, items, make(fit), io=io, batch_size=4)


# ---- However windows are cut into reads

READS = {
    "one read each": {"request_ns": 1e9, "bytes_per_ns": 1.0, "max_gap": 1 << 17},
    "one read a row": {"request_ns": 1.0, "bytes_per_ns": 1.0, "max_gap": 0},
    "rows that share reads": {"request_ns": 100.0, "bytes_per_ns": 1.0, "max_gap": 100},
    "reads of at most 64 bytes": {"request_ns": 1e9, "bytes_per_ns": 1.0, "max_nbytes": 64},
    "cold: whole pages": {
        "request_ns": 1e5,
        "bytes_per_ns": 1.0,
        "max_gap": 1 << 16,
        "is_cold": True,
    },
    "cold: close rows": {"request_ns": 1.0, "bytes_per_ns": 1e3, "max_gap": 4096, "is_cold": True},
    "reads of at most one byte": {"request_ns": 10.0, "bytes_per_ns": 1.0, "max_nbytes": 1},
}


@pytest.fixture
def plan(monkeypatch):
    """Changes what the readers of a test are told about the costs of reading."""
    make, made = posix.make_reader, []

    def plan(**costs):
        def make_reader(*given):
            made.append(dataclasses.replace(given[-1], **costs))
            return make(*given[:-1], made[-1])

        monkeypatch.setattr(posix, "make_reader", make_reader)

    yield plan
    assert made


@pytest.mark.parametrize("dtype", ["uint8", ">f4", "complex128"])
@pytest.mark.parametrize("costs", READS.values(), ids=READS)
@pytest.mark.parametrize("kind", ["files", "members", "members that are arrays"])
def test_the_cut_into_reads_does_not_change_values(tmp_path, plan, kind, costs, dtype):
    plan(**costs)
    wrap, arguments, ndim = KINDS[kind]
    for order in ("C", "F"):
        for i in range(2):
            array = random_array(wrap(np.dtype(dtype)), (9, 20, 11), order, seed=i)
            np.save(tmp_path / f"{i}.npy", array)
        source = gl.open(tmp_path, **arguments)
        items = items_of([np.load(tmp_path / f"{i}.npy") for i in range(2)], arguments)
        for size in ((4, 6, 5), (None, 2, 3), (2, None, None), (1, 1, 1)):
            size = (*size, 1) if ndim == 4 else size
            crop = gl.RandomCrop(size, per_array=8)
            assert assert_windows(source, items, crop, io="pread", batch_size=16) == 16


@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("costs", [{}, *READS.values()], ids=["as planned", *READS])
@pytest.mark.parametrize("io", IO)
def test_files_of_other_shapes_and_layouts_meet_in_a_batch(tmp_path, plan, io, costs, dtype):
    shapes = [(9, 8, 7), (9, 8, 7), (7, 8, 9), (8, 9, 7), (12, 5, 6)]
    layouts = list(itertools.product(shapes, LAYOUTS))
    items = []
    for i, (shape, (order, byte_order)) in enumerate(layouts):
        numbers = np.arange(504, dtype=np.int32)[: np.prod(shape)] + 1000 * i
        shape = shape[::-1] if order == "transposed" else shape
        array = np.asarray(numbers.reshape(shape), f"{byte_order}i4", "F" if order == "F" else "C")
        np.save(tmp_path / f"{i:02}.npy", array.transpose() if order == "transposed" else array)
        items.append(np.load(tmp_path / f"{i:02}.npy").astype(dtype or np.int32))
    plan(**costs)
    crop = gl.RandomCrop((3, 2, 4), per_array=5)
    options = {"io": io, "batch_size": 16, "shuffle": True, "dtype": dtype}
    n = assert_windows(gl.open(tmp_path), items, crop, **options)
    assert n == 5 * len(layouts)


@pytest.mark.parametrize("orders", ["CCCC", "FFFF", "CFCF"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("io", IO)
def test_rows_of_uneven_files_along_every_axis(tmp_path, io, axis, orders):
    arrays = []
    for i, (order, n) in enumerate(zip(orders, (5, 2, 7, 5), strict=True)):
        shape = [6, 5, 4]
        shape[axis] = n
        array = random_array(np.dtype("<i4"), tuple(shape), order, seed=i)
        np.save(tmp_path / f"{i}.npy", array)
        arrays.append(array)
    items = items_of(arrays, {"sample_axis": axis})
    source = gl.open(tmp_path, sample_axis=axis)
    backwards = source.select(range(len(items) - 1, -1, -1))
    for crop in (None, gl.RandomCrop((2, 3), per_array=3)):
        assert_windows(source, items, crop, io=io, batch_size=8, shuffle=True)
        assert_windows(backwards, items[::-1], crop, io=io, batch_size=8)


# ---- Shapes at the edge

EDGES = [(), (0,), (3, 0), (0, 4), (2, 0, 3), (1,), (1, 1, 1, 1, 1, 1, 1, 1), (2,) * 10]


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("byte_order", "<>")
@pytest.mark.parametrize("shape", EDGES, ids=str)
def test_arrays_without_axes_or_elements_are_delivered(tmp_path, shape, byte_order, io):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(shape, i + 0.5, f"{byte_order}f4"))
    source = gl.open(tmp_path)
    assert source.shapes.tolist() == [list(shape)] * 3
    assert source.nbytes == 3 * 4 * int(np.prod(shape))
    want = [np.load(tmp_path / f"{i}.npy") for i in range(3)]
    assert assert_windows(source, want, None, io=io, batch_size=2) == 3
    assert [tuple(x.shape) for x in gl.DataLoader(source, 2, io=io)] == [(2, *shape), (1, *shape)]
    if shape:
        crop = gl.RandomCrop((None,) * len(shape), per_array=2)
        assert assert_windows(source, want, crop, io=io, batch_size=4) == 6


@pytest.mark.parametrize("io", IO)
def test_numbers_as_rows_of_files(tmp_path, io):
    for i, n in enumerate((3, 0, 4)):
        np.save(tmp_path / f"{i}.npy", np.arange(n, dtype=np.int16) + 10 * i)
    source = gl.open(tmp_path, sample_axis=0)
    assert [batch.tolist() for batch in gl.DataLoader(source, 4, io=io)] == [
        [0, 1, 2, 20],
        [21, 22, 23],
    ]


# ---- Data that begin or end at unusual bytes


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<c16", "<i2", "|u1"])
@pytest.mark.parametrize("data_at", [68, 69, 71, 75, 127, 4095, 4096, 4097])
def test_data_may_begin_at_any_byte(tmp_path, data_at, dtype, io):
    array = random_array(np.dtype(dtype), (12, 10), "C", seed=data_at)
    text = f"{{'descr':{dtype!r},'fortran_order':False,'shape':(12,10)}}"
    write_npy(tmp_path / "a.npy", text, array.tobytes(), data_at=data_at)
    source = gl.open(tmp_path / "a.npy")
    for crop in (None, gl.RandomCrop((5, 3), per_array=20), gl.GridCrop((1, 10))):
        assert_windows(source, [array], crop, io=io, batch_size=4)


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("n", [129024, 131072])
def test_the_last_elements_behind_a_header_of_a_page(tmp_path, n, io):
    array = np.arange(n, dtype=np.float32)
    path = write_npy(tmp_path / "a.npy", header("<f4", (n,)), array.tobytes(), data_at=4096)
    assert path.stat().st_size == 4096 + 4 * n
    source = gl.open(path)
    assert_windows(source, [array], gl.GridCrop(n // 7 + 1), io=io)
    for size in (1, 3, 1023, 1024, 1025, n):
        loader = gl.DataLoader(source, crop=gl.GridCrop(size, stride=n), io=io)
        *_, last = loader
        assert last[0, -1].item() == (n - 1 if len(loader) > 1 or size == n else size - 1)


# ---- One large file, many small ones


@pytest.mark.parametrize("io", IO)
def test_windows_of_one_large_file(tmp_path, io):
    array = np.arange(48 * 64 * 80, dtype=np.int32).reshape(48, 64, 80)
    np.save(tmp_path / "a.npy", array)
    source = gl.open(tmp_path / "a.npy")
    crop = gl.RandomCrop((17, 20, 33), per_array=40)
    assert assert_windows(source, [array], crop, io=io, batch_size=8, shuffle=True) == 40


@pytest.mark.parametrize("io", IO)
def test_rows_of_one_large_file(tmp_path, io):
    array = np.arange(3000 * 12, dtype=np.int32).reshape(3000, 4, 3)
    np.save(tmp_path / "a.npy", array)
    source = gl.open(tmp_path / "a.npy", sample_axis=0)
    assert assert_windows(source, list(array), None, io=io, batch_size=256, shuffle=True) == 3000


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_windows_of_many_small_files(tmp_path, io, shuffle):
    arrays = [
        np.full((4, 5), i, np.int16) + np.arange(20, dtype=np.int16).reshape(4, 5) * 1000
        for i in range(600)
    ]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i:03}.npy", array)
    crop = gl.RandomCrop((2, 3), per_array=3)
    n = assert_windows(gl.open(tmp_path), arrays, crop, io=io, batch_size=64, shuffle=shuffle)
    assert n == 1800


def test_windows_do_not_depend_on_how_files_are_read(tmp_path):
    for i in range(20):
        np.save(tmp_path / f"{i:02}.npy", random_array(np.dtype(">f4"), (9, 8), "CF"[i % 2], i))
    epochs = [
        [
            (bits(x), index.tolist(), start.tolist())
            for x, index, start in gl.DataLoader(
                gl.open(tmp_path),
                batch_size,
                io=io,
                threads=threads,
                prefetch=prefetch,
                shuffle=True,
                crop=gl.RandomCrop((3, 4), per_array=4),
                extras=("index", "start"),
            )
        ]
        for io, threads, prefetch, batch_size in [
            ("mmap", 1, 1, 8),
            ("pread", 1, 1, 8),
            ("mmap", 4, 5, 8),
            ("pread", 4, 5, 8),
            ("auto", "auto", 2, 8),
        ]
    ]
    assert all(epoch == epochs[0] for epoch in epochs)
