"""Devices: memory, streams and events behind one protocol. The ring of slots is written against it.

Commands are enqueued and run in the order of their stream; `wait` orders one stream after an event
of another. A
device whose `is_host` is true has no memory of its own: batches are filled where the consumer reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class Affine:
    """Values become (x * scale - mean) / std, see kernels/transform.h.

    `channels` holds mean and std of each channel, float64 (C, 2) on the device of the operation;
    `axis` is the axis of the box that counts channels.
    """

    scale: float
    channels: torch.Tensor | None = None
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Copy strided boxes of elements from `src` to `dst` (uint8 tensors of one device).

    Offsets and strides in bytes; `from_dtype` and `to_dtype` are numbers of gpuload.dtypes. One
    box, or `n_pieces` of them: `src_step` and `dst_step` apart, or where the rows of `table` say.

    Attributes:
        swap: the source is in the other byte order.
        table: int64 (n_pieces, 2) on the device: where each piece begins on either side, from the
            offsets; or (n_pieces, 2 + 2 * ndim): then its extents, then its source strides.
    """

    src: torch.Tensor
    dst: torch.Tensor
    from_dtype: int
    to_dtype: int
    shape: tuple[int, ...]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    src_offset: int = 0
    dst_offset: int = 0
    swap: bool = False
    n_pieces: int = 1
    src_step: int = 0
    dst_step: int = 0
    table: torch.Tensor | None = None
    affine: Affine | None = None


@dataclass(frozen=True, slots=True)
class Pad:
    """Fill what lies outside the inner box of each piece of `dst` (uint8), in place, as numpy.pad.

    Strides in bytes. Modes are those of reshape.PAD_MODES. An empty inner box has nothing to
    repeat: its piece is filled with `value`.

    Attributes:
        shape: of a piece; rows are long where the last axis is the dense one, and channels that
            are never padded are best joined with the axis before them (mode "constant").
        begin: where the inner box begins along each axis, `extent` how long it is there.
        value: the bytes of an element; none are zeros.
        table: int64 (n_pieces, 2 * ndim) on the device, in place of `begin` and `extent`.
    """

    dst: torch.Tensor
    item_nbytes: int
    shape: tuple[int, ...]
    dst_stride: tuple[int, ...]
    begin: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()
    mode: str = "constant"
    value: bytes = b""
    dst_offset: int = 0
    n_pieces: int = 1
    dst_step: int = 0
    table: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize boxes of elements along up to three axes, as torch.nn.functional.interpolate does.

    Offsets, strides and pieces as of Place. Modes are those of reshape.RESIZE_MODES. Values are
    delivered in their own type, integers rounded to nearest, or as float32.

    Attributes:
        shape: of what is delivered.
        axes: which are resized. The others have the same extent on both sides.
        table: int64 (n_pieces, 2) on the device: where each piece begins on either side, from the
            offsets; or (n_pieces, 2 + 2 * ndim): then its source extents, then its source strides.
    """

    src: torch.Tensor
    dst: torch.Tensor
    from_dtype: int
    to_dtype: int
    shape: tuple[int, ...]
    src_shape: tuple[int, ...]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    axes: tuple[int, ...]
    mode: str = "linear"
    src_offset: int = 0
    dst_offset: int = 0
    swap: bool = False
    n_pieces: int = 1
    src_step: int = 0
    dst_step: int = 0
    table: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Unshuffle:
    """Undo HDF5's byte shuffle of `n_pieces` chunks (uint8 tensors of one device).

    Attributes:
        nbytes: of each chunk, or of the largest.
        table: int64 (n_pieces, 3) on the device: where each chunk begins on either side, from the
            offsets, and its bytes.
    """

    src: torch.Tensor
    dst: torch.Tensor
    item_nbytes: int
    nbytes: int
    src_offset: int = 0
    dst_offset: int = 0
    n_pieces: int = 1
    src_step: int = 0
    dst_step: int = 0
    table: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Arrays that the device holds, and what is known of them. Tensors are on the device.

    Attributes:
        memory: the bytes, uint8.
        arrays: int64 (n_arrays, 3 + 2 * ndim): first byte, bytes from item to item, 1 where stored
            in the other byte order, then shape and strides of an item.
        row_ends: items of arrays 0..i where an array has several.
        selected: items of the source as items of all arrays.
        window_ends: windows of items 0..i where items have different numbers of them.
        labels: uint8 (n_items, nbytes), rows as they are delivered.
        n_items: of the source.
        dtype: number of the stored element type.
    """

    memory: torch.Tensor
    arrays: torch.Tensor
    row_ends: torch.Tensor | None
    selected: torch.Tensor | None
    window_ends: torch.Tensor | None
    labels: torch.Tensor | None
    n_items: int
    dtype: int

    @property
    def tensors(self) -> list[torch.Tensor]:
        parts = (self.memory, self.arrays, self.row_ends, self.selected, self.window_ends)
        return [part for part in (*parts, self.labels) if part is not None]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Which windows an epoch shows, in plain numbers: see kernels/order.h.

    Attributes:
        kind, size, step, per_item: of the windows, as of gpuload.window.Geometry.
        shuffled: the permutation, as bytes of the native structure.
        listed, listed_crop: items of a sampler (int64) and numbers of their crops (uint32).
        n_samples, first, rank, world: as of gpuload.order.Shares.
    """

    kind: int
    size: tuple[int, ...]
    step: tuple[int, ...]
    per_item: int
    key: int
    shuffled: bytes
    listed: torch.Tensor | None
    listed_crop: torch.Tensor | None
    n_samples: int
    first: int
    rank: int
    world: int


@dataclass(frozen=True, slots=True)
class Crops:
    """Draw `n` windows of held arrays into a batch, from position `begin` of the rank's samples.

    Attributes:
        x: uint8, on the device, filled from byte `x_offset`.
        others: uint8, on the device. `columns` says where y, index, crop, start and valid begin in
            it, in bytes; those that are not wanted are left out.
        shape: of a window; `src_stride` are the bytes between its elements in the first array.
    """

    held: Held
    drawing: Drawing
    x: torch.Tensor
    x_offset: int
    others: torch.Tensor
    columns: dict[str, int]
    to_dtype: int
    shape: tuple[int, ...]
    src_stride: tuple[int, ...]
    begin: int
    n: int


Operation: TypeAlias = Place | Pad | Resize | Unshuffle | Crops


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Block the calling thread until the stream has come to this point."""


class Stream(Protocol):
    """A queue of commands. Each method enqueues and returns at once; buffers must outlive the
    command."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Copy bytes to device memory from memory of the same length, of the host (host_memory) or
        of the device."""

    def launch(self, operation: Operation) -> None:
        """Run a kernel."""

    def record(self) -> Event: ...

    def wait(self, event: Event) -> None:
        """Commands enqueued from now on run after `event`."""


class Device(Protocol):
    """Where batches are delivered."""

    name: str
    is_host: bool

    def stream(self) -> Stream:
        """A new stream."""

    def current_stream(self) -> Stream:
        """The stream that the calling thread's own commands go to."""

    def enter_thread(self) -> None:
        """Called once by each thread of a loader's own that uses the device."""

    def prepare(self, operation: Operation) -> None:
        """Compile and load what launching such an operation needs; its memory is not touched."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies may read from asynchronously; uint8, uninitialised."""

    def memory(self, nbytes: int, *, stream: Stream) -> torch.Tensor:
        """Device memory first used on `stream`; uint8, uninitialised."""

    def free_nbytes(self) -> int:
        """Memory that can still be had."""

    def hand_over(self, memory: torch.Tensor, stream: Stream) -> None:
        """`memory` is used on `stream` from now on: it is not recycled before that use is over."""
