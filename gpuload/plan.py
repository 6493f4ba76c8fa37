"""Decide how a loader reads and how far ahead: facts in, a plan out. No I/O here.

The spans of each window and the reads that serve them are worked out natively (csrc/plan.hpp) with
the costs
given here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Fill ahead by at least this many bytes, so that a woken thread finds several small batches to
# fill.
# 4 MiB stays in the shared cache of every server processor of the last ten years; measured on
# crop2d.
LOOK_AHEAD_NBYTES = 4 << 20
MOST_AHEAD = 64

# Small batches are claimed together up to this many bytes: a claim costs about 0.2 us, a wake-up 40
# us.
CLAIM_NBYTES = 128 << 10

# The consumer fills batches up to this size itself while it waits: that takes less time than a
# wake-up. With reads it would wait for a batch that it does not want yet.
HELP_NBYTES = 1 << 20

# A read that serves several windows stays below this, and with it the scratch memory of a thread.
MAX_READ_NBYTES = 4 << 20
MAX_GAP_NBYTES = 128 << 10
PAGE_NBYTES = 4096  # devices are read by pages: a gap within one costs nothing

# Threads that wait for requests: cold local disks gain up to 16, network file systems beyond.
COLD_THREADS = 16
NETWORK_THREADS = 32

WARM_SHARE = 0.9  # of sampled pages in the page cache


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the files and the machine.

    `resident` is the share of sampled pages that the page cache holds, None when the system does
    not tell.
    `request_ns` and `bytes_per_ns` are what a read costs there.
    """

    file_system: str
    is_network: bool
    is_memory: bool
    resident: float | None
    request_ns: float
    bytes_per_ns: float
    n_files: int
    max_maps: int
    cores: int


@dataclass(frozen=True, slots=True)
class IoPlan:
    """How files are read, and why."""

    io: str  # "pread" or "mmap"
    reason: str
    is_cold: bool  # reads go to a device or a network, not to the page cache
    may_warm: bool  # the next epoch may find the files in the page cache, and then map them
    threads: int
    request_ns: float
    bytes_per_ns: float
    max_gap: int
    max_nbytes: int


def plan_io(facts: Facts, *, io: str, threads: int | None) -> IoPlan:
    """Choose between copying from kept maps and positioned reads.

    Maps are several times faster for small windows of files that the page cache holds, and far
    slower for
    files that it does not hold (one fault per page, one at a time).

    Args:
        io: "auto", or the choice itself.
        threads: None for as many as the choice calls for.
    """
    cold = facts.resident is not None and facts.resident < WARM_SHARE
    if io != "auto":
        chosen, reason = io, "asked for"
    elif facts.is_network:
        chosen, reason = "pread", f"{facts.file_system} is a network file system"
    elif facts.n_files > facts.max_maps:
        chosen, reason = (
            "pread",
            f"{facts.n_files} files are more than {facts.max_maps} maps allowed",
        )
    elif facts.is_memory:
        chosen, reason = "mmap", f"{facts.file_system} is memory"
    elif facts.resident is None:
        chosen, reason = "pread", "the system does not tell what the page cache holds"
    elif cold:
        chosen, reason = "pread", f"{facts.resident:.0%} of sampled pages in the page cache"
    else:
        chosen, reason = "mmap", f"{facts.resident:.0%} of sampled pages in the page cache"
    if threads is None:
        threads = facts.cores
        if chosen == "pread" and facts.is_network:
            threads = max(threads, NETWORK_THREADS)
        elif chosen == "pread" and cold:
            threads = max(threads, COLD_THREADS)
    is_cold = chosen == "pread" and (cold or facts.is_network)
    gap = min(int(facts.request_ns * facts.bytes_per_ns), MAX_GAP_NBYTES)
    return IoPlan(
        chosen,
        reason,
        is_cold,
        cold and io == "auto" and not facts.is_network,
        threads,
        facts.request_ns,
        facts.bytes_per_ns,
        max(gap, PAGE_NBYTES) if is_cold else gap,
        MAX_READ_NBYTES,
    )


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far and in which parts batches are filled ahead of the consumer.

    `depth` batches may be filled or being filled; a thread takes `batches_per_claim` of them at a
    time, or one of `chunks_per_batch` parts of one. With `consumer_helps` the consumer does so too
    as long as the batch that it wants is not ready.
    """

    depth: int
    batches_per_claim: int
    chunks_per_batch: int
    consumer_helps: bool


def plan_ahead(
    *, batch_nbytes: int, batch_size: int, prefetch: int, threads: int, io: str
) -> Ahead:
    """Look ahead by bytes where batches are small, by `prefetch` batches where they are large."""
    batch_nbytes = max(batch_nbytes, 1)
    depth = max(prefetch, min(LOOK_AHEAD_NBYTES // batch_nbytes, MOST_AHEAD))
    per_claim = max(1, min(CLAIM_NBYTES // batch_nbytes, depth // (2 * threads)))
    chunks = 1 if depth >= threads else min(math.ceil(threads / depth), max(batch_size, 1))
    helps = io == "mmap" and batch_nbytes <= HELP_NBYTES
    return Ahead(depth, per_claim, chunks if per_claim == 1 else 1, helps)
