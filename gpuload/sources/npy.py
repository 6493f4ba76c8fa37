"""NPY files: headers in, a checked Catalog out. Only headers are read, and nothing is ever
unpickled."""

from __future__ import annotations

import ast
import math
import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import _native
from gpuload.catalog import FORTRAN, SWAPPED, Catalog, Ints, Layout, Paths
from gpuload.dtypes import DTYPES, Dtype, from_numpy
from gpuload.errors import (
    FormatError,
    GpuloadError,
    MissingError,
    ReadError,
    UnsupportedDtypeError,
)
from gpuload.sources import formats
from gpuload.sources.headers import Headers, Status

_LARGEST = 2**62  # bytes: far above any file, below an overflow of int64
_MOST_AXES = 32
_NOTED = 20  # bad files beside the first that an error tells of

_FOREIGN = "that is not one; save it with numpy.save"

# Python 2 wrote whole numbers as 10L. Quoted text is matched first and kept.
_LONG = re.compile(r"""('[^']*'|"[^"]*")|\b(\d+)L\b""")


@dataclass(frozen=True, slots=True)
class _Form:
    """What a descr says: how an element lies in the file, and whether its bytes are swapped."""

    layout: Layout
    swapped: bool


def read_catalog(
    headers: Headers,
    *,
    member: str | None,
    dtype: Dtype | None,
    sample_axis: int | None,
    on_error: str,
) -> tuple[Catalog, Ints, list[str]]:
    """Check the headers of NPY files against the files and each other.

    Args:
        headers: as scanned, one row per file.
        member: the field of a structured dtype to read, "a" or "a.b".
        dtype: what two-byte void elements ("|V2") stand for.
        sample_axis: the axis whose rows are items; file lengths along it may differ.
        on_error: "raise", or "skip" to leave bad files out.

    Returns:
        The catalog, the rows of `headers` that are in it, and one message per file left out.

    Raises:
        FormatError, UnsupportedDtypeError, ReadError: a file is not as it should be, named by
            its path.
    """
    table = _Table(headers, member, dtype, sample_axis)
    good = table.ok.copy()
    problems = []
    for row in np.flatnonzero(~good):
        problem = table.check(int(row))
        good[row] = problem is None
        if problem is not None:
            problems.append(problem)
    if problems and on_error == "raise":
        raise _with_others(problems)
    messages = list(map(str, problems))
    if not good.any():
        raise FormatError(
            f"expected at least one readable file of {len(messages)}, got none; first: "
            f"{messages[0]}"
        )
    rows = np.flatnonzero(good)
    return table.catalog(rows), rows, messages


def _with_others(problems: list[GpuloadError]) -> GpuloadError:
    """The first of them, with a note that names others."""
    first, *others = problems
    if others:
        named = "\n".join(map(str, others[:_NOTED]))
        first.add_note(f"and {len(others)} other bad files:\n{named}")
    return first


class _Table:
    """Headers with what is derived from them, file by file."""

    def __init__(
        self, headers: Headers, member: str | None, dtype: Dtype | None, sample_axis: int | None
    ) -> None:
        n = len(headers.paths)
        self.headers = headers
        self.member = member
        self.dtype = dtype
        self.sample_axis = sample_axis
        self.shapes: list[tuple[int, ...] | None] = [None] * n
        self.forms: dict[object, _Form] = {}
        self.dictionaries: dict[tuple[bytes, int], tuple[object, bool, tuple[int, ...]]] = {}
        self.form_of: list[_Form | None] = [None] * n
        self.fortran = headers.fortran.copy()
        self.like: int | None = None  # the first good file: the others must agree with it
        self.ok = self._check_plain()

    def _check_plain(self) -> npt.NDArray[np.bool_]:
        """Find the files that agree with the first one at once, without a Python step for each."""
        h = self.headers
        n = len(h.paths)
        if n == 0 or h.status[0] != Status.PLAIN or self.check(0) is not None:
            return np.zeros(n, np.bool_)
        form, ndim = self.form_of[0], int(h.ndim[0])
        assert form is not None
        same = (h.status == Status.PLAIN) & (h.ndim == ndim) & (h.descr == h.descr[0]).all(axis=1)
        counts = np.ones(n, np.float64)  # float: exact up to 2**53, infinite rather than wrapped
        strides = np.full(n, float(max(form.layout.record_nbytes, 1)))
        with np.errstate(over="ignore", invalid="ignore"):
            for axis in range(ndim):
                counts *= h.shape[:, axis]
                strides *= np.maximum(h.shape[:, axis], 1)
                if axis != self.sample_axis and self.sample_axis is not None:
                    same &= h.shape[:, axis] == h.shape[0, axis]
            wanted = h.offset + counts * form.layout.record_nbytes
        return np.asarray(same & (wanted <= h.nbytes) & (strides < 2.0**53))

    def check(self, row: int) -> GpuloadError | None:
        """None for a good file, else what is wrong with it. Sets the row's shape and form."""
        try:
            self._check(row)
        except GpuloadError as error:
            return error
        if self.like is None:
            self.like = row
        return None

    def _check(self, row: int) -> None:
        path = self.headers.paths[row]
        descr, fortran, shape = self._dictionary(row, path)
        form = self._form(descr, path)
        axes = len(shape) + len(form.layout.sub_shape)
        if axes > _MOST_AXES:
            raise FormatError(f"{path}: expected at most {_MOST_AXES} axes, got {axes}")
        wanted = int(self.headers.offset[row]) + math.prod(shape) * form.layout.record_nbytes
        if wanted > self.headers.nbytes[row]:
            raise FormatError(
                f"{path}: expected {wanted} bytes by its header (shape {shape}), got "
                f"{self.headers.nbytes[row]}; the file was truncated or is not written yet"
            )
        # An array without elements may have axes of any length; strides are computed from them.
        if math.prod(max(n, 1) for n in shape) * max(form.layout.record_nbytes, 1) > _LARGEST:
            raise FormatError(f"{path}: expected axes that span less than 2**62 bytes, got {shape}")
        self.shapes[row], self.form_of[row], self.fortran[row] = shape, form, fortran
        self._check_sample_axis(path, shape)
        if self.like is not None:
            self._check_like(row, path)

    def _check_sample_axis(self, path: str, shape: tuple[int, ...]) -> None:
        if self.sample_axis is not None and self.sample_axis >= len(shape):
            raise FormatError(
                f"{path}: expected an axis {self.sample_axis} (sample_axis), got shape {shape}"
            )

    def _check_like(self, row: int, path: str) -> None:
        """Compare with the first good file: element type, number of axes, shape of rows."""
        assert self.like is not None
        first = self.headers.paths[self.like]
        form, other = self._known(row)[1], self._known(self.like)[1]
        remedy = 'pass on_error="skip" to leave such files out'
        if form.layout.dtype != other.layout.dtype:
            raise FormatError(
                f"{path}: expected {other.layout.dtype.name} as in {first}, "
                f"got {form.layout.dtype.name}; {remedy}"
            )
        if form.layout != other.layout:
            raise FormatError(
                f"{path}: expected the record layout of {first}, got another; {remedy}"
            )
        shape, like = self._known(row)[0], self._known(self.like)[0]
        if len(shape) != len(like):
            raise FormatError(
                f"{path}: expected {len(like)} axes as in {first} {like}, got {len(shape)} "
                f"{shape}; {remedy}"
            )
        if self.sample_axis is not None:
            rows = [n for axis, n in enumerate(shape) if axis != self.sample_axis]
            if rows != [n for axis, n in enumerate(like) if axis != self.sample_axis]:
                raise FormatError(
                    f"{path}: expected rows like those of {first} {like}, got {shape}; {remedy}"
                )

    def _known(self, row: int) -> tuple[tuple[int, ...], _Form]:
        shape, form = self.shapes[row], self.form_of[row]
        assert shape is not None
        assert form is not None
        return shape, form

    def _dictionary(self, row: int, path: str) -> tuple[object, bool, tuple[int, ...]]:
        """descr, fortran_order and shape of a header."""
        h = self.headers
        status = int(h.status[row])
        if status == Status.PLAIN:
            descr = h.descr[row].tobytes().rstrip(b"\0").decode("latin1")
            shape = tuple(int(n) for n in h.shape[row, : h.ndim[row]])
            return descr, bool(h.fortran[row]), shape
        if status == Status.OTHER:
            key = (h.texts[row], int(h.version[row]) >> 8)
            if key not in self.dictionaries:
                self.dictionaries[key] = parse_header(*key, path)
            return self.dictionaries[key]
        raise _problem(h, row, path)

    def _form(self, descr: object, path: str) -> _Form:
        key = repr(descr)
        if key not in self.forms:
            try:
                dtype = np.lib.format.descr_to_dtype(descr)  # type: ignore[arg-type]
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise FormatError(
                    f"{path}: expected a NumPy dtype in its header, got {_shortened(key)}"
                ) from error
            self.forms[key] = _form_of(dtype, self.member, self.dtype, path)
        return self.forms[key]

    def catalog(self, good: Ints) -> Catalog:
        """The table of the files in these rows."""
        h = self.headers
        assert self.like is not None
        like_shape, like = self._known(self.like)
        shape = np.zeros((len(h.paths), len(like_shape)), np.int64)
        width = min(len(like_shape), h.shape.shape[1])
        shape[:, :width] = h.shape[:, :width]
        swapped = np.full(len(h.paths), like.swapped)
        for row in np.flatnonzero(~self.ok):
            known, form = self.shapes[row], self.form_of[row]
            if known is not None and form is not None and len(known) == len(like_shape):
                shape[row], swapped[row] = known, form.swapped
        flags = (
            self.fortran[good].astype(np.uint8) * FORTRAN + swapped[good].astype(np.uint8) * SWAPPED
        )
        return Catalog(
            paths=h.paths if len(good) == len(h.paths) else h.paths.take(good),
            sizes=h.nbytes[good],
            file=np.arange(len(good), dtype=np.uint32),
            offset=h.offset[good],
            shape=np.ascontiguousarray(shape[good]),
            flags=flags,
            layout=like.layout,
            sample_axis=self.sample_axis,
        )


def _problem(h: Headers, row: int, path: str) -> GpuloadError:
    """What is wrong with a file whose header could not be read."""
    status, nbytes = int(h.status[row]), int(h.nbytes[row])
    if status == Status.TOLD:
        return h.problems[row]
    if status == Status.NO_ACCESS:
        kind = MissingError if h.error[row] in (2, 20) else ReadError  # ENOENT, ENOTDIR
        reason = os.strerror(int(h.error[row]))
        return kind(
            f'{path}: expected a readable file, got "{reason}"',
            errno=int(h.error[row]),
            filename=path,
        )
    if status == Status.BAD_VERSION:
        version = int(h.version[row])
        return FormatError(
            f"{path}: expected NPY version 1.0, 2.0 or 3.0, got unsupported version "
            f"{version >> 8}.{version & 255}"
        )
    if status == Status.CUT:
        least = 10 if h.version[row] >> 8 < 2 else 12  # magic, version, length of the header
        wanted = max(int(h.offset[row]), least)
        return FormatError(
            f"{path}: expected an NPY header of at least {wanted} bytes, got a file of {nbytes} "
            "bytes; the file was truncated"
        )
    if status == Status.TOO_LONG:
        return FormatError(
            f"{path}: expected an NPY header of at most 1 MiB, got {h.offset[row]} bytes"
        )
    return FormatError(
        f"{path}: expected an NPY file (it begins with \\x93NUMPY), got "
        f"{formats.of_another(path) or f'a file of {nbytes} bytes {_FOREIGN}'}"
    )


def parse_header(text: bytes, major: int, path: str) -> tuple[object, bool, tuple[int, ...]]:
    """Parse the dictionary of an NPY header as numpy/lib/format.py does.

    Raises:
        FormatError: it is not a dictionary of descr, fortran_order and shape, each of its type.
    """
    decoded = text.decode("utf8" if major >= 3 else "latin1", errors="replace")
    try:
        header = _literal(decoded, major)
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        raise FormatError(
            f"{path}: expected a dictionary in its NPY header, got {decoded[:60]!r}"
        ) from None
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise FormatError(
            f"{path}: expected descr, fortran_order and shape in its NPY header, got "
            f"{decoded[:60]!r}"
        )
    shape, fortran = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or not all(
        type(n) is int and n.bit_length() < 64 for n in shape
    ):
        raise FormatError(
            f"{path}: expected a tuple of whole numbers below 2**63 as its shape, got "
            f"{decoded[:120]!r}"
        )
    if any(n < 0 for n in shape):
        raise FormatError(
            f"{path}: expected axes of 0 or more in its shape, got {_shortened(str(shape))}"
        )
    if not isinstance(fortran, bool):
        raise FormatError(
            f"{path}: expected True or False as fortran_order, got {_shortened(repr(fortran))}"
        )
    return header["descr"], fortran, shape


def _literal(text: str, major: int) -> object:
    try:
        return ast.literal_eval(text.strip(" \t\n"))
    except SyntaxError:
        if major > 2:
            raise
        return ast.literal_eval(_LONG.sub(lambda m: m[1] or m[2], text).strip(" \t\n"))


def _form_of(dtype: np.dtype, member: str | None, override: Dtype | None, path: str) -> _Form:
    """Where the wanted element lies in one of `dtype`, and its own type."""
    record, offset = dtype, 0
    sub_shape: list[int] = []
    if record.hasobject:
        from_numpy(record, path)  # raises
    for name in member.split(".") if member else ():
        if record.names is None or name not in record.names:
            raise FormatError(
                f"{path}: expected a structured dtype with a member {name!r}, got "
                f"{_listed(_leaves(record)) if record.names else record}"
            )
        if sub_shape:
            raise FormatError(
                f"{path}: expected a member that is not inside an array, got {member!r}"
            )
        record, start = record.fields[name][:2]  # type: ignore[index]
        offset += start
        sub_shape += record.shape
        record = record.base
    if record.subdtype is not None:
        sub_shape += record.shape
        record = record.base
    if record.names is not None:
        raise FormatError(
            f"{path}: expected plain numbers, got a structured dtype; pass member= one of "
            f"{_listed(_leaves(record))}"
        )
    element = _element(record, override, path)
    swapped = not record.isnative if record.kind != "V" else False
    return _Form(Layout(element, dtype.itemsize, offset, tuple(int(n) for n in sub_shape)), swapped)


def _element(dtype: np.dtype, override: Dtype | None, path: str) -> Dtype:
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:
        if override is DTYPES["bfloat16"]:
            return override
        raise UnsupportedDtypeError(
            f'{path}: expected numbers, got |V2; if these are bfloat16, pass dtype="bfloat16" to '
            "gpuload.open"
        )
    element = from_numpy(dtype, path)
    if override is not None and override != element:
        raise FormatError(
            f"{path}: expected {override.name} (dtype=), got {element.name}; dtype= of "
            "gpuload.open only says what "
            "|V2 stands for, to cast pass dtype= to DataLoader"
        )
    return element


def _leaves(dtype: np.dtype, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in dtype.names or ():
        inner = dtype.fields[name][0].base  # type: ignore[index]
        found += _leaves(inner, f"{prefix}{name}.") if inner.names else [f"{prefix}{name}"]
    return found


def _listed(names: list[str]) -> str:
    """The first names, and how many more there are: a table may have thousands of fields."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def scan(paths: Paths, *, threads: int) -> Headers:
    """Read the headers of many NPY files on native threads, without the GIL."""
    columns: dict[str, Any] = _native.scan_npy(paths.blob, paths.ends, threads)
    return Headers(paths=paths, **columns)
