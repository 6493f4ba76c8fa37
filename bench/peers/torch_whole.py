"""torch.utils.data.DataLoader over whole samples: padded arrays, rows of one file, tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.torch_rows import Array, kept_maps, settings, torch_row

HEIGHT, WIDTH, _ = data.PAD_SHAPE
SCALE = np.float32(1 / 255)
Bytes = npt.NDArray[np.uint8]
Features = tuple[npt.NDArray[np.float32], ...]


def place_of(array: Array) -> tuple[slice, slice]:
    """Where an array lies in the middle of its padded form."""
    height, width, _ = array.shape
    top, left = (HEIGHT - height) // 2, (WIDTH - width) // 2
    return slice(top, top + height), slice(left, left + width)


class LoadAndPad(Dataset[Any]):
    """(a) np.load and np.pad, or (b) np.load and torch's pad, for each item."""

    def __init__(self, files: data.PadclassFiles, *, by_torch: bool) -> None:
        self.paths, self.labels = files.paths, files.labels.tolist()
        self.pad = self._by_torch if by_torch else self._by_numpy

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        return self.pad(np.load(self.paths[sample])), self.labels[sample]

    @staticmethod
    def _by_numpy(array: Array) -> Array:
        rows, columns = place_of(array)
        widths = (rows.start, HEIGHT - rows.stop), (columns.start, WIDTH - columns.stop), (0, 0)
        return np.pad(array, widths)

    @staticmethod
    def _by_torch(array: Array) -> torch.Tensor:
        rows, columns = place_of(array)
        widths = (0, 0, columns.start, WIDTH - columns.stop, rows.start, HEIGHT - rows.stop)
        return torch.nn.functional.pad(torch.from_numpy(array), widths)


class ZerosByBatch(Dataset[Any]):
    """(c) memory maps opened once; __getitems__ fills a batch of zeros, through NumPy."""

    def __init__(self, arrays: list[Array], labels: data.Labels) -> None:
        self.arrays, self.labels = arrays, labels
        self.places = [place_of(array) for array in arrays]

    def __getitems__(self, samples: list[int]) -> Batch:
        x = np.zeros((len(samples), *data.PAD_SHAPE), np.float32)
        for padded, sample in zip(x, samples, strict=True):
            padded[self.places[sample]] = self.arrays[sample]
        return torch.from_numpy(x), torch.from_numpy(self.labels[samples])


class TorchZerosByBatch(ZerosByBatch):
    """(d) as (c), through torch, whose copies use several threads where that pays."""

    def __init__(self, arrays: list[Array], labels: data.Labels) -> None:
        super().__init__(arrays, labels)
        self.tensors = [tensor_of_map(array) for array in arrays]

    def __getitems__(self, samples: list[int]) -> Batch:
        x = torch.zeros(len(samples), *data.PAD_SHAPE)
        for padded, sample in zip(x, samples, strict=True):
            padded[self.places[sample]] = self.tensors[sample]
        return x, torch.from_numpy(self.labels[samples])


class StackItems(Dataset[torch.Tensor]):
    """(a) one sample at a time: cast and scaled, then collated."""

    def __init__(self, samples: Bytes) -> None:
        self.samples = tensor_of_map(samples)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor]:
        return (self.samples[sample].to(torch.float32).div_(255),)


class StackGather(Dataset[Batch]):
    """(b) __getitems__ with torch's fancy index, then cast and scale of the whole batch."""

    def __init__(self, samples: Bytes) -> None:
        self.samples = tensor_of_map(samples)

    def __getitems__(self, samples: list[int]) -> Batch:
        return (self.samples[torch.tensor(samples)].to(torch.float32).mul_(1 / 255),)


class StackFill(Dataset[Batch]):
    """(c) __getitems__ with one NumPy multiplication per sample, from the map into the batch."""

    def __init__(self, samples: Bytes) -> None:
        self.samples = samples

    def __getitems__(self, samples: list[int]) -> Batch:
        x = np.empty((len(samples), *self.samples.shape[1:]), np.float32)
        for out, sample in zip(x, samples, strict=True):
            np.multiply(self.samples[sample], SCALE, out=out)
        return (torch.from_numpy(x),)


class IndexTensors:
    """Sampler: a new permutation each epoch, sliced into tensors of indices."""

    def __init__(self, n_samples: int, batch_size: int) -> None:
        self.n_samples, self.batch_size = n_samples, batch_size

    def __len__(self) -> int:
        return -(-self.n_samples // self.batch_size)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randperm(self.n_samples).split(self.batch_size))


class TensorsPeer:
    """DataLoader(TensorDataset): as everyone writes it, or with a sampler of index tensors, which
    makes of each a batch without a step per sample."""

    def __init__(
        self, features: Features, batch_size: int, *, workers: int, whole_batches: bool
    ) -> None:
        dataset = TensorDataset(*map(torch.from_numpy, features))
        more: dict[str, Any] = {"batch_size": batch_size, "shuffle": True}
        if whole_batches:
            more = {"batch_size": None, "sampler": IndexTensors(len(dataset), batch_size)}
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset, num_workers=workers, persistent_workers=workers > 0, **more
        )

    def batches(self) -> Iterator[Batch]:
        return chain.from_iterable(repeat(self._loader))  # type: ignore[arg-type]

    def close(self) -> None:
        self._loader = None


def tensor_of_map(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor over a read-only map, of which torch would warn; nobody writes to it."""
    shown = np.asarray(array)
    interface = dict(shown.__array_interface__, data=(shown.ctypes.data, False))
    return torch.from_numpy(np.asarray(_Writable(interface, shown)))


class _Writable:
    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__, self.owner = interface, owner


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    maps = kept_maps(files.paths)
    forms: dict[str, tuple[Callable[[], Dataset[Any]], bool]] = {
        "(a) np.load, np.pad per item": (partial(LoadAndPad, files, by_torch=False), False),
        "(b) np.load, F.pad per item": (partial(LoadAndPad, files, by_torch=True), False),
        "(c) kept memmaps, zeros in __getitems__": (
            partial(ZerosByBatch, maps, files.labels),
            True,
        ),
        "(d) as (c), copied by torch": (partial(TorchZerosByBatch, maps, files.labels), True),
    }
    return _rows(forms, data.PAD_ARRAYS, batch_size, "files")


def stack_rows(path: str, batch_size: int) -> list[Row]:
    [samples] = kept_maps([path])
    forms: dict[str, tuple[Callable[[], Dataset[Any]], bool]] = {
        "(a) per item": (partial(StackItems, samples), False),
        "(b) fancy index in __getitems__": (partial(StackGather, samples), True),
        "(c) multiply in __getitems__": (partial(StackFill, samples), True),
    }
    return _rows(forms, len(samples), batch_size, "one file")


def inmemory_rows(features: Features, batch_size: int) -> list[Row]:
    def peer(workers: int, whole_batches: bool) -> Peer:
        return TensorsPeer(features, batch_size, workers=workers, whole_batches=whole_batches)

    names = {False: "TensorDataset", True: "TensorDataset, index tensors"}
    return [
        Row(
            f"torch {name}, {workers} workers",
            "torch",
            {"": partial(peer, workers, whole)},
            "memory",
            queued_batches=2 * workers,
        )
        for whole, name in names.items()
        for workers in (0, 2)
    ]


def _rows(
    forms: dict[str, tuple[Callable[[], Dataset[Any]], bool]],
    n_samples: int,
    batch_size: int,
    layout: str,
) -> list[Row]:
    return [
        torch_row(name, workers, settings(dataset, n_samples, batch_size, workers, whole), layout)
        for name, (dataset, whole) in forms.items()
        for workers in (0, 2)
    ]
