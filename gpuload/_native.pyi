from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Files:
    """The files of a source: descriptors and maps within bounds."""

    def __init__(self, paths: bytes, ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], max_descriptors: int, max_maps: int, memory: Sequence[int] = [], owner: object | None = None) -> None:
        """
        `memory` has an address for each file that is memory and no file, 0 for the others; `owner` keeps it.
        """

    def resident_share(self, places: Sequence[tuple[int, int]]) -> float: ...

    def read_all(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], address: int, nbytes: int, n_threads: int) -> None:
        """
        Read rows of (file, offset, nbytes, byte of the memory at `address`), which has `nbytes`.
        """

    @property
    def is_memory(self) -> bool: ...

    @property
    def open_descriptors(self) -> int: ...

    @property
    def kept_maps(self) -> int: ...

    @property
    def is_out_of_maps(self) -> bool: ...

    @property
    def read_nbytes(self) -> int: ...

    @property
    def read_requests(self) -> int: ...

class Resident:
    """Memory of the host that is filled once and then read like a file."""

    def __init__(self, nbytes: int) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class Catalog:
    """Where every array lies and how."""

    def __init__(self, file: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shape: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], flags: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: int, record_nbytes: int, element_offset: int, sub_shape: Sequence[int], sample_axis: int, selected: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    @property
    def n_items(self) -> int: ...

    def locate(self, item: int) -> tuple[int, int]: ...

class Reader:
    """Windows of items, read from files into batches."""

    def __init__(self, catalog: Catalog, files: Files, to: int, maps: bool, request_ns: float, bytes_per_ns: float, max_gap: int, max_nbytes: int, is_cold: bool = False, raw: bool = False, scaling: tuple[float, Sequence[float]] | None = None) -> None:
        """
        `scaling`: the scale, and mean and std of each channel behind one another; none for 0 and 1.
        """

    @property
    def is_uniform(self) -> bool: ...

    def read(self, item: int, to: int) -> object: ...

    def split(self, windows: Windows, item: int) -> tuple[int, int]: ...

class Windows:
    """Which box of an item each sample shows."""

    def __init__(self, kind: int, size: Sequence[int], stride: Sequence[int], per_item: int, ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, may_stick_out: bool = False) -> None: ...

class Fit:
    """How windows fill samples of one shape."""

    def __init__(self, to: Sequence[int], multiple: Sequence[int], size: Sequence[int], align: int, shrinks: bool, flips: int, turn_from: int, turn_to: int) -> None: ...

class Form:
    """How one field is delivered."""

    def __init__(self, reader: Reader, stored: Reader | None, axes: Sequence[int], order: Sequence[int], to: int, resized: int, resize_mode: int, pad_mode: int, pad_value: bytes, channel_axis: int, scaling: tuple[float, Sequence[float]] | None) -> None: ...

class Arranger:
    """Puts windows of several fields into the rows of a batch."""

    def __init__(self, forms: Sequence[Form], windows: Windows, fit: Fit, masked: Sequence[int], is_packed: bool) -> None: ...

    def fill(self, addresses: Sequence[int], nbytes: Sequence[int], first: int, last: int, n_threads: int) -> None:
        """
        Fill rows [first, last) of one array for each field, with one row for each item.
        """

    @property
    def room(self) -> int:
        """Bytes that a sample needs at most where windows are packed."""

class Epoch:
    """Which sample stands where in an epoch."""

    def __init__(self, seed: int, epoch: int, shuffle: int, block: int, blocks_mixed: int, n_samples: int, first: int, rank: int, world: int, n_local: int, batch: int, ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, listed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, listed_crop: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    @property
    def n_batches(self) -> int: ...

    @property
    def key(self) -> int: ...

    @property
    def shuffled(self) -> bytes: ...

    def samples(self, windows: Windows, begin: int, end: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.uint8]]: ...

    def starts(self, windows: Windows, items: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], crops: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], shapes: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> object: ...

class BatchMemory:
    """Memory that batches are filled in."""

    def __init__(self, nbytes: int, max_idle: int, slabs: Sequence[int]) -> None: ...

    @property
    def n_blocks(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class Labels:
    """One row of label bytes per item."""

    def __init__(self, rows: bytes, row_nbytes: int) -> None: ...

class Workers:
    """Threads that fill batches."""

    def __init__(self, n_threads: int) -> None: ...

    @property
    def n_threads(self) -> int: ...

class Run:
    """One epoch in progress."""

    def __init__(self, workers: Workers, reader: Reader, windows: Windows, epoch: Epoch, memory: BatchMemory, labels: Labels | None, columns: Sequence[int], outputs: Sequence[tuple[int, int, Sequence[int] | None, int]], depth: int, batches_per_claim: int, chunks_per_batch: int, consumer_helps: bool, on_error: int, max_errors: int, delivery: int, room: int, to: int, others_nbytes: int, arranger: Arranger | None, fields: Sequence[tuple[int, int, int]], told: Sequence[int]) -> None: ...

    def next(self) -> list[object] | None: ...

    def next_slab(self) -> tuple[int, int, int, int, list[list[int]]] | None: ...

    def release(self, block: int) -> None: ...

    def close(self) -> None: ...

    def failures(self) -> list[tuple[int, int, int, str]]: ...

    @property
    def useful_nbytes(self) -> int: ...

    @property
    def is_stuck(self) -> bool: ...

    @property
    def fill_ns(self) -> int: ...

    @property
    def wait_ns(self) -> int: ...

def scan_npy(paths: bytes, ends: NDArray[numpy.int64], n_threads: int) -> dict[str, object]:
    """
    Headers of NPY files as columns, read on several threads without the GIL.
    """

def stat_paths(paths: bytes, ends: NDArray[numpy.int64], n_threads: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Sizes and modification times; -1 for what is not there."""

def philox(key: int, counters: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> object: ...

def coalesce(files: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], nbytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], max_gap: int, max_nbytes: int) -> object: ...

def pad_boxes(params: int) -> None: ...

def resize_boxes(params: int, from_dtype: int, to_dtype: int) -> None: ...

def unshuffle_chunks(params: int) -> None: ...

def place(dst: int, src: int, from_dtype: int, to_dtype: int, shape: Sequence[int], dst_stride: Sequence[int], src_stride: Sequence[int], swap: bool, affine: tuple[float, int, int] | None = None) -> None: ...
