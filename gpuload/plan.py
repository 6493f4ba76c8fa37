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

    `file_system` is empty where nothing lies in files. `resident` is the share of sampled pages
    that the page cache holds, None when the system does not tell. `request_ns` and `bytes_per_ns`
    are what a read costs there.
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
        where = f"{facts.file_system} is memory" if facts.file_system else "arrays are in memory"
        chosen, reason = "mmap", where
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


# Cropping on the host, as measured on two cores of a server: copies, rows of few bytes, elements
# that lie apart or are swapped. And a copy to the device: PCIe 4.0 x16.
HOST_BYTES_PER_NS = 6.0
HOST_ROW_NS = 6.0
HOST_ELEMENT_NS = 0.7
LINK_BYTES_PER_NS = 20.0


# Reads into the device bring in whole spans; not if the host can do with less than half of that.
MOST_DIRECT = 2


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """How the largest window of a source lies in its file.

    `span_nbytes` reach from its first to its last byte, of which `useful_nbytes` are its own, in
    `n_rows` runs. `n_elements` lie apart or in another order than they are delivered in; 0 when
    rows can be copied. `reads` and `read_nbytes` are what the reader makes of it. `can_ship` says
    that the device can cut it out of its span.
    """

    span_nbytes: int
    useful_nbytes: int
    n_rows: int
    n_elements: int
    reads: int
    read_nbytes: int
    can_ship: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """What crosses to the device: windows cut out on the host, or spans that it cuts itself.

    `delivery` is "placed", "shipped" or "listed" (csrc/ship.hpp). `not_direct` says why nothing is
    read straight into the device.
    """

    delivery: str
    reason: str
    not_direct: str = ""


def plan_transfer(
    window: WindowFacts, io: IoPlan, *, direct: str | None, insists: bool = False
) -> Transfer:
    """Choose where windows are cut out, by what both ways cost.

    Args:
        direct: None when windows can be read straight into the device, else why not.
        insists: they must be, where they can, whatever it costs.
    """
    w = window
    placing_ns = (
        w.n_elements * HOST_ELEMENT_NS
        + w.n_rows * HOST_ROW_NS
        + w.useful_nbytes / HOST_BYTES_PER_NS
    )
    if direct is None and not w.can_ship:
        direct = "windows have more axes than the device takes, or arrays of both byte orders"
    if direct is None and not insists and not io.is_cold:
        direct = "files are in the page cache, which is faster"
    if direct is None and not insists and w.span_nbytes > MOST_DIRECT * w.read_nbytes:
        direct = f"windows span {w.span_nbytes} bytes, and {w.read_nbytes} do"
    if direct is None:
        return Transfer("listed", f"spans of {w.span_nbytes} bytes are read into the device")
    if w.n_rows <= 1 and w.n_elements == 0:
        return Transfer("placed", "windows are runs of bytes", direct)
    if not w.can_ship:
        return Transfer("placed", "the device does not take windows of so many axes", direct)
    if io.io == "mmap":
        read_ns, ship_ns = 0.0, w.span_nbytes / HOST_BYTES_PER_NS
    else:
        read_ns = w.reads * io.request_ns + w.read_nbytes / io.bytes_per_ns
        ship_ns = io.request_ns + w.span_nbytes / io.bytes_per_ns
    placed = (read_ns + placing_ns) / io.threads + w.useful_nbytes / LINK_BYTES_PER_NS
    shipped = ship_ns / io.threads + w.span_nbytes / LINK_BYTES_PER_NS
    costs = f"{placed / 1e3:.2g} us to cut a window out on the host, {shipped / 1e3:.2g} us to ship"
    return Transfer("shipped" if shipped < placed else "placed", costs, direct)
