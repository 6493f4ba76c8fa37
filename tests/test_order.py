"""The order of an epoch: native code against its NumPy twins, exactness, and chance."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    SHUFFLE,
    Permutation,
    block_shuffled,
    epoch_key,
    looks_even,
    philox,
    shuffled,
)

import gpuload as gl
from gpuload import _native
from gpuload.order import BLOCKS_MIXED

WHOLE = _native.Windows(0, [], [], 1, None)
SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 2**64 - 1)

# From kat_vectors of Random123 (Salmon et al.): key, counter, result.
KNOWN_ANSWERS = {
    "zeros": (
        0,
        (0, 0, 0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    "ones": (
        2**64 - 1,
        (0xFFFFFFFF,) * 4,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    "digits of pi": (
        0x299F31D0_A4093822,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


def native(n, *, seed=0, epoch=0, shuffle=1, block=1, mixed=BLOCKS_MIXED, begin=0, end=None):
    """The samples at positions [begin, end) of an epoch of `n`."""
    made = _native.Epoch(seed, epoch, shuffle, block, mixed, n, 0, 0, 1, n, 1, None, None, None)
    return made.samples(WHOLE, begin, n if end is None else end)[0]


def is_permutation(order, n):
    return np.array_equal(np.sort(order), np.arange(n))


# ---- Philox


@pytest.mark.parametrize("implementation", [philox, _native.philox], ids=["twin", "native"])
@pytest.mark.parametrize(("key", "counter", "want"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(implementation, key, counter, want):
    got = implementation(key, np.array([counter], np.uint32))
    assert tuple(map(int, got[0])) == want


@settings(max_examples=50, deadline=None)
@given(key=SEEDS, words=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4))
def test_philox_equals_its_twin(key, words):
    counters = np.array([words, words[::-1]], np.uint32)
    assert np.array_equal(_native.philox(key, counters), philox(key, counters))


# ---- The full shuffle


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
def test_a_shuffle_equals_its_twin(n, seed, epoch):
    assert np.array_equal(native(n, seed=seed, epoch=epoch), shuffled(n, seed=seed, epoch=epoch))


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_every_small_shuffle_is_a_permutation(seed):
    for n in range(1, 301):
        assert is_permutation(native(n, seed=seed, epoch=n), n), n


@pytest.mark.parametrize("n", [1023, 1024, 1025, 65_536, 99_991, 1_000_000])
def test_large_shuffles_are_permutations(n):
    assert is_permutation(native(n, seed=5), n)


def test_ten_billion_samples_are_shuffled_at_random_access():
    n = 10**10
    permutation = Permutation(n, epoch_key(3, 7), SHUFFLE)
    seen = []
    start = time.perf_counter()
    for begin in (0, 1, 4_999_999_937, n - 1000):
        seen.append(native(n, seed=3, epoch=7, begin=begin, end=begin + 1000))
    assert time.perf_counter() - start < 1
    for begin, samples in zip((0, 1, 4_999_999_937, n - 1000), seen, strict=True):
        assert np.array_equal(samples, permutation(np.arange(begin, begin + 1000)))
        assert len(np.unique(samples)) == 1000
        assert samples.min() >= 0
        assert samples.max() < n
    assert max(samples.max() for samples in seen) > 0.99 * n


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_the_loader_follows_the_twin(numbered, epoch):
    loader = gl.DataLoader(numbered(500), batch_size=32, shuffle=True, seed=11)
    loader.set_epoch(epoch)
    assert np.array_equal(
        np.concatenate([x[:, 0] for x in loader]), shuffled(500, seed=11, epoch=epoch)
    )


def test_any_whole_number_is_a_seed(numbered):
    source = numbered(50)
    orders = {
        seed: tuple(x.item() for x in gl.DataLoader(source, shuffle=True, seed=seed))
        for seed in (-1, 0, 1, 2**64 - 1, np.int32(7))
    }
    assert orders[-1] == orders[2**64 - 1]  # the same 64 bits
    assert len(set(orders.values())) == 4


# ---- Chance. Seeds are fixed, so that nothing here fails by bad luck.


@pytest.mark.parametrize("n", [2, 3, 4, 5], ids="n={}".format)
def test_every_order_of_a_few_samples_is_equally_frequent(n):
    orders = [tuple(native(n, seed=seed).tolist()) for seed in range(12_000)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == np.prod(range(1, n + 1))
    assert looks_even(counts)


@pytest.mark.parametrize("n", [100, 1000, 1500], ids="n={}".format)
@pytest.mark.parametrize("position", [0, -1], ids=["first", "last"])
def test_any_sample_may_be_first_or_last(n, position):
    at = position % n
    found = np.concatenate([native(n, seed=seed, begin=at, end=at + 1) for seed in range(5000)])
    assert looks_even(np.bincount(found * 20 // n, minlength=20))


@pytest.mark.parametrize("n", [100, 1500], ids="n={}".format)
@pytest.mark.parametrize("sample", [0, -1], ids=["first", "last"])
def test_the_first_and_the_last_sample_may_stand_anywhere(n, sample):
    places = [np.flatnonzero(native(n, seed=seed) == sample % n)[0] for seed in range(3000)]
    assert looks_even(np.bincount(np.array(places) * 20 // n, minlength=20))


@pytest.mark.parametrize("n", [101, 1501], ids="n={}".format)
def test_neighbours_are_as_far_apart_as_by_chance(n):
    counts = np.zeros(20, np.int64)
    for seed in range(40_000 // n):
        steps = np.diff(native(n, seed=seed)) % n  # 1..n-1, each equally likely
        counts += np.bincount((steps - 1) * 20 // (n - 1), minlength=20)
    assert looks_even(counts)


def test_epochs_do_not_repeat_or_resemble_each_other():
    orders = np.stack([native(200, seed=9, epoch=epoch) for epoch in range(200)])
    assert len(np.unique(orders, axis=0)) == 200
    same = (orders[1:] == orders[:-1]).sum(axis=1)  # positions that keep their sample: 1 by chance
    assert abs(same.mean() - 1) < 0.3
    correlation = np.corrcoef(orders)[np.triu_indices(200, 1)]
    assert abs(correlation.mean()) < 0.005
    assert abs(correlation.std() * np.sqrt(199) - 1) < 0.05


def test_seed_and_epoch_do_not_stand_in_for_each_other():
    orders = {(s, e): tuple(native(100, seed=s, epoch=e)) for s in range(20) for e in range(20)}
    assert len(set(orders.values())) == 400


# ---- shuffle="block"


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 400),
    block=st.integers(1, 70),
    mixed=st.integers(1, 70),
    seed=SEEDS,
    epoch=EPOCHS,
)
def test_a_block_shuffle_equals_its_twin(n, block, mixed, seed, epoch):
    got = native(n, seed=seed, epoch=epoch, shuffle=2, block=block, mixed=mixed)
    assert np.array_equal(got, block_shuffled(n, seed=seed, epoch=epoch, block=block, mixed=mixed))
    assert is_permutation(got, n)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 1000], ids="block={}".format)
def test_block_shuffles_with_a_short_last_block_are_permutations(block):
    for n in (*range(1, 30), 191, 192, 193, 4096, 5000):
        for mixed in (1, 3, BLOCKS_MIXED):
            order = native(n, seed=n, shuffle=2, block=block, mixed=mixed)
            assert is_permutation(order, n), (n, mixed)


def test_ten_billion_samples_are_shuffled_by_blocks_at_random_access():
    n, block = 10**10 + 321, 1000  # the last block is short
    group = block * BLOCKS_MIXED
    start = time.perf_counter()
    samples = native(n, shuffle=2, block=block, begin=5 * group, end=6 * group)
    last = native(n, shuffle=2, block=block, begin=n - 10, end=n)
    assert time.perf_counter() - start < 1
    blocks, counts = np.unique(samples // block, return_counts=True)
    assert len(blocks) == BLOCKS_MIXED
    assert set(counts) == {block}
    assert len(np.unique(samples)) == group
    assert len(np.unique(last)) == 10
    assert last.max() < n


def test_the_short_block_may_lie_anywhere():
    n, block = 1010, 20  # 51 blocks; the last one has 10 samples
    places = [
        np.flatnonzero(native(n, seed=seed, shuffle=2, block=block, mixed=1) >= 1000)[0] // block
        for seed in range(2000)
    ]
    assert looks_even(np.bincount(places, minlength=51))


def test_windows_of_an_array_stay_near_each_other(save_arrays):
    folder, _ = save_arrays(150, (4, 4))
    crop = gl.RandomCrop((2, 2), per_array=3)
    loader = gl.DataLoader(gl.open(folder), 45, shuffle="block", crop=crop, extras="index")
    items = np.concatenate([batch.index for batch in loader])
    places = np.stack([np.flatnonzero(items == item) for item in range(150)])
    apart = places.max(axis=1) - places.min(axis=1)
    assert apart.max() < 3 * BLOCKS_MIXED
    assert apart.max() > BLOCKS_MIXED  # they are mixed all the same
    assert not np.array_equal(items, np.sort(items))


def test_rows_are_kept_together_by_the_mebibyte(tmp_path):
    rows = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype="float32", shape=(600, 1 << 16)
    )
    del rows  # 256 KiB a row, all holes
    loader = gl.DataLoader(
        gl.open(tmp_path / "rows.npy", sample_axis=0),
        batch_size=100,
        shuffle="block",
        crop=gl.CenterCrop(1),
        extras="index",
    )
    items = np.concatenate([batch.index for batch in loader])
    assert is_permutation(items, 600)
    first = items[: 4 * BLOCKS_MIXED]
    blocks, counts = np.unique(first // 4, return_counts=True)
    assert len(blocks) == BLOCKS_MIXED
    assert set(counts) == {4}
