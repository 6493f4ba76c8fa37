"""Fetch batches of a Dataset: what a thread or a worker process does for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gpuload.collate import collate
from gpuload.randomness import drawing

_NAMED = 8  # items in a note


@dataclass(frozen=True, slots=True)
class Request:
    """A batch to fetch: items as the dataset calls them, how often each was named before in the
    epoch, and the key of seed and epoch."""

    key: int
    numbers: list[int]
    times: list[int]


class Fetcher:
    """Makes batches of a Dataset's items. Keeps nothing from one to the next."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self.takes_batches = takes_batches(dataset)

    def __call__(self, request: Request) -> Any:
        """Read and collate.

        Raises:
            What the dataset raises, with a note of the item. And as of `collate`.
        """
        items = self._read_at_once(request) if self.takes_batches else self._read_each(request)
        if self._collate_fn is None:
            return collate(items, request.numbers)
        with _noting(f"while a batch of {_list(request.numbers)} of the dataset was put together"):
            return self._collate_fn(items)

    def _read_each(self, request: Request) -> list[Any]:
        dataset, items = self.dataset, []
        with drawing(request.key) as now:
            for number, times in zip(request.numbers, request.times, strict=True):
                now.begin({number: times})
                try:
                    items.append(dataset[number])
                except BaseException as error:
                    error.add_note(f"while item {number} of the dataset was read")
                    raise
        return items

    def _read_at_once(self, request: Request) -> list[Any]:
        numbers = request.numbers
        note = f"while {_list(numbers)} of the dataset were read"
        with drawing(request.key) as now, _noting(note):
            # Of an item that is named twice, the first time counts.
            now.begin(dict(zip(reversed(numbers), reversed(request.times), strict=True)))
            items = list(self.dataset.__getitems__(list(numbers)))
        if len(items) != len(numbers):
            raise ValueError(
                f"__getitems__: expected {len(numbers)} items for {len(numbers)} numbers, got "
                f"{len(items)}"
            )
        return items


def takes_batches(dataset: Any) -> bool:
    """Whether a dataset reads several items in one call. A Subset does when what it is of does."""
    if type(dataset) is torch.utils.data.Subset:
        return takes_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


@contextmanager
def _noting(note: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


def _list(numbers: list[int]) -> str:
    """Item 7; items 1, 2; items 1, 2, ... (20 in all)."""
    some = ", ".join(map(str, numbers[:_NAMED]))
    more = f", ... ({len(numbers)} in all)" if len(numbers) > _NAMED else ""
    return f"items {some}{more}" if len(numbers) > 1 else f"item {some}"
