"""The parameter structures of gpuload/kernels; a test compares every offset with the compiled
one."""

from __future__ import annotations

import ctypes

MAX_AXES = 8  # kMaxAxes of kernels/launch.h

Axes = ctypes.c_int64 * MAX_AXES


class AffineParams(ctypes.Structure):
    _fields_ = (("channels", ctypes.c_void_p), ("scale", ctypes.c_double))


class PlaceParams(ctypes.Structure):
    _fields_ = (
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("n_pieces", ctypes.c_int64),
        ("src_step", ctypes.c_int64),
        ("dst_step", ctypes.c_int64),
        ("shape", Axes),
        ("src_stride", Axes),
        ("dst_stride", Axes),
        ("affine", AffineParams),
        ("ndim", ctypes.c_int32),
        ("row_length", ctypes.c_int32),
        ("swap", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("is_across", ctypes.c_int32),
        ("channel_axis", ctypes.c_int32),
    )


class PadParams(ctypes.Structure):
    _fields_ = (
        ("dst", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("n_pieces", ctypes.c_int64),
        ("dst_step", ctypes.c_int64),
        ("shape", Axes),
        ("dst_stride", Axes),
        ("begin", Axes),
        ("extent", Axes),
        ("value", ctypes.c_ubyte * 16),
        ("ndim", ctypes.c_int32),
        ("row_length", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("item_nbytes", ctypes.c_int32),
    )


class ResizeParams(ctypes.Structure):
    _fields_ = (
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("n_pieces", ctypes.c_int64),
        ("src_step", ctypes.c_int64),
        ("dst_step", ctypes.c_int64),
        ("shape", Axes),
        ("dst_stride", Axes),
        ("src_shape", Axes),
        ("src_stride", Axes),
        ("ndim", ctypes.c_int32),
        ("row_length", ctypes.c_int32),
        ("axes", ctypes.c_int32 * 3),
        ("mode", ctypes.c_int32),
        ("swap", ctypes.c_int32),
        ("group", ctypes.c_int32),
    )


class UnshuffleParams(ctypes.Structure):
    _fields_ = (
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("n_pieces", ctypes.c_int64),
        ("src_step", ctypes.c_int64),
        ("dst_step", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("item_nbytes", ctypes.c_int64),
    )


class PermutationParams(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("columns", ctypes.c_uint64),
        ("rounds", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("keys", ctypes.c_uint64 * 16),
    )


class ShuffledParams(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("block", ctypes.c_uint64),
        ("group", ctypes.c_uint64),
        ("n_blocks", ctypes.c_uint64),
        ("short_by", ctypes.c_uint64),
        ("short_slot", ctypes.c_uint64),
        ("permutation", PermutationParams),
        ("kind", ctypes.c_int32),
        ("padding", ctypes.c_int32),
    )


class CropsParams(ctypes.Structure):
    _fields_ = (
        ("place", PlaceParams),
        ("shuffle", ShuffledParams),
        ("arrays", ctypes.c_void_p),
        ("row_ends", ctypes.c_void_p),
        ("selected", ctypes.c_void_p),
        ("window_ends", ctypes.c_void_p),
        ("listed", ctypes.c_void_p),
        ("listed_crop", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("label", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("crop", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("n_arrays", ctypes.c_int64),
        ("n_items", ctypes.c_int64),
        ("per_item", ctypes.c_int64),
        ("label_nbytes", ctypes.c_int64),
        ("n_samples", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("world", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("key", ctypes.c_uint64),
        ("size", Axes),
        ("step", Axes),
        ("window", ctypes.c_int32),
        ("padding", ctypes.c_int32),
    )
