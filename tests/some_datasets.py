"""Datasets for tests, and what their batches hold."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    """Item i is ([i, i], i)."""

    def __init__(self, n=20):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return torch.full((2,), float(i)), i


class Broken(Numbers):
    """Item 5 raises."""

    def __init__(self, error, n=20):
        super().__init__(n)
        self.error = error

    def __getitem__(self, i):
        if i == 5:
            raise self.error
        return super().__getitem__(i)


class InBatches(Numbers):
    """Reads several items in one call."""

    def __init__(self, n=20):
        super().__init__(n)
        self.calls = []

    def __getitems__(self, numbers):
        self.calls.append(numbers)
        return [(i, i * i) for i in numbers]

    def __getitem__(self, i):
        raise AssertionError("items are to be read in batches")


def labels(loader):
    return [batch[1].tolist() for batch in loader]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def no_threads_are_left():
    """What is dropped has ended its threads."""
    if not ours():
        return
    gc.collect()
    until = time.monotonic() + 5
    while ours():
        assert time.monotonic() < until
        time.sleep(0.005)


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("gpuload")]
