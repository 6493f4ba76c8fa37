"""Fields of one item: what they may be named, and which axes they share. No I/O here."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

import numpy as np

from gpuload.catalog import Ints

# Columns of a batch beside the fields; "mask" is one only when it is asked for.
_RESERVED = frozenset(("y", "index", "crop", "start", "path", "valid", "lengths", "flip", "rot90"))
_MOST_CHANNELS = 32  # an axis of more is one of the picture: a window is cut from it


def check_names(names: Iterable[str], where: str) -> None:
    """Names become attributes of batches.

    Raises:
        TypeError: a name is no text.
        ValueError: it is no identifier, a keyword, or the name of another column.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{where}: expected names as keys, got {name!r}")
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(
                f"{where}: expected names that are identifiers and begin with a letter, got "
                f"{name!r}"
            )
        if name in _RESERVED:
            remedy = "; labels go to labels= or source.labels" if name == "y" else ""
            raise ValueError(
                f"{where}: expected names other than those of the columns of a batch, got "
                f"{name!r}{remedy}"
            )


def share_axes(first: Ints, other: Ints) -> tuple[int, ...] | int:
    """Which axis of the first field each axis of another field is; -1 for one of its own.

    Equal shapes share all axes. With one axis less or more, the leading axes are shared where they
    agree, else the trailing ones. With as many, but three at least, the first or the last axis may
    differ where it is the same for all items and short: channels.

    Args:
        first: shapes (n, ndim) of the items of the first field.
        other: shapes (n, other_ndim) of the same items in the other field.

    Returns:
        One number for each axis of the other field; where that cannot be, the row of the first item
        that does not fit the others or the rule.
    """
    ndim, other_ndim = first.shape[1], other.shape[1]
    if abs(ndim - other_ndim) > 1 or not len(first):
        return 0
    least = min(ndim, other_ndim)
    if ndim != other_ndim:
        leading, trailing = tuple(range(least)), tuple(range(ndim - least, ndim))
        own: tuple[int, ...] = (-1,) * (other_ndim - least)
        agree_leading = (first[:, :least] == other[:, :least]).all(axis=1)
        agree_trailing = (first[:, ndim - least :] == other[:, other_ndim - least :]).all(axis=1)
        if agree_leading.all():
            return leading + own
        if agree_trailing.all():
            return own + trailing
        return int(np.argmin(agree_leading if agree_leading[0] else agree_trailing))
    same = first == other
    if same.all():
        return tuple(range(ndim))
    row = int(np.argmin(same.all(axis=1)))
    for end in (ndim - 1, 0) if ndim >= 3 else ():
        if np.delete(same, end, axis=1).all() and _are_channels(first[:, end], other[:, end]):
            return tuple(-1 if axis == end else axis for axis in range(ndim))
    return row


def _are_channels(first: Ints, other: Ints) -> bool:
    constant = bool((first == first[0]).all() and (other == other[0]).all())
    return constant and min(int(first[0]), int(other[0])) <= _MOST_CHANNELS
