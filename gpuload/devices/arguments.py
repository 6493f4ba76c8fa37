"""Pack launches: from an operation to a kernel's parameters and its grid. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuload.devices import Affine, Crops, Operation, Pad, Place, Resize, Unshuffle, programs
from gpuload.devices.boxes import Axis, Box, fixed
from gpuload.devices.launches import (
    BY_NUMBER,
    LANES,
    MAX_PIECES,
    Launch,
    address,
    box_of,
    grid,
    lanes,
    row_length,
)
from gpuload.devices.params import (
    MAX_AXES,
    AffineParams,
    Axes,
    CropsParams,
    PlaceParams,
    ShuffledParams,
)
from gpuload.devices.programs import Kernel
from gpuload.devices.reshape import PAD_MODES, RESIZE_MODES, pack_pad, pack_resize, pack_unshuffle
from gpuload.dtypes import Dtype


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
    from_dtype, to_dtype = BY_NUMBER[o.from_dtype], BY_NUMBER[o.to_dtype]
    channel = None if o.affine is None else o.affine.axis
    axes = tuple(
        Axis(n, src, dst, role=0 if i == channel and n != 1 else None)
        for i, (n, src, dst) in enumerate(zip(o.shape, o.src_stride, o.dst_stride, strict=True))
    )
    box = box_of("place", axes, o)
    group = _place_group(box, from_dtype, to_dtype)
    segment = group * _place_segment(from_dtype, to_dtype)
    channels = [i for i, axis in enumerate(box.axes) if axis.role is not None]
    params = PlaceParams(
        src=o.src.data_ptr() + o.src_offset,
        dst=o.dst.data_ptr() + o.dst_offset,
        table=address(o.table),
        n_pieces=box.n_pieces if o.table is None else o.n_pieces,
        src_step=box.src_step,
        dst_step=box.dst_step,
        shape=Axes(*box.shape),
        src_stride=Axes(*box.src_stride),
        dst_stride=Axes(*box.dst_stride),
        affine=_affine(o.affine),
        ndim=len(box.axes),
        row_length=row_length(o.table),
        swap=o.swap,
        group=group,
        is_across=box.is_across,
        channel_axis=channels[0] if channels else -1,
    )
    n_units = box.n_units("place", segment)
    return Launch(place_kernel(o), params, grid(n_units, LANES // group, params.n_pieces))


def pack_crops(operation: Crops) -> Launch:
    """The launch of a `crops`.

    Raises:
        ValueError: more windows than a launch may have, windows of more than 8 axes, or types that
            no kernel has.
    """
    o, held, drawing = operation, operation.held, operation.drawing
    if not 1 <= o.n <= MAX_PIECES:
        raise ValueError(f"crops: expected 1 to {MAX_PIECES} windows in a launch, got {o.n}")
    from_dtype, to_dtype = BY_NUMBER[held.dtype], BY_NUMBER[o.to_dtype]
    if not programs.can_crop(from_dtype.name, to_dtype.name):
        raise ValueError(f"crops: no kernel from {from_dtype.name} to {to_dtype.name}")
    dst_stride, nbytes = row_major(o.shape, to_dtype.nbytes)
    box = fixed("crops", map(Axis, o.shape, o.src_stride, dst_stride))
    group = _place_group(box, from_dtype, to_dtype)
    place = PlaceParams(
        src=held.memory.data_ptr(),
        dst=o.x.data_ptr() + o.x_offset,
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
        field: o.others.data_ptr() + o.columns[name]
        for field, name in names.items()
        if name in o.columns
    }
    params = CropsParams(
        place=place,
        shuffle=ShuffledParams.from_buffer_copy(drawing.shuffled),
        arrays=held.arrays.data_ptr(),
        row_ends=address(held.row_ends),
        selected=address(held.selected),
        window_ends=address(held.window_ends),
        listed=address(drawing.listed),
        listed_crop=address(drawing.listed_crop),
        labels=address(held.labels),
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
    n_units = box.n_units("crops", segment)
    kernel = programs.crops(from_dtype.name, to_dtype.name)
    return Launch(kernel, params, grid(n_units, LANES // group, o.n))


def row_major(shape: Sequence[int], nbytes: int) -> tuple[tuple[int, ...], int]:
    """Strides of an array in C order whose elements have `nbytes`, and the bytes of all of it."""
    strides = []
    for n in reversed(shape):
        strides.append(nbytes)
        nbytes *= n
    return tuple(reversed(strides)), nbytes


def place_kernel(operation: Place) -> Kernel:
    """The kernel that a `place` needs."""
    from_dtype, to_dtype = BY_NUMBER[operation.from_dtype], BY_NUMBER[operation.to_dtype]
    if operation.affine is not None:
        return programs.place(from_dtype.name, to_dtype.name, affine=True)
    return programs.cast(from_dtype.name, to_dtype.name)


def _affine(affine: Affine | None) -> AffineParams:
    if affine is None:
        return AffineParams(None, 1.0)
    return AffineParams(address(affine.channels), affine.scale)


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
    return lanes(math.ceil(box.shape[-1] / (pack if is_dense and is_aligned else 1)))


__all__ = [
    "LANES",
    "MAX_AXES",
    "MAX_PIECES",
    "PAD_MODES",
    "RESIZE_MODES",
    "Launch",
    "pack",
    "pack_crops",
    "pack_pad",
    "pack_place",
    "pack_resize",
    "pack_unshuffle",
    "row_major",
]
