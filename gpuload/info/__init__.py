"""What lies at a path: how many arrays, of which types, shapes and classes, and what padding would
cost. Headers alone are read."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpuload import sources
from gpuload.errors import FormatError, MissingError
from gpuload.info import suspects
from gpuload.info.kinds import Kind, describe
from gpuload.info.suspects import Suspect
from gpuload.sources import Source
from gpuload.sources.folder import Found, find

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Info:
    """All that headers tell. `kinds` come by number of files, the most frequent first.

    `classes` are items by class folder, in label order; None without class folders. `n_files`
    counts what was found, `n_items` and `nbytes` what can be read.
    """

    path: str
    n_files: int
    n_items: int
    nbytes: int
    classes: dict[str, int] | None
    kinds: tuple[Kind, ...]
    suspects: tuple[Suspect, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it. Keys of one `schema` keep their names and meaning."""
        return {"schema": SCHEMA, **asdict(self)}


def examine(
    path: str, *, sample_axis: int | None, key: str | None, member: str | None, use_classes: bool
) -> Info:
    """Read the headers at `path`, which may mix files that no one source could hold.

    Args:
        path: what gpuload.open takes: a file, a folder, a glob.
        sample_axis: the axis whose rows are items; None: a file is an item.
        key: the member of .npz files.
        member: the field of a structured dtype.
        use_classes: whether sub-folders are classes.

    Raises:
        MissingError: nothing is at `path`.
        FormatError: no file can be read.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, mixed = _find(path, use_classes=use_classes)
        groups, unreadable = _groups(found.paths, sample_axis=sample_axis, key=key, member=member)
    kinds = tuple(describe(group) for group in groups)
    classes = None
    if found.classes is not None and found.class_numbers is not None:
        number_of = dict(zip(found.paths, found.class_numbers, strict=True))
        classes = _class_counts(groups, number_of, found.classes)
    return Info(
        path=path,
        n_files=len(found.paths),
        n_items=sum(kind.n_items for kind in kinds),
        nbytes=sum(kind.nbytes for kind in kinds),
        classes=classes,
        kinds=kinds,
        suspects=(
            *mixed,
            *(Suspect(name, "unreadable", reason) for name, reason in unreadable.items()),
            *suspects.find(groups),
        ),
        warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
    )


def _find(path: str, *, use_classes: bool) -> tuple[Found, list[Suspect]]:
    """The files at a path; without classes where folders are no class tree, which is told."""
    try:
        return find(path, use_classes=use_classes, order=None), []
    except MissingError:
        raise
    except FormatError as error:
        if not use_classes:
            raise
        return find(path, use_classes=False, order=None), [Suspect(path, "folders", str(error))]


def _groups(
    paths: list[str], *, sample_axis: int | None, key: str | None, member: str | None
) -> tuple[list[Source], dict[str, str]]:
    """Sources of files that agree with each other, the largest first, and why others have none.

    A source takes the files like its first one, and says of each other file, in order, why not.
    """
    groups: list[Source] = []
    left = dict.fromkeys(paths, "")
    while left:
        try:
            source = sources.open(
                list(left),
                labels=None,
                sample_axis=sample_axis,
                key=key,
                member=member,
                on_error="skip",
            )
        except FormatError:  # not one more file can be read
            if not groups:
                raise
            break
        groups.append(source)
        taken = set(source.catalog.paths)
        others = [path for path in left if path not in taken]
        left = dict(zip(others, source.errors, strict=True))
    return sorted(groups, key=lambda source: -len(source.catalog.paths)), left


def _class_counts(
    groups: list[Source], number_of: dict[str, int], names: list[str]
) -> dict[str, int]:
    counts = np.zeros(len(names), np.int64)
    for source in groups:
        numbers = [number_of[path] for path in source.catalog.paths]
        np.add.at(counts, numbers, np.diff(source.catalog.row_ends, prepend=0))
    return dict(zip(names, counts.tolist(), strict=True))
