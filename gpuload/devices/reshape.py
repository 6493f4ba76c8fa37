"""Pack launches of pad, resize and unshuffle. No I/O here."""

from __future__ import annotations

import ctypes
import math

from gpuload.devices import Pad, Resize, Unshuffle, programs
from gpuload.devices.boxes import Axis, Box, fixed
from gpuload.devices.launches import (
    BY_NUMBER,
    LANES,
    WARP,
    Launch,
    address,
    box_of,
    grid,
    lanes,
    row_length,
)
from gpuload.devices.params import Axes, PadParams, ResizeParams, UnshuffleParams
from gpuload.devices.programs import Kernel

PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")  # PadMode of kernels/pad.h
RESIZE_MODES = ("nearest", "nearest-exact", "linear", "antialias", "area")  # of kernels/resize.h
MAX_EXTENT = 1 << 31  # of an axis that is padded or resized
_STEPS = 4  # kSteps of kernels/pad.h and resize.h


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
        table=address(o.table),
        n_pieces=o.n_pieces,
        dst_step=o.dst_step,
        shape=Axes(*box.shape),
        dst_stride=Axes(*box.dst_stride),
        begin=Axes(*(begin[i] for i in order)),
        extent=Axes(*(extent[i] for i in order)),
        value=(ctypes.c_ubyte * 16)(*o.value),
        ndim=len(order),
        row_length=row_length(o.table),
        mode=mode,
        item_nbytes=o.item_nbytes,
    )
    pack = max(1, 16 // o.item_nbytes) if o.mode == "constant" else 1  # elements of a lane
    n_units = box.n_units("pad", WARP * pack * _STEPS)
    group = lanes(math.ceil(box.shape[-1] / pack) if box.shape else 1)
    return Launch(
        programs.pad(o.item_nbytes), params, grid(n_units, LANES // group, params.n_pieces)
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
    box = box_of("resize", axes, o)
    if not box.axes:  # rows are wanted
        box = Box((Axis(1, 0, 0),))
    _check_extents("resize", (*box.shape, *o.src_shape))
    resized = [i for i, axis in enumerate(box.axes) if axis.role is not None]
    group = lanes(box.shape[-1])
    params = ResizeParams(
        src=o.src.data_ptr() + o.src_offset,
        dst=o.dst.data_ptr() + o.dst_offset,
        table=address(o.table),
        n_pieces=box.n_pieces if o.table is None else o.n_pieces,
        src_step=box.src_step,
        dst_step=box.dst_step,
        shape=Axes(*box.shape),
        dst_stride=Axes(*box.dst_stride),
        src_shape=Axes(*(a.n if a.role is None else o.src_shape[a.role] for a in box.axes)),
        src_stride=Axes(*box.src_stride),
        ndim=len(box.axes),
        row_length=row_length(o.table),
        axes=(ctypes.c_int32 * 3)(*[-1] * (3 - len(resized)), *resized),
        mode=mode,
        swap=o.swap,
        group=group,
    )
    n_units = box.n_units("resize", group * _STEPS)
    return Launch(kernel, params, grid(n_units, LANES // group, params.n_pieces))


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
        table=address(o.table),
        n_pieces=o.n_pieces,
        src_step=o.src_step,
        dst_step=o.dst_step,
        nbytes=o.nbytes,
        item_nbytes=o.item_nbytes,
    )
    is_known = o.item_nbytes in programs.ITEM_NBYTES[1:]
    kernel = programs.unshuffle(o.item_nbytes if is_known else 0)
    n_units = math.ceil(o.nbytes / (16 if is_known else o.item_nbytes))
    return Launch(kernel, params, grid(n_units, LANES, o.n_pieces))


def resize_kernel(operation: Resize) -> Kernel:
    """The kernel that a `resize` needs.

    Raises:
        ValueError: complex values, or a cast to another type than float32.
    """
    from_dtype, to_dtype = BY_NUMBER[operation.from_dtype], BY_NUMBER[operation.to_dtype]
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


def _check_extents(kernel: str, extents: tuple[int, ...]) -> None:
    if max(extents, default=0) >= MAX_EXTENT:
        raise ValueError(f"{kernel}: expected axes of fewer than 2**31 elements, got {extents}")
