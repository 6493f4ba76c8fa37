"""Samples of similar size in one batch: bucket=True of Pad."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl
from gpuload.order import POOL, POOL_BLOCK, Listed, bucket

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

    assert share_of_data(bucket=True) > 0.9 > 0.7 > share_of_data(bucket=False)


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
    with pytest.raises(ValueError, match="state: expected bucket, got "):
        loader(source).load_state_dict(state)


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


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 3 * POOL), key=st.integers(0, 2**64 - 1))
def test_pools_keep_their_samples_and_blocks_are_runs_of_one_size(n, key):
    sizes = np.random.default_rng(key).integers(1, 50, n)
    listed = Listed(np.arange(n), np.zeros(n, np.uint32))
    got = bucket(listed, sizes, key=key, is_shuffled=True).items
    for begin in range(0, n, POOL):
        pool = got[begin : begin + POOL]
        assert sorted(pool) == list(range(begin, min(begin + POOL, n)))
        by_size = np.sort(sizes[pool])
        runs = [sizes[pool[k : k + POOL_BLOCK]] for k in range(0, len(pool), POOL_BLOCK)]
        assert all((np.diff(run) >= 0).all() for run in runs)
        np.testing.assert_array_equal(np.sort(np.concatenate(runs)), by_size)
        assert all(
            (runs[a] <= runs[b].min()).all() or (runs[a] >= runs[b].max()).all()
            for a in range(len(runs))
            for b in range(a)
        )
