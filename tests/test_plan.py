"""Plans: which spans share a read, maps or reads, how far ahead."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload import _native
from gpuload.plan import (
    CLAIM_NBYTES,
    LOOK_AHEAD_NBYTES,
    MAX_GAP_NBYTES,
    MOST_AHEAD,
    Facts,
    plan_ahead,
    plan_io,
)

# ---- Which spans share a read


def coalesce(spans, *, max_gap, max_nbytes):
    """Spans (file, offset, nbytes) -> reads (file, offset, nbytes, how many spans)."""
    files, offsets, nbytes = zip(*spans, strict=True) if spans else ((), (), ())
    return _native.coalesce(
        np.array(files, np.uint32),
        np.array(offsets, np.int64),
        np.array(nbytes, np.int64),
        max_gap,
        max_nbytes,
    )


# (spans as (file, offset, nbytes), max_gap, max_nbytes) -> reads
SHARED = {
    "nothing": ([], 0, 10, []),
    "touching spans join at gap 0": ([(0, 0, 4), (0, 4, 4)], 0, 100, [(0, 0, 8, 2)]),
    "one byte apart does not": ([(0, 0, 4), (0, 5, 4)], 0, 100, [(0, 0, 4, 1), (0, 5, 4, 1)]),
    "a gap is bridged when allowed": ([(0, 0, 4), (0, 5, 4)], 1, 100, [(0, 0, 9, 2)]),
    "the limit counts the gap": ([(0, 0, 4), (0, 5, 4)], 1, 8, [(0, 0, 4, 1), (0, 5, 4, 1)]),
    "the limit may be met": ([(0, 0, 4), (0, 5, 4)], 1, 9, [(0, 0, 9, 2)]),
    "order in does not matter": ([(0, 8, 4), (0, 0, 8)], 0, 100, [(0, 0, 12, 2)]),
    "a span inside another adds nothing": ([(0, 0, 10), (0, 2, 3)], 0, 100, [(0, 0, 10, 2)]),
    "the same span twice": ([(0, 3, 5), (0, 3, 5)], 0, 100, [(0, 3, 5, 2)]),
    "overlapping spans are read once": ([(0, 0, 6), (0, 4, 6)], 0, 100, [(0, 0, 10, 2)]),
    "after a long span, the gap counts from its end": (
        [(0, 0, 20), (0, 2, 3), (0, 21, 4)],
        1,
        100,
        [(0, 0, 25, 3)],
    ),
    "longer than the limit goes alone": (
        [(0, 0, 50), (0, 50, 1)],
        0,
        10,
        [(0, 0, 50, 1), (0, 50, 1, 1)],
    ),
    "files share nothing": ([(1, 4, 4), (0, 0, 4)], 100, 100, [(0, 0, 4, 1), (1, 4, 4, 1)]),
    "offsets past 4 GiB": ([(0, 2**40, 4), (0, 2**40 + 4, 4)], 0, 100, [(0, 2**40, 8, 2)]),
}


@pytest.mark.parametrize(("spans", "max_gap", "max_nbytes", "want"), SHARED.values(), ids=SHARED)
def test_spans_share_reads(spans, max_gap, max_nbytes, want):
    assert coalesce(spans, max_gap=max_gap, max_nbytes=max_nbytes) == want


@settings(max_examples=200, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(1, 30)), max_size=25
    ),
    max_gap=st.integers(0, 20),
    max_nbytes=st.integers(1, 80),
)
def test_no_byte_is_missing_and_limits_are_kept(spans, max_gap, max_nbytes):
    reads = coalesce(spans, max_gap=max_gap, max_nbytes=max_nbytes)
    wanted = {(file, b) for file, offset, n in spans for b in range(offset, offset + n)}
    fetched = {(file, b) for file, offset, n, _ in reads for b in range(offset, offset + n)}
    assert wanted <= fetched
    assert sum(n_spans for *_, n_spans in reads) == len(spans)
    assert [read[:2] for read in reads] == sorted(read[:2] for read in reads)
    left = sorted(spans)
    for file, offset, nbytes, n_spans in reads:
        mine, left = left[:n_spans], left[n_spans:]  # what this read serves, by file and offset
        assert all(f == file and offset <= o and o + n <= offset + nbytes for f, o, n in mine)
        assert nbytes <= max_nbytes or n_spans == 1
        covered = {b for _, o, n in mine for b in range(o, o + n)}
        unwanted = [b not in covered for b in range(offset, offset + nbytes)]
        gaps = [len(list(run)) for is_gap, run in itertools.groupby(unwanted) if is_gap]
        assert max(gaps, default=0) <= max_gap
        assert not unwanted[0]
        assert not unwanted[-1]
    for before, after in itertools.pairwise(reads):  # neighbours that could be one read are one
        if before[0] == after[0]:
            end = before[1] + before[2]
            joined = max(end, after[1] + sorted(spans)[_first(reads, after)][2]) - before[1]
            assert after[1] - end > max_gap or joined > max_nbytes


def _first(reads, read):
    """The number of the first span that a read serves."""
    return sum(n_spans for *_, n_spans in reads[: reads.index(read)])


# ---- maps or reads

WARM = Facts(
    file_system="ext4",
    is_network=False,
    is_memory=False,
    resident=1.0,
    request_ns=1000.0,
    bytes_per_ns=8.0,
    n_files=10,
    max_maps=100,
    cores=4,
)

# facts that differ, io, threads -> io, threads, cold, reason
CHOICES = {
    "warm": ({}, "auto", None, ("mmap", 4, False, "100% of sampled pages in the page cache")),
    "mostly warm": ({"resident": 0.9}, "auto", None, ("mmap", 4, False, "90% of sampled pages")),
    "cold": ({"resident": 0.5}, "auto", None, ("pread", 16, True, "50% of sampled pages")),
    "cold, many cores": (
        {"resident": 0.0, "cores": 64},
        "auto",
        None,
        ("pread", 64, True, "0% of sampled pages"),
    ),
    "nobody knows": ({"resident": None}, "auto", None, ("pread", 4, False, "does not tell")),
    "memory": (
        {"is_memory": True, "resident": None, "file_system": "tmpfs"},
        "auto",
        None,
        ("mmap", 4, False, "tmpfs is memory"),
    ),
    "network": (
        {"is_network": True, "resident": None, "file_system": "nfs4"},
        "auto",
        None,
        ("pread", 32, True, "nfs4 is a network file system"),
    ),
    "more files than maps": (
        {"n_files": 101},
        "auto",
        None,
        ("pread", 4, False, "101 files are more than 100 maps allowed"),
    ),
    "threads as asked": ({"resident": 0.0}, "auto", 3, ("pread", 3, True, "0% of")),
    "maps as asked, though cold": (
        {"resident": 0.0},
        "mmap",
        None,
        ("mmap", 4, False, "asked for"),
    ),
    "reads as asked, though warm": ({}, "pread", None, ("pread", 4, False, "asked for")),
    "reads as asked, and cold": ({"resident": 0.0}, "pread", None, ("pread", 16, True, "asked")),
}


@pytest.mark.parametrize(("facts", "io", "threads", "want"), CHOICES.values(), ids=CHOICES)
def test_the_way_of_reading_follows_from_the_facts(facts, io, threads, want):
    plan = plan_io(replace(WARM, **facts), io=io, threads=threads)
    assert (plan.io, plan.threads, plan.is_cold) == want[:3]
    assert want[3] in plan.reason


@pytest.mark.parametrize(
    ("request_ns", "bytes_per_ns", "gap"),
    [(1000, 8, 8000), (500, 0.05, 25), (5e6, 50, MAX_GAP_NBYTES)],
)
def test_a_gap_is_bridged_when_that_is_cheaper_than_a_request(request_ns, bytes_per_ns, gap):
    facts = replace(WARM, request_ns=request_ns, bytes_per_ns=bytes_per_ns)
    assert plan_io(facts, io="auto", threads=None).max_gap == gap


# ---- How far ahead

# batch_nbytes, batch_size, prefetch, threads -> depth, batches per claim, chunks per batch
AHEAD = {
    "large batches: as many as asked": ((100 << 20, 64, 2, 2), (2, 1, 1)),
    "large batches, many threads: a batch in parts": ((100 << 20, 64, 2, 16), (2, 1, 8)),
    "no more parts than samples": ((100 << 20, 3, 2, 16), (2, 1, 3)),
    "one ahead": ((100 << 20, 64, 1, 4), (1, 1, 4)),
    "small batches: by bytes": ((400 << 10, 256, 2, 2), (10, 1, 1)),
    "tiny batches: up to 64, several at a time": ((4 << 10, 1, 2, 2), (64, 16, 1)),
    "tiny batches, many threads: some for each": ((4 << 10, 1, 2, 16), (64, 2, 1)),
    "more when asked": ((4 << 10, 1, 200, 2), (200, 32, 1)),
    "batches of nothing": ((0, 4, 2, 2), (64, 16, 1)),
}


@pytest.mark.parametrize(("facts", "want"), AHEAD.values(), ids=AHEAD)
def test_how_far_ahead_follows_from_the_size_of_a_batch(facts, want):
    batch_nbytes, batch_size, prefetch, threads = facts
    ahead = plan_ahead(
        batch_nbytes=batch_nbytes,
        batch_size=batch_size,
        prefetch=prefetch,
        threads=threads,
        io="pread",
    )
    assert (ahead.depth, ahead.batches_per_claim, ahead.chunks_per_batch) == want


@settings(max_examples=200, deadline=None)
@given(
    batch_nbytes=st.integers(0, 1 << 34),
    batch_size=st.integers(1, 4096),
    prefetch=st.integers(1, 100),
    threads=st.integers(1, 128),
)
def test_looking_ahead_keeps_its_bounds(batch_nbytes, batch_size, prefetch, threads):
    ahead = plan_ahead(
        batch_nbytes=batch_nbytes,
        batch_size=batch_size,
        prefetch=prefetch,
        threads=threads,
        io="pread",
    )
    assert prefetch <= ahead.depth <= max(prefetch, MOST_AHEAD)
    assert ahead.depth == prefetch or ahead.depth * batch_nbytes <= LOOK_AHEAD_NBYTES
    assert 1 <= ahead.batches_per_claim <= ahead.depth
    assert ahead.batches_per_claim == 1 or ahead.batches_per_claim * batch_nbytes <= CLAIM_NBYTES
    assert 1 <= ahead.chunks_per_batch <= batch_size
    assert 1 in (ahead.batches_per_claim, ahead.chunks_per_batch)
    # Every thread finds something to do, as far as there are samples.
    work = ahead.depth // ahead.batches_per_claim * ahead.chunks_per_batch
    assert work >= min(threads, ahead.depth * batch_size)
