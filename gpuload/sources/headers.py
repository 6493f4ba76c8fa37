"""Headers of many files as columns, and the index that saves them from being read again."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gpuload import _native
from gpuload.catalog import Ints, Paths
from gpuload.errors import GpuloadError

_SCHEMA = 1
_MARK = "gpuload_index"  # the first member of an index, by which it is known from other files


class Status(IntEnum):
    """What was found in place of a header, as csrc/npy.hpp numbers it. TOLD: see `problems`."""

    PLAIN = 0
    OTHER = 1
    NO_ACCESS = 2
    NO_MAGIC = 3
    BAD_VERSION = 4
    CUT = 5
    TOO_LONG = 6
    TOLD = 7


@dataclass(frozen=True, slots=True)
class Headers:
    """One row per file. `texts` holds the raw header of files that the native parser leaves to
    Python, `problems` what is known to be wrong with others."""

    paths: Paths
    status: npt.NDArray[np.int32]
    error: npt.NDArray[np.int32]
    version: npt.NDArray[np.int32]
    ndim: npt.NDArray[np.int32]
    nbytes: Ints
    mtime_ns: Ints
    offset: Ints
    shape: Ints
    fortran: npt.NDArray[np.uint8]
    descr: npt.NDArray[np.uint8]
    texts: dict[int, bytes]
    problems: dict[int, GpuloadError] = field(default_factory=dict)


def empty_headers(paths: Paths) -> Headers:
    """Headers of which nothing is known yet, to be filled in."""
    n = len(paths)
    wide = {"shape": (n, 0), "descr": (n, 16)}
    columns: dict[str, Any] = {
        name: np.zeros(wide.get(name, (n,)), dtype) for name, dtype in _COLUMNS.items()
    }
    return Headers(paths=paths, texts={}, **columns)


def read_headers(
    paths: Paths, *, index: Path | None, scan: Callable[[Paths], Headers], threads: int
) -> Headers:
    """Headers of these files: from the index where path, size and mtime are as saved, else by
    `scan`.

    A changed index is written back, atomically. One that cannot be read or written is left out of
    account, with a warning; a file that is not an index is never overwritten.
    """
    saved = load_index(index) if index is not None else None
    headers = scan(paths) if saved is None else _reuse(saved, paths, scan, threads)
    if index is not None and headers is not saved and _may_replace(index):
        _save_or_warn(index, headers)
    return headers


def _save_or_warn(index: Path, headers: Headers) -> None:
    try:
        save_index(index, headers)
    except OSError as error:
        warnings.warn(
            f"{index}: expected to save the index there, got {error}; all headers will be read "
            "again next time",
            stacklevel=7,
        )


def _reuse(saved: Headers, paths: Paths, scan: Callable[[Paths], Headers], threads: int) -> Headers:
    nbytes, mtime_ns = _native.stat_paths(paths.blob, paths.ends, threads)
    same_paths = saved.paths.blob == paths.blob and np.array_equal(saved.paths.ends, paths.ends)
    if same_paths:
        rows = np.arange(len(paths))
    else:
        row_of = {path: row for row, path in enumerate(saved.paths)}
        rows = np.array([row_of.get(path, -1) for path in paths], np.int64)
    fresh = (rows >= 0) & (saved.nbytes[rows] == nbytes) & (saved.mtime_ns[rows] == mtime_ns)
    fresh &= saved.status[rows] <= 1  # files that were bad are looked at again
    if same_paths and fresh.all():
        return saved
    stale = np.flatnonzero(~fresh)
    kept = _take(saved, rows, paths)
    return _put(kept, stale, scan(paths.take(stale))) if len(stale) else kept


def _take(headers: Headers, rows: Ints, paths: Paths) -> Headers:
    columns: dict[str, Any] = {name: getattr(headers, name)[rows] for name in _COLUMNS}
    texts = {
        to: headers.texts[int(row)] for to, row in enumerate(rows) if int(row) in headers.texts
    }
    return Headers(paths=paths, texts=texts, **columns)


def _put(headers: Headers, rows: Ints, new: Headers) -> Headers:
    """`headers` with these rows replaced."""
    width = max(headers.shape.shape[1], new.shape.shape[1])
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        old, add = getattr(headers, name), getattr(new, name)
        if name == "shape":
            old, add = (np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in (old, add))
        columns[name] = old.copy()
        columns[name][rows] = add
    replaced = set(rows.tolist())
    texts = {row: text for row, text in headers.texts.items() if row not in replaced}
    texts |= {int(rows[row]): text for row, text in new.texts.items()}
    return Headers(paths=headers.paths, texts=texts, **columns)


_COLUMNS = {
    "status": np.int32,
    "error": np.int32,
    "version": np.int32,
    "ndim": np.int32,
    "nbytes": np.int64,
    "mtime_ns": np.int64,
    "offset": np.int64,
    "shape": np.int64,
    "fortran": np.uint8,
    "descr": np.uint8,
}


def save_index(index: Path, headers: Headers) -> None:
    """Write an index file: NPZ without pickle, under a temporary name that is then renamed.

    Raises:
        OSError: the folder cannot be written.
    """
    index.parent.mkdir(parents=True, exist_ok=True)
    texts = headers.texts
    columns: dict[str, Any] = {_MARK: np.int64(_SCHEMA)}
    columns |= {name: getattr(headers, name) for name in _COLUMNS}
    columns["path_bytes"] = np.frombuffer(headers.paths.blob, np.uint8)
    columns["path_ends"] = headers.paths.ends
    columns["text_rows"] = np.array(list(texts), np.int64)
    columns["text_ends"] = np.cumsum([len(t) for t in texts.values()], dtype=np.int64)
    columns["text_bytes"] = np.frombuffer(b"".join(texts.values()), np.uint8)
    handle, name = tempfile.mkstemp(dir=index.parent, prefix=f".{index.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **columns)
        os.replace(name, index)
    except BaseException:
        os.unlink(name)
        raise


def _is_index(file: IO[bytes]) -> bool:
    """Whether a file is an index, be it a damaged one, and no other file."""
    head = file.read(64)
    file.seek(0)
    return not head or _MARK.encode() in head


def is_index(path: str) -> bool:
    """Whether there is an index at this path, and no array. Only .npz files are looked into."""
    if not path.lower().endswith(".npz"):
        return False
    try:
        with open(path, "rb") as file:
            return _MARK.encode() in file.read(64)
    except OSError:
        return False


def _may_replace(index: Path) -> bool:
    try:
        with index.open("rb") as file:
            return _is_index(file)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def load_index(index: Path) -> Headers | None:
    """The headers of an index file; None, with a warning, when there is none that can be used."""
    try:
        with index.open("rb") as file:
            if not _is_index(file):  # np.load would read the whole of an array
                raise ValueError("another file, which is kept")
            with np.load(file, allow_pickle=False) as saved:
                return _from_columns(saved)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive makes zipfile and NumPy raise nearly anything
        warnings.warn(
            f"{index}: expected a saved index, got {error}; reading all headers again", stacklevel=7
        )
        return None


def _from_columns(saved: Mapping[str, Any]) -> Headers:
    if (schema := int(saved[_MARK])) != _SCHEMA:
        raise ValueError(f"schema {schema} of another version")
    text_bytes, ends = saved["text_bytes"].tobytes(), saved["text_ends"]
    begins = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    texts = {
        int(row): text_bytes[begin:end]
        for row, begin, end in zip(saved["text_rows"], begins, ends, strict=True)
    }
    paths = Paths(saved["path_bytes"].tobytes(), saved["path_ends"])
    columns: dict[str, Any] = {name: saved[name] for name in _COLUMNS}
    _check_ends(paths.ends, len(paths.blob))
    _check_ends(ends, len(text_bytes))
    headers = Headers(paths=paths, texts=texts, **columns)
    _check_columns(headers)
    return headers


def _check_ends(ends: Ints, nbytes: int) -> None:
    if ends.dtype != np.int64 or (np.diff(ends, prepend=0) < 0).any() or ends[-1:].sum() != nbytes:
        raise ValueError("texts that do not fit their ends")


def _check_columns(h: Headers) -> None:
    """An index may come from anybody: no number of it may lead out of a file or a column."""
    n, width = len(h.paths), h.shape.shape[-1]
    wanted = {"shape": (n, width), "descr": (n, 16)}
    for name in _COLUMNS:
        column = getattr(h, name)
        if column.shape != wanted.get(name, (n,)) or column.dtype != _COLUMNS[name]:
            raise ValueError(f"a column {name} of {column.dtype} {column.shape}")
    used = h.status <= 1
    if (
        (h.ndim < 0).any()
        or (h.ndim > width).any()
        or width > 32
        or (h.shape < 0).any()
        or (h.nbytes < 0).any()
        or (h.offset[used] < 10).any()
        or (h.fortran > 1).any()
        or any(not 0 <= row < n for row in h.texts)
        or any(int(row) not in h.texts for row in np.flatnonzero(h.status == 1))
    ):
        raise ValueError("a number out of its range")
