"""How epochs follow each other, and what set_epoch pins."""

from __future__ import annotations

import numpy as np
import pytest
from numbered_run import make, resumed, rows, samples, take

import gpuload as gl


@pytest.fixture
def source(save_arrays):
    """23 items with labels: 46 crops."""
    folder, _ = save_arrays(23, (6, 5))
    return gl.open(folder, labels=np.arange(23) * 10)


# ---- set_epoch


def test_set_epoch_pins_an_epoch_and_later_ones_count_on(source):
    whole = make(source)
    epochs = [samples(whole) for _ in range(4)]
    loader = make(source)
    loader.set_epoch(2)
    assert loader.epoch == 2
    assert [samples(loader), samples(loader)] == epochs[2:]
    for epoch in (0, 0, 3, 1):
        loader.set_epoch(epoch)
        assert samples(loader) == epochs[epoch]


def test_set_epoch_to_the_epoch_of_a_state_goes_on(source):
    whole = samples(make(source))
    loader = make(source)
    before = samples(take(iter(loader), 3))
    later = resumed(source, loader.state_dict())
    later.set_epoch(0)  # what training loops do before each epoch
    assert later.state_dict()["samples"] == 12
    assert before + samples(later) == whole
    later.set_epoch(0)
    assert samples(later) == whole


def test_set_epoch_to_another_epoch_forgets_the_place(source):
    whole = make(source)
    epochs = [samples(whole) for _ in range(3)]
    loader = make(source)
    take(iter(loader), 3)
    later = resumed(source, loader.state_dict())
    later.set_epoch(2)
    assert samples(later) == epochs[2]


def test_set_epoch_does_not_disturb_an_iteration(source):
    whole = samples(make(source))
    loader = make(source)
    iterator = iter(loader)
    before = samples(take(iterator, 3))
    loader.set_epoch(7)
    assert before + samples(iterator) == whole
    assert loader.epoch == 7


@pytest.mark.parametrize(
    ("epoch", "error", "message"),
    [
        (-1, ValueError, "epoch: expected 0 or more, got -1"),
        (1.5, TypeError, "epoch: expected a whole number, got 1.5"),
        ("3", TypeError, "epoch: expected a whole number, got '3'"),
    ],
)
def test_an_epoch_is_a_whole_number(source, epoch, error, message):
    with pytest.raises(error, match=message):
        make(source).set_epoch(epoch)


# ---- One epoch after another


def by_for(loader):
    return list(loader)


def by_next(loader):
    return take(iter(loader), len(loader))


def by_zip(loader):
    return [batch for batch, _ in zip(loader, range(100), strict=False)]


@pytest.mark.parametrize("way", [by_for, by_next, by_zip])
def test_every_epoch_is_whole_however_it_is_taken(numbered, way):
    loader = gl.DataLoader(numbered(10), 4)
    for _ in range(3):
        assert [x[:, 0].tolist() for x in way(loader)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9],
        ]
        assert len(loader) == 3


@pytest.mark.parametrize("n", [0, 1, 5, 11])
def test_break_and_again_is_a_clean_new_epoch(source, n):
    whole = make(source)
    epochs = [samples(whole), samples(whole)]
    loader = make(source)
    assert samples(take(iter(loader), n)) == epochs[0][: 4 * n]
    assert samples(loader) == epochs[1]


def test_two_iterators_live_at_once(source):
    whole = make(source)
    epochs = [samples(whole), samples(whole)]
    loader = make(source)
    first, second = iter(loader), iter(loader)
    got = [[], []]
    for a, b in zip(first, second, strict=True):
        got[0] += rows(a)
        got[1] += rows(b)
    assert got == epochs
    assert loader.epoch == 2


def test_the_state_is_of_the_newest_iterator(source):
    loader = make(source)
    first = iter(loader)
    take(first, 5)
    take(iter(loader), 2)
    take(first, 1)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 8)


def test_len_is_constant(source):
    loader = make(source)
    assert len(loader) == 12
    iterator = iter(loader)
    take(iterator, 5)
    assert len(loader) == 12
    later = resumed(source, loader.state_dict())
    assert len(later) == 12
    assert len(list(later)) == 7
    assert len(later) == 12
