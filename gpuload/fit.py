"""How windows fill samples of one shape: padded, cut, resized, flipped, turned. Geometry only,
integers, checked before anything is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import _native
from gpuload.catalog import Ints

_ALIGN = ("center", "begin", "end")  # of csrc/fit.hpp
_OVERSIZE = ("error", "crop", "resize")
PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")  # of kernels/pad.h
RESIZE_MODES = ("nearest", "nearest-exact", "linear", "antialias", "area")  # of kernels/resize.h

# Of three axes or more, a first or last one of so few elements, the same in all arrays or nearly
# all, counts channels. "max" and the like do not pad it: a file of 5 channels among such of 6 is a
# mistake.
MOST_CHANNELS = 16

To = int | str | None


@dataclass(frozen=True, slots=True)
class Pad:
    """Fill samples of different shapes up to one shape.

    Args:
        to: "max" (the largest window of the source; along an axis that is cropped, the size of the
            crop), "p95" (the 95th percentile of all windows, any other likewise), "batch" (the
            largest in the batch), "multiple:16" (that, rounded up), a number; or a tuple with one
            of these for each axis of an item, None for an axis that is left as it is. One text for
            all axes leaves channels alone: the first or last of three or more axes, where it has
            at most 16 elements.
        align: where data lie in the sample: "center" (of an odd rest, the larger half follows),
            "begin" or "end".
        mode: "constant", "edge", "reflect", "symmetric" or "wrap", as of numpy.pad.
        value: what "constant" fills with, in units of what is delivered, after scaling. A dict
            gives it by field; a bare number is that of the first field, others get 0.
        oversize: what is done to windows that are larger than `to`: "error" (before anything is
            read), "crop" (cut to it, aligned), "resize" (made smaller along the axes that are too
            long).
        resize_mode: how, as of Resize.
        bucket: let batches be made of samples of similar size: runs of 4096 samples of the
            epoch's order are sorted by size, up to a tenth of it, and blocks of 64 are shuffled.
    """

    to: To | tuple[To, ...] = "max"
    align: str = "center"
    mode: str = "constant"
    value: Any = 0
    oversize: str = "error"
    resize_mode: Any = None
    bucket: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize windows, as torch.nn.functional.interpolate with align_corners=False does.

    Args:
        size: elements along each axis of an item, None for an axis kept as it is; at most three.
        mode: "nearest", "nearest-exact", "linear", "antialias" (linear, over all elements that
            make one where it shrinks) or "area". A dict gives it by field. None: "antialias" for
            floating values, "nearest" for whole numbers of further fields (masks); where the first
            field is of whole numbers, it must be said: images want "antialias", labels "nearest".
            Blended values that are delivered as floating ones are computed as float32, or as
            float64 where they are stored so.
    """

    size: int | tuple[int | None, ...]
    mode: Any = None


@dataclass(frozen=True, slots=True)
class Fit:
    """A Pad, a Resize, flips and turns resolved against the windows of a source.

    Per axis of the first field: `to` elements of a sample, -1 for as many as the largest of its
    batch, rounded up to a `multiple`; `size` that windows are resized to, -1 for none. `largest`
    is the largest shape that a batch can have; `pads` says along which axes something is padded.
    `contents` (n_arrays, ndim) are extents of windows before they are padded or turned; axes that
    are `alone` must be alike in a batch.
    """

    to: tuple[int, ...]
    multiple: tuple[int, ...]
    size: tuple[int, ...]
    largest: tuple[int, ...]
    pads: tuple[bool, ...]
    alone: tuple[bool, ...]
    contents: Ints
    align: str = "center"
    shrinks: bool = False
    flips: tuple[int, ...] = ()
    turn: tuple[int, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether windows are delivered as they are."""
        return not (any(self.pads) or self.resizes or self.flips or self.turn or self.cuts)

    @property
    def cuts(self) -> bool:
        return any(n >= 0 for n in self.to)

    @property
    def resizes(self) -> bool:
        return self.shrinks or any(n >= 0 for n in self.size)

    def native(self) -> _native.Fit:
        turn_from, turn_to = self.turn or (-1, -1)
        return _native.Fit(
            list(self.to),
            list(self.multiple),
            list(self.size),
            _ALIGN.index(self.align),
            self.shrinks,
            sum(1 << axis for axis in self.flips),
            turn_from,
            turn_to,
        )


def resolve_fit(
    extents: Ints,
    *,
    items: Callable[[], Ints],
    cropped: Sequence[int],
    pad: Pad | None,
    resize: Resize | None,
    flip: object,
    rot90: object,
    name: Callable[[int], str],
) -> Fit:
    """Check how windows are to be fitted against their extents (n_arrays, ndim).

    Args:
        items: gives the items of each array.
        cropped: the size of the crop along each axis, -1 where there is none.
        name: the path of an array, for messages.

    Raises:
        TypeError, ValueError: an argument is not as its class says, or windows do not fit.
    """
    ndim = extents.shape[1]
    for what, kind, given in (("pad", Pad, pad), ("resize", Resize, resize)):
        if given is not None and not isinstance(given, kind):
            raise TypeError(
                f"{what}: expected gpuload.{kind.__name__} or None, got {type(given).__name__}"
            )
    size = _sizes(resize.size, ndim, name) if resize is not None else (-1,) * ndim
    contents = extents
    if max(size, default=-1) >= 0:
        contents = np.where(np.array(size, np.int64) >= 0, np.array(size, np.int64), extents)
    turn = _plane(rot90, ndim)
    flips = _axes("flip", flip, ndim)
    pad = Pad((None,) * ndim) if pad is None else _checked(pad)
    targets = _Targets(contents, items, cropped, size, turn, name)
    along = [targets.along(axis, pad) for axis in range(ndim)]
    to, multiple = tuple(n for n, _, _ in along), tuple(n for _, n, _ in along)
    alone = tuple(is_alone for _, _, is_alone in along)
    largest = tuple(targets.largest(axis, to[axis], multiple[axis]) for axis in range(ndim))
    if turn is not None:
        _check_turn(turn, list(zip(to, multiple, strict=True)), alone, contents, name)
    shrinks = pad.oversize == "resize" and len(_too_large(contents, to)) > 0
    if pad.oversize == "error":
        _check_fit(contents, to, name)
    for axis in range(ndim):
        if pad.oversize == "crop" and 0 <= to[axis] < size[axis]:
            raise ValueError(
                f"resize: expected at most {to[axis]} elements along axis {axis}, to which pad= "
                f"cuts, got {size[axis]}; pass a smaller size, or crop= before"
            )
    if any(n >= 0 for n in size) or shrinks:
        if extents.max(initial=0) >= 1 << 31:
            raise ValueError("resize: expected axes of fewer than 2**31 elements, got more")
        n_resized = sum(size[a] >= 0 or (shrinks and to[a] >= 0) for a in range(ndim))
        if n_resized > 3:
            raise ValueError(
                f"resize: expected at most 3 axes to resize, got {n_resized}; write None for "
                "those that keep their extent"
            )
    fitted = contents
    if max(to, default=-1) >= 0:
        wanted = np.array(to, np.int64)
        fitted = np.where(wanted >= 0, np.minimum(contents, wanted), contents)
    pads = tuple(
        not alone[axis] and bool((fitted[:, axis] != largest[axis]).any()) for axis in range(ndim)
    )
    if turn is not None:
        pads = tuple(
            any(pads[a] for a in turn) if axis in turn else p for axis, p in enumerate(pads)
        )
    return Fit(
        to=to,
        multiple=multiple,
        size=size,
        largest=largest,
        pads=pads,
        alone=alone,
        contents=fitted,
        align=pad.align,
        shrinks=shrinks,
        flips=flips,
        turn=turn,
    )


def _checked(pad: Pad) -> Pad:
    for what, value, names in (
        ("align", pad.align, _ALIGN),
        ("mode", pad.mode, PAD_MODES),
        ("oversize", pad.oversize, _OVERSIZE),
    ):
        if not isinstance(value, str) or value not in names:
            listed = ", ".join(f'"{n}"' for n in names)
            raise ValueError(f"pad: expected one of {listed} as {what}, got {value!r}")
    if not isinstance(pad.bucket, bool):
        raise TypeError(f"pad: expected True or False as bucket, got {pad.bucket!r}")
    return pad


@dataclass(frozen=True, slots=True)
class _Targets:
    """Says how long samples are along an axis."""

    contents: Ints
    items: Callable[[], Ints]
    cropped: Sequence[int]
    size: Sequence[int]
    turn: tuple[int, int] | None
    name: Callable[[int], str]

    def along(self, axis: int, pad: Pad) -> tuple[int, int, bool]:
        """Elements (-1: as the largest of the batch), what they are a multiple of, and whether the
        axis is left as it is."""
        ndim = self.contents.shape[1]
        if isinstance(pad.to, tuple | list):
            if len(pad.to) != ndim:
                raise ValueError(
                    f"pad: expected one entry for each of {ndim} axes as in {self.name(0)}, got "
                    f"{tuple(pad.to)}; write None for an axis that is left as it is"
                )
            wanted = pad.to[axis]
        else:
            wanted = None if isinstance(pad.to, str) and self._has_channels(axis) else pad.to
        if wanted is None or (isinstance(wanted, int | np.integer) and wanted == -1):
            return -1, 1, True
        if isinstance(wanted, str):
            return (*self._named(axis, wanted), False)
        if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer):
            raise TypeError(
                'pad: expected "max", "p95", "batch", "multiple:16", a whole number or a tuple of '
                f"those, got {wanted!r}"
            )
        if not 1 <= wanted < 1 << 31:
            raise ValueError(
                f"pad: expected 1 to 2**31 - 1 elements along axis {axis}, got {wanted}"
            )
        return int(wanted), 1, False

    def _named(self, axis: int, wanted: str) -> tuple[int, int]:
        if wanted == "batch":
            return -1, 1
        if wanted == "max":
            return max(self._wanted(a) for a in self._together(axis)), 1
        kind, _, number = wanted.partition(":")
        if (
            kind == "multiple"
            and re.fullmatch("[0-9]{1,10}", number)
            and 1 <= int(number) < 1 << 31
        ):
            return -1, int(number)
        try:
            percent = float(wanted[1:]) if wanted[:1] == "p" else math.nan
        except ValueError:
            percent = math.nan
        if not 0 <= percent <= 100:
            raise ValueError(
                'pad: expected "max", "p95", "batch", "multiple:16" or a whole number, got '
                f'"{wanted}"'
            )
        return max(self._percentile(axis, percent), 1), 1

    def _together(self, axis: int) -> list[int]:
        """Axes that change places with this one."""
        return list(self.turn) if self.turn is not None and axis in self.turn else [axis]

    def _wanted(self, axis: int) -> int:
        """The largest window: as large as the crop, where there is one and nothing is resized."""
        is_cropped = self.cropped[axis] >= 0 and self.size[axis] < 0
        return self.cropped[axis] if is_cropped else int(self.contents[:, axis].max(initial=0))

    def _most(self, axis: int) -> int:
        return max(int(self.contents[:, a].max(initial=0)) for a in self._together(axis))

    def _percentile(self, axis: int, percent: float) -> int:
        found = 0
        items = self.items()
        for a in self._together(axis):
            of_items = np.repeat(self.contents[:, a], items)
            found = max(found, int(np.percentile(of_items, percent, method="higher")))
        return found

    def largest(self, axis: int, to: int, multiple: int) -> int:
        return to if to >= 0 else -(-self._most(axis) // multiple) * multiple

    def _has_channels(self, axis: int) -> bool:
        """Whether an axis counts channels, which are padded only where the user says so.

        Raises:
            ValueError: a few arrays have another number of them.
        """
        n, ndim = self.contents.shape
        if ndim < 3 or axis not in (0, ndim - 1) or n == 0:
            return False
        values, counts = np.unique(self.contents[:, axis], return_counts=True)
        usual = int(values[counts.argmax()])
        if usual > MOST_CHANNELS or counts.max() * 2 <= n:
            return False
        if len(values) == 1:
            return True
        odd = int(np.flatnonzero(self.contents[:, axis] != usual)[0])
        like = int(np.flatnonzero(self.contents[:, axis] == usual)[0])
        raise ValueError(
            f"{self.name(odd)}: expected {usual} elements along axis {axis} as in "
            f"{self.name(like)} and {counts.max() - 1} more, got {self.contents[odd, axis]}; leave "
            "it out with source.select, or pass to= with an entry for each axis to pad it"
        )


def _too_large(contents: Ints, to: Sequence[int]) -> Ints:
    """Windows that do not fit, by number."""
    wanted = np.array(to, np.int64)
    return np.flatnonzero(((wanted >= 0) & (contents > wanted)).any(axis=1))


def _check_fit(contents: Ints, to: Sequence[int], name: Callable[[int], str]) -> None:
    if max(to, default=-1) < 0:
        return
    large = _too_large(contents, to)
    if len(large):
        k = int(large[0])
        limits = tuple(None if n < 0 else n for n in to)
        raise ValueError(
            f"{name(k)}: expected windows of at most {limits} (pad), got "
            f"{tuple(map(int, contents[k]))}; {len(large)} of {len(contents)} arrays are too "
            'large, pass oversize="crop" or "resize"'
        )


def _check_turn(
    turn: tuple[int, int],
    to: Sequence[tuple[int, int]],
    alone: Sequence[bool],
    contents: Ints,
    name: Callable[[int], str],
) -> None:
    """What is turned by a quarter still fits."""
    a, b = turn
    if to[a] != to[b]:
        told = [f"multiples of {m}" if n < 0 else str(n) for n, m in (to[a], to[b])]
        raise ValueError(
            f"rot90: expected samples as long along axis {a} as along axis {b}, got {told[0]} and "
            f"{told[1]}; pad both to the same length"
        )
    odd = np.flatnonzero(contents[:, a] != contents[:, b])
    if (alone[a] or alone[b]) and len(odd):
        k = int(odd[0])
        raise ValueError(
            f"{name(k)}: expected windows as long along axis {a} as along axis {b} for rot90=, got "
            f"{tuple(map(int, contents[k]))}; crop or pad them to squares"
        )


def _sizes(size: object, ndim: int, name: Callable[[int], str]) -> tuple[int, ...]:
    given: Any = size.tolist() if isinstance(size, np.ndarray) else size
    sizes = tuple(given) if isinstance(given, tuple | list) else (given,) * ndim
    if len(sizes) != ndim:
        raise ValueError(
            f"resize: expected a size of {ndim} axes as in {name(0)}, got {sizes}; write None for "
            "an axis that keeps its extent"
        )
    for n in sizes:
        if n is not None and (isinstance(n, bool) or not isinstance(n, int | np.integer)):
            raise TypeError(f"resize: expected a whole number as size, got {n!r}")
        if n is not None and n != -1 and not 1 <= n < 1 << 31:
            raise ValueError(f"resize: expected a size of 1 or more, got {n}")
    return tuple(-1 if n is None else int(n) for n in sizes)


def _axes(what: str, axes: object, ndim: int) -> tuple[int, ...]:
    """Axes of an item, each once."""
    given = (axes,) if isinstance(axes, int | np.integer) else axes
    if isinstance(axes, bool) or not isinstance(given, tuple | list):
        raise TypeError(f"{what}: expected axes of an item, such as (0, 1), got {axes!r}")
    found = []
    for axis in given:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise TypeError(f"{what}: expected axes of an item, such as (0, 1), got {axes!r}")
        if not -ndim <= axis < ndim:
            raise ValueError(f"{what}: expected axes of [{-ndim}, {ndim}), got {axis}")
        found.append(int(axis) % ndim)
    if len(set(found)) < len(found):
        raise ValueError(f"{what}: expected each axis once, got {axes!r}")
    return tuple(found)


def _plane(rot90: object, ndim: int) -> tuple[int, int] | None:
    if rot90 is None:
        return None
    axes = _axes("rot90", rot90, ndim)
    if len(axes) != 2:
        raise ValueError(f"rot90: expected two axes, such as (0, 1), got {rot90!r}")
    return axes[0], axes[1]
