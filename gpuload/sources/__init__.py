"""open(): from what the user names to a Source. Only headers are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from gpuload.errors import FormatError
from gpuload.sources.fields import open_fields, open_one
from gpuload.sources.folder import Where, find
from gpuload.sources.labels import Items, Labels, make_labels
from gpuload.sources.memory import arrays
from gpuload.sources.names import check_classes, check_order
from gpuload.sources.source import Source

__all__ = ["Source", "arrays", "open"]


def open(
    where: Where | None = None,
    *,
    key: str | Mapping[str, str] | None = None,
    member: str | Mapping[str, str] | None = None,
    fields: Mapping[str, Where] | None = None,
    pair: str = "stem",
    labels: Labels = "auto",
    order: str | None = None,
    classes: Sequence[str] | None = None,
    sample_axis: int | None = None,
    dtype: object = None,
    index: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    **unknown: object,
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
        fields: in place of `where`, several of these by name, such as {"image": ..., "mask": ...}.
            Each item has an array of each; labels and paths are those of the first. `key`, `member`
            and `dtype` may be dictionaries by the same names.
        pair: how files of different fields are paired: by "stem", the path below the folder that
            was named without its suffix, or by "position".
        labels: "auto": class folders give their number. None: no labels. Or one row per item or per
            file found, the path of a .npy file of such rows or of a .csv file with a column of
            labels, or a function of the path. Whole numbers are delivered as int64.
        order: of class names and of files: "text" (the default; "10" stands before "2") or
            "natural" ("2" before "10").
        classes: names of the classes in the order of their numbers: all class folders, or the
            names that labels may be.
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
    for name in unknown:
        raise TypeError(f"{name}: expected not to be passed, it has no meaning by gpuload.open")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error: expected "raise" or "skip", got {on_error!r}')
    if sample_axis is not None and (
        isinstance(sample_axis, bool)
        or not isinstance(sample_axis, int | np.integer)
        or sample_axis < 0
    ):
        raise ValueError(f"sample_axis: expected None or an axis, 0 or more, got {sample_axis!r}")
    check_order(order)
    class_names = check_classes(classes)
    search = partial(
        find,
        use_classes=isinstance(labels, str) and labels == "auto",
        order=order,
        classes=class_names,
    )
    if fields is not None:
        if where is not None:
            raise TypeError("fields: expected not to be passed with where, name one of them")
        opened = open_fields(
            fields,
            pair=pair,
            key=key,
            member=member,
            dtype=dtype,
            sample_axis=sample_axis,
            index=partial(_index_of_field, index),
            on_error=on_error,
            find=search,
        )
    else:
        opened = open_one(
            where,  # type: ignore[arg-type]  # refused where files are looked for
            key=key,
            member=member,
            dtype=dtype,
            sample_axis=sample_axis,
            index=partial(_index_path, index),
            on_error=on_error,
            find=search,
        )
    made, found, rows, errors = opened
    catalog = made[0].catalog
    if len(catalog) == 0:
        raise FormatError(
            f"{catalog.paths[0]}: expected at least one row along sample_axis {sample_axis} in "
            f"{len(catalog.paths)} files, got none"
        )
    rows_of_labels, class_names = make_labels(
        labels,
        classes=class_names,
        order=order,
        items=Items(found, rows, len(catalog), catalog.array_of),
    )
    return Source(made, labels=rows_of_labels, classes=class_names, errors=errors)


def _index_of_field(index: str | os.PathLike[str] | None, where: Where) -> Path | None:
    if index not in (None, "auto"):
        raise ValueError(
            f'index: expected None or "auto" with fields, which have headers each, got {index!r}'
        )
    return _index_path(index, where)


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
