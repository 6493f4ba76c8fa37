"""Strided boxes of elements in guarded memory."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

GUARD = 0xA5


def view(
    memory: np.ndarray, dtype: object, offset: int, shape: tuple, strides: tuple
) -> np.ndarray:
    """Elements of `memory` (uint8) at any byte and strides; NumPy checks that they are in it."""
    return np.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)


@st.composite
def layouts(draw, shape, nbytes, *, may_overlap):
    """An offset, strides, and the bytes that a box of this shape then takes."""
    strides, extent = [0] * len(shape), nbytes
    for axis in draw(st.permutations(range(len(shape)))):
        step = extent + draw(st.sampled_from([0, 0, 0, 1, nbytes, 13]))
        if may_overlap:
            step = draw(st.sampled_from([step, step, 0, 1]))
        strides[axis] = step
        extent = max(extent, step * max(shape[axis] - 1, 0) + extent)
    offset = draw(st.integers(0, 17))
    end = offset + extent
    for axis, n in enumerate(shape):
        if draw(st.integers(0, 3)) == 0 and n > 0:
            offset += strides[axis] * (n - 1)
            strides[axis] = -strides[axis]
    return offset, tuple(strides), end + draw(st.integers(0, 17))
