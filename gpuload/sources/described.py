"""Files that were found to a checked catalog of their arrays, be they NPY or NPZ."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuload.catalog import Catalog, Ints, Paths
from gpuload.dtypes import Dtype
from gpuload.sources import formats, npy, npz
from gpuload.sources.folder import Found, Where
from gpuload.sources.headers import read_headers
from gpuload.system import descriptor_limit

# Header reads wait for the disk, not for the processor.
_SCAN_THREADS = 16


class Described(NamedTuple):
    """The arrays of files, the numbers of these files as found, and a message for each that was
    left out."""

    catalog: Catalog
    rows: Ints
    errors: list[str]


Find = Callable[[Where], Found]
Keys = Sequence[str | None]  # of each file, the member that is wanted


def find_members(where: Where, key: object, find: Find) -> tuple[Found, Keys]:
    """Find files, of which "a.npz::x" names the member x.

    Raises:
        TypeError: a path names a member and `key` another, or the key is no text.
        MissingError, FormatError: as `find` does.
    """
    if not isinstance(key, str | None):
        raise TypeError(f"key: expected the name of a member of an NPZ file, got {key!r}")
    if isinstance(where, list | tuple) and any(split_member(part)[1] for part in leaves(where)):
        parts = [find_members(part, key, lambda part: find([part])) for part in leaves(where)]
        paths = [path for found, _ in parts for path in found.paths]
        return Found(paths), [key for _, keys in parts for key in keys]
    path, own = split_member(where)
    if own is None:
        found = find(where)
        return found, [key] * len(found.paths)
    if key is not None:
        raise TypeError(f"key: expected not to be passed with {where}, which names one")
    found = find(path)
    return found, [own] * len(found.paths)


def leaves(where: Where) -> list[Where]:
    """The paths, folders and globs of lists of lists."""
    if not isinstance(where, list | tuple):
        return [where]
    return [leaf for part in where for leaf in leaves(part)]


def split_member(where: Where) -> tuple[Where, str | None]:
    """A path and the member that is named behind it."""
    if isinstance(where, list | tuple):
        return where, None
    try:
        path = os.fsdecode(where)
    except TypeError:
        return where, None  # refused where files are looked for
    file, colons, key = path.rpartition("::")
    return (file, key) if file and colons and not os.path.lexists(path) else (where, None)


def describe(
    paths: Sequence[str],
    keys: Keys,
    *,
    member: str | None,
    dtype: Dtype | None,
    sample_axis: int | None,
    index: Path | None,
    on_error: str,
) -> Described:
    """Read the headers of files and check them against the files and each other.

    Args:
        keys: of each file, the member of an NPZ file; None for the only one.
        index: where headers of NPY files are kept.

    Raises:
        FormatError, UnsupportedDtypeError, ReadError: a file is not as it should be.
        ValueError: an index for NPZ files.
    """
    threads = max(1, min(_SCAN_THREADS, descriptor_limit() // 8))
    is_npz = any(key is not None for key in keys) or formats.are_npz(paths)
    if is_npz and index is not None:
        raise ValueError(
            f"index: expected None for NPZ files such as {paths[0]}, got {str(index)!r}; headers "
            "are kept for NPY files alone"
        )
    if is_npz:
        headers, members = npz.scan(paths, keys, threads=threads)
    else:
        headers = read_headers(
            Paths.of(paths),
            index=index,
            scan=lambda some: npy.scan(some, threads=threads),
            threads=threads,
        )
    catalog, rows, errors = npy.read_catalog(
        headers, member=member, dtype=dtype, sample_axis=sample_axis, on_error=on_error
    )
    if is_npz:
        catalog = npz.place_members(catalog, paths, members, rows)
    return Described(catalog, rows, errors)
