"""Measure the time to the first batch over a class tree of many tiny files.

    python -m bench.start LOADER FOLDER INDEX

prints the seconds from the first call to the first batch, in a process that has imported the loader
but done nothing else. INDEX is where gpuload saves its header index.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from bench import data, use_installed_package

BATCH = 256
CROP = data.TINY_SIDE // 2
LOADERS = ("gpuload, no index", "gpuload, index written", "gpuload, index saved", "torch", "DALI")
Item = tuple[npt.NDArray[np.float32], int]
STARTS = data.TINY_SIDE - CROP + 1


def gpuload(folder: Path, index: Path | None) -> float:
    """Scan or load all headers, then read one batch of crops of a global shuffle."""
    import gpuload as gl

    begin = time.perf_counter()
    source = gl.open(folder, index=None if index is None else str(index))
    crop = gl.RandomCrop(CROP)
    with gl.DataLoader(source, batch_size=BATCH, shuffle=True, crop=crop, device="cpu") as loader:
        x, y = next(iter(loader))
        took_s = time.perf_counter() - begin
    _check(x, y)
    return took_s


def torch_loader(folder: Path) -> float:
    """List the class tree as DatasetFolder does, then np.load each item; no header is checked."""
    from torch.utils.data import DataLoader, Dataset

    class Items(Dataset[Item]):
        def __init__(self) -> None:
            classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
            self.items = [
                (str(folder / name / file), label)
                for label, name in enumerate(classes)
                for file in sorted(os.listdir(folder / name))
                if file.endswith(".npy")
            ]

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, i: int) -> Item:
            path, label = self.items[i]
            row, col = random.randrange(STARTS), random.randrange(STARTS)
            return np.load(path)[row : row + CROP, col : col + CROP], label

    begin = time.perf_counter()
    x, y = next(iter(DataLoader(Items(), batch_size=BATCH, shuffle=True)))
    took_s = time.perf_counter() - begin
    _check(x, y)
    return took_s


def dali_reader(folder: Path) -> float:
    """Let DALI traverse the folder; it finds class folders but gives no labels of them."""
    from bench.peers.dali_rows import dali, fn

    begin = time.perf_counter()
    pipe = dali.Pipeline(batch_size=BATCH, num_threads=2, device_id=None, seed=0)
    with pipe:
        x = fn.readers.numpy(
            file_root=str(folder),
            roi_start=[0, 0],
            roi_shape=[CROP, CROP],
            cache_header_information=True,
            shuffle_after_epoch=True,
        )
        pipe.set_outputs(x)
    pipe.build()
    (batch,) = pipe.run()
    x = from_dlpack(batch.as_tensor())
    took_s = time.perf_counter() - begin
    _check(x, torch.zeros(BATCH))
    return took_s


def main(loader: str, folder: Path, index: Path) -> float:
    if loader == "torch":
        return torch_loader(folder)
    if loader == "DALI":
        return dali_reader(folder)
    if loader == "gpuload, index written":
        index.unlink(missing_ok=True)
    took_s = gpuload(folder, None if loader == "gpuload, no index" else index)
    if loader != "gpuload, no index" and not index.is_file():
        raise RuntimeError(f"{index}: expected gpuload to save its index there, got no file")
    return took_s


def _check(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.shape != (BATCH, CROP, CROP) or len(y) != BATCH or not bool((x >= 1).all()):
        raise RuntimeError(f"start: expected {BATCH} crops of {CROP} x {CROP}, got {x.shape}")


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
