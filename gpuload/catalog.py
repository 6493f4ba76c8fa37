"""The table that describes every array of a source: file, offset, shape, dtype, order. No I/O
here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from gpuload import _native
from gpuload.dtypes import Dtype

Ints = npt.NDArray[np.int64]

FORTRAN, SWAPPED = 1, 2  # flags of csrc/catalog.hpp


class Paths(Sequence[str]):
    """Paths in one block of bytes: path i is blob[ends[i - 1]:ends[i]]. Small, quick to pickle."""

    def __init__(self, blob: bytes, ends: Ints) -> None:
        self.blob = blob
        self.ends = ends

    @classmethod
    def of(cls, paths: Iterable[str]) -> Paths:
        encoded = [os.fsencode(path) for path in paths]
        ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        return cls(b"".join(encoded), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"paths: expected an index below {len(self)}, got {i}")
        i %= len(self)
        begin = int(self.ends[i - 1]) if i else 0
        return os.fsdecode(self.blob[begin : int(self.ends[i])])

    def take(self, rows: Ints) -> Paths:
        """The paths of these rows, in this order."""
        begins = np.concatenate(([0], self.ends[:-1]))
        parts = [self.blob[b:e] for b, e in zip(begins[rows], self.ends[rows], strict=True)]
        return Paths(b"".join(parts), np.cumsum([len(p) for p in parts], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Layout:
    """How one element lies in its array, in bytes.

    `record_nbytes` is the distance from one element to the next: more than the element's own size
    in a
    structured array. `offset` is where the element lies in its record, `sub_shape` the shape of an
    element that
    is itself an array.
    """

    dtype: Dtype
    record_nbytes: int
    offset: int = 0
    sub_shape: tuple[int, ...] = ()


class Contents(Protocol):
    """Memory that stands for files of a catalog."""

    @property
    def name(self) -> str:
        """What tells it from other contents of the same files and shapes, for fingerprints."""

    @property
    def place(self) -> str:
        """Where the data come from, for people; empty where that is files."""

    def arrays(self, files: Ints) -> Sequence[npt.NDArray[Any] | None]:
        """What each file is, dense bytes as `offset` counts them; None for one that is on disk.
        May take time when one of `files` is asked for first; others may be None."""


@dataclass(frozen=True)
class Catalog:
    """Columns over arrays: `file` (n,), `offset` (n,) in bytes, `shape` (n, ndim), `flags` (n,).

    `sizes` (n_files,) are the bytes of each file. With `sample_axis`, items are the rows along that
    axis;
    `selected` lists the items of this source as items of the whole table. `contents` is there when
    some "files" are memory.
    """

    paths: Paths
    sizes: Ints
    file: npt.NDArray[np.uint32]
    offset: Ints
    shape: Ints
    flags: npt.NDArray[np.uint8]
    layout: Layout
    sample_axis: int | None = None
    selected: Ints | None = None
    contents: Contents | None = None

    @cached_property
    def row_ends(self) -> Ints:
        """Items of arrays 0..i, before any selection."""
        rows = 1 if self.sample_axis is None else self.shape[:, self.sample_axis]
        return np.cumsum(np.broadcast_to(rows, len(self.file)), dtype=np.int64)

    @cached_property
    def item_shape_of_array(self) -> Ints:
        """Shapes (n_arrays, item_ndim) of the items of each array."""
        shape = self.shape
        if self.sample_axis is not None:
            shape = np.delete(shape, self.sample_axis, axis=1)
        sub = np.broadcast_to(np.array(self.layout.sub_shape, np.int64), (len(shape), self.n_sub))
        return np.ascontiguousarray(np.concatenate((shape, sub), axis=1))

    @cached_property
    def stride_of_array(self) -> Ints:
        """Bytes (n_arrays, ndim) from one record to the next along each axis of an array."""
        ones = np.ones((len(self.shape), 1), np.int64)
        down = np.cumprod(np.concatenate((ones, self.shape[:, :0:-1]), axis=1), axis=1)[:, ::-1]
        up = np.cumprod(np.concatenate((ones, self.shape[:, :-1]), axis=1), axis=1)
        is_fortran = (self.flags & FORTRAN).astype(bool)[:, None]
        records = np.where(is_fortran, up, down)[:, : self.shape.shape[1]]
        return records * self.layout.record_nbytes

    @cached_property
    def item_stride_of_array(self) -> Ints:
        """Bytes (n_arrays, item_ndim) from one element of an item to the next along each axis."""
        stride = self.stride_of_array
        if self.sample_axis is not None:
            stride = np.delete(stride, self.sample_axis, axis=1)
        sub = np.cumprod((1, *self.layout.sub_shape[:0:-1]), dtype=np.int64)[::-1]
        sub = sub[: self.n_sub] * self.layout.dtype.nbytes
        return np.concatenate((stride, np.broadcast_to(sub, (len(stride), self.n_sub))), axis=1)

    @property
    def row_nbytes_of_array(self) -> Ints:
        """Bytes (n_arrays,) from one item of an array to the next, 0 where an array is an item."""
        if self.sample_axis is None:
            return np.zeros(len(self.file), np.int64)
        return np.ascontiguousarray(self.stride_of_array[:, self.sample_axis])

    @property
    def n_sub(self) -> int:
        return len(self.layout.sub_shape)

    def __len__(self) -> int:
        if self.selected is not None:
            return len(self.selected)
        return int(self.row_ends[-1]) if len(self.row_ends) else 0

    def array_of(self, items: Ints) -> Ints:
        """The array that each of these items lies in."""
        if self.selected is not None:
            items = self.selected[items]
        if self.sample_axis is None:
            return items
        return np.searchsorted(self.row_ends, items, side="right").astype(np.int64)

    @cached_property
    def used_arrays(self) -> Ints:
        """Arrays that at least one item lies in, by number."""
        if self.selected is None:
            return np.flatnonzero(np.diff(self.row_ends, prepend=0)).astype(np.int64)
        return np.unique(self.array_of(np.arange(len(self.selected), dtype=np.int64)))

    @cached_property
    def item_shape_of_used(self) -> Ints:
        """Shapes (n_used, item_ndim) of the items of each array of `used_arrays`."""
        shapes, used = self.item_shape_of_array, self.used_arrays
        return shapes if len(used) == len(shapes) else shapes[used]

    def compact(self) -> Catalog:
        """The table with only the arrays that items lie in; items stay as they are."""
        used = self.used_arrays
        if len(used) == len(self.file) or self.selected is None:
            return self
        arrays = self.array_of(np.arange(len(self.selected), dtype=np.int64))
        begins = np.concatenate(([0], self.row_ends))  # items before each array
        short = replace(
            self,
            file=self.file[used],
            offset=self.offset[used],
            shape=self.shape[used],
            flags=self.flags[used],
            selected=None,
        )
        short_begins = np.concatenate(([0], short.row_ends))
        rows = self.selected - begins[arrays]
        return replace(short, selected=short_begins[np.searchsorted(used, arrays)] + rows)

    @property
    def nbytes_of_array(self) -> Ints:
        """Stored bytes (n_arrays,), whole records."""
        records: Ints = self.shape.prod(axis=1, dtype=np.int64)
        return records * self.layout.record_nbytes

    def path_of_array(self, array: int) -> str:
        return self.paths[int(self.file[array])]

    def select(self, items: Ints) -> Catalog:
        """The table with only these items, in this order; repeats are allowed."""
        return replace(self, selected=items if self.selected is None else self.selected[items])

    def fingerprint(self, *more: str) -> str:
        """Sixteen hex digits of names, sizes, shapes and selection: the same after the data have
        moved. `more` is taken in as well.

        Folders that all files share do not count, modification times neither.
        """
        names, layout = list(self.paths), self.layout
        # Spelled out: states saved by earlier versions must go on matching.
        element = (layout.dtype.name, layout.record_nbytes, layout.offset, layout.sub_shape)
        digest = hashlib.sha256(repr((element, self.sample_axis, self.shape.shape)).encode())
        skip = len(_shared_folder(names))
        for name in names:
            digest.update(os.fsencode(name[skip:]) + b"\0")
        for column in (self.sizes, self.offset, self.shape, self.flags, self.selected):
            if column is not None:
                digest.update(np.ascontiguousarray(column).tobytes())
        if self.contents is not None:
            digest.update(self.contents.name.encode())
        digest.update("".join(more).encode())
        return digest.hexdigest()[:16]

    def native_files(self, max_descriptors: int, max_maps: int) -> _native.Files:
        """The files for the native code; those that are memory are kept by it."""
        arrays: Sequence[npt.NDArray[Any] | None] = []
        if self.contents is not None:
            used = np.unique(self.file[self.used_arrays]).astype(np.int64)
            arrays = self.contents.arrays(used)
        memory = [0 if array is None else _address(array) for array in arrays]
        paths = self.paths
        return _native.Files(
            paths.blob, paths.ends, self.sizes, max_descriptors, max_maps, memory, list(arrays)
        )

    def native(self) -> _native.Catalog:
        """The same table for the native code, which copies it."""
        return _native.Catalog(
            self.file,
            self.offset,
            np.ascontiguousarray(self.shape),
            self.flags,
            self.layout.dtype.number,
            self.layout.record_nbytes,
            self.layout.offset,
            list(self.layout.sub_shape),
            -1 if self.sample_axis is None else self.sample_axis,
            self.selected,
        )


_NOTHING = np.zeros(1, np.uint8)


def _address(array: npt.NDArray[Any]) -> int:
    """Where an array begins; never 0."""
    return int((array if array.size else _NOTHING).ctypes.data)


def _shared_folder(names: list[str]) -> str:
    """The folder, with its slash, that all paths lie in; empty when there is none."""
    folders = {os.path.dirname(name) for name in names}
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # absolute and relative paths, or none at all
        return ""
    return common + os.sep if common else ""
