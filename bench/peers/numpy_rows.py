"""A plain NumPy loop into buffers that are used again: what Python allows with no loader at all.

Its batches are overwritten two batches later, so they are not the caller's to keep.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from bench import data
from bench.peers import Batch, Row
from bench.peers.torch_rows import STARTS, Array, kept_maps

BUFFERS = 2


class Crop2dLoop:
    def __init__(self, arrays: list[Array], labels: data.Labels, batch_size: int) -> None:
        self.arrays, self.labels, self.batch_size = arrays, labels, batch_size
        shape = (batch_size, data.CROP, data.CROP)
        self.buffers = [np.empty(shape, np.float32) for _ in range(BUFFERS)]

    def batches(self) -> Iterator[Batch]:
        rng = np.random.default_rng(0)
        arrays, crop, batch_number = self.arrays, data.CROP, 0
        while True:
            order = rng.permutation(data.EPOCH) // data.PER_ARRAY
            starts = rng.integers(STARTS, size=(2, data.EPOCH))
            for begin in range(0, data.EPOCH, self.batch_size):
                matrices = order[begin : begin + self.batch_size]
                rows, cols = starts[:, begin : begin + self.batch_size].tolist()
                x = self.buffers[batch_number % BUFFERS][: len(matrices)]
                batch_number += 1
                for k, (m, r, c) in enumerate(zip(matrices.tolist(), rows, cols, strict=True)):
                    x[k] = arrays[m][r : r + crop, c : c + crop]
                yield torch.from_numpy(x), torch.from_numpy(self.labels[matrices])

    def close(self) -> None:
        """Nothing runs between batches."""


class VolumeLoop:
    def __init__(self, array: Array, batch_size: int) -> None:
        self.array = array
        shape = (batch_size, 1, *(data.VOLUME_CROP,) * 3)
        self.buffers = [np.empty(shape, np.float32) for _ in range(BUFFERS)]

    def batches(self) -> Iterator[Batch]:
        rng = np.random.default_rng(0)
        sides = np.array(self.array.shape[1:]) - data.VOLUME_CROP + 1
        labels = torch.zeros(len(self.buffers[0]), dtype=torch.int64)
        while True:
            for buffer in self.buffers:
                for x, starts in zip(
                    buffer, rng.integers(sides, size=(len(buffer), 3)).tolist(), strict=True
                ):
                    zyx = tuple(slice(start, start + data.VOLUME_CROP) for start in starts)
                    x[:] = self.array[(slice(None), *zyx)]
                yield torch.from_numpy(buffer), labels

    def close(self) -> None:
        """Nothing runs between batches."""


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    maps = kept_maps(files.paths)
    name = "NumPy loop, reused buffers"
    return [Row(name, "numpy", {"": lambda: Crop2dLoop(maps, files.labels, batch_size)})]


def volume_rows(path: str, batch_size: int) -> list[Row]:
    array = np.asarray(np.load(path, mmap_mode="r"))
    name = "NumPy loop, reused buffers"
    return [Row(name, "numpy", {"": lambda: VolumeLoop(array, batch_size)}, "one file")]
