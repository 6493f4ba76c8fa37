"""Loops without a loader over whole samples: what Python allows.

Those into buffers that are used again overwrite a batch two batches later: it is not the caller's
to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.torch_rows import Array, kept_maps
from bench.peers.torch_whole import SCALE, Bytes, Features, place_of

BUFFERS = 2


class Loop:
    """Batches of `fill`, which takes the samples of a batch and its number."""

    def __init__(
        self, n_samples: int, batch_size: int, fill: Callable[[np.ndarray, int], Batch]
    ) -> None:
        self.n_samples, self.batch_size, self.fill = n_samples, batch_size, fill

    def batches(self) -> Iterator[Batch]:
        rng = np.random.default_rng(0)
        batch_number = 0
        while True:
            order = rng.permutation(self.n_samples)
            for begin in range(0, self.n_samples, self.batch_size):
                yield self.fill(order[begin : begin + self.batch_size], batch_number % BUFFERS)
                batch_number += 1

    def close(self) -> None:
        """Nothing runs between batches."""


class PadLoop(Loop):
    def __init__(self, arrays: list[Array], labels: data.Labels, batch_size: int) -> None:
        super().__init__(len(arrays), batch_size, self._fill)
        self.arrays, self.labels = arrays, labels
        self.places = [place_of(array) for array in arrays]
        shape = (batch_size, *data.PAD_SHAPE)
        self.buffers = [np.empty(shape, np.float32) for _ in range(BUFFERS)]

    def _fill(self, samples: np.ndarray, buffer: int) -> Batch:
        x = self.buffers[buffer][: len(samples)]
        for padded, sample in zip(x, samples.tolist(), strict=True):
            rows, columns = self.places[sample]
            padded[: rows.start] = 0
            padded[rows, : columns.start] = 0
            padded[rows, columns] = self.arrays[sample]
            padded[rows, columns.stop :] = 0
            padded[rows.stop :] = 0
        return torch.from_numpy(x), torch.from_numpy(self.labels[samples])


class StackLoop(Loop):
    """Whole batches: gathered, then scaled. Or one multiplication per sample, while it is in the
    cache."""

    def __init__(self, samples: Bytes, batch_size: int, *, whole_batches: bool) -> None:
        super().__init__(len(samples), batch_size, self._gather if whole_batches else self._fill)
        self.samples = samples
        shape = (batch_size, *samples.shape[1:])
        self.gathered = np.empty(shape, np.uint8)
        self.buffers = [np.empty(shape, np.float32) for _ in range(BUFFERS)]

    def _gather(self, samples: np.ndarray, buffer: int) -> Batch:
        x, gathered = self.buffers[buffer][: len(samples)], self.gathered[: len(samples)]
        np.take(self.samples, samples, axis=0, out=gathered, mode="clip")  # clip: without a copy
        np.multiply(gathered, SCALE, out=x)
        return (torch.from_numpy(x),)

    def _fill(self, samples: np.ndarray, buffer: int) -> Batch:
        x = self.buffers[buffer][: len(samples)]
        for out, sample in zip(x, samples.tolist(), strict=True):
            np.multiply(self.samples[sample], SCALE, out=out)
        return (torch.from_numpy(x),)


class TensorsByHand:
    """Tensors indexed with slices of one permutation; new memory for each batch."""

    def __init__(self, features: Features, batch_size: int, *, select: bool) -> None:
        self.tensors = [torch.from_numpy(feature) for feature in features]
        self.batch_size, self.select = batch_size, select

    def batches(self) -> Iterator[Batch]:
        x1, x2, x3 = self.tensors
        while True:
            for rows in torch.randperm(len(x1)).split(self.batch_size):
                if self.select:
                    yield (
                        x1.index_select(0, rows),
                        x2.index_select(0, rows),
                        x3.index_select(0, rows),
                    )
                else:
                    yield x1[rows], x2[rows], x3[rows]

    def close(self) -> None:
        """Nothing runs between batches."""


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    maps = kept_maps(files.paths)
    name = "NumPy loop, reused buffers"
    return [Row(name, "numpy", {"": lambda: PadLoop(maps, files.labels, batch_size)})]


def stack_rows(path: str, batch_size: int) -> list[Row]:
    [samples] = kept_maps([path])
    settings: dict[str, Callable[[], Peer]] = {
        name: partial(StackLoop, samples, batch_size, whole_batches=whole)
        for name, whole in (("by batch", True), ("by sample", False))
    }
    return [Row("NumPy loop, reused buffers", "numpy", settings, "one file")]


def inmemory_rows(features: Features, batch_size: int) -> list[Row]:
    settings: dict[str, Callable[[], Peer]] = {
        name: partial(TensorsByHand, features, batch_size, select=select)
        for name, select in (("tensor[rows]", False), ("index_select", True))
    }
    return [Row("loop by hand over one permutation", "numpy", settings, "memory")]
