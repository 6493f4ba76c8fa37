"""Which boxes of an item a sample may show: geometry only, integers, checked before anything is
read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuload import _native
from gpuload.catalog import Ints

Size = int | tuple[int | None, ...]

# Kinds of csrc/window.hpp.
WHOLE_ITEM, _RANDOM, _CENTER, _GRID = range(4)


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Boxes of `size` at random places: every place where the box fits is equally likely.

    The place of crop k of item i depends on (seed, epoch, i, k) alone.

    Args:
        size: elements along each axis of an item, None for an axis kept whole; one number for
            all axes.
        per_array: boxes of each item per epoch.
    """

    size: Size
    per_array: int = 1


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The box of `size` in the middle: it starts at floor((n - size) / 2) along each axis.

    Args:
        size: elements along each axis of an item, None for an axis kept whole; one number for
            all axes.
    """

    size: Size


@dataclass(frozen=True, slots=True)
class GridCrop:
    """Boxes of `size` that cover the item, `stride` apart; the last one along an axis is moved
    inwards.

    Args:
        size: elements along each axis of an item, None for an axis kept whole; one number for
            all axes.
        stride: elements between starts along each axis, `size` where not given.
    """

    size: Size
    stride: Size | None = None


Crop = RandomCrop | CenterCrop | GridCrop


@dataclass(frozen=True, slots=True)
class Geometry:
    """A crop resolved against the items of a source.

    `extents` (n_arrays, ndim) are the window shapes of each array's items, `counts` (n_arrays,) how
    many windows an
    item has. `kind`, `size` and `stride` are those of csrc/window.hpp. Windows that `may_stick_out`
    end where their item does.
    """

    kind: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    extents: Ints
    counts: Ints
    may_stick_out: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether all windows have one shape."""
        return bool((self.extents == self.extents[:1]).all())

    @property
    def per_item(self) -> int | None:
        """Windows of each item, None when items differ."""
        return int(self.counts[0]) if (self.counts == self.counts[:1]).all() else None

    def native(self, ends: Ints | None) -> _native.Windows:
        return _native.Windows(
            self.kind,
            list(self.size),
            list(self.stride),
            self.per_item or 1,
            ends,
            self.may_stick_out,
        )


def resolve(
    crop: Crop | None, shapes: Ints, name: Callable[[int], str], *, may_stick_out: bool = False
) -> Geometry:
    """Check a crop against the shapes (n_arrays, ndim) of the items of each array.

    Args:
        crop: None for whole items.
        name: the path of an array, for messages.
        may_stick_out: windows may be larger than their item; they end where it does.

    Raises:
        TypeError: `crop` is not one of the crops, or a size is not a number.
        ValueError: a size is not positive, has another number of axes, or is larger than an array.
    """
    n, ndim = shapes.shape
    if crop is None:
        return Geometry(WHOLE_ITEM, (), (), shapes, np.ones(n, np.int64))
    if not isinstance(crop, RandomCrop | CenterCrop | GridCrop):
        raise TypeError(
            f"crop: expected RandomCrop, CenterCrop, GridCrop or None, got {type(crop).__name__}"
        )
    size = _per_axis(crop.size, "size", ndim, shapes, name)
    extents = np.where(np.array(size, np.int64) < 0, shapes, np.array(size, np.int64))
    if may_stick_out:
        extents = np.minimum(extents, shapes)
    _check_fit(extents, shapes, name)
    if isinstance(crop, CenterCrop):
        return Geometry(_CENTER, size, (), extents, np.ones(n, np.int64), may_stick_out)
    if isinstance(crop, RandomCrop):
        count = _whole_number(crop.per_array, "per_array", most=2**32 - 1)  # drawn by 32 bits
        counts = np.full(n, count, np.int64)
        return Geometry(_RANDOM, size, (), extents, counts, may_stick_out)
    stride = size
    if crop.stride is not None:
        given = _per_axis(crop.stride, "stride", ndim, shapes, name)
        stride = tuple(k if step < 0 else step for step, k in zip(given, size, strict=True))
    steps = np.where(
        np.array(stride, np.int64) < 0, np.maximum(shapes, 1), np.array(stride, np.int64)
    )
    counts = (-(-(shapes - extents) // np.maximum(steps, 1)) + 1).prod(axis=1, dtype=np.int64)
    step = tuple(max(s, 0) for s in stride)
    return Geometry(_GRID, size, step, extents, counts, may_stick_out)


def _per_axis(
    size: object,
    what: Literal["size", "stride"],
    ndim: int,
    shapes: Ints,
    name: Callable[[int], str],
) -> tuple[int, ...]:
    """One number per axis, -1 for an axis kept whole."""
    size = size.tolist() if isinstance(size, np.ndarray) else size
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * ndim
    if len(sizes) != ndim:
        shape = tuple(map(int, shapes[0])) if len(shapes) else ()
        raise ValueError(
            f"crop: expected a {what} of {ndim} axes as in {name(0)} {shape}, got {sizes}; "
            "write None for an axis kept whole"
        )
    return tuple(-1 if n is None or n == -1 else _whole_number(n, what) for n in sizes)


def _whole_number(n: object, what: str, most: int = 2**62) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"crop: expected a whole number as {what}, got {n!r}")
    if n < 1:
        raise ValueError(f"crop: expected a {what} of 1 or more, got {n}")
    if n > most:
        raise ValueError(f"crop: expected a {what} of at most {most}, got {n}")
    return int(n)


def _check_fit(extents: Ints, shapes: Ints, name: Callable[[int], str]) -> None:
    small = np.flatnonzero((extents > shapes).any(axis=1))
    if len(small):
        k = int(small[0])
        raise ValueError(
            f"{name(k)}: expected at least the crop {tuple(map(int, extents[k]))} along each axis, "
            f"got shape {tuple(map(int, shapes[k]))}; {len(small)} of {len(shapes)} arrays are too "
            "small, leave them out with source.select or pass pad=gpuload.Pad()"
        )
