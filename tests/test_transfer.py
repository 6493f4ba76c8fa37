"""What crosses to a device: chosen by cost, laid out to the byte. Pure, but for one loader."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from late import LateDevice

import gpuload as gl
from gpuload.dtypes import DTYPES, INT64
from gpuload.layout import Column, lay_out, route_placed, route_spans
from gpuload.plan import IoPlan, WindowFacts, plan_transfer

MAPS = IoPlan("mmap", "", False, False, 4, 1000.0, 8.0, 0, 4 << 20)
READS = replace(MAPS, io="pread")
COLD = replace(READS, request_ns=80_000.0, bytes_per_ns=1.0, threads=16, is_cold=True)

# A 20x20 crop of 200x200 float32, read row by row or as one span.
CROP = WindowFacts(
    span_nbytes=19 * 800 + 80,
    useful_nbytes=1600,
    n_rows=20,
    n_elements=0,
    reads=1,
    read_nbytes=19 * 800 + 80,
    can_ship=True,
)
WHOLE = replace(CROP, span_nbytes=1 << 20, useful_nbytes=1 << 20, n_rows=1, read_nbytes=1 << 20)

CASES = {
    "short rows of a map are cut out on the host": (CROP, MAPS, "placed"),
    "and so are those of a file that is read": (CROP, READS, "placed"),
    "whole arrays cross as they are": (WHOLE, MAPS, "placed"),
    "whole arrays in Fortran order are turned by the device": (
        replace(WHOLE, n_rows=1 << 18, n_elements=1 << 18),
        MAPS,
        "shipped",
    ),
    "the other byte order is swapped by the device": (
        replace(WHOLE, n_elements=1 << 18),
        READS,
        "shipped",
    ),
    "nearly whole rows are cut out by the device": (
        replace(WHOLE, useful_nbytes=(1 << 20) * 15 // 16, n_rows=8192),
        READS,
        "shipped",
    ),
    "a device that cannot is not asked to": (
        replace(WHOLE, n_elements=1 << 18, can_ship=False),
        MAPS,
        "placed",
    ),
    "a small window of a cold volume is not read whole": (
        replace(CROP, span_nbytes=60 << 20, reads=32, read_nbytes=32 * 4096),
        COLD,
        "placed",
    ),
}


@pytest.mark.parametrize(("window", "io", "want"), CASES.values(), ids=CASES)
def test_where_windows_are_cut_out(window, io, want):
    transfer = plan_transfer(window, io, direct="no GPU")
    assert transfer.delivery == want
    assert transfer.not_direct == "no GPU"
    assert transfer.reason


WIDE = replace(CROP, span_nbytes=60 << 20, reads=32, read_nbytes=32 * 4096)
DIRECT = {
    "whole arrays on a cold disk are read into the device": (WHOLE, COLD, False, "listed", ""),
    "those in the page cache are not": (WHOLE, READS, False, "placed", "page cache"),
    "nor where the host reads far less": (WIDE, COLD, False, "placed", "and 131072 do"),
    "unless that is asked for": (WIDE, READS, True, "listed", ""),
    "and possible": (replace(WHOLE, can_ship=False), COLD, True, "placed", "more axes"),
}


@pytest.mark.parametrize(("window", "io", "insists", "want", "why"), DIRECT.values(), ids=DIRECT)
def test_what_is_read_into_the_device(window, io, insists, want, why):
    transfer = plan_transfer(window, io, direct=None, insists=insists)
    assert transfer.delivery == want
    assert why in transfer.not_direct


COLUMNS = [
    Column("x", DTYPES["float32"]),
    Column("y", INT64, ()),
    Column("start", INT64, (2,)),
]


def test_columns_lie_on_cache_lines_and_x_comes_last():
    layout = lay_out(COLUMNS, batch_size=3, window_elements=10)
    assert layout.offsets == (128, 0, 64)
    assert layout.nbytes == 128 + 128  # 120 bytes of x
    assert (layout.offset("x"), layout.offset("none")) == (128, -1)


def test_a_route_without_a_cast_is_a_copy():
    route = route_placed(COLUMNS, crossing=DTYPES["float32"], batch_size=3, window_elements=10)
    assert route.is_copy
    assert not route.has_table
    assert (route.slab_nbytes(2, (5, 2)), route.x_nbytes(2, (5, 2))) == (128 + 80, 80)


def test_a_route_with_a_cast_places():
    route = route_placed(COLUMNS, crossing=DTYPES["uint8"], batch_size=3, window_elements=10)
    assert not route.is_copy
    assert (route.slab_nbytes(3, (10,)), route.x_nbytes(3, (10,))) == (158, 120)


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("stride", [(40, 4), None])
def test_spans_have_room_and_a_table(is_listed, stride):
    route = route_spans(
        COLUMNS,
        stored=DTYPES["float32"],
        swap=False,
        span_nbytes=1000,
        window_stride=stride,
        ndim=2,
        is_listed=is_listed,
        batch_size=3,
        window_elements=10,
    )
    table = route.slab.columns[3]
    assert table.row_shape == (2 if stride else 6,)
    assert route.slab.offset("x") % 4096 == 0
    assert route.room == (8192 if is_listed else 1024)  # pages and half, or 16 bytes of slack
    assert route.has_table
    assert route.is_listed == is_listed
    slab = torch.zeros(route.slab.nbytes, dtype=torch.uint8)
    place = route.operation(slab, slab, 3, (5, 2))
    assert place.table.shape == (3, 2 if stride else 6)
    assert place.dst_stride == (8, 4)


ORDERS = {
    "rows": np.zeros((3, 4, 5), "f4"),
    "columns": np.zeros((3, 4, 5), "f8", order="F"),
    "a number": np.zeros((), "f4"),
    "nothing": np.zeros((0, 3), "f4"),
}


@pytest.mark.parametrize("array", ORDERS.values(), ids=ORDERS)
def test_strides_are_those_of_numpy(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    catalog = gl.open(tmp_path / "a.npy").catalog
    mapped = np.load(tmp_path / "a.npy", mmap_mode=None if array.size == 0 else "r")
    if array.size:
        assert tuple(catalog.item_stride_of_array[0]) == mapped.strides
    assert catalog.nbytes_of_array.tolist() == [array.nbytes]


def test_strides_of_rows_and_members_are_those_of_numpy(tmp_path):
    record = np.dtype([("a", "u1"), ("b", "<f4", (2, 3))])
    np.save(tmp_path / "a.npy", np.zeros((6, 7), record))
    member = np.load(tmp_path / "a.npy")["b"]
    for axis in (0, 1):
        catalog = gl.open(tmp_path / "a.npy", member="b", sample_axis=axis).catalog
        strides = list(member.strides)
        assert catalog.row_nbytes_of_array.tolist() == [strides.pop(axis)]
        assert catalog.item_stride_of_array.tolist() == [strides]


def test_a_compact_table_has_the_same_items(tmp_path):
    for i in range(5):
        np.save(tmp_path / f"{i}.npy", np.arange(3 * (i + 2)).reshape(-1, 3) + 100 * i)
    whole = gl.open(tmp_path, sample_axis=0)
    some = whole.select([11, 2, 2, 10, 5])
    short = some.catalog.compact()
    assert len(short.file) == 3
    assert len(short) == len(some)
    for item in range(len(some)):
        (a,), (b,) = (c.array_of(np.array([item])) for c in (some.catalog, short))
        assert some.catalog.path_of_array(a) == short.path_of_array(b)
    assert whole.catalog.compact() is whole.catalog


def test_pinned_memory_is_counted_and_given_back(tmp_path):
    for i in range(20):
        np.save(tmp_path / f"{i:02}.npy", np.zeros((30, 30 + i % 2), np.float32))
    device = LateDevice()
    loader = gl.DataLoader(gl.open(tmp_path), 4, crop=gl.RandomCrop((20, 20)), device=device)
    assert loader.stats().pinned_nbytes == 0
    pinned = []
    for _ in range(5):
        for x in loader:
            del x
        pinned.append(loader.stats().pinned_nbytes)
    assert len(set(pinned)) == 1
    assert pinned[0] == sum(block.memory.nbytes for block in device.host_blocks)
    assert pinned[0] <= loader.memory().host_nbytes
    loader.close()
    assert loader.stats().pinned_nbytes == 0
