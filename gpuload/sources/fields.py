"""Several files or folders to the fields of one source: item i of each belongs together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuload import dtypes
from gpuload.catalog import Catalog
from gpuload.errors import FormatError
from gpuload.sources.axes import check_names, share_axes
from gpuload.sources.described import Described, Find, describe, find_members
from gpuload.sources.folder import Found, Where
from gpuload.sources.pairing import Side, by_position, by_stem
from gpuload.sources.source import Field, first_field


class Opened(NamedTuple):
    """Fields, the files of the first one, which of these are in the source, and a message for each
    file that was left out."""

    fields: list[Field]
    found: Found
    rows: np.ndarray
    errors: list[str]


@dataclass(slots=True)
class _Part:
    """The files of one field, in the order of the first field's."""

    where: Where
    found: Found
    paths: list[str]
    keys: Sequence[str | None]
    member: str | None
    dtype: dtypes.Dtype | None
    index: Path | None

    def take(self, rows: np.ndarray) -> None:
        self.paths = [self.paths[row] for row in rows]
        self.keys = [self.keys[row] for row in rows]


def open_one(
    where: Where,
    *,
    key: object,
    member: object,
    dtype: object,
    sample_axis: int | None,
    index: Callable[[Where], Path | None],
    on_error: str,
    find: Find,
) -> Opened:
    """Find the files of a source with one field, and describe their arrays.

    Raises:
        FormatError: a file is not as it should be.
        TypeError: arguments of other types.
    """
    part = _find_part(where, key, member, dtype, index, find)
    catalog, rows, errors = _describe(part, sample_axis, on_error)
    return Opened([first_field(catalog)], part.found, rows, errors)


def open_fields(
    fields: Mapping[str, Where],
    *,
    pair: str,
    key: object,
    member: object,
    dtype: object,
    sample_axis: int | None,
    index: Callable[[Where], Path | None],
    on_error: str,
    find: Find,
) -> Opened:
    """Find the files of each field, pair them, and describe their arrays.

    Args:
        fields: what each field is made of, by name.
        pair: "stem" or "position".
        key, member, dtype: one for all fields, or a dictionary of one for some of them.
        index: gives the place where the headers of a field are kept.

    Raises:
        FormatError: a file is not as it should be, has no partner, or shapes that do not fit.
        TypeError, ValueError: arguments that are not as above.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise TypeError(f"fields: expected a dictionary of names and paths, got {fields!r}")
    check_names(fields, "fields")
    if pair not in ("stem", "position"):
        raise ValueError(f'pair: expected "stem" or "position", got {pair!r}')
    keys, members, types = (
        _of_each(value, list(fields), name)
        for value, name in ((key, "key"), (member, "member"), (dtype, "dtype"))
    )
    parts = {}
    for name, where in fields.items():
        parts[name] = _find_part(where, keys[name], members[name], types[name], index, find)
    sides = {name: Side(part.where, part.paths) for name, part in parts.items()}
    for name, order in (by_stem(sides) if pair == "stem" else by_position(sides)).items():
        parts[name].take(order)
    described, rows, errors = _describe_all(parts, sample_axis, on_error)
    first, *others = described
    catalogs = {name: each.catalog for name, each in described.items()}
    made = [first_field(catalogs[first], first)]
    for name in others:
        _check_rows(first, catalogs[first], name, catalogs[name])
        made.append(_field(first, catalogs[first], name, catalogs[name]))
    return Opened(made, parts[first].found, rows, errors)


def _find_part(
    where: Where,
    key: object,
    member: object,
    dtype: object,
    index: Callable[[Where], Path | None],
    find: Find,
) -> _Part:
    if not isinstance(member, str | None):
        raise TypeError(f"member: expected the name of a field, got {member!r}")
    element = None if dtype is None else dtypes.parse(dtype, "dtype")
    found, keys = find_members(where, key, find)
    return _Part(where, found, found.paths, keys, member, element, index(where))


def _describe(part: _Part, sample_axis: int | None, on_error: str) -> Described:
    return describe(
        part.paths,
        part.keys,
        member=part.member,
        dtype=part.dtype,
        sample_axis=sample_axis,
        index=part.index,
        on_error=on_error,
    )


def _of_each(value: Any, names: list[str], what: str) -> dict[str, Any]:
    """What was given for each field: a value for all, or a dictionary."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    for name in value:
        if name not in names:
            raise ValueError(f"{what}: expected names of fields ({', '.join(names)}), got {name!r}")
    return {name: value.get(name) for name in names}


def _describe_all(
    parts: dict[str, _Part], sample_axis: int | None, on_error: str
) -> tuple[dict[str, Described], np.ndarray, list[str]]:
    """Describe each field; where one has bad files, leave their partners out as well."""

    def each(on_error: str) -> dict[str, Described]:
        return {name: _describe(part, sample_axis, on_error) for name, part in parts.items()}

    described = each(on_error)
    n = len(next(iter(parts.values())).paths)
    good = np.ones(n, np.bool_)
    for one in described.values():
        good &= np.isin(np.arange(n), one.rows)
    errors = [message for one in described.values() for message in one.errors]
    rows = np.flatnonzero(good)
    if len(rows) == n:
        return described, rows, errors
    if not len(rows):
        raise FormatError(
            f"fields: expected at least one pair of readable files of {n}, got none; first: "
            f"{errors[0]}"
        )
    for part in parts.values():
        part.take(rows)
    return each("raise"), rows, errors


def _check_rows(first: str, catalog: Catalog, name: str, other: Catalog) -> None:
    """With a sample axis, rows of both belong together."""
    axis = catalog.sample_axis
    if axis is None:
        return
    unequal = np.flatnonzero(catalog.shape[:, axis] != other.shape[:, axis])
    if len(unequal):
        i = int(unequal[0])
        raise FormatError(
            f"{other.path_of_array(i)}: expected {catalog.shape[i, axis]} rows as in "
            f"{catalog.path_of_array(i)} ({first}), got {other.shape[i, axis]} ({name})"
        )


def _field(first: str, catalog: Catalog, name: str, other: Catalog) -> Field:
    axes = share_axes(catalog.item_shape_of_array, other.item_shape_of_array)
    if not isinstance(axes, int):
        return Field(name, other, axes)
    shape, wanted = (tuple(map(int, c.item_shape_of_array[axes])) for c in (other, catalog))
    raise FormatError(
        f"{other.path_of_array(axes)}: expected items of the shape of "
        f"{catalog.path_of_array(axes)} {wanted} ({first}), but for channels, got {shape} ({name})"
    )
