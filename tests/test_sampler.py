"""Samplers: what they may be, what they name, how they are dealt out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import gpuload as gl


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def indices(loader):
    """The items of each batch."""
    return [batch.index.tolist() for batch in loader]


def flat(loader):
    return list(itertools.chain(*indices(loader)))


def load(source, *arguments, **options):
    return gl.DataLoader(source, *arguments, extras=("index", "crop", "start", "valid"), **options)


# ---- sampler

LISTS = {
    "list": [5, 2, 2, 9],
    "tuple": (5, 2, 2, 9),
    "array": np.array([5, 2, 2, 9], np.int32),
    "tensor": torch.tensor([5, 2, 2, 9]),
    "from the end": [-95, 2, -98, 9],
}


@pytest.mark.parametrize("sampler", LISTS.values(), ids=LISTS)
def test_a_list_is_a_sampler(numbered, sampler):
    loader = load(numbered(100), 3, sampler=sampler)
    assert len(loader) == 2
    for _ in range(2):
        assert indices(loader) == [[5, 2, 2], [9]]


def test_a_range_of_items_is_a_sampler(numbered):
    assert flat(load(numbered(100), 4, sampler=range(10, 50, 10))) == [10, 20, 30, 40]


def test_a_subset_sampler_is_followed_anew_each_epoch(numbered):
    source, subset = numbered(50), [40, 3, 17, 22, 8]
    loader = load(source, 2, sampler=SubsetRandomSampler(subset, generator=seeded(3)))
    wanted = SubsetRandomSampler(subset, generator=seeded(3))
    epochs = [flat(loader) for _ in range(3)]
    assert epochs == [list(wanted) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_an_item_drawn_many_times_gives_other_crops_each_time(save_arrays):
    folder, arrays = save_arrays(6, (40, 40))
    weights = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    loader = load(
        gl.open(folder),
        8,
        sampler=WeightedRandomSampler(weights, 64),
        crop=gl.RandomCrop(5),
    )
    batches = list(loader)
    starts = np.concatenate([batch.start for batch in batches])
    assert flat(loader) == [3] * 64
    assert len(np.unique(starts, axis=0)) > 55  # of 36 * 36 places
    for x, (i, j) in zip(np.concatenate([b.x for b in batches]), starts, strict=True):
        assert np.array_equal(x, arrays[3, i : i + 5, j : j + 5])


def test_the_first_draw_of_an_item_gives_the_crops_it_has_without_a_sampler(save_arrays):
    source, crop = gl.open(save_arrays(6, (40, 40))[0]), gl.RandomCrop(5, per_array=2)
    plain = {(b.index.item(), b.crop.item()): b.start.tolist() for b in load(source, crop=crop)}
    batches = list(load(source, sampler=[4, 1, 4], crop=crop))
    assert [(b.index.item(), b.crop.item()) for b in batches] == [
        (4, 0), (4, 1), (1, 0), (1, 1), (4, 2), (4, 3),
    ]  # fmt: skip
    for batch in batches[:4]:
        assert batch.start.tolist() == plain[batch.index.item(), batch.crop.item()]


def test_every_item_of_a_sampler_gives_all_its_windows(save_arrays):
    source = gl.open(save_arrays(4, (4, 6))[0])
    loader = load(source, 5, sampler=[2, 0], crop=gl.GridCrop((2, 3)))
    assert len(loader) == 2
    assert flat(loader) == [2] * 4 + [0] * 4
    starts = [start for batch in loader for start in batch.start.tolist()]
    assert starts == [[0, 0], [0, 3], [2, 0], [2, 3]] * 2


def test_items_without_a_common_number_of_windows_have_no_sampler(tmp_path):
    for i, n in enumerate((4, 6)):
        np.save(tmp_path / f"{i}.npy", np.zeros(n))
    with pytest.raises(
        ValueError, match=r"sampler: expected .* as many windows .* use source\.select"
    ):
        load(gl.open(tmp_path), sampler=[0, 1], crop=gl.GridCrop(2))


def test_explicit_items_are_dealt_to_ranks(numbered):
    source = numbered(50)
    ranks = [load(source, 2, sampler=[10, 20, 30, 40], rank=r, world_size=2) for r in range(2)]
    assert [flat(loader) for loader in ranks] == [[10, 30], [20, 40]]


def test_a_sampler_is_gone_through_once_an_epoch_and_not_before(numbered):
    class Counted:
        n = 0

        def __iter__(self):
            self.n += 1
            return iter([3, 1, 2])

        def __len__(self):
            return 3

    sampler = Counted()
    loader = load(numbered(5), 2, sampler=sampler)
    assert len(loader) == 2
    loader.describe(), loader.memory(), loader.state_dict()
    assert sampler.n == 0
    assert flat(loader) == flat(loader) == [3, 1, 2]
    assert sampler.n == 2


def test_making_a_loader_draws_no_random_numbers(numbered):
    source = numbered(20)
    before = torch.get_rng_state()
    loader = load(source, 4, sampler=RandomSampler(range(20)))
    assert len(loader) == 5
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_run_over_a_sampler_resumes(save_arrays, n):
    source, crop = gl.open(save_arrays(6, (20, 20))[0]), gl.RandomCrop(3, per_array=2)
    options = {"sampler": [4, 1, 4, 4, 0], "crop": crop}
    whole = [batch.start.tolist() for batch in load(source, 3, **options)]
    loader = load(source, 3, **options)
    iterator = iter(loader)
    before = [next(iterator).start.tolist() for _ in range(n)]
    later = load(source, 3, **options)
    later.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert before + [batch.start.tolist() for batch in later] == whole


def test_the_state_of_a_sampler_of_another_length_is_refused(numbered):
    source = numbered(10)
    loader = load(source, 1, sampler=[1, 2, 3])
    next(iter(loader))
    with pytest.raises(ValueError, match=r"state: expected samples_per_epoch 4 .* got 3"):
        load(source, 1, sampler=[1, 2, 3, 4]).load_state_dict(loader.state_dict())


# ---- DistributedSampler


def test_a_distributed_sampler_is_not_dealt_out_twice(numbered):
    source = numbered(11)
    for said in ({}, {"rank": 1, "world_size": 2}):  # a trainer may say it again
        ranks = [
            load(source, 3, sampler=DistributedSampler(source, 2, rank, shuffle=False), **said)
            for rank in range(2)
        ]
        assert [len(loader) for loader in ranks] == [2, 2]
        assert flat(ranks[0]) == [0, 2, 4, 6, 8, 10]
        assert flat(ranks[1]) == [1, 3, 5, 7, 9, 0]


@pytest.mark.parametrize("is_batched", [False, True], ids=["sampler", "batch_sampler"])
def test_set_epoch_reaches_a_distributed_sampler(numbered, is_batched):
    source = numbered(40)
    sampler = DistributedSampler(source, 2, 1, seed=4)
    loader = (
        load(source, batch_sampler=BatchSampler(sampler, 6, drop_last=False))
        if is_batched
        else load(source, 6, sampler=sampler)
    )
    for epoch in (0, 3, 1):
        loader.set_epoch(epoch)
        wanted = DistributedSampler(source, 2, 1, seed=4)
        wanted.set_epoch(epoch)
        assert flat(loader) == list(wanted)


# ---- What is refused

WRONG = {
    "an iterator": (
        {"sampler": iter([1, 2])},
        TypeError,
        "sampler: expected a list, or a sampler with a length .* got list_iterator",
    ),
    "a generator": ({"sampler": (i for i in range(3))}, TypeError, "sampler: .* got generator"),
    "a number": ({"sampler": 5}, TypeError, "sampler: expected a list, .* got int"),
    "nothing": ({"sampler": []}, ValueError, "sampler: expected at least one item, got none"),
    "lists": (
        {"sampler": [[0, 1], [2]]},
        TypeError,
        r"sampler: expected item numbers, got \[0, 1\]; pass lists of items as batch_sampler=",
    ),
    "fractions": ({"sampler": [0, 1.5]}, TypeError, "sampler: expected item numbers, got 1.5"),
    "text": ({"sampler": ["0"]}, TypeError, "sampler: expected item numbers, got '0'"),
    "past the end": (
        {"sampler": [0, 10]},
        IndexError,
        r"sampler: expected items of \[-10, 10\), got 10",
    ),
    "before the start": (
        {"sampler": [-11]},
        IndexError,
        r"sampler: expected items of \[-10, 10\), got -11",
    ),
    "sampler and shuffle": (
        {"sampler": [1], "shuffle": True},
        ValueError,
        "sampler: expected shuffle=False beside it, got a sampler and shuffle",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_sampler_is_refused_at_construction(numbered, options, error, message):
    with pytest.raises(error, match=message):
        gl.DataLoader(numbered(10), **options)


def test_what_a_sampler_draws_is_checked(numbered):
    class Wrong:
        def __iter__(self):
            return iter([3, 99])

        def __len__(self):
            return 2

    loader = gl.DataLoader(numbered(10), sampler=Wrong())
    with pytest.raises(IndexError, match=r"sampler: expected items of \[-10, 10\), got 99"):
        next(iter(loader))


def test_an_error_in_a_sampler_is_the_users_own(numbered):
    class Broken:
        def __iter__(self):
            yield 1
            raise KeyError("weights")

        def __len__(self):
            return 2

    loader = gl.DataLoader(numbered(10), sampler=Broken())
    with pytest.raises(KeyError, match="weights"):
        next(iter(loader))
    assert loader.state_dict()["epoch"] == 0
