"""How windows become reads: where they are cut, what is read together, and what stats() counts."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl
from gpuload import _native, dtypes
from gpuload.plan import plan_io
from gpuload.window import resolve

# ---- Into how many spans a window is cut


def split(folder, array, crop, *, request_ns, bytes_per_ns, max_nbytes=1 << 40, dtype=None):
    """(spans, bytes in all) of the first window of an array."""
    np.save(folder / "split.npy", array)
    source = gl.open(folder / "split.npy")
    catalog = source.catalog
    to = catalog.layout.dtype if dtype is None else dtypes.parse(dtype, "dtype")
    files = _native.Files(catalog.paths.blob, catalog.paths.ends, catalog.sizes, 4, 0)
    reader = _native.Reader(
        catalog.native(), files, to.number, False, request_ns, bytes_per_ns, 0, max_nbytes
    )
    return reader.split(resolve(crop, source.shapes, str).native(None), 0)


SQUARE = np.zeros((100, 100), np.float32)
VOLUME = np.zeros((20, 30, 40), np.float32)

# array, crop, what a request and a byte cost, further limits -> spans, bytes in all
CUTS = {
    "requests are dear: one span from first to last byte": (
        (SQUARE, gl.CenterCrop(20)),
        {"request_ns": 1000, "bytes_per_ns": 8},
        (1, 19 * 400 + 80),
    ),
    "requests are cheap: one span a row": (
        (SQUARE, gl.CenterCrop(20)),
        {"request_ns": 10, "bytes_per_ns": 8},
        (20, 20 * 80),
    ),
    "both cost the same: fewer requests": (
        # 10 + 480 against 2 * (10 + 235)
        (np.zeros((2, 100), np.float32), gl.CenterCrop((2, 20))),
        {"request_ns": 400, "bytes_per_ns": 1},
        (1, 480),
    ),
    "a window of whole rows has no gaps": (
        (SQUARE, gl.CenterCrop((20, None))),
        {"request_ns": 1, "bytes_per_ns": 8},
        (1, 20 * 400),
    ),
    "planes of a volume": (
        # one span: 5*4800 + 29*160 + 40; by plane 6 * (29*160 + 40); by row 180 * 40
        (VOLUME, gl.CenterCrop((6, 30, 10))),
        {"request_ns": 500, "bytes_per_ns": 100},
        (1, 5 * 4800 + 29 * 160 + 40),
    ),
    "planes of a volume, cheaper requests": (
        (VOLUME, gl.CenterCrop((6, 10, 10))),
        {"request_ns": 100, "bytes_per_ns": 10},
        (6, 6 * (9 * 160 + 40)),
    ),
    "rows of a volume, free requests": (
        (VOLUME, gl.CenterCrop((6, 10, 10))),
        {"request_ns": 0.1, "bytes_per_ns": 10},
        (60, 60 * 40),
    ),
    "columns are rows in Fortran order": (
        (np.asfortranarray(SQUARE), gl.CenterCrop((30, 20))),
        {"request_ns": 1, "bytes_per_ns": 8},
        (20, 20 * 120),
    ),
    "a span within the limit, though more would cost less": (
        (SQUARE, gl.CenterCrop(20)),
        {"request_ns": 1000, "bytes_per_ns": 8, "max_nbytes": 7000},
        (20, 20 * 80),
    ),
    "a dense window is read into place, whatever the limit": (
        (SQUARE, gl.CenterCrop((20, None))),
        {"request_ns": 1000, "bytes_per_ns": 8, "max_nbytes": 64},
        (1, 20 * 400),
    ),
    "a dense window that is cast passes through memory of the limit": (
        (np.zeros(1000, np.float32), gl.CenterCrop(100)),
        {"request_ns": 1000, "bytes_per_ns": 8, "max_nbytes": 64, "dtype": "float64"},
        (7, 400),
    ),
    "a single element": ((SQUARE, gl.CenterCrop(1)), {"request_ns": 1, "bytes_per_ns": 1}, (1, 4)),
    "nothing": (
        (np.zeros((0, 3), np.float32), None),
        {"request_ns": 1, "bytes_per_ns": 1},
        (0, 0),
    ),
    "no axes": ((np.float64(3), None), {"request_ns": 1, "bytes_per_ns": 1}, (1, 8)),
}


@pytest.mark.parametrize(("window", "costs", "want"), CUTS.values(), ids=CUTS)
def test_a_window_is_cut_where_that_costs_least(tmp_path, window, costs, want):
    assert split(tmp_path, *window, **costs) == want


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plan")


@settings(max_examples=150, deadline=None)
@given(
    axes=st.lists(
        st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
        min_size=1,
        max_size=4,
    ),
    request_ns=st.sampled_from([0.1, 3.0, 40.0, 1000.0]),
    max_nbytes=st.sampled_from([100, 1000, 1 << 30]),
)
def test_no_other_cut_costs_less(folder, axes, request_ns, max_nbytes):
    shape, size = zip(*axes, strict=True)
    array = np.zeros(shape, np.int16)
    crop = gl.CenterCrop(size)
    spans, nbytes = split(
        folder, array, crop, request_ns=request_ns, bytes_per_ns=1, max_nbytes=max_nbytes
    )
    choices = {}
    for level in range(len(shape)):
        n = int(np.prod(size[:level]))
        each = 2 + sum(
            (k - 1) * step for k, step in zip(size[level:], array.strides[level:], strict=True)
        )
        if each <= max_nbytes or level == len(shape) - 1:
            choices[n, n * each] = n * (request_ns + each)
    useful = 2 * int(np.prod(size))
    whole = 2 + sum((k - 1) * step for k, step in zip(size, array.strides, strict=True))
    if whole == useful:  # no gaps: one read, of any length
        choices = {(1, useful): request_ns + useful}
    assert (spans, nbytes) in choices
    assert choices[spans, nbytes] == pytest.approx(min(choices.values()))


# ---- What stats() says was read


def fixed_costs(*, request_ns, bytes_per_ns=8.0, max_gap=0, max_nbytes=1 << 22):
    """Fix what loaders believe that reads cost, and let one thread make them."""

    def plan(facts, *, io, **_):
        return replace(
            plan_io(facts, io=io, threads=1),
            request_ns=request_ns,
            bytes_per_ns=bytes_per_ns,
            max_gap=max_gap,
            max_nbytes=max_nbytes,
        )

    return mock.patch("gpuload.assembly.plan_io", plan)


@pytest.fixture
def costs():
    def costs(**numbers):
        fixed_costs(**numbers).start()

    yield costs
    mock.patch.stopall()


# crop, batch size, costs -> requests, bytes read, bytes useful; of one float32 matrix of 100 x 100
MATRIX_READS = {
    "one span with its gaps": (gl.CenterCrop(20), 1, {"request_ns": 1000}, (1, 7680, 1600)),
    "a span for each row": (gl.CenterCrop(20), 1, {"request_ns": 1}, (20, 1600, 1600)),
    "gaps between rows are bridged": (
        gl.CenterCrop(20),
        1,
        {"request_ns": 1, "max_gap": 320},
        (1, 7680, 1600),
    ),
    "gaps a byte too long are not": (
        gl.CenterCrop(20),
        1,
        {"request_ns": 1, "max_gap": 319},
        (20, 1600, 1600),
    ),
    "25 tiles one by one": (gl.GridCrop(20), 1, {"request_ns": 1000}, (25, 25 * 7680, 40_000)),
    "25 tiles in one batch are read together": (
        gl.GridCrop(20),
        25,
        {"request_ns": 1000, "max_gap": 400},
        (1, 40_000, 40_000),
    ),
    "five tiles in a batch are a band of rows": (
        gl.GridCrop(20),
        5,
        {"request_ns": 1000, "max_gap": 400},
        (5, 40_000, 40_000),
    ),
    "a read keeps within its limit": (
        gl.GridCrop(20),
        25,
        {"request_ns": 1000, "max_gap": 400, "max_nbytes": 8000},
        (5, 40_000, 40_000),
    ),
    "whole": (None, 1, {"request_ns": 1000}, (1, 40_000, 40_000)),
}


@pytest.mark.parametrize(
    ("crop", "batch_size", "cost", "want"), MATRIX_READS.values(), ids=MATRIX_READS
)
def test_stats_count_the_bytes_read(tmp_path, costs, crop, batch_size, cost, want):
    array = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    np.save(tmp_path / "a.npy", array)
    costs(**cost)
    loader = gl.DataLoader(
        gl.open(tmp_path / "a.npy"), batch_size, crop=crop, io="pread", extras="start"
    )
    for x, start in loader:
        for values, (i, j) in zip(x.numpy(), start.tolist(), strict=True):
            rows, columns = values.shape
            assert np.array_equal(values, array[i : i + rows, j : j + columns])
    stats = loader.stats()
    assert (stats.read_requests, stats.read_nbytes, stats.useful_nbytes) == want


# 51 windows of five numbers at bytes 0, 80, 160, ... 3920 and 3980: gaps of 60 bytes, the last 40
LINE_READS = {
    "all gaps are bridged": ({"max_gap": 60}, (1, 4000)),
    "the short gap alone is bridged": ({"max_gap": 59}, (50, 49 * 20 + 80)),
    "no gap is bridged": ({"max_gap": 39}, (51, 51 * 20)),
    "two windows a read": ({"max_gap": 60, "max_nbytes": 100}, (26, 25 * 100 + 20)),
    "no room for two": ({"max_gap": 60, "max_nbytes": 79}, (51, 51 * 20)),
    "a window as long as a gap worth bridging is read into place": ({"max_gap": 20}, (51, 51 * 20)),
}


@pytest.mark.parametrize(("cost", "want"), LINE_READS.values(), ids=LINE_READS)
def test_windows_of_one_array_share_reads(tmp_path, costs, cost, want):
    np.save(tmp_path / "a.npy", np.arange(1000, dtype=np.float32))
    costs(request_ns=1000, **cost)
    crop = gl.GridCrop(5, stride=20)
    loader = gl.DataLoader(gl.open(tmp_path / "a.npy"), 51, crop=crop, io="pread")
    (x,) = loader
    assert x[:, 0].tolist() == [*range(0, 1000, 20), 995]
    assert x[:, 4].tolist() == [*range(4, 1000, 20), 999]
    stats = loader.stats()
    assert (stats.read_requests, stats.read_nbytes) == want
    assert stats.useful_nbytes == 51 * 20


def test_windows_of_different_files_share_nothing(save_arrays, costs):
    folder, _ = save_arrays(6, (10,))
    costs(request_ns=1000, max_gap=1 << 20)
    loader = gl.DataLoader(gl.open(folder), 6, io="pread")
    list(loader)
    assert (loader.stats().read_requests, loader.stats().read_nbytes) == (6, 6 * 40)


def test_a_window_wanted_twice_is_read_once(save_arrays, costs):
    folder, arrays = save_arrays(2, (10,))
    costs(request_ns=1000, max_gap=1 << 20)
    loader = gl.DataLoader(gl.open(folder), 4, io="pread", sampler=[1, 1, 0, 1])
    (x,) = loader
    assert np.array_equal(x, arrays[[1, 1, 0, 1]])
    assert (loader.stats().read_requests, loader.stats().read_nbytes) == (2, 2 * 40)


def test_maps_read_what_is_useful(save_arrays):
    folder, _ = save_arrays(6, (50, 50))
    loader = gl.DataLoader(gl.open(folder), 4, io="mmap", crop=gl.RandomCrop(7, per_array=3))
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert stats.read_nbytes == stats.useful_nbytes == 2 * 6 * 3 * 7 * 7 * 4
    assert stats.read_requests == 0


# ---- Values do not depend on it


@settings(max_examples=100, deadline=None)
@given(
    axes=st.lists(
        st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
        min_size=1,
        max_size=4,
    ),
    order=st.sampled_from("CF"),
    dtype=st.sampled_from([None, "float64"]),
    batch_size=st.integers(1, 8),
    request_ns=st.sampled_from([0.1, 10.0, 1000.0]),
    max_gap=st.sampled_from([0, 7, 100, 10_000]),
    max_nbytes=st.sampled_from([8, 100, 1 << 20]),
)
def test_every_plan_reads_the_same_values(
    folder, axes, order, dtype, batch_size, request_ns, max_gap, max_nbytes
):
    shape, size = zip(*axes, strict=True)
    arrays = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    for i, array in enumerate(arrays):
        np.save(folder / f"values-{i}.npy", np.asarray(array, order=order))
    loader = gl.DataLoader(
        gl.open(folder / "values-*.npy"),
        batch_size,
        shuffle=True,
        crop=gl.RandomCrop(size, per_array=4),
        dtype=dtype,
        io="pread",
        extras=("index", "start"),
    )
    with fixed_costs(request_ns=request_ns, max_gap=max_gap, max_nbytes=max_nbytes):
        batches = list(loader)
    for batch in batches:
        for x, item, start in zip(*batch, strict=True):
            box = tuple(slice(s, s + n) for s, n in zip(start.tolist(), size, strict=True))
            assert np.array_equal(x, arrays[item][box])
    assert loader.stats().useful_nbytes == 8 * int(np.prod(size)) * 4
