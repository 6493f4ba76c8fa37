"""One way to load the demo's crops: its values are checked, then its speed and memory measured.

compare.py runs this as a script, one process per way, so that no way sees the memory of another.
The result is one line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Matrix = npt.NDArray[np.float32]

CROP = 20  # pixels, both axes
CROPS_PER_MATRIX = 10
BATCH_SIZE = 256
N_SEARCHED = 64  # random crops that are looked up in the files
SAMPLE_S = 0.02  # between two looks at the memory


class Batches(Protocol):
    """What iterates over (x, y) batches of an epoch, again and again."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class PlainCrops(Dataset[tuple[Tensor, int]]):
    """The torch Dataset as most people write it: np.load for every crop."""

    def __init__(self, directory: Path, *, fixed: bool) -> None:
        self.paths, self.labels = list_files(directory)
        self.n_crops, self.fixed = (1 if fixed else CROPS_PER_MATRIX), fixed

    def __len__(self) -> int:
        return len(self.paths) * self.n_crops

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        item = index // self.n_crops
        matrix = np.load(self.paths[item])
        row, column = (
            (extent - CROP) // 2 if self.fixed else random.randrange(extent - CROP + 1)
            for extent in matrix.shape
        )
        window = matrix[row : row + CROP, column : column + CROP]
        return torch.from_numpy(window), self.labels[item]


class BestCrops(Dataset[tuple[Tensor, Tensor]]):
    """The fastest form found: files mapped once, all windows as views, a whole batch per call."""

    def __init__(self, directory: Path, *, fixed: bool) -> None:
        paths, labels = list_files(directory)
        maps = [np.load(path, mmap_mode="r") for path in paths]
        # A plain ndarray is sliced several times faster than a memmap.
        self.windows = [
            np.lib.stride_tricks.sliding_window_view(m.view(np.ndarray), (CROP, CROP)) for m in maps
        ]
        self.labels = torch.tensor(labels)
        self.n_crops, self.fixed = (1 if fixed else CROPS_PER_MATRIX), fixed

    def __len__(self) -> int:
        return len(self.windows) * self.n_crops

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        items = np.array(indices) // self.n_crops
        n_starts = self.windows[0].shape[0]  # of either axis: the matrices are square
        starts = np.random.randint(0, n_starts, (2, len(items)))
        if self.fixed:
            starts[:] = n_starts // 2
        x = np.empty((len(items), CROP, CROP), np.float32)
        places = zip(items.tolist(), *starts.tolist(), strict=True)
        for i, (item, row, column) in enumerate(places):
            x[i] = self.windows[item][row, column]
        return torch.from_numpy(x), self.labels[items]


def with_gpuload(directory: Path, *, fixed: bool, workers: int) -> Batches:
    """Return gpuload's loader with its defaults; `workers` means nothing here."""
    import gpuload as gl  # here, so that its memory is counted

    if fixed:
        return gl.DataLoader(gl.open(directory), BATCH_SIZE, crop=gl.CenterCrop((CROP, CROP)))
    crop = gl.RandomCrop((CROP, CROP), per_array=CROPS_PER_MATRIX)
    return gl.DataLoader(gl.open(directory), BATCH_SIZE, shuffle=True, crop=crop)


def with_best_torch(directory: Path, *, fixed: bool, workers: int) -> Batches:
    """Return torch's DataLoader over whole batches."""
    data = BestCrops(directory, fixed=fixed)
    return DataLoader(
        data, BATCH_SIZE, shuffle=not fixed, num_workers=workers, collate_fn=lambda batch: batch
    )


def with_plain_torch(directory: Path, *, fixed: bool, workers: int) -> Batches:
    """Return torch's DataLoader over single crops."""
    data = PlainCrops(directory, fixed=fixed)
    return DataLoader(
        data, BATCH_SIZE, shuffle=not fixed, num_workers=workers, persistent_workers=workers > 0
    )


WAYS = {"gpuload": with_gpuload, "torch-best": with_best_torch, "torch-plain": with_plain_torch}


def list_files(directory: Path) -> tuple[list[Path], list[int]]:
    """Return the files of a class-folder tree and the number of the class of each."""
    folders = sorted(directory.iterdir())
    pairs = [(path, k) for k, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    return [path for path, _ in pairs], [label for _, label in pairs]


def check_fixed(batches: Batches, directory: Path) -> None:
    """Raise ValueError unless one epoch is the centre crop of every file, in order."""
    paths, labels = list_files(directory)
    want = np.stack([_centre(np.load(path, mmap_mode="r")) for path in paths])
    got = [(x.numpy(), y.numpy()) for x, y in batches]
    if not np.array_equal(np.concatenate([y for _, y in got]), labels):
        raise ValueError("expected the labels of all files in order, got others")
    if not np.array_equal(np.concatenate([x for x, _ in got]), want):
        raise ValueError("expected the centre crops of all files in order, got others")


def check_random(batches: Batches, directory: Path) -> None:
    """Raise ValueError unless the first random crops lie in a file of their class."""
    x, y = next(iter(batches))
    if x.shape[1:] != (CROP, CROP) or x.dtype != torch.float32:
        raise ValueError(f"expected ({CROP}, {CROP}) float32, got {tuple(x.shape[1:])} {x.dtype}")
    files = list(zip(*list_files(directory), strict=True))
    for crop, label in zip(x.numpy()[:N_SEARCHED], y.tolist(), strict=False):
        # Mapped, not loaded: what the check allocates would count as the loader's memory.
        maps = (np.load(path, mmap_mode="r") for path, k in files if k == label)
        if not any(is_window(crop, matrix) for matrix in maps):
            raise ValueError(f"expected a crop of a file of class {label}, got something else")


def is_window(crop: Matrix, matrix: Matrix) -> bool:
    """Tell whether `crop` lies anywhere in `matrix`."""
    windows = np.lib.stride_tricks.sliding_window_view(matrix, crop.shape)
    fits = windows[:, :, 0, 0] == crop[0, 0]
    for row, column in ((CROP - 1, CROP - 1), (CROP // 2, CROP // 3)):
        fits &= windows[:, :, row, column] == crop[row, column]
    return any(np.array_equal(window, crop) for window in windows[fits])


def _centre(matrix: Matrix) -> Matrix:
    row, column = ((extent - CROP) // 2 for extent in matrix.shape)
    return matrix[row : row + CROP, column : column + CROP]


def samples_per_s(batches: Batches, *, seconds: float) -> float:
    """Return the rate over `seconds` of epoch after epoch, after a warm-up of a third of that."""
    _consume(batches, seconds / 3)
    n_samples, spent_s = _consume(batches, seconds)
    return n_samples / spent_s


def _consume(batches: Batches, seconds: float) -> tuple[int, float]:
    begin, n_samples = time.perf_counter(), 0
    while True:
        for _, y in batches:
            n_samples += len(y)
            if (spent_s := time.perf_counter() - begin) >= seconds:
                return n_samples, spent_s


def peak_nbytes(batches: Batches, *, seconds: float) -> int | None:
    """Return the most memory this process and its workers own, looked at while batches arrive."""
    begin = seen = time.perf_counter()
    peak = owned_nbytes()
    while peak is not None and time.perf_counter() - begin < seconds:
        for _ in batches:
            if time.perf_counter() - seen >= SAMPLE_S:
                peak = max(peak, owned_nbytes() or 0)
                seen = time.perf_counter()
            if seen - begin >= seconds:
                break
    return peak


def owned_nbytes() -> int | None:
    """Return the anonymous and shared memory of this process and its workers; None if unknown.

    Memory that several of them share is counted once. Pages of mapped files are not counted: they
    are the page cache's.
    """
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    try:
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    except OSError:
        return None
    wanted = ("Pss_Anon:", "Pss_Shmem:")
    fields = [line.split() for rollup in rollups for line in rollup.splitlines()]
    return sum(int(field[1]) * 1024 for field in fields if field[0] in wanted)


def main() -> None:
    """Measure the way named by the arguments and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    base = owned_nbytes()
    make, directory = WAYS[options.way], options.directory
    check_fixed(make(directory, fixed=True, workers=0), directory)
    batches = make(directory, fixed=False, workers=options.workers)
    check_random(batches, directory)
    peak = peak_nbytes(batches, seconds=options.seconds)
    result = {
        "samples_per_s": samples_per_s(batches, seconds=options.seconds),
        "peak_nbytes": None if peak is None or base is None else max(peak - base, 0),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
