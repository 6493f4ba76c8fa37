"""The loaders under test, all behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

Batch = tuple[torch.Tensor, ...]


class Peer(Protocol):
    """A loader that has its data and its settings."""

    def batches(self) -> Iterator[Batch]:
        """Yield batches on the CPU, epoch after epoch, without end: (x, y), (x,) where there are no
        labels, or features side by side."""

    def close(self) -> None:
        """Stop threads and processes; twice is fine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a loader, and the settings among which its best is sought."""

    name: str
    family: str  # "gpuload", "torch", "numpy", "spdl", "dali"
    settings: dict[str, Callable[[], Peer]]
    layout: str = "files"  # or "one file", "memory"
    queued_batches: int = 0  # at most so many are ready when nobody has asked for a while
