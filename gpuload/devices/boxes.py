"""The axes of a box as a kernel takes them: few, long, in the order of memory. No I/O here."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpuload.devices.params import MAX_AXES


@dataclass(frozen=True, slots=True)
class Axis:
    """`n` elements; strides in bytes. An axis with a role stays, and is joined with no other."""

    n: int
    src_stride: int
    dst_stride: int
    role: int | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """At most 8 axes, the one that is dense at the destination last; `n_pieces` such boxes."""

    axes: tuple[Axis, ...]
    n_pieces: int = 1
    src_step: int = 0
    dst_step: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.n for axis in self.axes)

    @property
    def src_stride(self) -> tuple[int, ...]:
        return tuple(axis.src_stride for axis in self.axes)

    @property
    def dst_stride(self) -> tuple[int, ...]:
        return tuple(axis.dst_stride for axis in self.axes)

    @property
    def is_across(self) -> bool:
        """Whether the source is denser along the last but one axis."""
        return len(self.axes) > 1 and _step(self.axes[-2]) < _step(self.axes[-1])

    def n_units(self, kernel: str, segment: int) -> int:
        """Segments of a piece.

        Raises:
            ValueError: they are 2**32 or more.
        """
        *outer, length = self.shape or (1,)
        n = math.prod(outer) * math.ceil(length / segment)
        if n >= 1 << 32:
            raise ValueError(
                f"{kernel}: expected fewer than 2**32 rows in a box, got {n} of shape "
                f"{self.shape}; take smaller windows"
            )
        return n


def fixed(kernel: str, axes: Iterable[Axis]) -> Box:
    """A box whose axes are named by a table, and so stay as they are.

    Raises:
        ValueError: there are more than 8.
    """
    return _checked(kernel, list(axes))


@functools.lru_cache(maxsize=256)
def arranged(kernel: str, axes: tuple[Axis, ...], pieces: Axis | None) -> Box:
    """Put axes in order and join those that lie behind one another.

    Args:
        pieces: alike pieces, which are one more axis; None when a table says where they lie.

    Raises:
        ValueError: more than 8 axes are left.
    """
    every = axes if pieces is None else (pieces, *axes)
    long = [axis for axis in every if axis.n != 1 or axis.role is not None]
    # What has one element comes first: rows should be long.
    kept = _joined(sorted(long, key=lambda axis: (axis.n != 1, -abs(axis.dst_stride))))
    others = kept[:-1]
    if others and _step(kept[-1]) > min(map(_step, others)):
        others.sort(key=lambda a: -_step(a))  # neighbours along what is dense in the source
        kept[:-1] = others
    if len(kept) > MAX_AXES and pieces is not None:  # an axis as pieces again
        piece = next(axis for axis in kept if axis.role is None)
        kept.remove(piece)
        return _checked(kernel, kept, piece)
    return _checked(kernel, kept)


def _checked(kernel: str, axes: list[Axis], pieces: Axis | None = None) -> Box:
    if len(axes) > MAX_AXES:
        raise ValueError(
            f"{kernel}: expected at most {MAX_AXES} axes that do not lie together, got "
            f"{len(axes)} of shape {tuple(axis.n for axis in axes)}"
        )
    if pieces is None:
        return Box(tuple(axes))
    return Box(tuple(axes), pieces.n, pieces.src_stride, pieces.dst_stride)


def _step(axis: Axis) -> int:
    return abs(axis.src_stride)


def _joined(axes: Iterable[Axis]) -> list[Axis]:
    """Join neighbours that are one run of bytes on both sides."""
    joined: list[Axis] = []
    for axis in axes:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.role is None
            and axis.role is None
            and last.src_stride == axis.src_stride * axis.n
            and last.dst_stride == axis.dst_stride * axis.n
        ):
            joined[-1] = Axis(last.n * axis.n, axis.src_stride, axis.dst_stride)
        else:
            joined.append(axis)
    return joined
