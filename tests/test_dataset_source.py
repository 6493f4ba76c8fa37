"""gpuload.dataset: a torch Dataset in the loader has the batches, the order and the state of any
source."""

from __future__ import annotations

import json
import pickle
import threading
import time

import pytest
import torch
from some_datasets import InBatches, Numbers, flat, labels, no_threads_are_left
from torch.utils.data import Subset, TensorDataset

import gpuload as gl


@pytest.fixture(autouse=True)
def end_of_threads():
    yield
    no_threads_are_left()


# ---- Batches


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_those_of_torchs_loader(threads):
    data = TensorDataset(
        torch.randn(21, 3, generator=torch.Generator().manual_seed(1)), torch.arange(21)
    )
    loader = gl.DataLoader(gl.dataset(data), batch_size=4, threads=threads)
    right = list(torch.utils.data.DataLoader(data, batch_size=4))
    mine = list(loader)
    assert len(loader) == len(mine) == len(right) == 6
    for a, b in zip(mine, right, strict=True):
        assert type(a) is type(b) is list
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True, "seed": 7},
        {"sampler": [3, 3, 1, -1, 0]},
        {"batch_sampler": [[1, 2], [3], [3, 3, 3]]},
        {"shuffle": True, "rank": 1, "world_size": 3},
        {"rank": 2, "world_size": 3, "even": "drop"},
        {"rank": 2, "world_size": 3, "even": "exact", "shuffle": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 4])
def test_the_order_is_that_of_files(numbered, options, threads):
    files = gl.DataLoader(numbered(20), **{"batch_size": 3} | at_once(options), extras="valid")
    mine = gl.DataLoader(
        gl.dataset(Numbers()),
        **{"batch_size": 3} | at_once(options),
        threads=threads,
        extras=("index", "valid"),
    )
    assert len(mine) == len(files)
    for _ in range(2):
        for a, b in zip(mine, files, strict=True):
            assert a._fields == ("x", "index", "valid")
            assert a.x[1].tolist() == a.index.tolist() == b.x[:, 0].tolist()
            assert torch.equal(a.valid, b.valid)


def at_once(options):
    return options | ({"batch_size": 1} if "batch_sampler" in options else {})


def test_items_that_are_tensors_are_bare_batches():
    (batch,) = gl.DataLoader(gl.dataset([torch.ones(2)] * 3), batch_size=3)
    assert torch.equal(batch, torch.ones(3, 2))


def test_a_collate_function_of_ones_own_gets_the_list_of_items():
    source = gl.dataset(Numbers(), collate_fn=lambda items: tuple(label for _, label in items))
    assert list(gl.DataLoader(source, batch_size=8)) == [
        tuple(range(8)),
        tuple(range(8, 16)),
        tuple(range(16, 20)),
    ]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "seed": 3}, {"sampler": [4, 4, 2]}], ids=str
)
def test_a_whole_batch_is_one_call_of_getitems(options):
    data = InBatches()
    batches = list(gl.DataLoader(gl.dataset(data), batch_size=4, **options))
    assert data.calls == [numbers.tolist() for numbers, _ in batches]
    assert all(type(i) is int for call in data.calls for i in call)
    for numbers, squares in batches:
        assert torch.equal(numbers**2, squares)


def test_getitems_that_gives_too_few_items_is_told():
    class Few(InBatches):
        def __getitems__(self, numbers):
            return super().__getitems__(numbers)[1:]

    with pytest.raises(ValueError, match="__getitems__: expected 4 items for 4 numbers, got 3"):
        list(gl.DataLoader(gl.dataset(Few()), batch_size=4))


def test_a_subset_reads_in_batches_when_its_dataset_does():
    data = InBatches()
    batches = list(gl.DataLoader(gl.dataset(Subset(data, [5, 6, 7])), batch_size=2))
    assert data.calls == [[5, 6], [7]]
    assert batches[0][0].tolist() == [5, 6]


# ---- Threads


def test_several_threads_read_at_once_and_one_reads_alone():
    class Meeting(Numbers):
        def __init__(self, n_together):
            super().__init__()
            self.barrier = threading.Barrier(n_together)

        def __getitem__(self, i):
            self.barrier.wait(10)
            return i

    assert len(list(gl.DataLoader(gl.dataset(Meeting(2)), batch_size=1, threads=2))) == 20

    class Alone(Numbers):
        busy = 0

        def __getitem__(self, i):
            self.busy += 1
            time.sleep(0.001)
            assert self.busy == 1
            self.busy -= 1
            return i

    assert len(list(gl.DataLoader(gl.dataset(Alone()), batch_size=3, prefetch=5))) == 7


@pytest.mark.parametrize(("options", "ahead"), [({"prefetch": 3}, 3), ({"threads": 4}, 4)], ids=str)
def test_no_more_batches_are_made_ahead_than_asked_for(options, ahead):
    class Counting(Numbers):
        read = 0

        def __getitem__(self, i):
            self.read += 1
            return i

    data = Counting(100)
    loader = gl.DataLoader(gl.dataset(data), batch_size=1, **options)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
        time.sleep(0.05)
    assert data.read == 2 + ahead
    assert f"{ahead} batches ahead" in loader.describe()
    iterator.close()


# ---- Epochs and state


def test_epochs_differ_and_can_be_pinned():
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True)
    first, second = labels(loader), labels(loader)
    assert first != second
    loader.set_epoch(0)
    assert labels(loader) == first


@pytest.mark.parametrize("batch_size", [3, 5])
def test_a_run_goes_on_where_it_was(batch_size):
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=5, shuffle=True)
    whole = flat(labels(loader))
    loader.set_epoch(0)
    iterator = iter(loader)
    seen = next(iterator)[1].tolist() + next(iterator)[1].tolist()
    state = json.loads(json.dumps(loader.state_dict()))
    other = gl.DataLoader(gl.dataset(Numbers()), batch_size=batch_size, shuffle=True)
    other.load_state_dict(state)
    assert seen + flat(labels(other)) == whole


def test_a_state_of_other_data_is_refused():
    class Marked(Numbers):
        def __init__(self, mark):
            super().__init__()
            self.mark = mark

        def fingerprint(self):
            return self.mark

    state = gl.DataLoader(gl.dataset(Marked("a"))).state_dict()
    gl.DataLoader(gl.dataset(Marked("a"))).load_state_dict(state)
    for other in (Marked("b"), Numbers()):
        with pytest.raises(ValueError, match=r"state: expected data '.+' as of this loader"):
            gl.DataLoader(gl.dataset(other)).load_state_dict(state)


def test_stats_memory_and_describe_tell_of_what_was_made():
    with gl.DataLoader(gl.dataset(Numbers()), batch_size=4, threads=2) as loader:
        assert loader.memory().host_nbytes == 0
        list(loader)
        stats = loader.stats()
        assert (stats.epochs, stats.batches, stats.samples) == (1, 5, 20)
        assert stats.fill_s > 0
        assert loader.memory().batch_nbytes == 4 * (2 * 4 + 8)
        assert "20 items of Numbers, an item in each call" in loader.describe()
        assert "read by 2 threads, 2 batches ahead" in loader.describe()
    with pytest.raises(RuntimeError, match="expected an open loader"):
        iter(loader)
    assert loader.stats() == stats


def test_a_loader_pickles():
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True, threads=2)
    assert labels(pickle.loads(pickle.dumps(loader))) == labels(loader)
