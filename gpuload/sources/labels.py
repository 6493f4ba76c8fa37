"""Labels: from what the user gives to one row of numbers per item, and to tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.catalog import Ints, Paths
from gpuload.dtypes import DTYPES
from gpuload.errors import FormatError
from gpuload.sources import npy
from gpuload.sources.folder import Found
from gpuload.sources.label_csv import read_table, rows_of, values
from gpuload.sources.names import as_small, numbers_of, shown

Labels = (
    str
    | os.PathLike[str]
    | None
    | Sequence[Any]
    | npt.NDArray[Any]
    | torch.Tensor
    | Callable[[str], Any]
)


def label_tensor(label: Any) -> torch.Tensor:
    """A label as a tensor; whole numbers become int64."""
    array = np.asarray(label)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array.copy())


@dataclass(frozen=True, slots=True)
class Items:
    """Which file each item of a source lies in.

    `rows` are the files of the source as positions in all that were found; `array_of` gives the
    files of items as positions in `rows`.
    """

    found: Found
    rows: Ints
    n_items: int
    array_of: Callable[[Ints], Ints]

    def from_files(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Labels of items from those of all files found."""
        return labels[self.rows][self.array_of(np.arange(self.n_items, dtype=np.int64))]

    def from_rows(self, labels: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
        """Labels of items from one row per item, or else one per file found."""
        n_files = len(self.found.paths)
        if labels.ndim and len(labels) == n_files != self.n_items:
            return self.from_files(labels)
        return check_length(labels, self.n_items, where=where, n_files=n_files)


_Made = tuple[npt.NDArray[Any] | None, list[str] | None]


def make_labels(
    labels: Labels, *, classes: list[str] | None, order: str | None, items: Items
) -> _Made:
    """One label row per item, from what the user gave, and the names of the classes.

    Args:
        labels: "auto" (the numbers of class folders, if any), None, one row per item or per file
            found, the path of a .npy file of such rows or of a .csv file, or a function of the
            path.
        classes: names in the order of their numbers; labels may be these names.
        order: of the class names in a .csv file.

    Raises:
        FormatError, MissingError, ReadError: a file of labels is not as it should be.
        ValueError: another number of labels than items, a label that is not one of the classes.
        TypeError: labels that are neither numbers nor names of classes.
    """
    if labels is None:
        if classes is not None:
            raise ValueError("classes: expected labels of these classes, got labels=None")
        return None, None
    if isinstance(labels, str) and labels == "auto":
        return _from_folders(classes, items)
    if isinstance(labels, str | os.PathLike):
        return _from_file(os.fspath(labels), classes, order, items)
    if callable(labels):
        paths = items.found.paths
        rows, classes = _of_classes(_array([labels(paths[row]) for row in items.rows]), classes)
        return rows[items.array_of(np.arange(items.n_items, dtype=np.int64))], classes
    rows, classes = _of_classes(_array(labels), classes)
    return items.from_rows(rows, "labels"), classes


def _from_folders(classes: list[str] | None, items: Items) -> _Made:
    found = items.found
    if found.class_numbers is not None and found.classes is not None:
        return items.from_files(as_small(found.class_numbers, len(found.classes))), found.classes
    if classes is not None:
        raise ValueError(
            f"classes: expected a folder of class folders, or labels=, got {found.paths[0]} in no "
            "class folder"
        )
    return None, None


def _from_file(path: str, classes: list[str] | None, order: str | None, items: Items) -> _Made:
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".npy":
        rows, classes = _of_classes(_read_npy(path), classes, path)
        return items.from_rows(rows, path), classes
    if suffix != ".csv":
        raise ValueError(
            'labels: expected "auto", None, one row per item, the path of a .npy or .csv file, or '
            f"a function, got {path!r}"
        )
    table = read_table(path)
    rows, classes = values(table, classes=classes, order=order)
    if table.files is None:
        return items.from_rows(rows, path), classes
    found = items.found
    row_of_file = rows_of(table, found.paths, wanted=items.rows, folder=found.folder)
    return items.from_files(rows[row_of_file]), classes


def _read_npy(path: str) -> npt.NDArray[Any]:
    """The array of a NPY file, checked against the file's size before it is read."""
    npy.read_catalog(
        npy.scan(Paths.of([path]), threads=1),
        member=None,
        dtype=None,
        sample_axis=None,
        on_error="raise",
    )
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FormatError(f'{path}: expected numbers as its header says, got "{error}"') from None
    return as_numbers(array, where=path)


def _of_classes(
    labels: npt.NDArray[Any], classes: list[str] | None, where: str = "labels"
) -> tuple[npt.NDArray[Any], list[str] | None]:
    """Numbers as they are; names of classes as numbers. Both must be of `classes`, if given."""
    if classes is None:
        return as_numbers(labels, where=where), None
    if labels.dtype.kind == "U":
        numbers = numbers_of(labels.reshape(-1).tolist(), classes).reshape(labels.shape)
        wrong = labels[numbers < 0]
    else:
        numbers = as_numbers(labels, where=where)
        if numbers.dtype.kind not in "iu":
            raise TypeError(
                f"{where}: expected names or numbers of classes={shown(classes)}, got "
                f"{numbers.dtype}"
            )
        wrong = numbers[(numbers < 0) | (numbers >= len(classes))]
    if len(wrong):
        raise ValueError(
            f"{where}: expected names or numbers of classes={shown(classes)}, got "
            f"{wrong[:1].tolist()[0]!r}"
        )
    return as_small(numbers, len(classes)), classes


def check_length(
    labels: npt.NDArray[Any], n_items: int, *, where: str = "labels", n_files: int | None = None
) -> npt.NDArray[Any]:
    """Labels with one row for each item.

    Raises:
        ValueError: another number of rows.
    """
    if labels.ndim == 0 or len(labels) != n_items:
        or_files = f" or {n_files} files" if n_files not in (None, n_items) else ""
        raise ValueError(
            f"{where}: expected one row for each of {n_items} items{or_files}, got {labels.shape}"
        )
    return labels


def as_numbers(labels: Any, *, where: str = "labels") -> npt.NDArray[Any]:
    """An array of numbers in the machine's byte order, that is a copy.

    Raises:
        TypeError: `labels` are not numbers.
        ValueError: rows of several shapes, or numbers that int64 does not hold.
    """
    array = _array(labels)
    if array.dtype.kind not in "biufc" or array.dtype.name not in DTYPES:
        raise TypeError(
            f"{where}: expected numbers, got {array.dtype}; map the names to numbers, or pass "
            "classes="
        )
    if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"{where}: expected numbers below 2**63 (int64), got {array.max()}")
    return array.astype(array.dtype.newbyteorder("="))


def _array(labels: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(labels)
    except TypeError as error:
        raise TypeError(f"labels: expected numbers, got {error}") from None
    except ValueError:
        raise ValueError("labels: expected rows of one shape, got rows of several") from None
