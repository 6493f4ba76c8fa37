"""Five files of different shapes, and the comparison of sources over them."""

from __future__ import annotations

import numpy as np

import gpuload as gl

NAMES = [f"{i}.npy" for i in range(5)]


def assert_same(source: gl.Source, want: gl.Source) -> None:
    assert list(source.paths) == list(want.paths)
    assert source.shapes.tolist() == want.shapes.tolist()
    assert source.fingerprint() == want.fingerprint()
    for i in range(len(want)):
        np.testing.assert_array_equal(source[i], want[i])
