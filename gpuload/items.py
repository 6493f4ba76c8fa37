"""ItemAssembly: what makes the batches of a Dataset's items for one loader; and report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gpuload import _native, fetched
from gpuload.assembly import Memory
from gpuload.catalog import Ints
from gpuload.devices import Device
from gpuload.fetch import Fetcher, Request
from gpuload.options import Options
from gpuload.order import Listed, Shares
from gpuload.pipeline import Flight, begin
from gpuload.prefetch import Copier, map_tensors
from gpuload.samples import Items
from gpuload.sources.dataset import DatasetSource
from gpuload.stats import Stats
from gpuload.workers import Workers, batches_per_worker

# Arguments of DataLoader that mean something for a Dataset.
_MEANINGFUL = {
    *("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "seed", "generator"),
    *("rank", "world_size", "even", "extras", "transform"),
    *("device", "prefetch", "prefetch_factor", "threads", "num_workers"),
    *("pin_memory", "persistent_workers"),
}
_EXTRAS = ("index", "valid")
_REMEDIES = {
    "collate_fn": "pass it to gpuload.dataset",
    "multiprocessing_context": "call torch.multiprocessing.set_start_method",
    "worker_init_fn": "the dataset can ask torch.utils.data.get_worker_info",
    "timeout": "bound what waits in the dataset",
    "on_error": "catch errors in the dataset",
    "max_errors": "catch errors in the dataset",
    "io": "the dataset's own code reads",
    "cache": "the dataset's own code reads",
}


def check_arguments(
    arguments: Mapping[str, Any], defaults: Mapping[str, Any], source: DatasetSource
) -> None:
    """Refuse what has no meaning for a Dataset, whose own code makes the items.

    Raises:
        TypeError, ValueError: an argument of DataLoader has no meaning for it.
    """
    for name, value in arguments.items():
        default = defaults.get(name)
        is_passed = type(value) is not type(default) or value != default
        if is_passed and name not in _MEANINGFUL:
            remedy = _REMEDIES.get(name, "change items in the dataset, or batches in your loop")
            raise TypeError(
                f"{name}: expected not to be passed with a gpuload.dataset, got {value!r}; {remedy}"
            )
    if arguments["shuffle"] == "block":
        raise ValueError(
            'shuffle: expected True or False with a gpuload.dataset, got "block"; which items lie '
            "together is not known, pass batch_sampler="
        )
    extras = arguments["extras"]
    extras = extras if isinstance(extras, list | tuple) else [extras] * isinstance(extras, str)
    for name in extras:
        if name not in _EXTRAS:
            raise ValueError(
                f'extras: expected "index" or "valid" with a gpuload.dataset, got "{name}"; let '
                "the dataset return it"
            )
    for name in ("threads", "num_workers"):
        value = arguments.get(name, "auto")
        if source.workers and value not in ("auto", 0):
            raise ValueError(
                f"{name}: expected not to be passed with gpuload.dataset(workers={source.workers}),"
                f" got {value!r}; pass one of the two"
            )


class ItemAssembly:
    """The machinery of one loader of a Dataset. Threads and workers live for an epoch."""

    is_used = False  # a forked child can begin epochs of its own

    def __init__(
        self,
        source: DatasetSource,
        samples: Items,
        options: Options,
        *,
        device: Device,
        why_device: str,
    ) -> None:
        self._source = source
        self._samples = samples
        self._options = options
        self._device = device
        self._why_device = why_device
        self._fetcher = Fetcher(source.torch_dataset, source.collate_fn)
        self._threads = 1 if source.workers else options.threads or 1
        self._copier: Copier | None = None
        self._largest_nbytes = 0  # of the batches so far

    def check(self) -> None:
        """Nothing can be found out before the dataset is asked."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a batch, in order: what the dataset gives is x, whatever it is."""
        return ("x", *self._options.extras)

    @property
    def _n_ahead(self) -> int:
        """Batches that are made, or in the making, and not handed out."""
        n_workers = self._source.workers
        if n_workers:
            return n_workers * batches_per_worker(n_workers, self._options.prefetch) + 1
        return max(self._options.prefetch, self._threads)

    def start(
        self, epoch: _native.Epoch, shares: Shares, listed: Listed | None, largest_batch: int
    ) -> Flight:
        """Begin to make the batches of an epoch."""
        if not self._device.is_host and self._copier is None:
            self._copier = Copier(self._device, self._options.prefetch)
            self.is_used = True
        requests = _Requests(self._source, self._samples, epoch, shares)
        maker = (
            _FromWorkers(self, requests, epoch.key)
            if self._source.workers
            else _FromThreads(self, requests)
        )
        return begin(
            lambda: fetched.start(
                maker,
                shares.n_batches,
                n_threads=self._threads,
                ahead=1 if self._source.workers else self._n_ahead,
                copier=self._copier,
            )
        )

    def note(self, batch: Any) -> None:
        """Remember how large batches are."""
        self._largest_nbytes = max(self._largest_nbytes, _nbytes(batch))

    @property
    def is_host(self) -> bool:
        return self._device.is_host

    @property
    def fetcher(self) -> Fetcher:
        return self._fetcher

    def workers(self, requests: Sequence[Request], seed: int) -> Workers:
        return Workers(
            self._fetcher,
            requests,
            n_workers=self._source.workers,
            prefetch=self._options.prefetch,
            seed=seed,
        )

    def extras(self, index: Ints, valid: np.ndarray[Any, Any]) -> list[torch.Tensor]:
        found = {"index": index, "valid": valid.astype(np.bool_)}
        return [torch.from_numpy(found[name]) for name in self._options.extras]

    def stats(self) -> Stats:
        """The memory in use."""
        return Stats(pinned_nbytes=0 if self._copier is None else self._copier.pinned_nbytes)

    def memory(self, largest_batch: int) -> Memory:
        """The bound on host memory, for batches as large as the largest so far: 0 before the
        first."""
        nbytes, n_blocks = self._largest_nbytes, self._n_ahead + 1
        pinned, on_device = 0, 0
        if self._copier is not None:
            depth = self._options.prefetch
            pinned, on_device = (depth + 1) * nbytes, 2 * (depth + 1) * nbytes
        return Memory(nbytes, n_blocks, 0, n_blocks * nbytes + pinned, on_device)

    def describe(self, largest_batch: int) -> list[str]:
        """How batches are made and why, in lines for people."""
        n = self._source.workers or self._threads
        who = f"{n} worker process" if self._source.workers else f"{n} thread"
        what = "a batch" if self._fetcher.takes_batches else "an item"
        why = f" (no GPU: {self._why_device})" if self._why_device else ""
        crosses = "" if self._device.is_host else ", one copy for each batch"
        return [
            f"items     {self._source.summary()}, {what} in each call",
            f"threads   read by {who}{'es' * bool(self._source.workers and n > 1)}"
            f"{'s' * (not self._source.workers and n > 1)}, {self._n_ahead} batches ahead",
            f"device    {self._device.name}{why}{crosses}",
        ]

    def close(self) -> None:
        """Let go of pinned memory."""
        self._copier = None


class _Requests(Sequence[Request]):
    """What an epoch asks the dataset for, batch by batch. Used by several threads."""

    def __init__(
        self, source: DatasetSource, samples: Items, epoch: _native.Epoch, shares: Shares
    ) -> None:
        self._source = source
        self._windows = samples.native()
        self._epoch = epoch
        self._shares = shares

    def __len__(self) -> int:
        return self._shares.n_batches

    def samples(self, b: int) -> tuple[Ints, Ints, np.ndarray[Any, Any]]:
        """Items of a batch, how often each was named before, and whether it is no repeat."""
        begin, end = self._shares.given(b), self._shares.given(b + 1)
        return self._epoch.samples(self._windows, begin, end)

    def __getitem__(self, b: Any) -> Any:
        if not 0 <= b < len(self):
            raise IndexError(b)
        items, times, _ = self.samples(b)
        return Request(self._epoch.key, self._source.numbers(items.tolist()), times.tolist())


class _FromThreads:
    """Batches that the threads of a flight fetch themselves."""

    def __init__(self, assembly: ItemAssembly, requests: _Requests) -> None:
        self._assembly = assembly
        self._requests = requests

    def make(self, b: int) -> list[Any]:
        return self.with_extras(b, self._assembly.fetcher(self._requests[b]))

    def with_extras(self, b: int, batch: Any) -> list[Any]:
        self._assembly.note(batch)
        index, _, valid = self._requests.samples(b)
        return [batch, *self._assembly.extras(index, valid)]

    def stop(self) -> None:
        pass

    def end(self) -> None:
        pass


class _FromWorkers(_FromThreads):
    """Batches of worker processes, taken over by the one thread of a flight."""

    def __init__(self, assembly: ItemAssembly, requests: _Requests, seed: int) -> None:
        super().__init__(assembly, requests)
        self._workers = assembly.workers(requests, seed)

    def make(self, b: int) -> list[Any]:
        batch = self._workers.next()
        if self._assembly.is_host:  # a batch that is kept would keep descriptors of shared memory
            batch = map_tensors(batch, torch.clone, _is_tensor)
        return self.with_extras(b, batch)

    def stop(self) -> None:
        self._workers.stop()

    def end(self) -> None:
        self._workers.end()


def _is_tensor(part: Any) -> bool:
    return isinstance(part, torch.Tensor)


def _nbytes(batch: Any) -> int:
    """Of the tensors in it."""
    sizes: list[int] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    map_tensors(batch, add, _is_tensor)
    return sum(sizes)
