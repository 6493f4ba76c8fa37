"""Tell whether a loader delivered right windows with right labels, from the values alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from bench import data

Batch = tuple[torch.Tensor, torch.Tensor]


class WrongValuesError(AssertionError):
    """A loader delivered something else than windows of the arrays with their labels."""


def crop2d_epochs(batches: Iterator[Batch], n_epochs: int, labels: data.Labels) -> None:
    """Check the first epochs: every matrix PER_ARRAY times in each, all starts legal and in use."""
    found = []
    n_samples = 0
    while n_samples < n_epochs * data.EPOCH:
        x, y = next(batches)
        expect("shape", tuple(x.shape[1:]), (data.CROP, data.CROP))
        expect("samples and labels", len(x), len(y))
        first = _first_elements(x, y, (data.SIDE, data.SIDE))
        matrix = first // (data.SIDE * data.SIDE)
        expect("labels", y.tolist(), labels[matrix].tolist())
        found.append(first)
        n_samples += len(first)
    # A loader may let a batch span two epochs; the samples of an epoch are counted all the same.
    epochs = np.concatenate(found)[: n_epochs * data.EPOCH].reshape(n_epochs, data.EPOCH)
    for epoch in epochs:
        matrix, inside = np.divmod(epoch, data.SIDE * data.SIDE)
        counts = np.bincount(matrix, minlength=data.MATRICES)
        expect("crops per matrix", set(counts.tolist()), {data.PER_ARRAY})
        for starts in np.divmod(inside, data.SIDE):
            _expect_all_starts(starts, data.SIDE - data.CROP + 1)
        expect_shuffled(matrix, data.MATRICES)
    expect("different epochs", len(np.unique(epochs, axis=0)), n_epochs)


def volume_batches(batches: Iterable[Batch], side: int) -> None:
    """Check some batches of the volume workload: windows of the volume, at different places."""
    firsts: list[int] = []
    for x, y in batches:
        expect("shape", tuple(x.shape), (len(y), 1, *(data.VOLUME_CROP,) * 3))
        expect("labels", y.tolist(), [0] * len(y))
        firsts.extend(_first_elements(x[:, 0], y, (side, side, side)).tolist())
    expect("different windows", len(set(firsts)) > len(firsts) * 0.9, True)


def cold_window(x: npt.NDArray[np.float32]) -> None:
    """Check that `x` is the middle 32^3 window of a cold file."""
    begin = (data.COLD_SIDE - data.COLD_CROP) // 2
    want = data.numbered(0, (data.COLD_SIDE,) * 3)[(slice(begin, begin + data.COLD_CROP),) * 3]
    expect("window", bool(np.array_equal(x.reshape(want.shape), want)), True)


def _first_elements(x: torch.Tensor, y: torch.Tensor, shape: tuple[int, ...]) -> data.Labels:
    """Return the element number of each window's first element, having checked all the others."""
    expect("dtypes", (x.dtype, y.dtype), (torch.float32, torch.int64))
    expect("device", (x.device.type, x.is_contiguous()), ("cpu", True))
    numbers = x.numpy().view(np.int32).astype(np.int64) - data.BASE_BITS
    first = numbers.reshape(len(numbers), -1)[:, 0]
    window = numbers.shape[1:]
    offsets = np.arange(window[-1], dtype=np.int64)
    stride = 1
    for axis in range(len(window) - 2, -1, -1):
        stride *= shape[axis + 1]
        steps = np.arange(window[axis], dtype=np.int64) * stride
        offsets = steps.reshape(-1, *(1,) * offsets.ndim) + offsets
    expect(
        "window values",
        bool((numbers == first.reshape(-1, *(1,) * len(window)) + offsets).all()),
        True,
    )
    _expect_inside(first, window, shape)
    return first


def _expect_inside(first: data.Labels, window: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Check that no window wraps over the end of a row or plane."""
    rest = first
    for length, wanted in zip(reversed(shape), reversed(window), strict=True):
        rest, start = np.divmod(rest, length)
        expect("a start inside", bool((start + wanted <= length).all()), True)


def _expect_all_starts(starts: data.Labels, n_starts: int) -> None:
    counts = np.bincount(starts, minlength=n_starts)
    expect("legal starts in use", (len(counts), int((counts > 0).sum())), (n_starts, n_starts))


def expect_shuffled(order: data.Labels, n: int) -> None:
    """Check how far apart neighbours of an order of numbers below `n` are: n / 3 when random."""
    expect("a global shuffle", float(np.abs(np.diff(order)).mean()) > n / 4, True)


def expect(what: str, got: object, want: object) -> None:
    """Raise WrongValuesError unless both are equal."""
    if got != want:
        raise WrongValuesError(f"{what}: expected {want}, got {got}")
