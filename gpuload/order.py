"""Which samples make which batch: a pure function of seed, epoch, rank and world. No I/O here.

The permutation and the crops themselves are drawn natively (kernels/random.h); this module decides
how many
samples and batches each rank has, and where an epoch goes on after a resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuload import _native
from gpuload.catalog import Ints

# Kinds of csrc/order.hpp.
_SHUFFLES = {False: 0, True: 1, "block": 2}

_BUCKETS = 7  # purpose of gpuload/kernels/random.h

# Samples of similar size come together within so many samples of an epoch's order, in blocks of so
# many: some batches each. Sizes are taken for up to a tenth larger, at random, so that it is not
# always the same samples that meet.
POOL, POOL_BLOCK, JITTER = 4096, 64, 0.1

# shuffle="block" mixes this many blocks of neighbouring samples at a time.
BLOCKS_MIXED = 64


@dataclass(frozen=True, slots=True)
class Shares:
    """How an epoch is dealt out: samples and batches of this rank, and the total that all see.

    Positions of the ranks interleave: position i of rank r is `first + i * world + r`. `ends` lists
    the local end of each batch where batches are not all of `batch_size` samples. `seen` lists what
    all ranks together have seen after each batch where that does not follow from the above.
    """

    n_samples: int
    first: int
    rank: int
    world: int
    n_local: int
    batch_size: int
    ends: Ints | None = None
    seen: Ints | None = None

    @property
    def n_batches(self) -> int:
        return (
            len(self.ends) if self.ends is not None else math.ceil(self.n_local / self.batch_size)
        )

    def handed_out(self, n_batches: int) -> int:
        """Samples of the epoch that all ranks have seen after this many batches each, repeats not
        counted."""
        if self.seen is not None:
            return int(self.seen[n_batches])
        return min(self.first + self.given(n_batches) * self.world, self.n_samples)

    def given(self, n_batches: int) -> int:
        """Samples, repeats included, in this many batches of this rank."""
        if self.ends is not None:
            return int(self.ends[n_batches - 1]) if n_batches else 0
        return min(n_batches * self.batch_size, self.n_local)


def share(
    n_samples: int,
    *,
    first: int,
    batch_size: int,
    drop_last: bool,
    rank: int,
    world: int,
    even: str,
) -> Shares:
    """Deal samples [first, n_samples) of an epoch out to `world` ranks.

    Every rank gets the same number of batches. `even` says how: "pad" repeats samples from the
    start of the epoch's order, "drop" leaves up to world - 1 samples out, "exact" gives each sample
    to one rank once.

    Raises:
        ValueError: "exact" cannot be had: a rank would have a batch without samples.
    """
    left = n_samples - first
    fewest, most = left // world, math.ceil(left / world)  # samples of a rank
    n_local = fewest if even == "drop" else most
    if drop_last:
        n_local = (most if even == "pad" else fewest) // batch_size * batch_size
    ends = None
    if even == "exact" and fewest < most and not drop_last:
        n_batches, n_local = math.ceil(most / batch_size), fewest + (rank < left % world)
        if fewest < n_batches:  # on some rank; said on all, so that none is left waiting
            raise ValueError(
                f'even: expected "pad" or "drop" for {left} samples on {world} ranks with '
                f'batch_size {batch_size}, got "exact"; a rank would have a batch without samples'
            )
        if math.ceil(fewest / batch_size) < n_batches:
            # The last batch takes one sample of the one before, on all ranks: until then they have
            # seen the same part of the epoch.
            ends = np.arange(1, n_batches + 1, dtype=np.int64) * batch_size
            ends[-2:] = ends[-2] - 1, n_local
    return Shares(n_samples, first, rank, world, n_local, batch_size, ends)


def share_count(n_batches: int, *, world: int, even: str) -> int:
    """How many of the batches of a batch sampler each rank gets.

    Raises:
        ValueError: batches cannot be dealt evenly ("exact").
    """
    if even == "exact" and n_batches % world:
        raise ValueError(
            f"even: expected a number of batches that {world} ranks can share, got {n_batches} and "
            'even="exact"; pass "pad" or "drop"'
        )
    return n_batches // world if even == "drop" else math.ceil(n_batches / world)


def share_batches(
    sizes: Ints, *, first: int, rank: int, world: int, even: str
) -> tuple[Shares, Ints]:
    """Deal the batches of a batch sampler, whole: after sample `first`, rank r gets batches r, r +
    world, ...

    Args:
        sizes: samples of each batch, none of them 0.

    Returns:
        The shares, over the samples of this rank's batches alone, and the numbers of these batches:
        those that repeat one from the start of the epoch, which are handed out last, come first.

    Raises:
        ValueError: batches cannot be dealt evenly ("exact").
    """
    n, ends = len(sizes), np.cumsum(sizes)
    start = int(np.searchsorted(ends, first, side="right"))
    n_local = share_count(n - start, world=world, even=even)
    numbers = start + np.arange(n_local) * world + rank
    own, repeats = numbers[numbers < n], numbers[numbers >= n] % max(n, 1)
    local = np.concatenate((sizes[own], sizes[repeats]))
    seen = np.minimum(start + np.arange(n_local + 1) * world, n)
    shares = Shares(
        n_samples=int(local.sum()),
        first=int(sizes[repeats].sum()),  # what comes after the last sample is counted as a repeat
        rank=0,
        world=1,
        n_local=int(local.sum()),
        batch_size=1,
        ends=np.cumsum(local),
        seen=np.concatenate(([0], ends))[seen],
    )
    return shares, np.concatenate((repeats, own))


@dataclass(frozen=True, slots=True)
class Listed:
    """Samples that a sampler named: items, and which crop of the item each one is."""

    items: Ints
    crops: np.ndarray[tuple[int], np.dtype[np.uint32]]

    def take(self, rows: Ints) -> Listed:
        return Listed(self.items[rows], self.crops[rows])


def list_samples(items: Ints, per_item: int) -> Listed:
    """`per_item` crops of each item named. An item named again gets other crops than before."""
    order = np.argsort(items, kind="stable")
    ranked = items[order]
    new = np.flatnonzero(np.diff(ranked, prepend=-1))
    times = np.empty(len(items), np.int64)  # how often the item was named before
    times[order] = np.arange(len(items)) - np.repeat(new, np.diff(new, append=len(items)))
    crops = (times[:, None] * per_item + np.arange(per_item)).astype(np.uint32)
    return Listed(np.repeat(items, per_item).astype(np.int64), crops.reshape(-1))


def bucket(listed: Listed, sizes: Ints, *, key: int, is_shuffled: bool) -> Listed:
    """Bring samples of similar size together: each POOL of the order is sorted by size, cut into
    blocks of POOL_BLOCK from a random place on, and these are shuffled.

    Args:
        sizes: of each sample.
        key: of the epoch. The order depends on it and on the order before, not on batches.
    """
    n = len(sizes)
    numbers = np.arange(n)
    pools = numbers // POOL
    if not is_shuffled:
        return listed.take(np.lexsort((numbers, sizes, pools)))
    taken_for = sizes * (1 + JITTER * _words(key, n, 0) / 2**32)
    by_size = np.lexsort((numbers, taken_for, pools))
    per_pool = POOL // POOL_BLOCK + 1
    first = (
        _words(key, pools[-1] + 1, 1) % POOL_BLOCK
    )  # of each pool, the length of its first block
    block = pools * per_pool + (numbers % POOL + POOL_BLOCK - first[pools]) // POOL_BLOCK
    word = _words(key, (pools[-1] + 1) * per_pool, 2)[block]
    return listed.take(by_size[np.lexsort((numbers, block, word, pools))])


def _words(key: int, n: int, what: int) -> Ints:
    """Random numbers of 32 bits, one series for each thing that is drawn."""
    counters = np.zeros((n, 4), np.uint32)
    counters[:, 0], counters[:, 2], counters[:, 3] = np.arange(n), what, _BUCKETS << 16
    return np.asarray(_native.philox(key, counters))[:, 0].astype(np.int64)


def native_epoch(
    shares: Shares,
    *,
    seed: int,
    epoch: int,
    shuffle: bool | str,
    block: int,
    listed: Listed | None,
) -> _native.Epoch:
    """The order of one epoch for the native code. `block` is the samples in a block of
    shuffle="block"."""
    return _native.Epoch(
        seed % 2**64,
        epoch,
        _SHUFFLES[shuffle] if listed is None else 0,
        block,
        BLOCKS_MIXED,
        shares.n_samples,
        shares.first,
        shares.rank,
        shares.world,
        shares.n_local,
        shares.batch_size,
        shares.ends,
        None if listed is None else listed.items,
        None if listed is None else listed.crops,
    )
