"""What may be asked of files that are read into device memory: whole pages, each byte once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvikio_standin import PAGE, memory_of, opened, rows

from gpuload.readers.device_files import align, page_aligned

GOOD = (0, PAGE, 2 * PAGE, PAGE)
REQUESTS = {
    "no such file": [(2, 0, PAGE, 0)],
    "a file before the first": [(-1, 0, PAGE, 0)],
    "offset not a page": [(0, 512, PAGE, 0)],
    "offset before the file": [(0, -PAGE, PAGE, 0)],
    "offset behind the file": [(0, 11 * PAGE, 0, 0)],
    "bytes behind the file": [(0, 9 * PAGE, 2 * PAGE, 0)],
    "so many that they wrap": [(0, PAGE, (1 << 63) - PAGE, 0)],
    "less than none": [(0, PAGE, -PAGE, 0)],
    "half a page in a file": [(0, 0, PAGE // 2, 0)],
    "dst not a page": [(0, 0, PAGE, 64)],
    "dst before memory": [(0, 0, PAGE, -PAGE)],
    "dst behind memory": [(0, 0, PAGE, 16 * PAGE)],
    "bytes behind memory": [(0, 0, 2 * PAGE, 15 * PAGE)],
    "the second of two": [GOOD, (0, 1, PAGE, 8 * PAGE)],
}


@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS)
def test_requests_are_checked_before_anything_is_read(save_bytes, standin, requests):
    paths, _ = save_bytes(10 * PAGE, 5)
    kvikio = standin()
    row = len(requests) - 1
    with (
        opened(kvikio, paths) as source,
        pytest.raises(ValueError, match=rf"requests\[{row}\]: expected whole pages of 4096 bytes"),
    ):
        source.read(rows(*requests), memory_of(16 * PAGE))
    assert kvikio.log == []


def test_two_requests_must_not_write_the_same_byte(save_bytes, standin):
    paths, _ = save_bytes(10 * PAGE)
    requests = rows((0, 0, PAGE, 4 * PAGE), (0, 0, 3 * PAGE, 0), (0, 5 * PAGE, PAGE, 2 * PAGE))
    with (
        opened(standin(), paths) as source,
        pytest.raises(ValueError, match="expected each byte of memory once, got 8192 twice"),
    ):
        source.read(requests, memory_of(16 * PAGE))


def test_the_last_page_of_a_file_may_be_short(save_bytes, standin):
    paths, files = save_bytes(10 * PAGE, 5)
    memory = memory_of(PAGE)
    with opened(standin(), paths) as source:
        source.read(rows((1, 0, 5, 0)), memory)
        source.read(rows(), memory)
        source.read(rows((0, 10 * PAGE, 0, PAGE)), memory)
    np.testing.assert_array_equal(memory[:5].numpy(), files[1])


MEMORY = {
    "another dtype": torch.zeros(PAGE, dtype=torch.int8),
    "two axes": torch.zeros(2, PAGE, dtype=torch.uint8),
    "every other byte": torch.zeros(2 * PAGE, dtype=torch.uint8)[::2],
}


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
def test_memory_is_bytes(save_bytes, standin, memory):
    paths, _ = save_bytes(PAGE)
    with (
        opened(standin(), paths) as source,
        pytest.raises(ValueError, match=r"memory: expected \(n,\) uint8, got"),
    ):
        source.read(rows((0, 0, PAGE, 0)), memory)


def test_at_least_one_file_may_be_open(standin):
    with pytest.raises(ValueError, match="max_open: expected 1 or more, got 0"):
        opened(standin(), [], max_open=0)


ALIGN = {
    "a whole file": (0, 10_000, 10_000, (0, 10_000)),
    "a whole file of whole pages": (0, 8192, 8192, (0, 8192)),
    "behind a header": (128, 1000, 100_000, (0, 4096)),
    "the first byte": (0, 1, 100_000, (0, 4096)),
    "the last byte of a page": (4095, 1, 100_000, (0, 4096)),
    "the first of the next": (4096, 1, 100_000, (4096, 8192)),
    "over an edge": (4095, 2, 100_000, (0, 8192)),
    "whole pages stay": (8192, 4096, 100_000, (8192, 12_288)),
    "the last byte of a file": (99_999, 1, 100_000, (98_304, 100_000)),
    "nothing": (5000, 0, 100_000, (4096, 4096)),
    "nothing at the end": (100_000, 0, 100_000, (98_304, 98_304)),
    "far": ((1 << 60) + 1, 4096, 1 << 61, (1 << 60, (1 << 60) + 8192)),
}


@pytest.mark.parametrize(("offset", "nbytes", "size", "want"), ALIGN.values(), ids=ALIGN)
def test_align(offset, nbytes, size, want):
    assert tuple(map(int, align(offset, nbytes, size))) == want


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_align_asks_for_the_fewest_pages(data):
    size = data.draw(st.integers(1, 1 << 50))
    offset = data.draw(st.integers(0, size - 1))
    nbytes = data.draw(st.integers(1, size - offset))
    begin, end = map(int, align(offset, nbytes, size))
    assert begin % PAGE == 0
    assert end % PAGE == 0 or end == size
    assert offset - PAGE < begin <= offset
    assert offset + nbytes <= end < offset + nbytes + PAGE
    assert end <= size


def test_align_takes_arrays():
    cases = [case[:3] for case in ALIGN.values()]
    begin, end = align(*np.array(cases).T)
    assert begin.dtype == end.dtype == np.int64
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == [c[3] for c in ALIGN.values()]


def test_page_aligned_takes_no_copy():
    whole = torch.zeros(3 * PAGE, dtype=torch.uint8)
    for skip in itertools.chain((0, 1, 63), range(512, 4096, 512)):
        part = page_aligned(whole[skip:])
        assert part.data_ptr() % PAGE == 0
        assert len(whole[skip:]) - len(part) < PAGE
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
