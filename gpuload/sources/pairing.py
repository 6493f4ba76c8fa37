"""Which files of several fields belong together, by their paths. Reads no file."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.catalog import Ints
from gpuload.errors import FormatError
from gpuload.sources.described import leaves, split_member
from gpuload.sources.folder import Where

_SHOWN = 3  # names in a message


@dataclass(frozen=True, slots=True)
class Side:
    """The files of one field, and what they were found by."""

    where: Where
    paths: list[str]


def by_position(parts: Mapping[str, Side]) -> dict[str, Ints]:
    """Leave files in the order they were found in.

    Raises:
        FormatError: fields have different numbers of files.
    """
    first, *others = parts
    n = len(parts[first].paths)
    for name in others:
        if len(parts[name].paths) != n:
            raise FormatError(
                f"fields: expected as many files of {name} as of {first}, got "
                f"{len(parts[name].paths)} and {n}"
            )
    return {}


def by_stem(parts: Mapping[str, Side]) -> dict[str, Ints]:
    """Pair files whose paths below the folder that was named are the same but for the suffix. Where
    all fields are globs, what the wildcards stand for may be the same in place of that.

    Returns:
        The order of the files of each other field that brings them to their partners.

    Raises:
        FormatError: a file without a partner, or with two.
    """
    by_path = {name: _stems(part.where, part.paths) for name, part in parts.items()}
    are_globs = all(_is_glob(part.where) for part in parts.values())
    if are_globs and len({frozenset(stems) for stems in by_path.values()}) > 1:
        by_match = {name: _matched(part.where, part.paths) for name, part in parts.items()}
        if len({frozenset(stems) for stems in by_match.values()}) == 1:
            by_path = by_match  # scan_1.npy and mask_1.npy, of "scan_*.npy" and "mask_*.npy"
    numbers = {name: _numbered(name, by_path[name], parts[name].paths) for name in parts}
    first, *others = parts
    for name in others:
        _check_partners(first, numbers[first], name, numbers[name])
    return {
        name: np.array([numbers[name][stem] for stem in by_path[first]], np.int64)
        for name in others
    }


def _numbered(name: str, stems: list[str], paths: list[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for i, stem in enumerate(stems):
        if stem in numbers:
            raise FormatError(
                f"fields: expected one file of {name} for each stem, got {paths[numbers[stem]]} "
                f'and {paths[i]} for {stem!r}; pass pair="position"'
            )
        numbers[stem] = i
    return numbers


def _check_partners(
    first: str, stems: Mapping[str, int], name: str, others: Mapping[str, int]
) -> None:
    alone = [stem for stem in stems if stem not in others]
    extra = [stem for stem in others if stem not in stems]
    if alone or extra:
        counts = [
            f"{len(some)} {of} without {without} ({_listed(some)})"
            for some, of, without in ((alone, first, name), (extra, name, first))
            if some
        ]
        raise FormatError(
            f"fields: expected {first} and {name} of the same stems, got {' and '.join(counts)}, "
            f'of {len(stems)} and {len(others)} files; move them, or pass pair="position"'
        )


def _listed(stems: list[str]) -> str:
    more = ", ..." if len(stems) > _SHOWN else ""
    return ", ".join(stems[:_SHOWN]) + more


def _stems(where: Where, paths: Sequence[str]) -> list[str]:
    """Paths from the folder that was named, without suffix."""
    names = [os.fsdecode(split_member(leaf)[0]) for leaf in leaves(where)]  # type: ignore[arg-type]
    roots = sorted(map(_root, names), key=len, reverse=True)
    if len(names) > 1 and not any(map(_is_searched, names)):
        roots = [_common(roots)]
    return [os.path.splitext(_below(path, roots))[0] for path in paths]


def _is_searched(name: str) -> bool:
    return not os.path.lexists(name) or os.path.isdir(name)


def _root(name: str) -> str:
    """The folder that names of files are counted from."""
    if os.path.isdir(name):
        return name
    if os.path.lexists(name):
        return os.path.dirname(name)
    return os.path.dirname(_ends(name)[0])


def _common(folders: list[str]) -> str:
    try:
        return os.path.commonpath(folders)
    except ValueError:  # absolute and relative paths
        return ""


def _below(path: str, roots: list[str]) -> str:
    """The path from the first of these folders that it lies in."""
    for root in roots:
        prefix = os.path.join(root, "")
        if path.startswith(prefix):
            return path[len(prefix) :]
    return os.path.basename(path)


def _is_glob(where: Where) -> bool:
    path = split_member(where)[0]
    return not isinstance(path, list | tuple) and not os.path.lexists(path)


def _ends(pattern: str) -> tuple[str, str]:
    """What stands before and behind the wildcards of a glob."""
    magic = [i for i in range(len(pattern)) if glob.has_magic(pattern[i : i + 1])]
    if not magic:
        return pattern, ""
    last = pattern.find("]", magic[-1]) if pattern[magic[-1]] == "[" else magic[-1]
    return pattern[: magic[0]], pattern[last + 1 :]


def _matched(where: Where, paths: Sequence[str]) -> list[str]:
    """What the wildcards of a glob stand for."""
    begin, end = _ends(os.fsdecode(split_member(where)[0]))  # type: ignore[arg-type]
    return [path[len(begin) : len(path) - len(end)] for path in paths]
