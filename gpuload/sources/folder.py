"""Find the files that `where` means, and the class that each folder stands for. Reads no file."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from gpuload.errors import FormatError, MissingError, ReadError
from gpuload.sources.headers import is_index

Where = str | os.PathLike[str] | list["Where"] | tuple["Where", ...]

_SUFFIXES = (".npy", ".npz")
_SUFFIX = " or ".join(_SUFFIXES)  # in messages
_LATER = (".h5", ".hdf5", ".hdf", ".nc", ".zarr")


@dataclass(frozen=True, slots=True)
class Found:
    """Files in their order; with class folders, the class number of each file and the classes'
    names."""

    paths: list[str]
    class_numbers: list[int] | None = None
    classes: list[str] | None = None


def find(where: Where, *, use_classes: bool) -> Found:
    """List the NPY or NPZ files of a file, a folder, a glob or a list of those.

    A folder is searched for .npy and .npz files, in text order of their paths; names that begin
    with a dot are left
    out. A folder without files of its own, whose sub-folders hold some, is a class tree: classes
    are the
    sub-folders in text order, as in torchvision's ImageFolder.

    Raises:
        MissingError: nothing is there; says how many files were seen.
        FormatError: a folder mixes files and class folders, a class folder is empty, a format
            is not NPY.
        TypeError: `where` is not a path, a glob or a list.
    """
    if isinstance(where, list | tuple):
        if not where:
            raise MissingError("where: expected at least one path, got an empty list")
        return Found([path for part in where for path in find(part, use_classes=False).paths])
    try:
        path = os.fspath(where)
    except TypeError:
        raise TypeError(
            f"where: expected a path, a glob or a list of those, got {type(where).__name__}"
        ) from None
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not path:
        raise MissingError("where: expected a path, a glob or a list of those, got an empty text")
    if os.path.isdir(path):
        return _find_in_folder(path, use_classes)
    if os.path.lexists(path):
        _check_suffix(path)
        return Found([path])
    if glob.has_magic(path):
        return Found(_find_by_glob(path))
    _check_suffix(path)
    raise MissingError(
        f"{path}: expected a file, a folder or a glob, got nothing there", filename=path
    )


def _check_suffix(path: str) -> None:
    file, _, key = path.partition("::")
    suffix = os.path.splitext(file)[1].lower()
    if suffix in _LATER:
        raise FormatError(
            f"{file}: expected NPY or NPZ files, got {suffix}{' with a key' if key else ''}; "
            "this version reads .npy and .npz, save the arrays with numpy.save"
        )


def _find_by_glob(pattern: str) -> list[str]:
    seen = sorted(glob.glob(pattern, recursive=True))
    files = [path for path in seen if not os.path.isdir(path) and not is_index(path)]
    if not files:
        raise MissingError(
            f"{pattern}: expected at least one file that matches, got none ({len(seen)} folders)",
            filename=pattern,
        )
    for path in files:
        _check_suffix(path)
    return files


def _find_in_folder(folder: str, use_classes: bool) -> Found:
    files, folders, n_seen = _list(folder)
    trees = {name: list(_walk(os.path.join(folder, name))) for name in folders}
    if not files and not any(trees.values()):
        raise MissingError(
            f"{folder}: expected {_SUFFIX} files in it or in its sub-folders, got none "
            f"({n_seen} other files, {len(folders)} folders)",
            filename=folder,
        )
    if not use_classes:
        return Found(sorted(files + [path for tree in trees.values() for path in tree]))
    if not files:
        return _class_tree(folder, trees)
    filled = [name for name, tree in trees.items() if tree]
    if filled:
        raise FormatError(
            f"{folder}: expected either {_SUFFIX} files or class folders, got {len(files)} files "
            f"and the folder {filled[0]}; move the files, or pass labels=None to take all"
        )
    return Found(files)


def _class_tree(folder: str, trees: dict[str, list[str]]) -> Found:
    classes = sorted(trees)
    for name in classes:
        if not trees[name]:
            raise FormatError(
                f"{os.path.join(folder, name)}: expected {_SUFFIX} files in a class folder, got "
                "none; remove the folder, or pass labels=None"
            )
    if all(name.isdecimal() for name in classes) and sorted(classes, key=int) != classes:
        warnings.warn(
            f"{folder}: class folders are numbers but classes are in text order: {classes[:3]} get "
            "0, 1, 2; pad the names with zeros, or pass labels=",
            stacklevel=8,
        )
    paths = [path for name in classes for path in trees[name]]
    numbers = [i for i, name in enumerate(classes) for _ in trees[name]]
    return Found(paths, numbers, classes)


def _list(folder: str) -> tuple[list[str], list[str], int]:
    """Arrays, names of sub-folders, and how many other files. Hidden names are left out."""
    files, folders, n_other = [], [], 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(_SUFFIXES) and not is_index(entry.path):
                    files.append(entry.path)
                else:
                    n_other += 1
    except OSError as error:
        raise ReadError(
            f'{folder}: expected a readable folder, got "{error.strerror}"',
            errno=error.errno or 0,
            filename=folder,
        ) from None
    return sorted(files), sorted(folders), n_other


def _walk(folder: str) -> Iterator[str]:
    """All arrays below a folder in text order; a link to a folder above is not followed."""
    nothing: frozenset[str] = frozenset()
    left = [(folder, nothing)]  # and the folders above
    while left:
        folder, above = left.pop()
        real = os.path.realpath(folder)
        if real in above:
            continue
        files, folders, _ = _list(folder)
        yield from files
        left += [(os.path.join(folder, name), above | {real}) for name in reversed(folders)]
