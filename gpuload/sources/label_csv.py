"""Labels in a CSV file: its rows in, the row of each file and their values out."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.catalog import Ints
from gpuload.errors import FormatError, MissingError, ReadError
from gpuload.sources.names import as_small, in_order, numbers_of, shown

# Headings in any case. Where a table has several of these, the first of this list counts.
_FILE = ("path", "file", "filename", "name", "stem", "id")
_LABEL = ("label", "class", "target", "y")

_WHOLE = re.compile("[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a CSV file. `lines` (n,) are their numbers in the file; `files` what names the file
    of each, None where rows are in the order of the items."""

    path: str
    lines: list[int]
    labels: list[str]
    files: list[str] | None


def read_table(path: str) -> Table:
    """Read a CSV file with one column (labels in order) or more (a file's name and its label).

    Columns are separated by commas, or where the first line has none by semicolons or tabs. The
    first line is a header when one of its cells is a known heading that does not come again in its
    column, or when its label is not a number and all others are. Empty lines do not count.

    Raises:
        MissingError, ReadError: the file is not there or cannot be read.
        FormatError: it has no rows, rows of several lengths, or an empty cell.
    """
    lines, rows = _read_rows(path)
    if not rows:
        raise FormatError(f"{path}: expected rows with labels, got an empty file")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(rows[0]):
            raise FormatError(
                f"{path}: line {line}: expected {len(rows[0])} columns as in line {lines[0]}, got "
                f"{len(row)}"
            )
    file, label = _columns([""] * len(rows[0]))
    if _has_headings(rows):
        file, label = _columns([cell.lower() for cell in rows[0]])
        lines, rows = lines[1:], rows[1:]
    elif _is_over_numbers([row[label] for row in rows]):
        lines, rows = lines[1:], rows[1:]
    for line, row in zip(lines, rows, strict=True):
        if not row[label] or (file is not None and not row[file]):
            what = "a label" if not row[label] else "the name of a file"
            raise FormatError(f"{path}: line {line}: expected {what}, got an empty cell")
    files = None if file is None else [row[file] for row in rows]
    return Table(path, lines, [row[label] for row in rows], files)


def _read_rows(path: str) -> tuple[list[int], list[list[str]]]:
    lines, rows = [], []
    try:
        # Names that are not UTF-8 become what os.listdir makes of them.
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            first = next((line for line in file if line.strip()), "")
            file.seek(0)
            delimiter = next((d for d in ",;\t" if d in first), ",")
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    rows.append(cells)
                    lines.append(reader.line_num)
    except FileNotFoundError:
        raise MissingError(
            f"{path}: expected a CSV file, got nothing there", filename=path
        ) from None
    except OSError as error:
        raise ReadError(
            f'{path}: expected a readable file, got "{error.strerror}"',
            errno=error.errno or 0,
            filename=path,
        ) from None
    except csv.Error as error:
        raise FormatError(f'{path}: line {reader.line_num}: expected CSV, got "{error}"') from None
    return lines, rows


def _has_headings(rows: list[list[str]]) -> bool:
    """Whether a cell of the first line is a heading that does not come again below it."""
    known = _LABEL if len(rows[0]) == 1 else _FILE + _LABEL
    return any(
        cell.lower() in known and all(row[column] != cell for row in rows[1:])
        for column, cell in enumerate(rows[0])
    )


def _is_over_numbers(column: list[str]) -> bool:
    """Whether the first cell is not a number and all others are."""
    return len(column) > 1 and not _is_number(column[0]) and all(map(_is_number, column[1:]))


def _columns(headings: Sequence[str]) -> tuple[int | None, int]:
    """The column that names files, None where there is one column only, and that of labels."""
    n = len(headings)
    if n == 1:
        return None, 0
    file = next((headings.index(name) for name in _FILE if name in headings), None)
    label = next((headings.index(name) for name in _LABEL if name in headings), None)
    if label is None:
        label = n - 1 if file != n - 1 else n - 2
    if file is None:
        file = 0 if label != 0 else 1
    return file, label


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # 1_000 is a number to Python alone


def values(
    table: Table, *, classes: list[str] | None, order: str | None
) -> tuple[npt.NDArray[Any], list[str] | None]:
    """One label per row, and the classes that their numbers stand for.

    Without `classes`, numbers are int64, or float64 when some are not whole; other labels are names
    of classes, which are numbered in order. With `classes` all labels are such names.

    Raises:
        FormatError: numbers and names are mixed, a number does not fit, a name is not one of
            `classes`.
    """
    cells = table.labels
    if classes is None:
        is_number = [_is_number(cell) for cell in cells]
        if all(is_number):
            return _numbers(table), None
        if any(is_number):
            row, number = is_number.index(False), is_number.index(True)
            raise FormatError(
                f"{table.path}: line {table.lines[row]}: expected a number as in line "
                f"{table.lines[number]}, got {cells[row]!r}; pass classes= if all are class names"
            )
        classes = in_order(set(cells), order)
    numbers = numbers_of(cells, classes)
    if len(numbers) and numbers.min() < 0:
        row = int(numbers.argmin())
        raise FormatError(
            f"{table.path}: line {table.lines[row]}: expected one of the classes {shown(classes)}, "
            f"got {cells[row]!r}"
        )
    return as_small(numbers, len(classes)), classes


def _numbers(table: Table) -> npt.NDArray[Any]:
    if not all(_WHOLE.fullmatch(cell) for cell in table.labels):
        return np.array([float(cell) for cell in table.labels], np.float64)
    whole = [int(cell) if len(cell) < 25 else 2**63 for cell in table.labels]
    for line, number, cell in zip(table.lines, whole, table.labels, strict=True):
        if not -(2**63) <= number < 2**63:
            raise FormatError(f"{table.path}: line {line}: expected a number of int64, got {cell}")
    return np.array(whole, np.int64)


def rows_of(table: Table, paths: Sequence[str], *, wanted: Ints, folder: str | None) -> Ints:
    """The row of each file, matched by name: the end of its path, with or without suffix.

    Args:
        table: with names of files.
        paths: all files found.
        wanted: the files, by position in `paths`, that must have a row.
        folder: the folder that was searched: of several files whose paths end alike, one is meant
            whose path below this folder is the name.

    Returns:
        Rows (n_paths,), -1 for a file that has none and is not wanted.

    Raises:
        FormatError: a row names no file or several, a file has several rows or none.
    """
    assert table.files is not None
    ends = _Ends(paths, folder)
    found = [ends.find(name) for name in table.files]
    for line, name, files in zip(table.lines, table.files, found, strict=True):
        if len(files) > 1:
            raise FormatError(
                f"{table.path}: line {line}: expected a name of one file, got {name!r} for "
                f"{files[0]} and {files[1]}; write more of the path"
            )
    strange = [i for i, files in enumerate(found) if not files]
    if strange:
        raise FormatError(
            f"{table.path}: line {table.lines[strange[0]]}: expected the path, name or stem of one "
            f"of {len(paths)} files, got {table.files[strange[0]]!r}{_more(strange)}; remove such "
            "lines"
        )
    row_of: dict[str, int] = {}
    for row, (file,) in enumerate(found):
        if file in row_of:
            raise FormatError(
                f"{table.path}: line {table.lines[row]}: expected one row for each file, got "
                f"{file} as in line {table.lines[row_of[file]]}; remove one"
            )
        row_of[file] = row
    rows = np.array([row_of.get(os.path.abspath(path), -1) for path in paths], np.int64)
    missing = wanted[rows[wanted] < 0].tolist()
    if missing:
        raise FormatError(
            f"{table.path}: expected a row for each of {len(wanted)} files, got none for "
            f"{paths[missing[0]]}{_more(missing)}; add them"
        )
    return rows


def _more(those: Sequence[object]) -> str:
    return f" and {len(those) - 1} more" if len(those) > 1 else ""


class _Ends:
    """Finds files by the last parts of their paths."""

    def __init__(self, paths: Sequence[str], folder: str | None) -> None:
        self._paths = list(dict.fromkeys(map(os.path.abspath, paths)))
        self._folder = folder
        # By the number of parts: tables from names, and from names without suffix, to files.
        self._tables: dict[int, tuple[dict[str, list[str]], dict[str, list[str]]]] = {}

    def find(self, name: str) -> list[str]:
        """Absolute paths of the files that `name` may mean."""
        name = os.path.normpath(name)
        n_parts = 0 if os.path.isabs(name) else name.count(os.sep) + 1
        if n_parts not in self._tables:
            self._tables[n_parts] = self._index(n_parts)
        whole, stems = self._tables[n_parts]
        files = whole.get(name) or stems.get(name, [])
        if len(files) > 1 and self._folder is not None:
            exact = os.path.abspath(os.path.join(self._folder, name))
            files = [f for f in files if exact in (f, os.path.splitext(f)[0])] or files
        return files

    def _index(self, n_parts: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        whole: dict[str, list[str]] = {}
        stems: dict[str, list[str]] = {}
        for path in self._paths:
            end = os.sep.join(path.rsplit(os.sep, n_parts)[-n_parts:]) if n_parts else path
            whole.setdefault(end, []).append(path)
            stems.setdefault(os.path.splitext(end)[0], []).append(path)
        return whole, stems
