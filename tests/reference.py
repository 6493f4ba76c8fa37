"""NumPy twins of gpuload/kernels/random.h, csrc/order.hpp, csrc/window.hpp and csrc/fit.hpp.

Written for reading, not for speed: what the native code must return, for whole arrays at once.
Arrays are uint64, whose products and sums wrap as they do in C++.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

EPOCH_KEY, SHUFFLE, BLOCKS, WITHIN_BLOCKS, WINDOW, REPLACE, TURN = range(7)  # enum Purpose
LOW_32 = 0xFFFFFFFF


def philox(key, counters):
    """Philox4x32-10 of `counters` (n, 4) under a 64-bit key: (n, 4) uint32."""
    x = np.asarray(counters).astype(np.uint64).T
    key_0, key_1 = key & LOW_32, key >> 32
    for _ in range(10):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = np.stack(((b >> 32) ^ x[1] ^ key_0, b & LOW_32, (a >> 32) ^ x[3] ^ key_1, a & LOW_32))
        key_0, key_1 = (key_0 + 0x9E3779B9) & LOW_32, (key_1 + 0xBB67AE85) & LOW_32
    return x.T.astype(np.uint32)


def draw(key, items, crops, purpose, block):
    """Two 64-bit words for each (item, crop, block): (n,) and (n,)."""
    items, crops, blocks = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(number, np.uint64)) for number in (items, crops, block))
    )
    counters = np.stack((items & LOW_32, items >> 32, crops, purpose << 16 | blocks), axis=1)
    words = philox(key, counters).astype(np.uint64)
    return words[:, 0] | words[:, 1] << 32, words[:, 2] | words[:, 3] << 32


def epoch_key(seed, epoch):
    return int(draw(seed % 2**64, epoch, 0, EPOCH_KEY, 0)[0][0])


def multiply_high(a, b):
    """Bits 64 to 127 of the product."""
    return (a.astype(object) * b >> 64).astype(np.uint64)


def mix(x):
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


class Permutation:
    """A keyed bijection of [0, n): a Feistel network on rows x columns, walked until below n."""

    def __init__(self, n, key, purpose, which=0):
        rows = math.isqrt(n - 1) + 1  # the square root, rounded up, then up to an even number
        self.n = n
        self.rows = rows + rows % 2
        self.columns = math.ceil(n / self.rows)
        n_rounds = 16 if n < 1024 else 6
        hashed = int(mix(np.array([n], np.uint64))[0]) % 2**32
        keys = draw(key, which, hashed, purpose, np.arange(0, n_rounds, 2))
        self.keys = list(zip(*(words.tolist() for words in keys), strict=True))

    def once(self, i):
        row, column = np.divmod(i, np.uint64(self.columns))
        for for_row, for_column in self.keys:
            row = (row + multiply_high(mix(column ^ for_row), self.rows)) % self.rows
            column = (column + multiply_high(mix(row ^ for_column), self.columns)) % self.columns
        return row * self.columns + column

    def __call__(self, positions):
        at = self.once(np.asarray(positions, np.uint64))
        while (outside := at >= self.n).any():
            at[outside] = self.once(at[outside])
        return at.astype(np.int64)


def shuffled(n, *, seed, epoch):
    """The samples of an epoch with shuffle=True: (n,)."""
    return Permutation(n, epoch_key(seed, epoch), SHUFFLE)(np.arange(n))


def block_shuffled(n, *, seed, epoch, block, mixed=64):
    """The samples of an epoch with shuffle="block": (n,).

    Blocks of `block` samples are permuted, then the samples of each `mixed` blocks.
    """
    key = epoch_key(seed, epoch)
    blocks = np.split(np.arange(n), np.arange(block, n, block))
    slots = Permutation(len(blocks), key, BLOCKS)(np.arange(len(blocks)))
    order = []
    for group, begin in enumerate(range(0, len(slots), mixed)):
        samples = np.concatenate([blocks[slot] for slot in slots[begin : begin + mixed]])
        within = Permutation(len(samples), key, WITHIN_BLOCKS, group)
        order.append(samples[within(np.arange(len(samples)))])
    return np.concatenate(order)


def random_starts(shape, size, *, seed, epoch, item, crop):
    """The start of crop `crop` of item `item`: a tuple."""
    key = epoch_key(seed, epoch)
    starts = []
    for axis, (n, wanted) in enumerate(zip(shape, size, strict=True)):
        word = draw(key, item, crop, WINDOW, axis // 2)[axis % 2]
        starts.append(int(multiply_high(word, n - wanted + 1)[0]))
    return tuple(starts)


def flips_and_turns(ndim, *, seed, epoch, items, crops):
    """Whether each axis is reversed, were all of them to be: (n, ndim); and quarter turns: (n,)."""
    words, _ = draw(epoch_key(seed, epoch), items, crops, TURN, 0)
    flips = words[:, None] >> np.arange(ndim, dtype=np.uint64) & 1
    return flips.astype(bool), (words >> 32 & 3).astype(np.int64)


def center_start(shape, size):
    return tuple((n - wanted) // 2 for n, wanted in zip(shape, size, strict=True))


def grid_starts(shape, size, stride):
    """All starts of a grid, the last axis fastest: a list of tuples."""
    along = []
    for n, wanted, step in zip(shape, size, stride, strict=True):
        starts = list(range(0, n - wanted, step))
        along.append([*starts, n - wanted])
    return list(itertools.product(*along))


def looks_even(counts):
    """Whether counts differ by no more than they would by chance in 999 cases of 1000."""
    counts = np.asarray(counts)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    n = len(counts) - 1
    # The 0.999 quantile: Wilson, Hilferty, "The distribution of chi-square", PNAS 1931.
    return chi_square < n * (1 - 2 / (9 * n) + 3.09 * math.sqrt(2 / (9 * n))) ** 3
