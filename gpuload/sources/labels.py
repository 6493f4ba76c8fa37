"""Labels: from what the user gives to one row of numbers per item, and to tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.catalog import Ints, Paths
from gpuload.dtypes import DTYPES

Labels = str | None | Sequence[Any] | npt.NDArray[Any] | torch.Tensor | Callable[[str], Any]


def label_tensor(label: Any) -> torch.Tensor:
    """A label as a tensor; whole numbers become int64."""
    array = np.asarray(label)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array.copy())


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
        return as_numbers([labels(path) for path in paths])[files_of_items()]
    array = as_numbers(labels)
    if n_items == len(rows) < n_found and array.shape[:1] == (n_found,):
        return array[rows]
    return check_length(array, n_items)


def check_length(labels: npt.NDArray[Any], n_items: int) -> npt.NDArray[Any]:
    if labels.ndim == 0 or len(labels) != n_items:
        raise ValueError(
            f"labels: expected one row for each of {n_items} items, got {labels.shape}"
        )
    return labels


def as_numbers(labels: Any) -> npt.NDArray[Any]:
    """An array of numbers in the machine's byte order, that is a copy.

    Raises:
        TypeError: `labels` are not numbers.
        ValueError: rows of several shapes, or numbers that int64 does not hold.
    """
    try:
        array = np.asarray(labels)
    except ValueError:
        raise ValueError("labels: expected rows of one shape, got rows of several") from None
    if array.dtype.kind not in "biufc" or array.dtype.name not in DTYPES:
        raise TypeError(f"labels: expected numbers, got {array.dtype}; map the names to numbers")
    if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"labels: expected numbers below 2**63 (int64), got {array.max()}")
    return array.astype(array.dtype.newbyteorder("="))
