"""dataset(): a map-style torch Dataset as a source. Items come from the user's code, not from files
that are known here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.catalog import Ints
from gpuload.sources.source import Source
from gpuload.sources.subset import cut, item_number, item_numbers

Collate = Callable[[list[Any]], Any]

_MOST_WORKERS = 1024  # beyond this, a slip of the pen


def dataset(
    torch_dataset: Any, *, workers: int = 0, collate_fn: Collate | None = None
) -> DatasetSource:
    """Take any map-style torch Dataset as a source: `DataLoader(gpuload.dataset(mine), 32)`.

    Batches are those of torch's DataLoader: values collated into tensors, tuples into lists, dicts
    into dicts, strings into lists. What that would hide is an error that names the item: keys that
    some items lack, lists of other lengths, None, mixed types, tensors of other shapes.

    Args:
        torch_dataset: has a length and gives items by number. One with `__getitems__` gives each
            batch in one call.
        workers: 0: items are read by threads of the loader, one unless it is given more by
            `threads=`; several of them call the dataset at once. Else by so many worker processes
            of torch, each with its own copy of the dataset.
        collate_fn: makes a batch of a list of items, in place of the above.

    Raises:
        TypeError: the dataset has no length or no items by number.
        ValueError: `workers` is out of its range.
    """
    name = type(torch_dataset).__name__
    if isinstance(torch_dataset, Source | DatasetSource):
        raise TypeError(
            f"dataset: expected a torch Dataset, got a {name}; pass it to DataLoader as it is"
        )
    if isinstance(torch_dataset, torch.utils.data.IterableDataset):
        raise TypeError(
            f"dataset: expected items by number, {name} can only be gone through; use "
            "gpuload.prefetch(torch.utils.data.DataLoader(...))"
        )
    for method in ("__len__", "__getitem__"):
        if not hasattr(type(torch_dataset), method):
            raise TypeError(
                f"dataset: expected a map-style Dataset with a length and items by number, {name} "
                f"has no {method}"
            )
    if isinstance(workers, bool) or not isinstance(workers, int | np.integer):
        raise TypeError(f"workers: expected a whole number, got {workers!r}")
    if not 0 <= workers <= _MOST_WORKERS:
        raise ValueError(f"workers: expected a number of [0, {_MOST_WORKERS}], got {workers}")
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn: expected a function of a list of items, got {collate_fn!r}")
    return DatasetSource(torch_dataset, workers=int(workers), collate_fn=collate_fn)


class DatasetSource:
    """A torch Dataset, or some of its items: what `gpuload.dataset` returns.

    Attributes:
        torch_dataset: what was given.
        workers: processes that read it, 0 for threads.
        collate_fn: what makes batches, None for the rules of `gpuload.dataset`.
        labels, classes: None: labels are part of the items.
        paths: empty: files are the dataset's own affair.
    """

    labels = None
    classes = None
    class_to_idx = None
    paths: Sequence[str] = ()
    errors: Sequence[str] = ()

    def __init__(
        self,
        torch_dataset: Any,
        *,
        workers: int,
        collate_fn: Collate | None,
        selected: Ints | None = None,
    ) -> None:
        self.torch_dataset = torch_dataset
        self.workers = workers
        self.collate_fn = collate_fn
        self._selected = selected

    def __len__(self) -> int:
        return len(self.torch_dataset) if self._selected is None else len(self._selected)

    def __getitem__(self, i: int) -> Any:
        """Item `i` as the dataset gives it.

        Raises:
            IndexError: `i` is not in [-len, len).
        """
        return self.torch_dataset[self.numbers([item_number(i, len(self))])[0]]

    def numbers(self, items: Iterable[int]) -> list[int]:
        """What the dataset calls these items."""
        items = list(items)
        if self._selected is None:
            return items
        numbers: list[int] = self._selected[items].tolist()
        return numbers

    def select(self, indices: Sequence[int] | npt.ArrayLike) -> DatasetSource:
        """A source of only these items, in this order. A mask of one bool per item is taken as
        well.

        Raises:
            IndexError: an index is not in [-len, len), or a mask has another length.
            TypeError: the indices are not whole numbers.
        """
        items = item_numbers(indices, len(self))
        return DatasetSource(
            self.torch_dataset,
            workers=self.workers,
            collate_fn=self.collate_fn,
            selected=items if self._selected is None else self._selected[items],
        )

    def split(self, parts: Sequence[float], *, seed: int | None = None) -> list[DatasetSource]:
        """Cut into several sources by lengths (whole numbers) or fractions (floats that sum to at
        most 1).

        Items keep their order; with a seed they are shuffled first.

        Raises:
            ValueError: a part is negative, or the parts are more than there is.
        """
        return [self.select(items) for items in cut(len(self), parts, seed=seed)]

    def fingerprint(self) -> str:
        """Sixteen hex digits of the dataset's type, its length, what its own `fingerprint()` says
        if it has one, and which items are selected."""
        own = getattr(self.torch_dataset, "fingerprint", None)
        told = [self._name, len(self.torch_dataset), str(own()) if callable(own) else ""]
        digest = hashlib.sha256(repr(told).encode())
        if self._selected is not None:
            digest.update(self._selected.tobytes())
        return digest.hexdigest()[:16]

    @property
    def _name(self) -> str:
        return type(self.torch_dataset).__qualname__

    def summary(self) -> str:
        """A line for people."""
        of = "" if self._selected is None else f" of {len(self.torch_dataset)}"
        return f"{len(self)}{of} items of {self._name}"

    def __repr__(self) -> str:
        return f"<gpuload.DatasetSource: {self.summary()}>"
