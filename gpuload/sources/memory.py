"""arrays(): arrays and tensors in memory to a Source. Their data are used where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.catalog import FORTRAN, SWAPPED, Catalog, Ints, Layout, Paths
from gpuload.dtypes import DTYPES, Dtype
from gpuload.errors import UnsupportedDtypeError
from gpuload.sources.axes import check_names, share_axes
from gpuload.sources.source import Field, Source, first_field

_PLACE = "arrays: "  # what their "paths" begin with


def arrays(*arrays: Any, **named: Any) -> Source:
    """Make a source of arrays in memory, of which row i of each belongs to item i.

    C- and F-contiguous data of either byte order are used in place and never copied: a memory map
    stays mapped, and what is written to the array later is seen by later batches. Other data
    (slices with steps, transposed volumes) are copied here, once. Batches have memory of their
    own. Pickling takes the data along.

    Args:
        arrays: NumPy arrays or CPU tensors of (n, ...). Fields of the source are named "x" when
            there is one of these, else "x1", "x2", ...
        named: the same, with names of their own.

    Raises:
        TypeError: something that is neither, a tensor elsewhere or of another kind.
        UnsupportedDtypeError: objects, text, dates, records or long doubles.
        ValueError: arrays of different lengths, none, or without rows; a name that cannot be one.
    """
    names = ["x"] if len(arrays) == 1 else [f"x{i + 1}" for i in range(len(arrays))]
    both = [name for name in names if name in named]
    if both:
        raise ValueError(
            f"arrays: expected names of their own, got {both[0]!r} twice; arrays without a name "
            f"are called {', '.join(names)}"
        )
    check_names(named, "arrays")
    given = dict(zip(names, arrays, strict=True)) | named
    if not given:
        raise ValueError("arrays: expected at least one array, got none")
    typed = {name: _typed(_PLACE + name, array) for name, array in given.items()}
    _check_lengths({name: len(array) for name, (array, _) in typed.items()})
    catalogs = {name: _catalog(_PLACE + name, *pair) for name, pair in typed.items()}
    first, *others = catalogs
    fields = [first_field(catalogs[first], first)]
    fields += [
        Field(name, catalogs[name], _axes(catalogs[first], catalogs[name])) for name in others
    ]
    return Source(fields)


@dataclass(frozen=True)
class Held:
    """The bytes of one array, which stand for a file."""

    flat: npt.NDArray[np.uint8]  # bytes: NumPy's pickles change the byte order of numbers

    name, place = "", "memory"

    def arrays(self, files: Ints) -> Sequence[npt.NDArray[np.uint8]]:
        return [self.flat]


def _check_lengths(n_rows: dict[str, int]) -> None:
    first, *_ = n_rows
    for name, n in n_rows.items():
        if n != n_rows[first]:
            raise ValueError(
                f"{_PLACE}{name}: expected {n_rows[first]} rows as in {first}, got {n}"
            )
    if n_rows[first] == 0:
        raise ValueError(f"{_PLACE}{first}: expected at least one row, got none")


def _axes(first: Catalog, other: Catalog) -> tuple[int, ...]:
    """Axes that rows share with those of the first array; none where they are of another kind."""
    axes = share_axes(first.item_shape_of_array, other.item_shape_of_array)
    return (-1,) * (other.shape.shape[1] - 1) if isinstance(axes, int) else axes


def _catalog(path: str, array: npt.NDArray[Any], dtype: Dtype) -> Catalog:
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)
    is_fortran = not array.flags.c_contiguous
    return Catalog(
        paths=Paths.of([path]),
        sizes=np.array([array.nbytes], np.int64),
        file=np.zeros(1, np.uint32),
        offset=np.zeros(1, np.int64),
        shape=np.array([array.shape], np.int64),
        flags=np.array([FORTRAN * is_fortran + SWAPPED * (not array.dtype.isnative)], np.uint8),
        layout=Layout(dtype, dtype.nbytes),
        sample_axis=0,
        contents=Held(array.view(np.ndarray).ravel(order="K").view(np.uint8)),
    )


def _typed(where: str, given: Any) -> tuple[npt.NDArray[Any], Dtype]:
    """An array in memory as NumPy has it, and its element type."""
    if isinstance(given, torch.Tensor):
        array, dtype = _of_tensor(where, given)
    elif isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray):
        array, dtype = given, _dtype(where, given.dtype)
    else:
        remedy = "array.filled()" if isinstance(given, np.ma.MaskedArray) else "numpy.asarray of it"
        raise TypeError(
            f"{where}: expected a NumPy array or a CPU tensor, got {type(given).__name__}; pass "
            f"{remedy}"
        )
    if array.ndim == 0:
        raise ValueError(f"{where}: expected an axis of items, got a single number")
    return array, dtype


def _dtype(where: str, dtype: np.dtype[Any]) -> Dtype:
    found = DTYPES.get(dtype.name)
    if found is not None:
        return found
    if dtype.names is not None:
        got, remedy = "a structured dtype", f"one of its fields, array[{dtype.names[0]!r}]"
    elif dtype.hasobject:
        got, remedy = "objects", "numbers, array.astype(float)"
    else:
        got, remedy = f"{dtype.name} ({dtype.str})", "numbers"
    raise UnsupportedDtypeError(
        f"{where}: expected one of {', '.join(DTYPES)}, got {got}; pass {remedy}"
    )


def _of_tensor(where: str, tensor: torch.Tensor) -> tuple[npt.NDArray[Any], Dtype]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        kind = "nested" if tensor.is_nested else kind
        raise TypeError(
            f"{where}: expected a dense tensor, got one that is {kind}; pass a dense copy of it"
        )
    if tensor.device.type != "cpu":
        raise TypeError(
            f"{where}: expected a tensor in host memory, got one on {tensor.device}; pass "
            "tensor.cpu()"
        )
    dtype = DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise UnsupportedDtypeError(
            f"{where}: expected one of {', '.join(DTYPES)}, got {tensor.dtype}; pass numbers of "
            "one of these"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)  # NumPy has no such type; the bytes are the same
    return plain.numpy(), dtype
