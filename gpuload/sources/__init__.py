"""open(): from what the user names to a Source. Only headers are read."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path

import numpy as np

from gpuload import dtypes
from gpuload.errors import FormatError
from gpuload.sources.described import describe, find_members
from gpuload.sources.folder import Where, find
from gpuload.sources.memory import arrays
from gpuload.sources.source import Labels, Source, make_labels

__all__ = ["Source", "arrays", "open"]


def open(
    where: Where,
    *,
    key: str | None = None,
    member: str | None = None,
    labels: Labels = "auto",
    sample_axis: int | None = None,
    dtype: object = None,
    index: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    **later: object,
) -> Source:
    """Describe the arrays of NPY or NPZ files without loading them.

    Headers are read on threads and checked against the files' sizes; nothing is unpickled. Stored
    members of NPZ files are read in place, deflated ones are inflated into memory once per file,
    when they are first wanted.

    Args:
        where: a .npy or .npz file, a folder of them, a folder of class folders, a glob, or a list
            of those. "a.npz::x" names a member as `key` does.
        key: the array of NPZ files to read; not needed where each has one.
        member: the field of a structured dtype to read: "b", or "a.b" for a nested one.
        labels: "auto": class folders give their number, in text order. None: no labels. Or one row
            per item (or per file found, of which some are left out), or a function of the path.
            Whole numbers are delivered as int64.
        sample_axis: 0 makes each row of each file an item; files may have different numbers of
            rows.
        dtype: "bfloat16" says what two-byte void elements stand for. To cast, use DataLoader.
        index: a file that keeps the headers for the next start, by path, size and modification
            time; "auto" for one in the user's cache folder ($GPULOAD_CACHE_DIR, $XDG_CACHE_HOME).
            One that cannot be read or written gives a warning, and all headers are read.
        on_error: "raise", or "skip" to leave unreadable files out and list them in `source.errors`.

    Raises:
        MissingError: nothing is there.
        FormatError: a file is not as its header, its neighbours or its format say.
        UnsupportedDtypeError: objects, text, dates or long doubles.
        ReadError: a file cannot be read.
        TypeError, ValueError: an argument is not one of those above.
    """
    for name in later:
        known = "in this version" if name in ("fields",) else "by gpuload.open"
        raise TypeError(f"{name}: expected not to be passed, it has no meaning {known}")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error: expected "raise" or "skip", got {on_error!r}')
    if sample_axis is not None and (
        isinstance(sample_axis, bool)
        or not isinstance(sample_axis, int | np.integer)
        or sample_axis < 0
    ):
        raise ValueError(f"sample_axis: expected None or an axis, 0 or more, got {sample_axis!r}")
    if not isinstance(member, str | None):
        raise TypeError(f"member: expected the name of a field, got {member!r}")
    element = None if dtype is None else dtypes.parse(dtype, "dtype")
    found, keys = find_members(
        where,
        key,
        partial(find, use_classes=isinstance(labels, str) and labels == "auto"),
    )
    catalog, rows, errors = describe(
        found.paths,
        keys,
        member=member,
        dtype=element,
        sample_axis=sample_axis,
        index=_index_path(index, where),
        on_error=on_error,
    )
    if len(catalog) == 0:
        raise FormatError(
            f"{catalog.paths[0]}: expected at least one row along sample_axis {sample_axis} in "
            f"{len(catalog.paths)} files, got none"
        )
    return Source(
        catalog,
        labels=make_labels(
            labels,
            class_numbers=found.class_numbers,
            paths=catalog.paths,
            rows=rows,
            n_found=len(found.paths),
            n_items=len(catalog),
            array_of_items=catalog.array_of,
        ),
        classes=found.classes,
        errors=errors,
    )


def _index_path(index: str | os.PathLike[str] | None, where: Where) -> Path | None:
    if index is None:
        return None
    if index != "auto":
        return Path(index)
    parts = where if isinstance(where, list | tuple) else [where]
    named = b"\0".join(
        os.path.abspath(os.fsencode(part)) for part in parts if not isinstance(part, list | tuple)
    )
    cache = os.environ.get("GPULOAD_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gpuload"
    )
    return Path(cache, "index", hashlib.sha256(named).hexdigest()[:24] + ".npz")
