"""Find the files that `where` means, and the class that each folder stands for. Reads no file."""

from __future__ import annotations

import glob
import os
import sys
import warnings
from dataclasses import dataclass

from gpuload.errors import FormatError, MissingError, ReadError
from gpuload.sources.headers import is_index
from gpuload.sources.names import in_order, numbers_of, shown

Where = str | os.PathLike[str] | list["Where"] | tuple["Where", ...]

_SUFFIXES = (".npy", ".npz")
_SUFFIX = " or ".join(_SUFFIXES)  # in messages
_LATER = (".h5", ".hdf5", ".hdf", ".nc", ".zarr")

_warned: set[str] = set()  # folders whose class order was already warned of


@dataclass(frozen=True, slots=True)
class Found:
    """Files in their order; with class folders, the class number of each file and the classes'
    names.

    `folder` is the one folder that was searched.
    """

    paths: list[str]
    class_numbers: list[int] | None = None
    classes: list[str] | None = None
    folder: str | None = None


def find(
    where: Where, *, use_classes: bool, order: str | None, classes: list[str] | None = None
) -> Found:
    """List the NPY or NPZ files of a file, a folder, a glob or a list of those.

    A folder is searched for .npy and .npz files, in the order of their paths; names that begin with
    a dot are left out. A folder without files of its own, whose sub-folders hold some, is a class tree:
    classes are the sub-folders in order, as in torchvision's ImageFolder.

    Args:
        order: "text" or "natural", of files and of class folders. None: as "text", with a warning
            where class folders are numbers and that matters.
        classes: the class folders there must be, in this order.

    Raises:
        MissingError: nothing is there; says how many files were seen.
        FormatError: a folder mixes files and class folders, a class folder is empty or not one of
            `classes`, a format is not NPY.
        TypeError: `where` is not a path, a glob or a list.
    """
    if isinstance(where, list | tuple):
        if not where:
            raise MissingError("where: expected at least one path, got an empty list")
        parts = [find(part, use_classes=False, order=order) for part in where]
        return Found([path for part in parts for path in part.paths])
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
        return _find_in_folder(path, use_classes, order, classes)
    if os.path.lexists(path):
        _check_suffix(path)
        return Found([path])
    if glob.has_magic(path):
        return Found(_find_by_glob(path, order))
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


def _find_by_glob(pattern: str, order: str | None) -> list[str]:
    seen = in_order(glob.glob(pattern, recursive=True), order)
    files = [path for path in seen if not os.path.isdir(path) and not is_index(path)]
    if not files:
        raise MissingError(
            f"{pattern}: expected at least one file that matches, got none ({len(seen)} folders)",
            filename=pattern,
        )
    for path in files:
        _check_suffix(path)
    return files


def _find_in_folder(
    folder: str, use_classes: bool, order: str | None, classes: list[str] | None
) -> Found:
    files, folders, n_other = _list(folder, order)
    trees = {name: _walk(os.path.join(folder, name), order) for name in folders}
    if not files and not any(tree for tree, _ in trees.values()):
        n_other += sum(n for _, n in trees.values())
        raise MissingError(
            f"{folder}: expected {_SUFFIX} files in it or in its sub-folders, got none "
            f"({n_other} other files, {len(folders)} folders)",
            filename=folder,
        )
    if not use_classes:
        below = [path for tree, _ in trees.values() for path in tree]
        return Found(in_order(files + below, order), folder=folder)
    if not files:
        return _class_tree(folder, trees, order, classes)
    filled = [name for name, (tree, _) in trees.items() if tree]
    if filled:
        raise FormatError(
            f"{folder}: expected either {_SUFFIX} files or class folders, got {len(files)} files "
            f"and the folder {filled[0]}; move the files, or pass labels=None to take all"
        )
    return Found(files, folder=folder)


_Trees = dict[str, tuple[list[str], int]]  # of a class: its files, and how many others there are


def _class_tree(folder: str, trees: _Trees, order: str | None, classes: list[str] | None) -> Found:
    if classes is None:
        classes = in_order(trees, order)
        if order is None:
            _warn_of_numbers(folder, classes)
    else:
        _check_folders(folder, list(trees), classes)
    for name in classes:
        tree, n_other = trees[name]
        if not tree:
            raise FormatError(
                f"{os.path.join(folder, name)}: expected {_SUFFIX} files in a class folder, got "
                f"none ({n_other} other files); remove the folder, or pass labels=None"
            )
    paths = [path for name in classes for path in trees[name][0]]
    numbers = [i for i, name in enumerate(classes) for _ in trees[name][0]]
    return Found(paths, numbers, classes, folder)


def _check_folders(folder: str, folders: list[str], classes: list[str]) -> None:
    """Refuse a class folder that is not in the list, and a class of the list without a folder."""
    unknown = numbers_of(folders, classes) < 0
    if unknown.any():
        name = folders[int(unknown.argmax())]
        raise FormatError(
            f"{os.path.join(folder, name)}: expected a class folder named in classes="
            f"{shown(classes)}, got {name!r}; add the name, or move the folder"
        )
    missing = [name for name in classes if name not in folders]
    if missing:
        raise FormatError(
            f"{folder}: expected a folder for each of classes={shown(classes)}, got none for "
            f"{missing[0]!r}; remove the name, or make labels with a function of the path"
        )


def _warn_of_numbers(folder: str, classes: list[str]) -> None:
    """Say once for a folder that "10" stands before "2"."""
    is_numbers = all(name.isdecimal() for name in classes)
    if not is_numbers or sorted(classes, key=int) == classes or os.path.abspath(folder) in _warned:
        return
    warnings.warn(
        f"{folder}: class folders are numbers but classes are in text order: {classes[:3]} get "
        '0, 1, 2; pass order="natural" to number them as numbers, or order="text" to keep this',
        stacklevel=_levels_to_caller(),
    )
    _warned.add(os.path.abspath(folder))  # not if the warning was raised as an error


def _levels_to_caller() -> int:
    """Calls from the one that asks to the one that called the package."""
    package = __name__.partition(".")[0]
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level


def _list(folder: str, order: str | None) -> tuple[list[str], list[str], int]:
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
    return in_order(files, order), in_order(folders, order), n_other


def _walk(folder: str, order: str | None) -> tuple[list[str], int]:
    """All arrays below a folder in order, and how many other files there are; a link to a folder
    above is not followed."""
    found: list[str] = []
    n_others = 0
    nothing: frozenset[str] = frozenset()
    left = [(folder, nothing)]  # and the folders above
    while left:
        folder, above = left.pop()
        real = os.path.realpath(folder)
        if real in above:
            continue
        files, folders, n_other = _list(folder, order)
        found += files
        n_others += n_other
        left += [(os.path.join(folder, name), above | {real}) for name in reversed(folders)]
    return found, n_others
