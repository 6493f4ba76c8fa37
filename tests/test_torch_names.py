"""What PyTorch's own DataLoader takes and shows, for code written for it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

import gpuload as gl

TORCH = inspect.signature(torch.utils.data.DataLoader).parameters


@pytest.fixture
def source(save_arrays):
    return gl.open(save_arrays(10, (6, 5))[0], labels=range(10))


@pytest.mark.parametrize("name", [name for name in TORCH if name != "dataset"])
def test_the_defaults_of_torch_are_accepted(source, name):
    loader = gl.DataLoader(source, **{name: TORCH[name].default})
    assert len(list(loader)) == 10


def test_num_workers_are_threads(source):
    assert gl.DataLoader(source, num_workers=3).describe().count("threads   3,") == 1
    assert gl.DataLoader(source, num_workers=3).num_workers == 3
    assert gl.DataLoader(source, num_workers=0).num_workers == 0


def test_prefetch_factor_is_prefetch(source):
    assert (
        "threads   2, 99 batches ahead"
        in gl.DataLoader(source, prefetch_factor=99, threads=2).describe()
    )


def test_a_generator_gives_its_seed(source):
    loader = gl.DataLoader(source, shuffle=True, generator=torch.Generator().manual_seed(17))
    assert loader.seed == 17
    same = gl.DataLoader(source, shuffle=True, seed=17)
    assert [y.item() for _, y in loader] == [y.item() for _, y in same]


@pytest.mark.parametrize("name", ["pin_memory", "persistent_workers"])
@pytest.mark.parametrize("value", [True, False])
def test_names_without_effect_are_taken(source, name, value):
    assert len(list(gl.DataLoader(source, **{name: value}))) == 10


REFUSED = {
    "collate_fn": (list, "batches are put together natively; change the batch in your loop"),
    "worker_init_fn": (print, "there are no worker processes; crops are seeded by seed="),
    "multiprocessing_context": ("spawn", "there are no worker processes"),
    "timeout": (5, "reads are bounded by the system, and errors are raised in the loop"),
    "pin_memory_device": ("cuda", "pass device="),
    "in_order": (False, "batches always come in order"),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, (v, _) in REFUSED.items()])
def test_names_without_meaning_say_what_to_do_instead(source, name, value):
    with pytest.raises(TypeError, match=f"^{name}: expected not to be passed, got .*; ") as raised:
        gl.DataLoader(source, **{name: value})
    assert str(raised.value).endswith("; " + REFUSED[name][1])


WRONG = {
    "num_workers": (-1, ValueError, "threads: expected 1 or more, got -1"),
    "prefetch_factor": (0, ValueError, "prefetch: expected 1 or more, got 0"),
    "generator": (5, TypeError, "generator: expected a torch.Generator, got 5; pass seed="),
}


@pytest.mark.parametrize(
    ("name", "value", "error", "message"), [(n, *case) for n, case in WRONG.items()]
)
def test_values_are_checked(source, name, value, error, message):
    with pytest.raises(error, match=message):
        gl.DataLoader(source, **{name: value})


# ---- Loaders that trainers rebuild


def seen(loader):
    return [(batch.x.numpy().tobytes(), batch.y.tolist()) for batch in loader]


def test_a_loader_is_rebuilt_from_its_public_attributes(source):
    loader = gl.DataLoader(source, 3, sampler=[4, 4, 9, 1], drop_last=True, num_workers=2)
    again = gl.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=loader.sampler,
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
    )
    assert seen(again) == seen(loader)
    assert len(again) == 1


def rebuild(loader, **changes):
    """What trainers do: find the arguments among the attributes, and change some."""
    names = {*inspect.signature(type(loader)).parameters, *TORCH}
    arguments = {name: value for name, value in vars(loader).items() if name in names}
    return type(loader)(**{**arguments, **changes})


OPTIONS = {
    "plain": {"batch_size": 4},
    "shuffled crops": {
        "batch_size": 4,
        "shuffle": True,
        "seed": 6,
        "crop": gl.RandomCrop(2, per_array=3),
        "dtype": torch.float64,
        "extras": ("start", "valid"),
        "rank": 1,
        "world_size": 2,
        "even": "drop",
    },
    "a sampler": {"batch_size": 2, "sampler": [3, 3, 1], "crop": gl.RandomCrop(2)},
    "a batch sampler": {"batch_sampler": [[3, 3, 1], [2]], "crop": gl.RandomCrop(2)},
    "torch's names": {"num_workers": 2, "pin_memory": True, "prefetch_factor": 3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_rebuilt_loader_gives_the_same_batches(source, options):
    loader = gl.DataLoader(source, **options)
    assert seen(rebuild(loader)) == seen(loader)


def test_a_distributed_sampler_is_put_in(source):
    loader = gl.DataLoader(source, 2, shuffle=True, crop=gl.CenterCrop(2))
    ranks = [
        rebuild(loader, sampler=DistributedSampler(source, 2, rank, shuffle=False), shuffle=False)
        for rank in range(2)
    ]
    labels = [[label for _, y in loader for label in y.tolist()] for loader in ranks]
    assert labels == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert next(iter(ranks[0])).x.shape == (2, 2, 2)


def test_a_batch_sampler_is_put_in(source):
    loader = gl.DataLoader(source, 2)
    sampler = BatchSampler(SequentialSampler(source), 5, drop_last=False)
    assert [len(x) for x, _ in rebuild(loader, batch_sampler=sampler, batch_size=1)] == [5, 5]


def test_a_sampler_beside_shuffle_is_one_clear_message(source):
    loader = gl.DataLoader(source, 2, shuffle=True)
    with pytest.raises(ValueError, match=r"^sampler: expected shuffle=False beside it, got"):
        rebuild(loader, sampler=[1, 2])


def test_a_source_is_a_dataset_for_torch(source):
    loader = torch.utils.data.DataLoader(source, batch_size=5)
    (x, y), _ = loader
    assert x.shape == (5, 6, 5)
    assert y.tolist() == [0, 1, 2, 3, 4]
    ours = next(iter(gl.DataLoader(source, 5)))
    assert np.array_equal(ours.x, x)
    assert np.array_equal(ours.y, y)
