"""Pack launches: from an operation to a kernel's parameters and its grid. No I/O here."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpuload.devices import Affine, Crops, Operation, Pad, Place, Resize, Unshuffle, programs
from gpuload.devices.boxes import Axis, Box, arranged, fixed
from gpuload.devices.params import (
    MAX_AXES,
    AffineParams,
    Axes,
    CropsParams,
    PadParams,
    PlaceParams,
    ResizeParams,
    ShuffledParams,
    UnshuffleParams,
)
from gpuload.devices.programs import Kernel
from gpuload.dtypes import DTYPES, Dtype

LANES = 256
PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")  # PadMode of kernels/pad.h
RESIZE_MODES = ("nearest", "nearest-exact", "linear", "antialias", "area")  # of kernels/resize.h
MAX_EXTENT = 1 << 31  # of an axis that is padded or resized
_MAX_BLOCKS = 1 << 16  # along x; threads go on with further units
MAX_PIECES = (1 << 16) - 1  # along y: what CUDA allows
_STEPS = 4  # kSteps of kernels/pad.h and resize.h
_WARP = 32

_BY_NUMBER = list(DTYPES.values())


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, its parameters as it takes them, and its grid: (blocks, pieces)."""

    kernel: Kernel
    params: ctypes.Structure
    grid: tuple[int, int]


def pack(operation: Operation) -> Launch:
    """The launch of an operation.

    Raises:
        ValueError: the kernel cannot take it.
    """
    if isinstance(operation, Place):
        return pack_place(operation)
    if isinstance(operation, Pad):
        return pack_pad(operation)
    if isinstance(operation, Resize):
        return pack_resize(operation)
    if isinstance(operation, Unshuffle):
        return pack_unshuffle(operation)
    return pack_crops(operation)


def pack_place(operation: Place) -> Launch:
    """The launch of a `place`.

    Raises:
        ValueError: a box of more than 8 axes after joining those that lie together, or of 2**32
            rows or more.
    """
    o = operation
    from_dtype, to_dtype = _BY_NUMBER[o.from_dtype], _BY_NUMBER[o.to_dtype]
    channel = None if o.affine is None else o.affine.axis
    axes = tuple(
        Axis(n, src, dst, role=0 if i == channel and n != 1 else None)
        for i, (n, src, dst) in enumerate(zip(o.shape, o.src_stride, o.dst_stride, strict=True))
    )
    box = _box("place", axes, o)
    group = _place_group(box, from_dtype, to_dtype)
    segment = group * _place_segment(from_dtype, to_dtype)
    channels = [i for i, axis in enumerate(box.axes) if axis.role is not None]
    params = PlaceParams(
        src=o.src.data_ptr() + o.src_offset,
        dst=o.dst.data_ptr() + o.dst_offset,
        table=_address(o.table),
        n_pieces=box.n_pieces if o.table is None else o.n_pieces,
        src_step=box.src_step,
        dst_step=box.dst_step,
        shape=Axes(*box.shape),
        src_stride=Axes(*box.src_stride),
        dst_stride=Axes(*box.dst_stride),
        affine=_affine(o.affine),
        ndim=len(box.axes),
        row_length=_row_length(o.table),
        swap=o.swap,
        group=group,
        is_across=box.is_across,
        channel_axis=channels[0] if channels else -1,
    )
    n_units = box.n_units("place", segment)
    return Launch(place_kernel(o), params, _grid(n_units, LANES // group, params.n_pieces))


def pack_pad(operation: Pad) -> Launch:
    """The launch of a `pad`.

    Raises:
        ValueError: an unknown mode, an element size that is none, an inner box outside the piece,
            or a piece of more than 8 axes or of 2**32 rows or more.
    """
    o = operation
    mode = _number("pad: mode", o.mode, PAD_MODES)
    if o.item_nbytes not in programs.ITEM_NBYTES:
        raise ValueError(f"pad: expected elements of 1, 2, 4, 8 or 16 bytes, got {o.item_nbytes}")
    if len(o.value) > o.item_nbytes:
        raise ValueError(f"pad: expected a value of {o.item_nbytes} bytes, got {len(o.value)}")
    begin, extent = (o.begin, o.extent) if o.table is None else (o.shape, o.shape)
    order = list(range(len(o.shape)))
    if o.table is None:
        for b, e, n in zip(begin, extent, o.shape, strict=True):
            if not 0 <= b <= b + e <= n:
                raise ValueError(f"pad: expected an inner box within {o.shape}, got {b} + {e}")
        order = [i for i in order if o.shape[i] != 1 or extent[i] != 1]
        order.sort(key=lambda i: -abs(o.dst_stride[i]))
    box = fixed("pad", [Axis(o.shape[i], 0, o.dst_stride[i]) for i in order])
    _check_extents("pad", o.shape)
    params = PadParams(
        dst=o.dst.data_ptr() + o.dst_offset,
        table=_address(o.table),
        n_pieces=o.n_pieces,
        dst_step=o.dst_step,
        shape=Axes(*box.shape),
        dst_stride=Axes(*box.dst_stride),
        begin=Axes(*(begin[i] for i in order)),
        extent=Axes(*(extent[i] for i in order)),
        value=(ctypes.c_ubyte * 16)(*o.value),
        ndim=len(order),
        row_length=_row_length(o.table),
        mode=mode,
        item_nbytes=o.item_nbytes,
    )
    lanes = max(1, 16 // o.item_nbytes) if o.mode == "constant" else 1  # elements of a lane
    n_units = box.n_units("pad", _WARP * lanes * _STEPS)
    group = _lanes(math.ceil(box.shape[-1] / lanes) if box.shape else 1)
    return Launch(
        programs.pad(o.item_nbytes), params, _grid(n_units, LANES // group, params.n_pieces)
    )


def pack_resize(operation: Resize) -> Launch:
    """The launch of a `resize`.

    Raises:
        ValueError: an unknown mode, more than 3 resized axes, axes that are carried along with
            another extent, an empty source, types that no kernel has, or a box of more than 8
            axes or of 2**32 rows or more.
    """
    o = operation
    mode = _number("resize: mode", o.mode, RESIZE_MODES)
    kernel = resize_kernel(o)
    if not len(set(o.axes)) == len(o.axes) <= 3:
        raise ValueError(f"resize: expected at most 3 axes, each once, got {o.axes}")
    for i, (n, source) in enumerate(zip(o.shape, o.src_shape, strict=True)):
        if i not in o.axes and n != source and o.table is None:
            raise ValueError(f"resize: expected {source} elements along axis {i}, got {n}")
        if source < 1 <= n:
            raise ValueError(f"resize: expected a source of 1 element or more, got {o.src_shape}")
    axes = tuple(
        Axis(n, src, dst, role=i if i in o.axes else None)
        for i, (n, src, dst) in enumerate(zip(o.shape, o.src_stride, o.dst_stride, strict=True))
    )
    box = _box("resize", axes, o)
    if not box.axes:  # rows are wanted
        box = Box((Axis(1, 0, 0),))
    _check_extents("resize", (*box.shape, *o.src_shape))
    resized = [i for i, axis in enumerate(box.axes) if axis.role is not None]
    group = _lanes(box.shape[-1])
    params = ResizeParams(
        src=o.src.data_ptr() + o.src_offset,
        dst=o.dst.data_ptr() + o.dst_offset,
        table=_address(o.table),
        n_pieces=box.n_pieces if o.table is None else o.n_pieces,
        src_step=box.src_step,
        dst_step=box.dst_step,
        shape=Axes(*box.shape),
        dst_stride=Axes(*box.dst_stride),
        src_shape=Axes(*(a.n if a.role is None else o.src_shape[a.role] for a in box.axes)),
        src_stride=Axes(*box.src_stride),
        ndim=len(box.axes),
        row_length=_row_length(o.table),
        axes=(ctypes.c_int32 * 3)(*[-1] * (3 - len(resized)), *resized),
        mode=mode,
        swap=o.swap,
        group=group,
    )
    n_units = box.n_units("resize", group * _STEPS)
    return Launch(kernel, params, _grid(n_units, LANES // group, params.n_pieces))


def pack_unshuffle(operation: Unshuffle) -> Launch:
    """The launch of an `unshuffle`.

    Raises:
        ValueError: elements of less than one byte.
    """
    o = operation
    if o.item_nbytes < 1:
        raise ValueError(f"unshuffle: expected elements of 1 byte or more, got {o.item_nbytes}")
    params = UnshuffleParams(
        src=o.src.data_ptr() + o.src_offset,
        dst=o.dst.data_ptr() + o.dst_offset,
        table=_address(o.table),
        n_pieces=o.n_pieces,
        src_step=o.src_step,
        dst_step=o.dst_step,
        nbytes=o.nbytes,
        item_nbytes=o.item_nbytes,
    )
    is_known = o.item_nbytes in programs.ITEM_NBYTES[1:]
    kernel = programs.unshuffle(o.item_nbytes if is_known else 0)
    n_units = math.ceil(o.nbytes / (16 if is_known else o.item_nbytes))
    return Launch(kernel, params, _grid(n_units, LANES, o.n_pieces))


def pack_crops(operation: Crops) -> Launch:
    """The launch of a `crops`.

    Raises:
        ValueError: more windows than a launch may have, windows of more than 8 axes, or types that
            no kernel has.
    """
    o, held, drawing = operation, operation.held, operation.drawing
    if not 1 <= o.n <= MAX_PIECES:
        raise ValueError(f"crops: expected 1 to {MAX_PIECES} windows in a launch, got {o.n}")
    from_dtype, to_dtype = _BY_NUMBER[held.dtype], _BY_NUMBER[o.to_dtype]
    if not programs.can_crop(from_dtype.name, to_dtype.name):
        raise ValueError(f"crops: no kernel from {from_dtype.name} to {to_dtype.name}")
    dst_stride, nbytes = row_major(o.shape, to_dtype.nbytes)
    box = fixed("crops", map(Axis, o.shape, o.src_stride, dst_stride))
    group = _place_group(box, from_dtype, to_dtype)
    place = PlaceParams(
        src=held.memory.data_ptr(),
        dst=o.batch.data_ptr() + o.columns["x"],
        n_pieces=o.n,
        dst_step=nbytes,
        shape=Axes(*box.shape),
        src_stride=Axes(*box.src_stride),
        dst_stride=Axes(*box.dst_stride),
        affine=_affine(None),
        ndim=len(box.axes),
        group=group,
        is_across=box.is_across,
        channel_axis=-1,
    )
    names = {"label": "y", "index": "index", "crop": "crop", "start": "start", "valid": "valid"}
    columns = {
        field: o.batch.data_ptr() + o.columns[name]
        for field, name in names.items()
        if name in o.columns
    }
    params = CropsParams(
        place=place,
        shuffle=ShuffledParams.from_buffer_copy(drawing.shuffled),
        arrays=held.arrays.data_ptr(),
        row_ends=_address(held.row_ends),
        selected=_address(held.selected),
        window_ends=_address(held.window_ends),
        listed=_address(drawing.listed),
        listed_crop=_address(drawing.listed_crop),
        labels=_address(held.labels),
        n_arrays=held.arrays.shape[0],
        n_items=held.n_items,
        per_item=drawing.per_item,
        label_nbytes=0 if held.labels is None else held.labels.shape[1],
        n_samples=drawing.n_samples,
        first=drawing.first,
        rank=drawing.rank,
        world=drawing.world,
        begin=o.begin,
        key=drawing.key,
        size=Axes(*(drawing.size or (-1,) * len(o.shape))),
        step=Axes(*drawing.step),
        window=drawing.kind,
        **columns,
    )
    segment = group * _place_segment(from_dtype, to_dtype)
    grid = _grid(box.n_units("crops", segment), LANES // group, o.n)
    return Launch(programs.crops(from_dtype.name, to_dtype.name), params, grid)


def row_major(shape: Sequence[int], nbytes: int) -> tuple[tuple[int, ...], int]:
    """Strides of an array in C order whose elements have `nbytes`, and the bytes of all of it."""
    strides = []
    for n in reversed(shape):
        strides.append(nbytes)
        nbytes *= n
    return tuple(reversed(strides)), nbytes


def place_kernel(operation: Place) -> Kernel:
    """The kernel that a `place` needs."""
    from_dtype, to_dtype = _BY_NUMBER[operation.from_dtype], _BY_NUMBER[operation.to_dtype]
    if operation.affine is not None:
        return programs.place(from_dtype.name, to_dtype.name, affine=True)
    return programs.cast(from_dtype.name, to_dtype.name)


def resize_kernel(operation: Resize) -> Kernel:
    """The kernel that a `resize` needs.

    Raises:
        ValueError: complex values, or a cast to another type than float32.
    """
    from_dtype, to_dtype = _BY_NUMBER[operation.from_dtype], _BY_NUMBER[operation.to_dtype]
    if from_dtype.is_complex or to_dtype.name not in (from_dtype.name, "float32"):
        raise ValueError(
            "resize: expected real values, delivered as they are stored or as float32, got "
            f"{from_dtype.name} to {to_dtype.name}"
        )
    return programs.resize(from_dtype.name, to_dtype.name)


def _number(where: str, name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        raise ValueError(f"{where}: expected one of {', '.join(names)}, got {name}")
    return names.index(name)


def _box(kernel: str, axes: tuple[Axis, ...], o: Place | Resize) -> Box:
    if o.table is None:
        return arranged(kernel, axes, Axis(o.n_pieces, o.src_step, o.dst_step))
    if o.table.shape[1] == 2:
        return arranged(kernel, axes, None)
    return fixed(kernel, axes)


def _check_extents(kernel: str, extents: tuple[int, ...]) -> None:
    if max(extents, default=0) >= MAX_EXTENT:
        raise ValueError(f"{kernel}: expected axes of fewer than 2**31 elements, got {extents}")


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _row_length(table: torch.Tensor | None) -> int:
    return 0 if table is None else table.shape[1]


def _affine(affine: Affine | None) -> AffineParams:
    if affine is None:
        return AffineParams(None, 1.0)
    return AffineParams(_address(affine.channels), affine.scale)


def _grid(n_units: int, units_per_block: int, n_pieces: int) -> tuple[int, int]:
    n_blocks = max(1, min(math.ceil(n_units / units_per_block), _MAX_BLOCKS))
    return n_blocks, max(1, min(n_pieces, MAX_PIECES))


def _lanes(wanted: int) -> int:
    """Lanes per row: as many as a row keeps busy, at most a warp."""
    return min(_WARP, 1 << max(0, wanted - 1).bit_length())


def _pack(from_dtype: Dtype, to_dtype: Dtype) -> int:
    """Elements per lane and step of a `place`."""
    return max(1, 16 // max(from_dtype.nbytes, to_dtype.nbytes))


def _place_segment(from_dtype: Dtype, to_dtype: Dtype) -> int:
    """Elements per lane of a segment: Segment of kernels/place.h."""
    return _pack(from_dtype, to_dtype) * (2 if from_dtype.nbytes == to_dtype.nbytes else 1)


def _place_group(box: Box, from_dtype: Dtype, to_dtype: Dtype) -> int:
    if not box.axes:
        return 1
    numbers = (*box.src_stride[:-1], box.src_step)
    pack = _pack(from_dtype, to_dtype)
    is_dense = box.src_stride[-1] == from_dtype.nbytes
    is_aligned = all(number % (pack * from_dtype.nbytes) == 0 for number in numbers)
    return _lanes(math.ceil(box.shape[-1] / (pack if is_dense and is_aligned else 1)))


__all__ = [
    "LANES",
    "MAX_AXES",
    "Launch",
    "pack",
    "pack_crops",
    "pack_pad",
    "pack_place",
    "pack_resize",
    "pack_unshuffle",
    "row_major",
]
