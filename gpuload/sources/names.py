"""Names of files and classes: their order, and the numbers of classes. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_DIGITS = re.compile("([0-9]+)")
_MOST_SHOWN = 20  # names in a message


def check_order(order: object) -> None:
    """Refuse an order of names that is none of "text", "natural" and None.

    Raises:
        ValueError: it is another.
    """
    if order is not None and not (isinstance(order, str) and order in ("text", "natural")):
        raise ValueError(f'order: expected "text" or "natural", got {order!r}')


def in_order(names: Iterable[str], order: str | None) -> list[str]:
    """Names sorted as text, or in "natural" order: digits count as the number they make, "2" before
    "10"."""
    return sorted(names, key=_natural) if order == "natural" else sorted(names)


def _natural(name: str) -> tuple[list[Any], str]:
    parts: list[Any] = _DIGITS.split(name)
    for i in range(1, len(parts), 2):
        digits = parts[i].lstrip("0")
        parts[i] = len(digits), digits  # sorted as the number, however long it is
    return parts, name


def check_classes(classes: object) -> list[str] | None:
    """The names of a list of classes; None for None.

    Raises:
        TypeError: no list, or something else than text in it.
        ValueError: an empty list, or a name that comes twice.
    """
    if classes is None:
        return None
    if isinstance(classes, str | bytes) or not isinstance(classes, Sequence | np.ndarray):
        raise TypeError(f"classes: expected a list of class names, got {classes!r}")
    names = []
    for name in classes:
        if not isinstance(name, str):
            raise TypeError(f"classes: expected names as text, got {name!r}")
        names.append(str(name))
    if not names:
        raise ValueError("classes: expected at least one class name, got an empty list")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"classes: expected each name once, got {twice!r} twice")
    return names


def numbers_of(names: Iterable[str], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """The position of each name in the list of classes, -1 for a name that is not in it."""
    number_of = {name: i for i, name in enumerate(classes)}
    return np.array([number_of.get(name, -1) for name in names], np.int64)


def as_small(numbers: npt.ArrayLike, n_classes: int) -> npt.NDArray[Any]:
    """Class numbers in the smallest unsigned type that holds all of them: uint8 up to 256
    classes."""
    return np.asarray(numbers).astype(np.min_scalar_type(n_classes - 1))


def shown(names: Sequence[str]) -> str:
    """Names for a message, the first few of many."""
    if len(names) <= _MOST_SHOWN:
        return str(list(names))
    return f"{str(list(names[:_MOST_SHOWN]))[:-1]}, ...] ({len(names)})"
