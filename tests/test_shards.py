"""An epoch dealt out to ranks: every sample, as many batches for each, the same order for all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A source of 80 items."""
    path = tmp_path_factory.mktemp("shards") / "rows.npy"
    np.save(path, np.arange(80))
    return gl.open(path, sample_axis=0)


def loaders(source, world, batch_size=1, **options):
    options = {"extras": ("index", "valid"), "threads": 1} | options
    return [
        gl.DataLoader(source, batch_size, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def deal(n, world, batch_size, *, even, drop_last):
    """The batches of each rank, by hand: lists of (position, whether it is no repeat)."""
    order = [(position, True) for position in range(n)]
    while even == "pad" and len(order) % world:
        order.append((order[len(order) - n][0], False))
    if even == "drop":
        order = order[: n - n % world]
    ranks = [order[rank::world] for rank in range(world)]
    if drop_last:
        shortest = min(len(mine) for mine in ranks)
        ranks = [mine[: shortest - shortest % batch_size] for mine in ranks]
    return [[mine[i : i + batch_size] for i in range(0, len(mine), batch_size)] for mine in ranks]


SIZES = {
    "n": st.integers(1, 80),
    "world": st.integers(1, 7),
    "batch_size": st.integers(1, 12),
    "drop_last": st.booleans(),
}


@settings(max_examples=100, deadline=None)
@given(**SIZES, even=st.sampled_from(["pad", "drop"]))
def test_ranks_get_what_is_theirs(rows, n, world, batch_size, drop_last, even):
    want = deal(n, world, batch_size, even=even, drop_last=drop_last)
    source = rows.select(range(n))
    if not want[0]:
        with pytest.raises(ValueError, match="expected at least one"):
            loaders(source, world, batch_size, even=even, drop_last=drop_last)
        return
    made = loaders(source, world, batch_size, even=even, drop_last=drop_last)
    assert [len(loader) for loader in made] == [len(want[0])] * world
    got = [
        [list(zip(b.index.tolist(), b.valid.tolist(), strict=True)) for b in loader]
        for loader in made
    ]
    assert got == want


@settings(max_examples=100, deadline=None)
@given(**SIZES)
def test_exact_gives_each_sample_once_in_as_many_batches(rows, n, world, batch_size, drop_last):
    source = rows.select(range(n))
    options = {"even": "exact", "drop_last": drop_last, "shuffle": True}
    n_batches = math.ceil(math.ceil(n / world) / batch_size)
    if drop_last:
        n_batches = n // world // batch_size
    if not n_batches or (not drop_last and n // world < n_batches):
        for rank in range(world):  # all of them, so that none is left waiting for the others
            with pytest.raises(ValueError, match=r"^(even|drop_last): expected"):
                gl.DataLoader(source, batch_size, rank=rank, world_size=world, **options)
        return
    made = loaders(source, world, batch_size, **options)
    assert [len(loader) for loader in made] == [n_batches] * world
    seen = []
    for step in zip(*made, strict=True):
        sizes = [len(batch.index) for batch in step]
        assert min(sizes) > 0
        assert max(sizes) <= batch_size
        seen += [index for batch in step for index in batch.index.tolist()]
        assert all(batch.valid.all() for batch in step)
    assert len(seen) == len(set(seen))
    assert len(seen) == (n_batches * batch_size * world if drop_last else n)


# (samples, ranks, batch size, options) -> batches of each rank
COUNTS = {
    "pad": (4097, 4, 1024, {}, 2),
    "pad, no short batch": (4097, 4, 1024, {"drop_last": True}, 1),
    "drop": (4097, 4, 1024, {"even": "drop"}, 1),
    "exact": (4097, 4, 1024, {"even": "exact"}, 2),
    "10 over 4, pad": (10, 4, 1, {}, 3),
    "10 over 4, drop": (10, 4, 1, {"even": "drop"}, 2),
    "26 over 4, pad": (26, 4, 6, {}, 2),
    "26 over 4, drop": (26, 4, 6, {"even": "drop"}, 1),
    "fewer samples than ranks": (2, 5, 4, {}, 1),
}


@pytest.mark.parametrize(
    ("n", "world", "batch_size", "options", "want"), COUNTS.values(), ids=COUNTS
)
def test_every_rank_has_as_many_batches_known_before_the_start(
    numbered, n, world, batch_size, options, want
):
    made = loaders(numbered(n), world, batch_size, **options)
    assert [len(loader) for loader in made] == [want] * world
    assert [sum(1 for _ in loader) for loader in made] == [want] * world


@pytest.mark.parametrize(("even", "sizes"), [("pad", [6, 1]), ("drop", [6])], ids=["pad", "drop"])
def test_26_samples_over_4_ranks(numbered, even, sizes):
    for loader in loaders(numbered(26), 4, 6, even=even):
        assert [len(batch.index) for batch in loader] == sizes


def test_valid_marks_the_repeats(numbered):
    made = loaders(numbered(10), 4, 2, shuffle=True)
    batches = [batch for loader in made for batch in loader]
    index = np.concatenate([b.index for b in batches])
    valid = np.concatenate([b.valid for b in batches])
    assert valid.dtype == np.bool_
    assert len(index) == 12
    assert sorted(index[valid]) == list(range(10))
    assert [batch.valid.tolist() for batch in made[3]] == [[True, True], [False]]


def test_one_process_repeats_nothing(numbered):
    (loader,) = loaders(numbered(10), 1, 4)
    assert all(batch.valid.all() for batch in loader)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_ranks_together_see_every_window_in_every_epoch(save_arrays, shuffle):
    source = gl.open(save_arrays(13, (8, 8))[0])
    made = loaders(
        source,
        4,
        5,
        shuffle=shuffle,
        crop=gl.RandomCrop(3, per_array=3),
        extras=("index", "crop", "valid"),
    )
    for _ in range(3):
        seen = [
            (item, crop)
            for loader in made
            for batch in loader
            for item, crop, valid in zip(*(t.tolist() for t in batch[1:]), strict=True)
            if valid
        ]
        assert sorted(seen) == list(itertools.product(range(13), range(3)))


# ---- What the order and the crops do not depend on

VARIANTS = {
    "batch 1": {"batch_size": 1},
    "batch 11": {"batch_size": 11},
    "1 thread": {"threads": 1},
    "5 threads": {"threads": 5},
    "pread": {"io": "pread"},
    "mmap": {"io": "mmap"},
    "prefetch 9": {"prefetch": 9},
    "cast": {"dtype": "float64"},
    "no short batch": {"batch_size": 2, "drop_last": True},
}


def samples(loader):
    return [
        (item, crop, tuple(start), tuple(x.reshape(-1)))
        for b in loader
        for item, crop, start, x in zip(
            b.index.tolist(), b.crop.tolist(), b.start.tolist(), b.x.numpy(), strict=True
        )
    ]


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_order_and_crops_depend_on_seed_and_epoch_alone(save_arrays, shuffle):
    options = {
        "batch_size": 4,
        "shuffle": shuffle,
        "seed": 8,
        "crop": gl.RandomCrop((3, 2), per_array=2),
        "extras": ("index", "crop", "start"),
    }
    source = gl.open(save_arrays(12, (9, 9))[0])
    plain = gl.DataLoader(source, **options)
    epochs = [samples(plain), samples(plain)]
    assert epochs[0] != epochs[1]
    for variant in VARIANTS.values():
        loader = gl.DataLoader(source, **options | variant)
        assert [samples(loader), samples(loader)] == epochs, variant
    for world, batch_size in ((2, 4), (3, 1), (4, 5)):
        made = [
            gl.DataLoader(source, **options | {"batch_size": batch_size}, rank=r, world_size=world)
            for r in range(world)
        ]
        for epoch in epochs:
            of_ranks = [samples(loader) for loader in made]
            dealt = [s for step in zip(*of_ranks, strict=True) for s in step]
            assert dealt == epoch


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_changes_by_itself_every_epoch_on_all_ranks_alike(numbered, seed):
    source = numbered(8)
    runs = []
    for _ in range(2):
        made = loaders(source, 2, 4, shuffle=True, seed=seed)
        epochs = [[loader_order(loader) for loader in made] for _ in range(3)]
        for first, second in epochs:
            assert sorted(first + second) == list(range(8))
        assert len({tuple(first + second) for first, second in epochs}) == 3
        runs.append(epochs)
    assert runs[0] == runs[1]


def loader_order(loader):
    return [index for batch in loader for index in batch.index.tolist()]


def test_seeds_give_different_orders(numbered):
    source = numbered(8)
    orders = [
        [loader_order(loader) for loader in loaders(source, 2, 4, shuffle=True, seed=seed)]
        for seed in (0, 1)
    ]
    assert orders[0] != orders[1]


# ---- What is refused, and what is said

REFUSED = {
    "a rank past the end": (
        {"rank": 2, "world_size": 2},
        r"rank: expected a number of \[0, 2\), got 2",
    ),
    "a negative rank": ({"rank": -1, "world_size": 2}, "rank: expected 0 or more, got -1"),
    "no ranks": ({"rank": 0, "world_size": 0}, "world_size: expected 1 or more, got 0"),
    "a rank alone": (
        {"rank": 0},
        "rank: expected rank and world_size together, got rank=0 and world_size='auto'",
    ),
    "a world alone": (
        {"world_size": 2},
        "rank: expected rank and world_size together, got rank='auto' and world_size=2",
    ),
    "an unknown way": (
        {"even": "both"},
        'even: expected one of "pad", "drop", "exact", got \'both\'',
    ),
    "no full batch": (
        {"drop_last": True, "batch_size": 4},
        "drop_last: expected at least one full batch of 4 from 3 samples on each of 1 ranks, got "
        "none; pass drop_last=False or a smaller batch_size",
    ),
    "no full batch for each": (
        {"drop_last": True, "batch_size": 3, "rank": 1, "world_size": 2},
        "drop_last: expected at least one full batch of 3 from 3 samples on each of 2 ranks",
    ),
    "not a sample for each": (
        {"even": "drop", "rank": 0, "world_size": 4},
        'even: expected at least one of 3 samples for each of 4 ranks, got "drop"; '
        'pass even="pad" or fewer ranks',
    ),
    "exact, not a sample for each": (
        {"even": "exact", "rank": 0, "world_size": 4},
        'even: expected "pad" or "drop" for 3 samples on 4 ranks with batch_size 1, got "exact"; '
        "a rank would have a batch without samples",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_dealt_is_refused_at_construction(numbered, options, message):
    with pytest.raises(ValueError, match=message):
        gl.DataLoader(numbered(3), **options)


@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_ranks_are_whole_numbers(numbered, name):
    options = {"rank": 0, "world_size": 2} | {name: 1.0}
    with pytest.raises(TypeError, match=f"{name}: expected a whole number, got 1.0"):
        gl.DataLoader(numbered(3), **options)


SAID = {
    "pad": ({}, "2 samples repeated"),
    "drop": ({"even": "drop"}, "2 samples left out"),
    "exact": ({"even": "exact", "batch_size": 9}, "each once"),
    "drop_last": ({"drop_last": True, "batch_size": 2}, "2 samples left out"),
    "even": ({"n": 12}, "even"),
}


@pytest.mark.parametrize(("options", "words"), SAID.values(), ids=SAID)
def test_describe_says_how_an_epoch_is_made_even(numbered, options, words):
    options = dict(options)
    source = numbered(options.pop("n", 10))
    for rank, loader in enumerate(loaders(source, 4, **options)):
        assert f" on rank {rank} of 4 ({words})" in loader.describe()
