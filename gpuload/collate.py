"""collate(): from a list of items to a batch, as torch does; what it would hide is an error."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def collate(items: Sequence[Any], numbers: Sequence[int]) -> Any:
    """Put items together, with one more axis in front.

    Structure and types are those of torch.utils.data.default_collate: tensors, arrays and numbers
    become tensors, dicts and NamedTuples keep their kind, tuples become lists, strings lists of
    strings. Arrays may be read-only, reversed or of the other byte order. The batch shares no
    memory with the items.

    Args:
        items: one or more.
        numbers: what they are called in messages.

    Raises:
        TypeError: an item is None, of another kind or element type than the first, or nothing that
            a batch can be made of.
        ValueError: keys, lengths or shapes differ from those of the first item.
    """
    return _collate(list(items), _Place("batch", numbers))


class _Place:
    """Where in the batch we are, for messages."""

    def __init__(self, path: str, numbers: Sequence[int]) -> None:
        self.path = path
        self.numbers = numbers

    def within(self, key: object) -> _Place:
        return _Place(f"{self.path}[{key!r}]", self.numbers)

    def attribute(self, name: str) -> _Place:
        return _Place(f"{self.path}.{name}", self.numbers)

    def differs(self, k: int, expected: object, got: object, remedy: str) -> str:
        """Item `k` of the batch is not as the first."""
        return (
            f"{self.path}: expected {expected} as in item {self.numbers[0]}, got {got} in item "
            f"{self.numbers[k]}; {remedy}"
        )


def _collate(parts: list[Any], at: _Place) -> Any:
    first = parts[0]
    kind = next((kind for kind in _KINDS if kind.has(first)), None)
    if kind is None or len(set(map(type, parts))) > 1:
        _check_kinds(parts, kind, at)
    assert kind is not None
    return kind.collate(parts, at)


def _check_kinds(parts: list[Any], kind: _Kind | None, at: _Place) -> None:
    """All items have a value of the first one's kind."""
    for k, part in enumerate(parts):
        if part is None:
            raise TypeError(
                f"{at.path}: expected a value in each item, item {at.numbers[k]} is None; give "
                "all items a value, or none"
            )
    if kind is None:
        raise TypeError(
            f"{at.path}: expected tensors, arrays, numbers, strings, or dicts, tuples and lists of "
            f"them, got {type(parts[0]).__name__} in item {at.numbers[0]}; pass collate_fn="
        )
    for k, part in enumerate(parts):
        if not kind.has(part):
            remedy = "give all items the same kinds"
            raise TypeError(at.differs(k, kind.name, type(part).__name__, remedy))


# ---- Containers


def _dict(parts: list[Mapping[Any, Any]], at: _Place) -> Any:
    first = parts[0]
    for k, part in enumerate(parts):
        if part.keys() != first.keys():
            missing = [key for key in first if key not in part]
            expected, got = (
                (f"key {missing[0]!r}", "none")
                if missing
                else ("no other keys than", f"{next(key for key in part if key not in first)!r}")
            )
            raise ValueError(at.differs(k, expected, got, "give all items the same keys"))
    made = {key: _collate([part[key] for part in parts], at.within(key)) for key in first}
    try:
        if isinstance(first, MutableMapping):
            filled = copy.copy(first)  # of its kind, whatever it takes to make one
            filled.update(made)
            return filled
        return type(first)(made)  # type: ignore[call-arg]
    except TypeError:
        return made


def _named_tuple(parts: list[Any], at: _Place) -> Any:
    first = parts[0]
    for k, part in enumerate(parts):
        if part._fields != first._fields:
            remedy = "give all items the same fields"
            raise ValueError(at.differs(k, f"fields {first._fields}", part._fields, remedy))
    return type(first)(
        *(
            _collate(list(values), at.attribute(name))
            for name, values in zip(first._fields, zip(*parts, strict=True), strict=True)
        )
    )


def _sequence(parts: list[Sequence[Any]], at: _Place) -> Any:
    first = parts[0]
    for k, part in enumerate(parts):
        if len(part) != len(first):
            remedy = "give all items as many, or pass collate_fn="
            raise ValueError(at.differs(k, f"{len(first)} elements", len(part), remedy))
    made = [
        _collate(list(values), at.within(i)) for i, values in enumerate(zip(*parts, strict=True))
    ]
    if isinstance(first, tuple):
        return made  # as torch does
    try:
        if isinstance(first, MutableSequence):
            filled = copy.copy(first)
            for i, value in enumerate(made):
                filled[i] = value
            return filled
        return type(first)(made)  # type: ignore[call-arg]
    except TypeError:
        return made


# ---- Leaves


def _strings(parts: list[Any], at: _Place) -> list[Any]:
    return parts


def _tensors(parts: list[torch.Tensor], at: _Place) -> Any:
    looks = {(part.dtype, part.layout, part.device.type, part.is_nested) for part in parts}
    if looks != {(parts[0].dtype, torch.strided, "cpu", False)}:
        _check_dense(parts, at)
    shape = parts[0].shape
    if len(looks) > 1 or any(part.shape != shape for part in parts):
        _check_alike([(part.dtype, tuple(part.shape)) for part in parts], at)
    return torch.utils.data.default_collate(parts)  # in shared memory, when in a worker of torch


def _check_dense(parts: list[torch.Tensor], at: _Place) -> None:
    """Tensors are bytes in a row, in host memory."""
    for k, part in enumerate(parts):
        if part.device.type != "cpu":
            raise TypeError(
                f"{at.path}: expected tensors on the CPU, got one on {part.device} in item "
                f"{at.numbers[k]}; a dataset must not use CUDA, batches are taken to the device by "
                "the loader"
            )
        if part.layout != torch.strided or part.is_nested:
            kind = "nested" if part.is_nested else part.layout
            raise TypeError(
                f"{at.path}: expected dense tensors, got a tensor ({kind}) in item "
                f"{at.numbers[k]}; pass collate_fn="
            )


def _numbers(parts: list[Any], at: _Place) -> Any:
    dtype = _DTYPES.get(type(parts[0]))
    if dtype is not None and len(set(map(type, parts))) == 1:
        with contextlib.suppress(OverflowError):  # told below
            return torch.from_numpy(np.array(parts, dtype))
    arrays = [_array(part, at, k) for k, part in enumerate(parts)]
    _check_alike([(array.dtype.newbyteorder("="), array.shape) for array in arrays], at)
    stacked = np.stack(arrays).view(np.ndarray)
    return torch.from_numpy(stacked.astype(stacked.dtype.newbyteorder("="), copy=False))


_DTYPES = {bool: np.bool_, int: np.int64, float: np.float64}  # of Python's own numbers


def _array(part: Any, at: _Place, k: int) -> np.ndarray[Any, Any]:
    if isinstance(part, int) and not -(2**63) <= part < 2**63:
        raise ValueError(
            f"{at.path}: expected numbers of 64 bits, got {part} in item {at.numbers[k]}; make it "
            "a float or a string"
        )
    array = np.asarray(part)
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise TypeError(
            f"{at.path}: expected numbers, got {array.dtype} in item {at.numbers[k]}; make them "
            "numbers or strings"
        )
    return array


def _check_alike(looks: list[tuple[Any, tuple[int, ...]]], at: _Place) -> None:
    """One element type and one shape."""
    dtype, shape = looks[0]
    for k, look in enumerate(looks):
        if look[0] != dtype:
            raise TypeError(at.differs(k, dtype, look[0], "give all items one element type"))
        if look[1] != shape:
            remedy = "pad or crop them in the dataset, or pass collate_fn="
            raise ValueError(at.differs(k, f"shape {shape}", look[1], remedy))


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    types: type | tuple[type, ...]
    collate: Callable[[list[Any], _Place], Any]
    attribute: str | None = None

    def has(self, part: Any) -> bool:
        return isinstance(part, self.types) and (
            self.attribute is None or hasattr(part, self.attribute)
        )


# In the order they are looked for.
_KINDS = (
    _Kind("Tensor", torch.Tensor, _tensors),
    _Kind("str", str, _strings),
    _Kind("bytes", bytes, _strings),
    _Kind("number or array", (np.ndarray, np.generic, bool, int, float), _numbers),
    _Kind("dict", Mapping, _dict),
    _Kind("NamedTuple", tuple, _named_tuple, "_fields"),
    _Kind("list or tuple", Sequence, _sequence),
)
