"""The place kernel: values scaled on their way, step by step in the stated precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from boxes import GUARD
from casts import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from placed import REAL, Piece, check, operation, scaled_batches

from gpuload.devices import Affine
from gpuload.devices.arguments import pack_place
from gpuload.devices.programs import FLOATS
from gpuload.dtypes import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@settings(deadline=None, max_examples=200)
@given(batch=scaled_batches(st.sampled_from(list(itertools.product(REAL, FLOATS)))))
def test_values_are_scaled_step_by_step_in_the_stated_precision(host_kernels, batch):
    check(host_kernels, *batch)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", REAL)
def test_every_pair_of_types_scaled(host_kernels, source, target):
    values = samples(source)
    rows = 3
    src = np.concatenate([values] * rows).view(np.uint8)
    width, pair = DTYPES[target].nbytes, (source, target)
    n = len(values)
    channels = torch.tensor([[0.5, 0.25], [-3.0, 7.0], [100.0, 0.1]], dtype=torch.float64)
    op = operation(
        src,
        np.full(rows * n * width, GUARD, np.uint8),
        pair,
        shape=(rows, n),
        src_stride=(n * values.itemsize, values.itemsize),
        dst_stride=(n * width, width),
        affine=Affine(1 / 255, channels, 0),
    )
    check(host_kernels, op, [Piece((rows, n), 0, op.src_stride, 0, op.dst_stride)], pair)


def test_scaled_known_values(host_kernels):
    """uint8 in [0, 255] to [0, 1], then mean and standard deviation of three channels."""
    image = np.array([[0, 255], [51, 102], [204, 153]], np.uint8)
    out = np.zeros((3, 2), np.float32)
    channels = torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.25, 2.0]], dtype=torch.float64)
    op = operation(
        image.reshape(-1),
        out.reshape(-1).view(np.uint8),
        ("uint8", "float32"),
        shape=(3, 2),
        src_stride=(2, 1),
        dst_stride=(8, 4),
        affine=Affine(1 / 255, channels, 0),
    )
    host_kernels.run(pack_place(op))
    want = [[-1, 1], [0.2, 0.4], [0.275, 0.175]]
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)
