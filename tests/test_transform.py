"""transform=: the user's own function of a whole batch, with a generator of its own."""

from __future__ import annotations

import pickle
import traceback

import numpy as np
import pytest
import torch
from late import EagerDevice

import gpuload as gl

ARRAYS = np.arange(120, dtype="f4").reshape(20, 6)


def source(labels=None):
    made = gl.arrays(ARRAYS)
    made.labels = labels
    return made


def add_noise(batch, generator):
    return batch + torch.rand(batch.shape, generator=generator)


def loader(transform=add_noise, **options):
    labels = options.pop("labels", None)
    options = {"batch_size": 4, "shuffle": True} | options
    return gl.DataLoader(source(labels), transform=transform, **options)


def epoch(of):
    return [batch.tolist() for batch in of]


def test_a_batch_is_what_the_function_returns():
    batches = loader(lambda batch, _: {"twice": 2 * batch}, shuffle=False)
    np.testing.assert_array_equal(torch.cat([b["twice"] for b in batches]), 2 * ARRAYS)


def test_it_gets_the_whole_named_batch():
    def keep_even(batch, generator):
        assert isinstance(generator, torch.Generator)
        return batch.x[batch.y % 2 == 0], batch.index

    with loader(keep_even, labels=np.arange(20), extras="index", shuffle=False) as batches:
        x, index = next(iter(batches))
    np.testing.assert_array_equal(x, ARRAYS[[0, 2]])
    assert index.tolist() == [0, 1, 2, 3]


def test_numbers_depend_on_seed_epoch_and_batch_alone():
    first = loader(threads=1)
    epochs = [epoch(first) for _ in range(2)]
    again = loader(threads=3, prefetch=5, device=EagerDevice())
    assert [epoch(again) for _ in range(2)] == epochs
    noise = [np.array(b) - np.round(np.array(b) - 0.5) for e in epochs for b in e]
    assert len({tuple(np.round(n, 4).reshape(-1)) for n in noise}) == len(noise)
    assert epoch(loader(seed=1)) != epochs[0]


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_numbers_go_on_after_a_resume(stop):
    begun = loader()
    iterator = iter(begun)
    for _ in range(stop):
        next(iterator)
    state, rest = begun.state_dict(), epoch(iterator)
    again = loader()
    again.load_state_dict(state)
    assert epoch(again) == rest


def test_ranks_get_numbers_of_their_own():
    def draw(batch, generator):
        return torch.rand(3, generator=generator)

    a, b = (loader(draw, rank=r, world_size=2) for r in range(2))
    assert epoch(a) != epoch(b)


def test_an_error_keeps_its_story():
    class BrokenError(Exception):
        def __init__(self, what, why):
            super().__init__(what, why)

    def fail(batch, generator):
        if batch[0, 0] >= 24:
            raise BrokenError("batch", "is bad")
        return batch

    batches = loader(fail, shuffle=False)
    iterator = iter(batches)
    next(iterator)
    with pytest.raises(BrokenError, match="is bad") as caught:
        next(iterator)
    text = "".join(traceback.format_exception(caught.value))
    assert "in transform=, batch 1 of this iteration, epoch 0" in text
    assert "in fail" in text
    assert next(iterator, None) is None
    with pytest.raises(BrokenError, match="is bad"):
        list(batches)


def test_a_function_that_cannot_travel_is_named():
    assert epoch(pickle.loads(pickle.dumps(loader(np.add, shuffle=False).dataset)))
    with pytest.raises(TypeError, match="transform: expected a function that can be pickled, such"):
        pickle.dumps(loader(lambda batch, _: batch))


def test_something_else_is_no_function():
    with pytest.raises(
        TypeError, match=r"transform: expected a function of a batch and a gen.*int"
    ):
        loader(3)


def test_datasets_are_transformed_too():
    dataset = gl.dataset([torch.tensor([float(i)]) for i in range(6)])
    batches = gl.DataLoader(dataset, 3, transform=lambda batch, _: batch * 10)
    assert epoch(batches) == [[[0.0], [10.0], [20.0]], [[30.0], [40.0], [50.0]]]


def test_batches_of_several_parts_are_transformed_too():
    pairs = torch.utils.data.TensorDataset(torch.arange(4.0), torch.arange(4))
    batches = gl.DataLoader(gl.dataset(pairs), 2, transform=lambda batch, _: batch[0] + batch[1])
    assert epoch(batches) == [[0.0, 2.0], [4.0, 6.0]]
