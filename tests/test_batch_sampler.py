"""Batch samplers: batches of any sizes, dealt whole to ranks."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

import gpuload as gl


def indices(loader):
    """The items of each batch."""
    return [batch.index.tolist() for batch in loader]


def load(source, **options):
    return gl.DataLoader(source, extras=("index", "crop", "start", "valid"), **options)


BATCHES = [[3, 1, 4], [1], [5, 9, 2, 6], [5, 3], [8]]


def test_a_batch_sampler_makes_the_batches(numbered):
    loader = load(numbered(10), batch_sampler=BATCHES)
    assert len(loader) == 5
    assert loader.batch_size is None
    for _ in range(2):
        assert indices(loader) == BATCHES


def test_batch_samplers_of_torch_are_followed(numbered):
    source = numbered(10)
    loader = load(source, batch_sampler=BatchSampler(SequentialSampler(source), 4, drop_last=True))
    assert len(loader) == 2
    assert indices(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("even", "want", "valid"),
    [
        (
            "pad",
            [[[3, 1, 4], [5, 9, 2, 6], [8]], [[1], [5, 3], [3, 1, 4]]],
            [[1] * 8, [1] * 3 + [0] * 3],
        ),
        ("drop", [[[3, 1, 4], [5, 9, 2, 6]], [[1], [5, 3]]], [[1] * 7, [1] * 3]),
    ],
    ids=["pad", "drop"],
)
def test_batches_are_dealt_whole(numbered, even, want, valid):
    source = numbered(10)
    ranks = [load(source, batch_sampler=BATCHES, rank=r, world_size=2, even=even) for r in range(2)]
    assert [len(loader) for loader in ranks] == [len(want[0])] * 2
    batches = [list(loader) for loader in ranks]
    assert [[b.index.tolist() for b in mine] for mine in batches] == want
    assert [[int(v) for b in mine for v in b.valid] for mine in batches] == valid


def test_batches_that_cannot_be_dealt_exactly_are_refused_on_all_ranks(numbered):
    source = numbered(10)
    for rank in range(2):
        with pytest.raises(
            ValueError,
            match="even: expected a number of batches that 2 ranks can share, got 5 and "
            'even="exact"; pass "pad" or "drop"',
        ):
            load(source, batch_sampler=BATCHES, rank=rank, world_size=2, even="exact")


def test_fewer_batches_than_ranks_are_repeated(numbered):
    source = numbered(10)
    ranks = [load(source, batch_sampler=BATCHES[:2], rank=r, world_size=5) for r in range(5)]
    assert [indices(loader) for loader in ranks] == [
        [[3, 1, 4]], [[1]], [[3, 1, 4]], [[1]], [[3, 1, 4]],
    ]  # fmt: skip
    assert [all(batch.valid.all() for batch in loader) for loader in ranks] == [1, 1, 0, 0, 0]


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=4), min_size=1, max_size=9),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    even=st.sampled_from(["pad", "drop"]),
    data=st.data(),
)
def test_a_run_over_batches_resumes_at_any_world_size(twenty, batches, worlds, even, data):
    def make(world, state=None):
        ranks = [
            load(
                twenty,
                batch_sampler=batches,
                crop=gl.RandomCrop(1, per_array=2),
                rank=rank,
                world_size=world,
                even=even,
                threads=1,
            )
            for rank in range(world)
        ]
        for loader in ranks if state else ():
            loader.load_state_dict(state)
        return ranks

    def dealt(ranks, n_steps=None):
        iterators = [iter(loader) for loader in ranks]
        return [
            (batch.index.tolist(), batch.crop.tolist(), batch.start.tolist())
            for step in itertools.islice(zip(*iterators, strict=True), n_steps)
            for batch in step
            if batch.valid.all()
        ]

    whole = dealt(make(1))
    if len(batches) // max(worlds) == 0 and even == "drop":
        return
    ranks = make(worlds[0])
    n_steps = data.draw(st.integers(0, len(ranks[0])))
    got = dealt(ranks, n_steps)
    states = [loader.state_dict() for loader in ranks]
    assert states == [states[0]] * worlds[0]
    if n_steps < len(ranks[0]):
        got += dealt(make(worlds[1], states[0]))
    if even == "pad":
        assert got == whole
    else:
        assert got == whole[: len(got)]
        assert len(got) > len(whole) - sum(worlds)


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    path = tmp_path_factory.mktemp("sampler") / "twenty.npy"
    np.save(path, np.zeros((20, 30), np.uint8))
    return gl.open(path, sample_axis=0)


def test_crops_of_an_item_in_several_batches_do_not_depend_on_ranks(save_arrays):
    source, crop = gl.open(save_arrays(3, (30, 30))[0]), gl.RandomCrop(2)
    batches = [[0, 1], [0, 0], [1, 0]]
    one = list(load(source, batch_sampler=batches, crop=crop))
    assert [b.crop.tolist() for b in one] == [[0, 0], [1, 2], [1, 3]]
    two = [load(source, batch_sampler=batches, crop=crop, rank=r, world_size=2) for r in range(2)]
    dealt = [batch for step in zip(*two, strict=True) for batch in step]
    for a, b in zip(one, dealt, strict=False):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.start, b.start)


def test_batches_may_grow_and_shrink_from_epoch_to_epoch(numbered):
    class Changing:
        """Draws other batches each time; every second time a large one."""

        def __init__(self):
            self.random, self.drawn = random.Random(0), []

        def __iter__(self):
            sizes = [self.random.randrange(1, 9) for _ in range(4)]
            if len(self.drawn) % 2:
                sizes[2] = 20_000
            self.drawn.append([[self.random.randrange(10) for _ in range(n)] for n in sizes])
            return iter(self.drawn[-1])

        def __len__(self):
            return 4

    sampler = Changing()
    loader = load(numbered(10, shape=(3,)), batch_sampler=sampler)
    for _ in range(4):
        for batch, wanted in zip(loader, sampler_batches(sampler), strict=True):
            assert batch.index.tolist() == wanted
            assert batch.x[:, 2].tolist() == wanted
    assert len(sampler.drawn) == 4


def sampler_batches(sampler):
    """What a sampler drew last, asked for late."""
    n = 0
    while n == 0 or n < len(sampler.drawn[-1]):
        yield sampler.drawn[-1][n]
        n += 1


# ---- What is refused

WRONG = {
    "no batches": (
        {"batch_sampler": []},
        ValueError,
        "batch_sampler: expected at least one batch, got none",
    ),
    "items as batches": (
        {"batch_sampler": [1, 2]},
        TypeError,
        "batch_sampler: expected lists of items, got 1; pass items as sampler=",
    ),
    "an empty batch": (
        {"batch_sampler": [[1], []]},
        ValueError,
        "batch_sampler: expected at least one item, got none",
    ),
    "a batch past the end": (
        {"batch_sampler": [[1], [12]]},
        IndexError,
        "batch_sampler: expected items of .* got 12",
    ),
    "batches and batch_size": (
        {"batch_sampler": [[1]], "batch_size": 2},
        ValueError,
        "batch_sampler: expected no .* beside it, got batch_size; a batch sampler decides",
    ),
    "batches and shuffle": ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "got shuffle;"),
    "batches and sampler": ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, "got sampler;"),
    "batches and drop_last": (
        {"batch_sampler": [[1]], "drop_last": True, "shuffle": True},
        ValueError,
        "got shuffle and drop_last;",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_batch_sampler_is_refused_at_construction(numbered, options, error, message):
    with pytest.raises(error, match=message):
        gl.DataLoader(numbered(10), **options)
