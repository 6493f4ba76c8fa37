"""Source: an ordered collection of arrays with labels, which windows are taken from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload import _native
from gpuload.catalog import Catalog, Ints, Paths
from gpuload.dtypes import DTYPES
from gpuload.sources.subset import cut, item_number, item_numbers


class Source:
    """Arrays on disk, described but not loaded: what `gpuload.open` returns.

    A source is a map-style dataset: `len(source)` items, `source[i]` reads one whole item. It holds
    no open
    files, and pickles to about its table of paths and shapes.

    Attributes:
        labels: one row per item, or None.
        classes: names of the class folders in label order, or None.
        errors: one message per file that was left out (`on_error="skip"`).
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        labels: npt.NDArray[Any] | None = None,
        classes: list[str] | None = None,
        errors: Sequence[str] = (),
    ) -> None:
        self.catalog = catalog
        self.labels = labels
        self.classes = classes
        self.errors = list(errors)
        self._reader: tuple[int, _native.Reader] | None = None

    @property
    def labels(self) -> npt.NDArray[Any] | None:
        """One row per item, or None. May be set to one row of numbers per item."""
        return self._labels

    @labels.setter
    def labels(self, labels: Any) -> None:
        self._labels = None if labels is None else _one_per_item(_numbers(labels), len(self))

    def __len__(self) -> int:
        return len(self.catalog)

    def __getitem__(self, i: int) -> Any:
        """Read item `i` whole: a CPU tensor that is the caller's, or (tensor, label) when there are
        labels.

        Raises:
            IndexError: `i` is not in [-len, len).
            ReadError: the file has changed or cannot be read.
        """
        item = item_number(i, len(self))
        tensor = torch.utils.dlpack.from_dlpack(
            self._native_reader().read(item, self.catalog.layout.dtype.number)
        )
        return tensor if self.labels is None else (tensor, label_tensor(self.labels[item]))

    def _native_reader(self) -> _native.Reader:
        """A reader of this process; one made before a fork belongs to the parent."""
        if self._reader is None or self._reader[0] != os.getpid():
            paths, ends, sizes = (
                self.catalog.paths.blob,
                self.catalog.paths.ends,
                self.catalog.sizes,
            )
            files = _native.Files(paths, ends, sizes, 8, 0)
            number = self.catalog.layout.dtype.number
            reader = _native.Reader(
                self.catalog.native(), files, number, False, 1e3, 4.0, 1 << 16, 1 << 24
            )
            self._reader = os.getpid(), reader
        return self._reader[1]

    def __getstate__(self) -> dict[str, Any]:
        made_when_asked = ("shapes", "paths")  # as long as there are items
        kept = {name: value for name, value in vars(self).items() if name not in made_when_asked}
        return kept | {"_reader": None}

    @property
    def dtype(self) -> torch.dtype:
        """The element type that is stored, in the machine's byte order."""
        return self.catalog.layout.dtype.torch

    @cached_property
    def shapes(self) -> Ints:
        """Shapes of the items, (n, ndim)."""
        items = np.arange(len(self), dtype=np.int64)
        return self.catalog.item_shape_of_array[self.catalog.array_of(items)]

    @cached_property
    def paths(self) -> Sequence[str]:
        """The file of each item."""
        catalog = self.catalog
        if catalog.selected is None and catalog.sample_axis is None:
            return catalog.paths
        return _ItemPaths(catalog)

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """The number of each class, as torchvision's folders name it."""
        return None if self.classes is None else {name: i for i, name in enumerate(self.classes)}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all items as stored, without headers and other members."""
        catalog = self.catalog
        elements = catalog.item_shape_of_array.prod(axis=1)
        if catalog.selected is None:
            total = (elements * np.diff(catalog.row_ends, prepend=0)).sum()
        else:
            items = np.arange(len(self), dtype=np.int64)
            total = elements[catalog.array_of(items)].sum()
        return int(total) * catalog.layout.dtype.nbytes

    def select(self, indices: Sequence[int] | npt.ArrayLike) -> Source:
        """A source of only these items, in this order. A mask of one bool per item is taken as
        well.

        Raises:
            IndexError: an index is not in [-len, len), or a mask has another length.
            TypeError: the indices are not whole numbers.
        """
        items = item_numbers(indices, len(self))
        return Source(
            self.catalog.select(items),
            labels=None if self.labels is None else self.labels[items],
            classes=self.classes,
            errors=self.errors,
        )

    def split(self, parts: Sequence[float], *, seed: int | None = None) -> list[Source]:
        """Cut into several sources by lengths (whole numbers) or fractions (floats that sum to at
        most 1).

        Items keep their order; with a seed they are shuffled first.

        Raises:
            ValueError: a part is negative, or the parts are more than there is.
        """
        return [self.select(items) for items in cut(len(self), parts, seed=seed)]

    def fingerprint(self) -> str:
        """Sixteen hex digits that are the same for the same data, wherever they lie."""
        return self.catalog.fingerprint()

    def summary(self) -> str:
        """A few lines for people: how much of what there is."""
        shapes, counts = np.unique(self.shapes, axis=0, return_counts=True)
        common = ", ".join(
            f"{tuple(map(int, shapes[k]))} x {counts[k]}" for k in np.argsort(-counts)[:3]
        )
        more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
        lines = [
            f"{len(self)} items in {len(self.catalog.paths)} files, "
            f"{self.catalog.layout.dtype.name}, "
            f"{self.nbytes / 1e6:.1f} MB",
            f"shapes: {common}{more}",
        ]
        if self.classes is not None and self.labels is not None:
            per_class = Counter(self.labels.tolist())
            names = ", ".join(f"{name} ({per_class[i]})" for i, name in enumerate(self.classes))
            lines.append(f"classes: {names}")
        if self.errors:
            lines.append(f"left out: {len(self.errors)} files, such as {self.errors[0]}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<gpuload.Source: {self.summary().splitlines()[0] if len(self) else 'no items'}>"


class _ItemPaths(Sequence[str]):
    """The file of each item, looked up when asked."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def __len__(self) -> int:
        return len(self.catalog)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            items = np.arange(*i.indices(len(self)), dtype=np.int64)
            return [self.catalog.path_of_array(a) for a in self.catalog.array_of(items)]
        if not -len(self) <= i < len(self):
            raise IndexError(f"paths: expected an index below {len(self)}, got {i}")
        item = np.array([i % len(self)], np.int64)
        return self.catalog.path_of_array(int(self.catalog.array_of(item)[0]))


def label_tensor(label: Any) -> torch.Tensor:
    """A label as a tensor; whole numbers become int64."""
    array = np.asarray(label)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array.copy())


Labels = str | None | Sequence[Any] | npt.NDArray[Any] | torch.Tensor | Callable[[str], Any]


def make_labels(
    labels: Labels,
    *,
    class_numbers: Sequence[int] | None,
    paths: Paths,
    rows: Ints,
    n_found: int,
    n_items: int,
    array_of_items: Callable[[Ints], Ints],
) -> npt.NDArray[Any] | None:
    """One label row per item, from what the user gave.

    Args:
        labels: "auto" (the class numbers, if any), None, one row per item, or a function of the
            path.
        class_numbers: per file found; `rows` says which of these files are in the source.
        paths: of the files in the source.
        n_found: files found. Labels for all of them are taken where files are items and some are
            left out.
        array_of_items: gives the file of each of some items.

    Raises:
        ValueError: another number of labels than items.
        TypeError: labels that are not numbers.
    """

    def files_of_items() -> Ints:
        return array_of_items(np.arange(n_items, dtype=np.int64))

    if labels is None:
        return None
    if isinstance(labels, str):
        if labels != "auto":
            raise ValueError(
                f'labels: expected "auto", None, one row per item or a function, got {labels!r}'
            )
        if class_numbers is None:
            return None
        return np.asarray(class_numbers, np.int64)[rows][files_of_items()]
    if callable(labels):
        return _numbers([labels(path) for path in paths])[files_of_items()]
    array = _numbers(labels)
    if n_items == len(rows) < n_found and array.shape[:1] == (n_found,):
        return array[rows]
    return _one_per_item(array, n_items)


def _one_per_item(labels: npt.NDArray[Any], n_items: int) -> npt.NDArray[Any]:
    if labels.ndim == 0 or len(labels) != n_items:
        raise ValueError(
            f"labels: expected one row for each of {n_items} items, got {labels.shape}"
        )
    return labels


def _numbers(labels: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(labels)
    except ValueError:
        raise ValueError("labels: expected rows of one shape, got rows of several") from None
    if array.dtype.kind not in "biufc" or array.dtype.name not in DTYPES:
        raise TypeError(f"labels: expected numbers, got {array.dtype}; map the names to numbers")
    if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"labels: expected numbers below 2**63 (int64), got {array.max()}")
    return array.astype(array.dtype.newbyteorder("="))
