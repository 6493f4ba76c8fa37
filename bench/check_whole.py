"""Tell whether a loader delivered whole samples rightly: padded, scaled, or rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bench import data
from bench.check import expect, expect_shuffled
from bench.peers import Batch

Floats = npt.NDArray[np.float32]


def padclass_epochs(batches: Iterator[Batch], n_epochs: int, files: data.PadclassFiles) -> None:
    """Check the first epochs: every array once in each, centred in zeros, with its label."""

    def numbers(batch: Batch) -> data.Labels:
        x, y = batch
        arrays = padded_arrays(_floats(x), files)
        expect("labels", y.tolist(), files.labels[arrays].tolist())
        return arrays

    _check_epochs(batches, n_epochs, data.PAD_ARRAYS, numbers)


def padded_arrays(x: Floats, files: data.PadclassFiles) -> data.Labels:
    """Return which array each sample is, having checked all of its elements."""
    expect("shape", x.shape[1:], data.PAD_SHAPE)
    height, width, _ = data.PAD_SHAPE
    centres = x[:, height // 2, width // 2, 0].view(np.int32).astype(np.int64) - data.BASE_BITS
    arrays = np.searchsorted(files.firsts, centres, side="right") - 1
    for sample, array in zip(x, arrays.tolist(), strict=True):
        h, w, channels = files.shapes[array].tolist()
        top, left = (height - h) // 2, (width - w) // 2
        inside = sample[top : top + h, left : left + w]
        want = data.numbered(int(files.firsts[array]), (h, w, channels))
        expect("values", bool(np.array_equal(inside, want)), True)
        expect("elements that are not 0", np.count_nonzero(sample), want.size)
    return arrays


@dataclass(frozen=True, slots=True)
class Stack:
    """The samples of the stack, stored as uint8. `exact`: x is stored value times float32(1/255).
    Otherwise x may be a division by 255, which differs from that by one unit in the last place."""

    samples: npt.NDArray[np.uint8]
    exact: bool

    def check_epochs(self, batches: Iterator[Batch], n_epochs: int) -> None:
        """Check the first epochs: every sample once in each, scaled to [0, 1]."""
        _check_epochs(batches, n_epochs, len(self.samples), self._numbers)

    def _numbers(self, batch: Batch) -> data.Labels:
        (tensor,) = batch
        x = _floats(tensor)
        low, high = np.rint(x.reshape(len(x), -1)[:, :2] * 255).astype(np.int64).T
        numbers = low + 256 * high
        expect("sample numbers", bool((numbers < len(self.samples)).all()), True)
        want = self.samples[numbers] * np.float32(1 / 255)
        expect("shape", x.shape, want.shape)
        most = 0 if self.exact else np.spacing(want)
        expect("values", bool((np.abs(x - want) <= most).all()), True)
        return numbers


def in_memory_epochs(batches: Iterator[Batch], n_epochs: int) -> None:
    """Check the first epochs: every row once in each, the features of one row side by side."""

    def numbers(batch: Batch) -> data.Labels:
        x1, x2, x3 = (_floats(x) for x in batch)
        expect("shapes", {x.shape for x in (x1, x2, x3)}, {(len(x1), 1)})
        expect("rows", bool((x2 == -x1).all() and (x3 == 2 * x1).all()), True)
        return x1[:, 0].astype(np.int64)

    _check_epochs(batches, n_epochs, data.IN_MEMORY, numbers)


def _check_epochs(
    batches: Iterator[Batch], n_epochs: int, n_samples: int, numbers: Callable[[Batch], data.Labels]
) -> None:
    """Check that the samples of each epoch, of a batch the `numbers`, are all and are shuffled."""
    found = []
    n_found = 0
    while n_found < n_epochs * n_samples:
        found.append(numbers(next(batches)))
        n_found += len(found[-1])
    # A loader may let a batch span two epochs; the samples of an epoch are counted all the same.
    epochs = np.concatenate(found)[: n_epochs * n_samples].reshape(n_epochs, n_samples)
    for epoch in epochs:
        expect("every sample once", bool((np.sort(epoch) == np.arange(n_samples)).all()), True)
        expect_shuffled(epoch, n_samples)
    expect("different epochs", len(np.unique(epochs, axis=0)), n_epochs)


def _floats(x: torch.Tensor) -> Floats:
    expect("dtype", x.dtype, torch.float32)
    expect("device", (x.device.type, x.is_contiguous()), ("cpu", True))
    return x.numpy()
