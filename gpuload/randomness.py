"""Random numbers for the user's own code: tied to (seed, epoch, item), to nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import torch

from gpuload import _native

# What the numbers are drawn for, in the counter of kernels/random.h: none of its own purposes.
_FOR_ITEMS, _FOR_BATCHES = 0x100, 0x101

Generator = torch.Generator | np.random.Generator


@dataclass(slots=True)
class Drawing:
    """What is being read: items of an epoch, and how often each was named before in it."""

    key: int  # of seed and epoch
    times: dict[int, int] = field(default_factory=dict)
    made: dict[tuple[int, str], Any] = field(default_factory=dict)

    def begin(self, times: dict[int, int]) -> None:
        """From here on these items are read."""
        self.times = times
        if self.made:
            self.made = {}


_drawing: ContextVar[Drawing | None] = ContextVar("gpuload_drawing", default=None)


def batch_seed(key: int, *, begin: int, rank: int) -> int:
    """What seeds the generator of a batch: (seed, epoch) hashed to `key`, the samples of the epoch
    that all ranks have seen before it, and the rank."""
    counter = np.array([[begin & 0xFFFFFFFF, begin >> 32, rank, _FOR_BATCHES << 16]], np.uint32)
    low, high = np.asarray(_native.philox(key, counter))[0, :2].tolist()
    return int(low) | int(high) << 32


@contextlib.contextmanager
def drawing(key: int) -> Iterator[Drawing]:
    """Within, item_generator() is that of the items that are begun."""
    made = Drawing(key)
    token = _drawing.set(made)
    try:
        yield made
    finally:
        _drawing.reset(token)


@overload
def item_generator(item: int | None = None, *, kind: Literal["torch"] = "torch") -> torch.Generator:
    pass


@overload
def item_generator(item: int | None = None, *, kind: Literal["numpy"]) -> np.random.Generator:
    pass


def item_generator(item: int | None = None, *, kind: str = "torch") -> Generator:
    """The random generator of the item that is being read, for the `__getitem__` of a Dataset.

    Its numbers depend on the loader's seed, the epoch, the item's number and how often a sampler
    has named the item in this epoch; not on threads, workers, ranks or batch size. Each call while
    an item is read returns the same generator, which goes on where it was. Outside a loader it is
    a fresh one, seeded by torch's global generator.

    Args:
        item: the number that the dataset is asked for. To be given in `__getitems__` alone, which
            reads several.
        kind: "torch" for a torch.Generator on the CPU, "numpy" for a numpy.random.Generator.

    Raises:
        ValueError: `kind` is neither, or the item is not given where there are several.
    """
    if kind not in ("torch", "numpy"):
        raise ValueError(f'kind: expected "torch" or "numpy", got {kind!r}')
    now = _drawing.get()
    if now is None:
        return _make(int(torch.randint(2**63 - 1, ())), kind)
    if item is None:
        if len(now.times) != 1:
            raise ValueError(
                f"item_generator: expected the number of one of {len(now.times)} items that are "
                "read at once, got none; pass it"
            )
        (item,) = now.times
    if (item, kind) not in now.made:
        now.made[item, kind] = _make(_seed(now.key, item, now.times.get(item, 0)), kind)
    made: Generator = now.made[item, kind]
    return made


def _seed(key: int, item: int, time: int) -> int:
    """63 bits."""
    counter = [item & 0xFFFFFFFF, item >> 32 & 0xFFFFFFFF, time, _FOR_ITEMS << 16]
    words: Any = _native.philox(key, np.array([counter], np.uint32))
    low, high = (int(word) for word in words[0][:2])
    return low | (high & 0x7FFFFFFF) << 32


def _make(seed: int, kind: str) -> Generator:
    return torch.Generator().manual_seed(seed) if kind == "torch" else np.random.default_rng(seed)
