"""Source: an ordered collection of arrays with labels, which windows are taken from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload import _native
from gpuload.catalog import Catalog, Ints
from gpuload.sources.labels import as_numbers, check_length, label_tensor
from gpuload.sources.subset import cut, item_number, item_numbers


@dataclass(frozen=True)
class Field:
    """A named array of each item.

    `axes` says, for each axis of its items, which axis of the first field's items it is; -1 for one
    of its own. Windows, flips and sizes are given in axes of the first field.
    """

    name: str
    catalog: Catalog
    axes: tuple[int, ...]


def first_field(catalog: Catalog, name: str = "x") -> Field:
    """The field whose axes windows are given in."""
    return Field(name, catalog, tuple(range(catalog.item_shape_of_array.shape[1])))


class Source:
    """Arrays on disk or in memory, described but not loaded: what `gpuload.open` returns.

    A source is a map-style dataset: `len(source)` items, `source[i]` reads one whole item. It holds
    no open
    files, and pickles to about its table of paths and shapes.

    Attributes:
        fields: the named arrays of each item, mostly one.
        labels: one row per item, or None. Class numbers are kept as the smallest type that holds
            them, uint8 for up to 256 classes; a tensor of whole numbers is always int64.
        classes: names of the classes in label order, or None.
        errors: one message per file that was left out (`on_error="skip"`).
    """

    def __init__(
        self,
        fields: Catalog | Sequence[Field],
        *,
        labels: npt.NDArray[Any] | None = None,
        classes: list[str] | None = None,
        errors: Sequence[str] = (),
    ) -> None:
        one = isinstance(fields, Catalog)
        self.fields = (first_field(fields),) if one else tuple(fields)  # type: ignore[arg-type]
        self.catalog = self.fields[0].catalog
        self.labels = labels
        self.classes = classes
        self.errors = list(errors)
        self._readers: tuple[int, dict[int, _native.Reader]] | None = None

    @property
    def labels(self) -> npt.NDArray[Any] | None:
        """One row per item, or None. May be set to one row of numbers per item."""
        return self._labels

    @labels.setter
    def labels(self, labels: Any) -> None:
        self._labels = None if labels is None else check_length(as_numbers(labels), len(self))

    def __len__(self) -> int:
        return len(self.catalog)

    def __getitem__(self, i: int) -> Any:
        """Read item `i` whole: a CPU tensor that is the caller's; a tuple of one for each field and
        the label where there are several of these.

        Raises:
            IndexError: `i` is not in [-len, len).
            ReadError: the file has changed or cannot be read.
        """
        item = item_number(i, len(self))
        parts: list[Any] = [
            torch.utils.dlpack.from_dlpack(self._read(k, item)) for k in range(len(self.fields))
        ]
        if self.labels is not None:
            parts.append(label_tensor(self.labels[item]))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _read(self, k: int, item: int) -> object:
        """Item of field k, by a reader of this process; those made before a fork belong to the
        parent."""
        catalog = self.fields[k].catalog
        number = catalog.layout.dtype.number
        if catalog.contents is not None and len(catalog.paths) > 1:
            # A reader of all would have all files inflated.
            alone = catalog.select(np.array([item], np.int64)).compact()
            return _whole_reader(alone).read(0, number)
        if self._readers is None or self._readers[0] != os.getpid():
            self._readers = os.getpid(), {}
        readers = self._readers[1]
        if k not in readers:
            readers[k] = _whole_reader(catalog)
        return readers[k].read(item, number)

    def __getstate__(self) -> dict[str, Any]:
        made_when_asked = ("shapes", "paths")  # as long as there are items
        kept = {name: value for name, value in vars(self).items() if name not in made_when_asked}
        return kept | {"_readers": None}

    @property
    def dtype(self) -> torch.dtype:
        """The element type that is stored (in the first field), in the machine's byte order."""
        return self.catalog.layout.dtype.torch

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The element type that is stored in each field."""
        return {field.name: field.catalog.layout.dtype.torch for field in self.fields}

    @cached_property
    def shapes(self) -> Ints:
        """Shapes of the items (of the first field), (n, ndim)."""
        items = np.arange(len(self), dtype=np.int64)
        return self.catalog.item_shape_of_array[self.catalog.array_of(items)]

    @cached_property
    def paths(self) -> Sequence[str]:
        """The file of each item (of the first field)."""
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
        return sum(_nbytes(field.catalog) for field in self.fields)

    def select(self, indices: Sequence[int] | npt.ArrayLike) -> Source:
        """A source of only these items, in this order. A mask of one bool per item is taken as
        well.

        Raises:
            IndexError: an index is not in [-len, len), or a mask has another length.
            TypeError: the indices are not whole numbers.
        """
        items = item_numbers(indices, len(self))
        return Source(
            [replace(field, catalog=field.catalog.select(items)) for field in self.fields],
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
        first, *others = self.fields
        return first.catalog.fingerprint(
            *(part for field in others for part in (field.name, field.catalog.fingerprint()))
        )

    def summary(self) -> str:
        """A few lines for people: how much of what there is."""
        shapes, counts = np.unique(self.shapes, axis=0, return_counts=True)
        common = ", ".join(
            f"{tuple(map(int, shapes[k]))} x {counts[k]}" for k in np.argsort(-counts)[:3]
        )
        more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
        lines = [
            f"{len(self)} items in {self._where()}, "
            f"{self.catalog.layout.dtype.name}, "
            f"{self.nbytes / 1e6:.1f} MB",
            f"shapes: {common}{more}",
        ]
        for field in self.fields[1:]:
            lines.append(f"{field.name}: {field.catalog.layout.dtype.name}")
        if self.classes is not None and self.labels is not None and self.labels.ndim == 1:
            per_class = Counter(self.labels.tolist())
            names = ", ".join(f"{name} ({per_class[i]})" for i, name in enumerate(self.classes))
            lines.append(f"classes: {names}")
        if self.errors:
            lines.append(f"left out: {len(self.errors)} files, such as {self.errors[0]}")
        return "\n".join(lines)

    def _where(self) -> str:
        n = len(self.catalog.paths)
        place = "" if self.catalog.contents is None else self.catalog.contents.place
        return place or f"{n} files"

    def __repr__(self) -> str:
        return f"<gpuload.Source: {self.summary().splitlines()[0] if len(self) else 'no items'}>"


def _whole_reader(catalog: Catalog) -> _native.Reader:
    """Reads whole items, a few files at a time."""
    return _native.Reader(
        catalog.native(),
        catalog.native_files(8, 0),
        catalog.layout.dtype.number,
        False,
        1e3,
        4.0,
        1 << 16,
        1 << 24,
    )


def _nbytes(catalog: Catalog) -> int:
    """Bytes of all items as stored, without headers and other members."""
    elements = catalog.item_shape_of_array.prod(axis=1)
    if catalog.selected is None:
        total = (elements * np.diff(catalog.row_ends, prepend=0)).sum()
    else:
        items = np.arange(len(catalog), dtype=np.int64)
        total = elements[catalog.array_of(items)].sum()
    return int(total) * catalog.layout.dtype.nbytes


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
