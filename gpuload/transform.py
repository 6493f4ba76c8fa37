"""What becomes of values on their way into a batch: type, scale, order of axes, what fills the
rest. Arguments in, one form for each field out. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpuload import dtypes
from gpuload.catalog import Ints
from gpuload.devices.params import MAX_AXES
from gpuload.dtypes import DTYPES, Dtype
from gpuload.fit import MOST_CHANNELS, PAD_MODES, RESIZE_MODES, Fit, Pad, Resize
from gpuload.sources.source import Field, Source

_BLENDING = ("linear", "antialias", "area")
_FLOATING = ("float16", "bfloat16", "float32", "float64")

Scaling = tuple[float, tuple[float, ...]]  # the scale; mean and std of each channel


@dataclass(frozen=True, slots=True)
class Form:
    """How one field is delivered.

    `order`: axis j of a sample is axis order[j] of an item. `channel_axis` is that of an item, -1
    for none. `resized` is what windows are resized as. `pad_value` are the bytes of an element.
    """

    field: Field
    stored: Dtype
    delivered: Dtype
    order: tuple[int, ...]
    channel_axis: int
    scaling: Scaling | None
    pad_mode: str
    pad_value: bytes
    resize_mode: str | None
    resized: Dtype

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def shared_channel_axis(self) -> int:
        """The axis of the first field that counts channels; -1: none, or one of its own."""
        return self.field.axes[self.channel_axis] if self.channel_axis >= 0 else -1

    @property
    def is_plain(self) -> bool:
        """Whether values are only cast."""
        return self.scaling is None and self.order == tuple(range(len(self.order)))

    def describe(self) -> str:
        """Types that are stored and delivered, for people."""
        cast = f" -> {self.delivered.name}" if self.delivered != self.stored else ""
        name = "" if self.name == "x" else f"{self.name} "
        return f"{name}{self.stored.name}{cast}{' scaled' if self.scaling is not None else ''}"

    def shape(self, target: Sequence[int]) -> tuple[int, ...]:
        """Of a sample as it is delivered; `target` is its shape along the axes of the first
        field."""
        own, axes = self.field.catalog.item_shape_of_used, self.field.axes
        return tuple(
            int(target[axes[a]]) if axes[a] >= 0 else int(own[:, a].max(initial=0))
            for a in self.order
        )


def make_forms(
    source: Source,
    fit: Fit,
    *,
    dtype: object,
    scale: object,
    mean: object,
    std: object,
    layout: object,
    pad: Pad | None,
    resize: Resize | None,
) -> tuple[Form, ...]:
    """How the fields of a source are delivered.

    Each argument is one value, meant for the first field, or a dict of values by field.

    Raises:
        TypeError, ValueError: an argument is not as DataLoader says, or names no field.
    """
    names = [field.name for field in source.fields]
    resized = [axis for axis, n in enumerate(fit.size) if n >= 0]
    padded = [axis for axis, pads in enumerate(fit.pads) if pads]
    is_cut = (fit.contents != source.catalog.item_shape_of_used).any(axis=0)
    moved = [*np.flatnonzero(is_cut).tolist(), *resized]
    _check_fields(source, fit, [*moved, *fit.flips, *padded])

    def by_field(what: str, value: object) -> dict[str, Any]:
        return _by_field(what, value, names)

    dtype_of, scale_of, layout_of = (
        by_field(what, value)
        for what, value in (("dtype", dtype), ("scale", scale), ("layout", layout))
    )
    mean_of, std_of = by_field("mean", mean), by_field("std", std)
    value_of = by_field("pad", pad.value if pad is not None else None)
    mode_of = by_field("resize", _modes(pad, resize))
    forms = []
    for field in source.fields:
        name, stored = field.name, field.catalog.layout.dtype
        shapes = field.catalog.item_shape_of_used
        order, channels = _order(layout_of.get(name), shapes)
        scaling, channel_axis = _scaling(
            scale_of.get(name), mean_of.get(name), std_of.get(name), shapes, channels
        )
        delivered = _delivered(stored, dtype_of.get(name), is_scaled=scaling is not None)
        mode = _resize_mode(
            mode_of.get(name), stored, is_first=field is source.fields[0], resizes=fit.resizes
        )
        if mode is not None and len(order) > MAX_AXES:
            raise ValueError(
                f"resize: expected items of at most {MAX_AXES} axes, got {len(order)} in {name}"
            )
        pad_mode = "constant" if pad is None else pad.mode
        if pad_mode != "constant" and len(order) > MAX_AXES:
            raise ValueError(
                f"pad: expected items of at most {MAX_AXES} axes with this mode, got {len(order)}"
            )
        forms.append(
            Form(
                field,
                stored,
                delivered,
                order,
                channel_axis,
                scaling,
                pad_mode,
                _value_bytes(value_of.get(name), delivered),
                mode,
                _resized(stored, delivered, mode),
            )
        )
    turns = fit.turn or ()
    for what, axes in (("flip", fit.flips), ("rot90", turns), ("crop, resize or pad", moved)):
        if any(form.channel_axis >= 0 and form.shared_channel_axis in axes for form in forms):
            raise ValueError(
                f"{what}: expected other axes than that of channels with mean= or std= for each, "
                f"got {tuple(dict.fromkeys(axes))}"
            )
    return tuple(forms)


def _check_fields(source: Source, fit: Fit, moved: Sequence[int]) -> None:
    """Windows show the same place in every field.

    Args:
        moved: axes of the first field along which windows are cut, resized, flipped or padded.

    Raises:
        ValueError: a field has one axis of a plane of turns and not the other, or an axis of its
            own in place of one that is moved.
    """
    first, *others = source.fields
    for field in others:
        if fit.turn is not None and len(set(fit.turn) & set(field.axes)) == 1:
            raise ValueError(
                f"rot90: expected both axes {fit.turn} in every field, got one of them in "
                f"{field.name}"
            )
        is_paired = any(axis >= 0 for axis in field.axes)
        lost = [axis for axis in moved if axis not in field.axes]
        if is_paired and lost and -1 in field.axes:
            shapes = [f.catalog.item_shape_of_used[0].tolist() for f in (first, field)]
            raise ValueError(
                f"crop: expected no crop, resize, flip or pad along axis {lost[0]}, which "
                f"{first.name} {tuple(shapes[0])} and {field.name} {tuple(shapes[1])} do not "
                "share; pass None for it"
            )


def _by_field(what: str, value: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {} if value is None else {names[0]: value}
    for name in value:
        if name not in names:
            raise ValueError(f"{what}: expected names of fields ({', '.join(names)}), got {name!r}")
    return dict(value)


def _modes(pad: Pad | None, resize: Resize | None) -> object:
    """How windows are resized, as the user says it."""
    given = [what.mode for what in (resize,) if what is not None and what.mode is not None]
    given += [pad.resize_mode] if pad is not None and pad.resize_mode is not None else []
    if len(given) > 1 and given[0] != given[1]:
        raise ValueError(
            f"resize: expected one mode, got {given[0]!r} and resize_mode={given[1]!r} of pad"
        )
    return given[0] if given else None


def _delivered(stored: Dtype, dtype: object, *, is_scaled: bool) -> Dtype:
    if is_scaled and stored.is_complex:
        raise TypeError(f"scale: expected real values, got {stored.name}")
    if dtype is None:
        return DTYPES["float32"] if is_scaled and stored.name not in _FLOATING else stored
    wanted = dtypes.parse(dtype, "dtype")
    if stored.is_complex and not wanted.is_complex:
        raise TypeError(
            f"dtype: expected complex64 or complex128 for {stored.name} data, got {wanted.name}; "
            "take the real part of the batch in your loop"
        )
    if is_scaled and wanted.name not in _FLOATING:
        raise ValueError(
            f"dtype: expected one of {', '.join(_FLOATING)} for scaled values, got {wanted.name}"
        )
    return wanted


def _order(layout: object, shapes: Ints) -> tuple[tuple[int, ...], int | None]:
    """The order of axes that a layout stands for, and the axis of an item that counts channels."""
    ndim = shapes.shape[1]
    plain = tuple(range(ndim))
    if layout is None:
        return plain, None
    if not isinstance(layout, str):
        raise TypeError(f'layout: expected text such as "NCHW", got {layout!r}')
    is_first = layout == "channels_first" or re.fullmatch(r"NC[A-BD-Z]*", layout) is not None
    is_last = layout == "channels_last" or re.fullmatch(r"N[A-BD-Z]*C", layout) is not None
    if not (is_first or is_last):
        raise ValueError(
            'layout: expected "channels_first", "channels_last", or axes such as "NCHW" or "NHWC", '
            f"got {layout!r}"
        )
    if not layout.startswith("channels") and len(layout) != ndim + 1:
        raise ValueError(
            f"layout: expected {ndim + 1} axes for items of {ndim}, got {len(layout)} in {layout!r}"
        )
    if ndim == 0:
        return plain, None
    ends = (shapes[:, -1], shapes[:, 0]) if is_first else (shapes[:, 0], shapes[:, -1])
    if ends[0].min() > MOST_CHANNELS >= ends[1].max() == ends[1].min():
        where = ("last", "first") if is_first else ("first", "last")
        raise ValueError(
            f"layout: expected channels along the {where[0]} axis of items, which {layout!r} "
            f"moves, got shape {tuple(map(int, shapes[0]))}; they are {where[1]} already, leave "
            "layout= out"
        )
    if is_first:
        return (ndim - 1, *range(ndim - 1)), ndim - 1
    return (*range(1, ndim), 0), 0


def _scaling(
    scale: object, mean: object, std: object, shapes: Ints, channel_axis: int | None
) -> tuple[Scaling | None, int]:
    """The scaling, and the axis of an item that counts its channels, -1 when it has one."""
    if scale is None and mean is None and std is None:
        return None, -1
    factor = _numbers("scale", 1.0 if scale is None else scale)
    if len(factor) != 1:
        raise ValueError(f"scale: expected one number, got {scale!r}; pass std= for each channel")
    means, stds = (
        _numbers(what, default if value is None else value)
        for what, value, default in (("mean", mean, 0.0), ("std", std, 1.0))
    )
    if 0 in stds:
        raise ValueError("std: expected numbers other than 0, got 0")
    n = max(len(means), len(stds))
    if {len(means), len(stds)} - {1, n}:
        raise ValueError(
            f"std: expected as many numbers as in mean, got {len(stds)} and {len(means)}"
        )
    if mean is None and std is None:
        return (factor[0], ()), -1
    pairs = zip(means * (n // len(means)), stds * (n // len(stds)), strict=True)
    flat = tuple(number for pair in pairs for number in pair)
    return (factor[0], flat), -1 if n == 1 else _channel_axis(n, shapes, channel_axis)


def _numbers(what: str, value: object) -> list[float]:
    try:
        numbers = np.asarray(value, np.float64).reshape(-1).tolist()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{what}: expected a number or one for each channel, got {value!r}"
        ) from None
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{what}: expected finite numbers, got {value!r}")
    return [float(number) for number in numbers]


def _channel_axis(n: int, shapes: Ints, known: int | None) -> int:
    ndim = shapes.shape[1]
    ends = [known] if known is not None else sorted({0, ndim - 1} if ndim else set())
    found = [axis for axis in ends if (shapes[:, axis] == n).all()]
    if len(found) != 1:
        where = "more than one" if found else "none"
        remedy = 'pass layout="channels_first" or "channels_last"' if found else "pass one number"
        raise ValueError(
            f"mean: expected one axis of {n} channels, first or last, got {where} in items of "
            f"shape {tuple(map(int, shapes[0]))}; {remedy}"
        )
    return found[0]


def _resize_mode(mode: object, stored: Dtype, *, is_first: bool, resizes: bool) -> str | None:
    """How a field is resized; None when it is not."""
    if mode is not None and (not isinstance(mode, str) or mode not in RESIZE_MODES):
        listed = ", ".join(f'"{name}"' for name in RESIZE_MODES)
        raise ValueError(f"resize: expected one of {listed} as mode, got {mode!r}")
    if not resizes:
        return None
    if stored.is_complex:
        raise TypeError(f"resize: expected real values, got {stored.name}")
    is_whole = stored.name not in _FLOATING
    if not is_first and is_whole and mode in _BLENDING:
        raise ValueError(
            f'resize: expected "nearest" or "nearest-exact" for {stored.name} of a further field, '
            f'got "{mode}"; labels are never blended'
        )
    if mode is not None:
        return str(mode)
    if is_first and is_whole:
        raise ValueError(
            f'resize: expected mode= for {stored.name} values, got none; pass "nearest" for '
            'labels, "antialias" or "area" for images'
        )
    return "nearest" if is_whole else "antialias"


def _resized(stored: Dtype, delivered: Dtype, mode: str | None) -> Dtype:
    """What windows are resized as: float32 where values are blended and delivered as floating,
    but not float64 itself."""
    blends = mode in _BLENDING and delivered.name in _FLOATING
    return DTYPES["float32"] if blends and stored.name != "float64" else stored


def _value_bytes(value: object, dtype: Dtype) -> bytes:
    """The bytes of what a sample is padded with.

    Raises:
        TypeError: not a number.
        ValueError: the type does not hold it.
    """
    value = 0 if value is None else value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and np.size(value) == 1:
        value = value.item()
    if not isinstance(value, int | float | complex):
        raise TypeError(f"pad: expected a number as value, got {value!r}")
    if isinstance(value, complex) and not dtype.is_complex:
        raise ValueError(f"pad: expected a real value for {dtype.name}, got {value}")
    if dtype.name not in _FLOATING and not dtype.is_complex and not isinstance(value, complex):
        is_bool = dtype.name == "bool"
        info = None if is_bool else torch.iinfo(dtype.torch)
        low, high = (0, 1) if info is None else (info.min, info.max)
        is_whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
        if not is_whole or not low <= value <= high:
            raise ValueError(
                f"pad: expected a whole number of [{low}, {high}] as value for {dtype.name}, got "
                f"{str(value)[:40]}"
            )
        if not is_bool:
            return np.array(int(value), dtype.name).tobytes()
    if isinstance(value, int) and abs(value) >= 1 << 1023:
        raise ValueError(
            f"pad: expected a value that {dtype.name} holds, got one of {value.bit_length()} bits"
        )
    one = torch.tensor([value], dtype=torch.complex128 if dtype.is_complex else torch.float64)
    stored = one.to(dtype.torch)
    if torch.isfinite(one).all() and not torch.isfinite(stored).all():
        raise ValueError(f"pad: expected a value that {dtype.name} holds, got {value}")
    return bytes(stored.view(torch.uint8).numpy().tobytes())


def mode_numbers(form: Form) -> tuple[int, int]:
    """The modes of pad and resize as the native code counts them; -1 for no resize."""
    return PAD_MODES.index(form.pad_mode), (
        -1 if form.resize_mode is None else RESIZE_MODES.index(form.resize_mode)
    )
