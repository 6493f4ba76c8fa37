"""The NamedTuples that batches are."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any


@functools.cache
def batch_type(names: tuple[str, ...]) -> Any:
    """The type of a batch with these fields: a NamedTuple that can be pickled."""
    made = namedtuple("Batch", names)  # type: ignore[misc]
    made.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
    return made


def _reduce(batch: Any) -> Any:
    return _rebuild, (batch._fields, tuple(batch))


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return batch_type(names)(*values)
