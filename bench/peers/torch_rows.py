"""torch.utils.data.DataLoader: the usual forms, from np.load per item to whole batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from bench import data
from bench.peers import Batch, Peer, Row

Array = npt.NDArray[np.float32]
Item = tuple[Array, int]
STARTS = data.SIDE - data.CROP + 1
PREFETCH_FACTORS = (2, 4)


class Shuffled:
    """Batch sampler: a new permutation of all samples each epoch, sliced into lists."""

    def __init__(self, n_samples: int, batch_size: int) -> None:
        self.n_samples, self.batch_size = n_samples, batch_size

    def __len__(self) -> int:
        return -(-self.n_samples // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.n_samples).tolist()
        for i in range(0, self.n_samples, self.batch_size):
            yield order[i : i + self.batch_size]


class TorchPeer:
    """A DataLoader over `dataset`; its workers, if any, live until close()."""

    def __init__(
        self,
        dataset: Dataset[Any],
        n_samples: int,
        batch_size: int,
        *,
        workers: int,
        prefetch_factor: int | None,
        whole_batches: bool,
    ) -> None:
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            batch_sampler=Shuffled(n_samples, batch_size),
            num_workers=workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=workers > 0,
            collate_fn=_as_it_is if whole_batches else None,
        )

    def batches(self) -> Iterator[Batch]:
        return chain.from_iterable(repeat(self._loader))  # type: ignore[arg-type]

    def close(self) -> None:
        self._loader = None  # ends the persistent workers


class LoadPerItem(Dataset[Item]):
    """(a) np.load of the file, or (b) np.load(mmap_mode="r"), for each item; then the crop."""

    def __init__(self, files: data.Crop2dFiles, *, mmap: bool) -> None:
        self.paths, self.labels = files.paths, files.labels.tolist()
        self.load = partial(np.load, mmap_mode="r" if mmap else None)

    def __getitem__(self, sample: int) -> Item:
        matrix = sample // data.PER_ARRAY
        row, col = int(random.random() * STARTS), int(random.random() * STARTS)
        array = self.load(self.paths[matrix])
        return np.array(array[row : row + data.CROP, col : col + data.CROP]), self.labels[matrix]


class KeptMaps(Dataset[Item]):
    """(c) memory maps opened once, as plain arrays (slicing np.memmap itself is slower)."""

    def __init__(self, arrays: list[Array], labels: data.Labels) -> None:
        self.arrays, self.labels, self.label_list = arrays, labels, labels.tolist()

    def __getitem__(self, sample: int) -> Item:
        matrix = sample // data.PER_ARRAY
        row, col = int(random.random() * STARTS), int(random.random() * STARTS)
        crop = self.arrays[matrix][row : row + data.CROP, col : col + data.CROP]
        return crop.copy(), self.label_list[matrix]


class KeptMapsByBatch(KeptMaps):
    """(d) memory maps opened once, and __getitems__ that fills the whole batch."""

    def __getitems__(self, samples: list[int]) -> Batch:
        matrices = np.array(samples) // data.PER_ARRAY
        starts = torch.randint(STARTS, (2, len(samples))).tolist()
        x = np.empty((len(samples), data.CROP, data.CROP), np.float32)
        arrays, crop = self.arrays, data.CROP
        for k, (m, r, c) in enumerate(zip(matrices.tolist(), *starts, strict=True)):
            x[k] = arrays[m][r : r + crop, c : c + crop]
        return torch.from_numpy(x), torch.from_numpy(self.labels[matrices])


class KeptWindowsByBatch(KeptMaps):
    """(e) as (d), with the windows of each map as a view: one index instead of two slices."""

    def __init__(self, arrays: list[Array], labels: data.Labels) -> None:
        super().__init__(arrays, labels)
        window = (data.CROP, data.CROP)
        self.windows = [np.lib.stride_tricks.sliding_window_view(a, window) for a in arrays]

    def __getitems__(self, samples: list[int]) -> Batch:
        matrices = np.array(samples) // data.PER_ARRAY
        starts = torch.randint(STARTS, (2, len(samples))).tolist()
        x = np.empty((len(samples), data.CROP, data.CROP), np.float32)
        windows = self.windows
        for k, (m, r, c) in enumerate(zip(matrices.tolist(), *starts, strict=True)):
            x[k] = windows[m][r, c]
        return torch.from_numpy(x), torch.from_numpy(self.labels[matrices])


class GatherFromOneFile(Dataset[Item]):
    """(f) one file, all its windows as a view, and NumPy's gather of a batch from that."""

    def __init__(self, array: Array, labels: data.Labels) -> None:
        self.labels = labels
        window = (data.CROP, data.CROP)
        self.windows = np.lib.stride_tricks.sliding_window_view(array, window, axis=(1, 2))

    def __getitems__(self, samples: list[int]) -> Batch:
        matrices = np.array(samples) // data.PER_ARRAY
        rows, cols = torch.randint(STARTS, (2, len(samples))).numpy()
        x = self.windows[matrices, rows, cols]
        return torch.from_numpy(x), torch.from_numpy(self.labels[matrices])


class VolumeItems(Dataset[Item]):
    """Random windows of a kept map, one by one."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def window(self) -> Array:
        starts = [random.randrange(n - data.VOLUME_CROP + 1) for n in self.array.shape[1:]]
        z, y, x = (slice(start, start + data.VOLUME_CROP) for start in starts)
        return self.array[:, z, y, x]

    def __getitem__(self, sample: int) -> Item:
        return self.window().copy(), 0


class VolumeByBatch(VolumeItems):
    """Random windows of a kept map, copied into the batch by __getitems__."""

    def __getitems__(self, samples: list[int]) -> Batch:
        x = np.empty((len(samples), 1, *(data.VOLUME_CROP,) * 3), np.float32)
        for k in range(len(samples)):
            x[k] = self.window()
        return torch.from_numpy(x), torch.zeros(len(samples), dtype=torch.int64)


def kept_maps(paths: list[str]) -> list[Array]:
    """Map each file once; the descriptors are closed, the maps stay."""
    return [np.asarray(np.load(path, mmap_mode="r")) for path in paths]


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    maps = kept_maps(files.paths)
    one = np.asarray(np.load(files.one_file, mmap_mode="r"))
    by_file: dict[str, tuple[Callable[[], Dataset[Any]], bool]] = {
        "(a) np.load per item": (partial(LoadPerItem, files, mmap=False), False),
        "(b) np.load mmap per item": (partial(LoadPerItem, files, mmap=True), False),
        "(c) kept memmaps": (partial(KeptMaps, maps, files.labels), False),
        "(d) kept memmaps, __getitems__": (partial(KeptMapsByBatch, maps, files.labels), True),
        "(e) kept windows, __getitems__": (partial(KeptWindowsByBatch, maps, files.labels), True),
    }
    by_one: dict[str, tuple[Callable[[], Dataset[Any]], bool]] = {
        "(d) kept memmap, __getitems__": (partial(KeptMapsByBatch, list(one), files.labels), True),
        "(f) sliding_window_view": (partial(GatherFromOneFile, one, files.labels), True),
    }
    rows = []
    for layout, forms in (("files", by_file), ("one file", by_one)):
        for name, (dataset, whole) in forms.items():
            for workers in (0, 2) if layout == "files" else (0,):
                tried = settings(dataset, data.EPOCH, batch_size, workers, whole)
                rows.append(torch_row(name, workers, tried, layout))
    return rows


def volume_rows(path: str, batch_size: int) -> list[Row]:
    array = np.asarray(np.load(path, mmap_mode="r"))
    rows = []
    for name, kind, whole in (
        ("kept memmap", VolumeItems, False),
        ("kept memmap, __getitems__", VolumeByBatch, True),
    ):
        for workers in (0, 2):
            tried = settings(partial(kind, array), data.VOLUME_EPOCH, batch_size, workers, whole)
            rows.append(torch_row(name, workers, tried, "one file"))
    return rows


def torch_row(name: str, workers: int, tried: dict[str, Callable[[], Peer]], layout: str) -> Row:
    """A row of a DataLoader with these settings."""
    queued = workers * max(PREFETCH_FACTORS) + 1
    return Row(f"torch {name}, {workers} workers", "torch", tried, layout, queued)


def settings(
    dataset: Callable[[], Dataset[Any]],
    n_samples: int,
    batch_size: int,
    workers: int,
    whole: bool,
) -> dict[str, Callable[[], Peer]]:
    """What is tried of a DataLoader with so many workers."""

    def peer(prefetch_factor: int | None) -> Peer:
        return TorchPeer(
            dataset(),
            n_samples,
            batch_size,
            workers=workers,
            prefetch_factor=prefetch_factor,
            whole_batches=whole,
        )

    if not workers:
        return {"": partial(peer, None)}
    return {f"prefetch_factor={n}": partial(peer, n) for n in PREFETCH_FACTORS}


def _as_it_is(batch: Any) -> Any:
    return batch
