"""Element types: their names, numbers in the native code, and forms in NumPy and PyTorch. No I/O
here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpuload.errors import UnsupportedDtypeError


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type. `number` is its position in csrc/dtype.hpp; `nbytes` the size of an
    element."""

    name: str
    number: int
    nbytes: int

    @property
    def torch(self) -> torch.dtype:
        dtype = getattr(torch, self.name)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def is_complex(self) -> bool:
        return self.name.startswith("complex")


# In the order of csrc/dtype.hpp.
_SIZES = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
DTYPES = {name: Dtype(name, i, nbytes) for i, (name, nbytes) in enumerate(_SIZES.items())}
INT64 = DTYPES["int64"]
BOOL = DTYPES["bool"]


def parse(spec: object, where: str) -> Dtype:
    """The element type that a user names as "float32", numpy.float32 or torch.float32.

    Raises:
        TypeError: `spec` names none of them; `where` is put before the message.
    """
    if isinstance(spec, torch.dtype):
        name = str(spec).removeprefix("torch.")
    elif isinstance(spec, str) and spec in DTYPES:
        name = spec
    else:
        try:
            name = np.dtype(spec).name  # type: ignore[call-overload]
        except TypeError:
            name = repr(spec)
    if name not in DTYPES:
        raise TypeError(f"{where}: expected one of {', '.join(DTYPES)}, got {name}")
    return DTYPES[name]


def from_numpy(dtype: np.dtype, where: str) -> Dtype:
    """The element type of a NumPy dtype of either byte order.

    Raises:
        UnsupportedDtypeError: objects, text, dates, records or long doubles.
    """
    if dtype.hasobject:
        raise UnsupportedDtypeError(
            f"{where}: expected numbers, got an object array, pickle is not loaded; save numbers"
        )
    found = DTYPES.get(dtype.name)
    if found is None:
        raise UnsupportedDtypeError(
            f"{where}: expected one of {', '.join(DTYPES)}, got {dtype.name} ({dtype.str}); "
            "convert the file"
        )
    return found
