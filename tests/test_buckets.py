"""Samples of similar size in one batch: bucket=True of Pad."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl
from gpuload.order import JITTER, POOL, POOL_BLOCK, Listed, bucket

RNG = np.random.default_rng(0)
N = 700
LENGTHS = RNG.integers(5, 100, N)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for i, n in enumerate(LENGTHS):
        np.save(folder / f"{i:04}.npy", np.full(n, i, "f4"))
    return gl.open(folder)


def loader(source, batch_size=16, **options):
    pad = gl.Pad("batch", align="begin", bucket=options.pop("bucket", True))
    options = {"shuffle": True, "extras": ("index", "lengths")} | options
    return gl.DataLoader(source, batch_size, pad=pad, **options)


def indices(batches):
    return [batch.index.tolist() for batch in batches]


def in_a_row(batches):
    return [i for batch in indices(batches) for i in batch]


def test_each_sample_comes_once_and_whole(source):
    for batch in loader(source):
        for x, i, n in zip(batch.x, batch.index.tolist(), batch.lengths.tolist(), strict=True):
            assert n == LENGTHS[i]
            assert x.tolist() == [i] * n + [0] * (len(x) - n)
    assert sorted(in_a_row(loader(source))) == list(range(N))


def test_less_is_padded(source):
    def share_of_data(**options):
        batches = list(loader(source, **options))
        return sum(int(b.lengths.sum()) for b in batches) / sum(b.x.numel() for b in batches)

    assert share_of_data(bucket=True) > 0.87 > 0.7 > share_of_data(bucket=False)


def test_epochs_differ_and_come_again(source):
    with loader(source) as first:
        epochs = [indices(first) for _ in range(2)]
        first.set_epoch(0)
        assert indices(first) == epochs[0] != epochs[1]


def test_the_order_does_not_depend_on_batches_or_ranks(source):
    whole = in_a_row(loader(source))
    assert in_a_row(loader(source, batch_size=5)) == whole
    ranks = [in_a_row(loader(source, rank=r, world_size=2)) for r in range(2)]
    assert [i for pair in zip(*ranks, strict=True) for i in pair] == whole


@pytest.mark.parametrize("stop", [0, 1, 7, 43])
def test_an_epoch_goes_on_where_it_was_left(source, stop):
    begun = loader(source)
    iterator = iter(begun)
    for _ in range(stop):
        next(iterator)
    state = begun.state_dict()
    rest = indices(iterator)
    again = loader(source)
    again.load_state_dict(state)
    assert indices(again) == rest


def test_a_state_without_buckets_is_refused(source):
    state = loader(source, bucket=False).state_dict()
    with pytest.raises(ValueError, match="state: expected bucket"):
        loader(source).load_state_dict(state)


def test_a_state_with_buckets_is_refused_without(source):
    state = loader(source).state_dict()
    with pytest.raises(ValueError, match="state: expected one of a loader without buckets, got"):
        loader(source, bucket=False).load_state_dict(state)


def test_an_array_of_items_is_a_sampler(source):
    got = in_a_row(loader(source, shuffle=False, sampler=np.arange(0, N, 7)))
    assert sorted(got) == list(range(0, N, 7))


def test_a_batch_sampler_decides_batches_itself(source):
    with pytest.raises(ValueError, match="batch_sampler: expected bucket=False of pad= beside it"):
        loader(source, batch_size=1, shuffle=False, batch_sampler=[[0, 1], [2]])


def test_a_sampler_is_brought_into_buckets(source):
    wanted = torch.arange(0, N, 3).tolist()
    got = in_a_row(loader(source, shuffle=False, sampler=wanted))
    assert sorted(got) == wanted


def test_without_shuffling_sizes_rise(source):
    sizes = [LENGTHS[i] for i in in_a_row(loader(source, shuffle=False))]
    assert sizes == sorted(sizes)


def test_crops_count_as_large_as_they_are(source):
    pad = gl.Pad("batch", bucket=True)
    crops = gl.DataLoader(
        source, 8, crop=gl.RandomCrop(50, per_array=2), pad=pad, extras=("index", "crop")
    )
    seen = [(i, c) for b in crops for i, c in zip(b.index.tolist(), b.crop.tolist(), strict=True)]
    assert sorted(seen) == [(i, c) for i in range(N) for c in range(2)]


def test_small_sources_are_shuffled_too(tmp_path):
    for i in range(60):
        np.save(tmp_path / f"{i:02}.npy", np.zeros(20 + i % 7))
    with loader(gl.open(tmp_path), batch_size=8, drop_last=True) as batches:
        epochs = [in_a_row(batches) for _ in range(20)]
        meetings = {frozenset(batch) for batch in indices(batches)}
        again = {frozenset(batch) for batch in indices(batches)}
    assert len({tuple(epoch) for epoch in epochs}) == 20
    assert set().union(*epochs) == set(range(60))  # not always the same ones are dropped
    assert meetings != again


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 3 * POOL), key=st.integers(0, 2**64 - 1))
def test_pools_keep_their_samples_and_neighbours_are_of_similar_size(n, key):
    sizes = np.random.default_rng(key).integers(20, 200, n)
    listed = Listed(np.arange(n), np.zeros(n, np.uint32))
    got = bucket(listed, sizes, key=key, is_shuffled=True).items
    for begin in range(0, n, POOL):
        pool = got[begin : begin + POOL]
        assert sorted(pool) == list(range(begin, min(begin + POOL, n)))
        # Within a block sizes rise, but for the tenth that is drawn.
        falls = (sizes[pool][1:] * (1 + JITTER) < sizes[pool][:-1]).sum()
        assert falls <= len(pool) // POOL_BLOCK + 1
