"""item_generator(): what user code draws depends on seed, epoch and item alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from some_datasets import Numbers
from torch.utils.data import Subset

import gpuload as gl


class Drawing(Numbers):
    """An item is its number and one that its generator draws."""

    kind = "torch"

    def __getitem__(self, i):
        generator = gl.item_generator(kind=self.kind)
        if self.kind == "numpy":
            return i, int(generator.integers(10**6))
        return i, int(torch.randint(10**6, (), generator=generator))


def drawn(data, epoch, **options):
    """What each item drew."""
    loader = gl.DataLoader(gl.dataset(data), **{"batch_size": 3} | options)
    loader.set_epoch(epoch)
    table = {}
    for numbers, values in loader:
        table.update(zip(numbers.tolist(), values.tolist(), strict=True))
    return table


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_draws_depend_on_seed_epoch_and_item_alone(kind):
    data = Drawing(16)
    data.kind = kind
    table = drawn(data, 0)
    assert len(set(table.values())) == 16
    assert drawn(data, 0, threads=4, shuffle=True, batch_size=1) == table
    by_ranks = [drawn(data, 0, rank=r, world_size=2, shuffle=True) for r in range(2)]
    assert by_ranks[0] | by_ranks[1] == table
    assert sum(a == b for a, b in zip(table.values(), drawn(data, 1).values(), strict=True)) < 2
    assert drawn(data, 1) == drawn(data, 1, threads=2)
    assert drawn(data, 0, seed=1) != table


def test_an_item_named_again_draws_other_numbers():
    (batch,) = gl.DataLoader(gl.dataset(Drawing()), batch_size=4, sampler=[3, 3, 4, 3])
    assert batch[0].tolist() == [3, 3, 4, 3]
    assert len(set(batch[1].tolist())) == 4


def test_the_generator_of_an_item_goes_on_where_it_was():
    class Twice(Numbers):
        def __getitem__(self, i):
            generators = gl.item_generator(), gl.item_generator()
            return [int(torch.randint(10**9, (), generator=g)) for g in generators]

    (batch,) = gl.DataLoader(gl.dataset(Twice(8)), batch_size=8)
    assert len({*batch[0].tolist(), *batch[1].tolist()}) == 16


def test_within_getitems_the_item_is_named():
    class Batched(Drawing):
        def __getitems__(self, numbers):
            return [
                (i, int(torch.randint(10**6, (), generator=gl.item_generator(i)))) for i in numbers
            ]

    assert drawn(Batched(16), 0, batch_size=5) == drawn(Drawing(16), 0)

    class Unnamed(Drawing):
        def __getitems__(self, numbers):
            return [self[i] for i in numbers]

    with pytest.raises(ValueError, match="item_generator: expected the number of one of 3 items"):
        drawn(Unnamed(16), 0)


def test_a_part_draws_what_the_whole_does():
    whole = drawn(Drawing(16), 0)
    part = gl.DataLoader(gl.dataset(Drawing(16)).select([3, 9]), batch_size=2)
    assert {int(i): int(value) for i, value in zip(*next(iter(part)), strict=True)} == {
        3: whole[3],
        9: whole[9],
    }
    subset = Subset(Drawing(16), [3, 9])  # torch's own: its items are counted anew
    assert len(set(drawn(subset, 0).values())) == 2


def test_outside_a_loader_torchs_global_generator_decides():
    def draw():
        torch.manual_seed(5)
        return Drawing()[3], Drawing()[3]

    assert draw() == draw()
    assert len(set(draw())) == 2
    assert isinstance(gl.item_generator(kind="numpy"), np.random.Generator)
    with pytest.raises(ValueError, match='kind: expected "torch" or "numpy", got \'jax\''):
        gl.item_generator(kind="jax")
