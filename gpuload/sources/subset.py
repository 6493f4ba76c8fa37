"""Which items of a source are meant: numbers checked, masks, parts. No I/O here."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuload.catalog import Ints


def item_number(i: int, n: int) -> int:
    """One item of `n`, counted from 0.

    Raises:
        TypeError: `i` is not a whole number.
        IndexError: `i` is not in [-n, n).
    """
    try:
        i = operator.index(i)
    except TypeError:
        raise TypeError(
            f"source: expected a whole number, got {i!r}; source.select takes several"
        ) from None
    if not -n <= i < n:
        raise IndexError(f"source: expected an index of [{-n}, {n}), got {i}")
    return i % n


def item_numbers(indices: Sequence[int] | npt.ArrayLike, n: int) -> Ints:
    """Items of `n` by number, negative ones from the end, or by a mask of one bool per item.

    Raises:
        IndexError: an index is not in [-n, n), or a mask has another length.
        TypeError: the indices are not whole numbers.
    """
    items = np.asarray(indices)
    if items.dtype == np.bool_:
        if items.shape != (n,):
            raise IndexError(f"select: expected a mask of {n} items, got {items.shape}")
        items = np.flatnonzero(items)
    if items.size and items.dtype.kind not in "iu":
        raise TypeError(f"select: expected whole numbers, got {items.dtype}")
    items = items.astype(np.int64).reshape(-1)
    bad = items[(items < -n) | (items >= n)]
    if len(bad):
        raise IndexError(f"select: expected indices of [{-n}, {n}), got {bad[0]}")
    return np.where(items < 0, items + n, items)


def cut(n: int, parts: Sequence[float], *, seed: int | None) -> list[Ints]:
    """Cut `n` items by lengths (whole numbers) or fractions (floats that sum to at most 1).

    Raises:
        ValueError: a part is negative, or the parts are more than there is.
    """
    parts = list(parts)
    are_lengths = all(isinstance(part, int | np.integer) for part in parts)
    most = n if are_lengths else 1
    if not parts or not all(0 <= part <= most for part in parts):
        raise ValueError(f"split: expected parts of {n} items, got {parts}")
    ends = np.cumsum(parts)
    if not are_lengths:
        ends = np.round(ends * n + 1e-9).astype(int)
    if ends[-1] > n:
        raise ValueError(f"split: expected parts of {n} items, got {parts}")
    order = np.arange(n)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    return [order[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
