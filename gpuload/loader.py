"""DataLoader: from a source to batches in the caller's hands."""

from __future__ import annotations

import math
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gpuload import _native, dtypes
from gpuload.batch import batch_type
from gpuload.catalog import Ints
from gpuload.devices import Device
from gpuload.devices.cpu import CpuDevice
from gpuload.dtypes import BOOL, INT64, Dtype
from gpuload.errors import DeviceError
from gpuload.options import Sampler, check_options, whole_number
from gpuload.order import (
    Listed,
    Shares,
    list_samples,
    native_epoch,
    share,
    share_batches,
    share_count,
)
from gpuload.pipeline import Flight, Job, Pipeline, another_process
from gpuload.plan import Ahead, IoPlan, plan_ahead, plan_io
from gpuload.readers import posix
from gpuload.sources.source import Source
from gpuload.stage import BatchLayout, Column, lay_out
from gpuload.stats import Stats
from gpuload.window import Crop, Geometry, resolve

_STATE_SCHEMA = 1

# With shuffle="block", a block of rows of one file is about this large.
_BLOCK_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that could not be read, and was left out or replaced."""

    epoch: int
    batch: int
    index: int
    crop: int
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What a loader takes at most, beside batches that the caller keeps. In bytes."""

    batch_nbytes: int
    blocks: int
    scratch_nbytes: int
    host_nbytes: int


@dataclass(slots=True)
class _Progress:
    """How far the newest iteration has come."""

    epoch: int
    shares: Shares
    batches: int = 0


class DataLoader:
    """Batches of windows of a source's items, as an iterable of PyTorch tensors.

    Each iteration is one epoch. The order and every crop are a pure function of (seed, epoch, item,
    crop
    number): not of batch size, world size, threads or the way files are read. A batch is a
    NamedTuple of
    tensors `x` (B, *window), `y` (labels, when there are any) and the extras; a bare tensor when
    there is only `x`.
    Tensors belong to the caller for good; their memory is used again only after the last of them is
    gone.

    Args:
        source: what `gpuload.open` returned. Also taken as `dataset`, torch's name.
        batch_size: samples per batch.
        shuffle: False, True (a permutation of all samples of an epoch), or "block": neighbours stay
            together. Blocks (the windows of one array, or about 1 MiB of rows) are permuted, then
            the samples of each 64 blocks are mixed.
        sampler: yields items; each gives all its crops. Has a length.
        batch_sampler: yields lists of items, each a batch. Has a length.
        drop_last: leave out a last batch that is not full.
        seed: any whole number; the same on all ranks.
        crop: RandomCrop, CenterCrop, GridCrop, or None for whole items (then of one shape).
        dtype: deliver values cast to this type; None keeps the stored type in the machine's byte
            order. float to integer truncates toward zero, saturates, and takes NaN to 0.
        device: "auto" or "cpu" in this version, or an object that follows gpuload.devices.Device.
        prefetch: batches filled ahead of the caller; more when they are small, up to about 4 MiB.
        threads: native threads, "auto" for the cores granted, more for cold files.
        io: "mmap" copies from kept maps, "pread" reads; "auto" decides by file system and page
            cache.
        rank, world_size: this process among those that share an epoch. "auto": a process by itself.
        even: what gives every rank as many batches: "pad" repeats samples (extra "valid" tells),
            "drop" leaves samples out, "exact" gives each sample once in batches that may be one
            sample short.
        on_error: "raise"; "skip" leaves unreadable samples out of their batch; "replace" puts
            others in their place. `errors` lists them.
        max_errors: more failures than that in one epoch are raised.
        extras: names of further fields: "index" (item), "crop" (its number), "start" (B, ndim),
            "path" (list), "valid" (False for repeats).
        **torch_names: num_workers (-> threads), prefetch_factor (-> prefetch), generator (its
            seed), pin_memory and persistent_workers (without effect here).

    Raises:
        ValueError, TypeError: an argument is not as said above, windows do not fit, shapes differ.
        DeviceError: the device cannot be used.
        ReadError: while iterating: a file is gone, changed, short or broken.
    """

    def __init__(
        self,
        source: Source | None = None,
        batch_size: int = 1,
        *,
        shuffle: bool | str | None = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        crop: Crop | None = None,
        dtype: object = None,
        device: object = "auto",
        prefetch: int = 2,
        threads: int | str = "auto",
        io: str = "auto",
        rank: int | str = "auto",
        world_size: int | str = "auto",
        even: str = "pad",
        on_error: str = "raise",
        max_errors: int | None = None,
        extras: Sequence[str] | str = (),
        dataset: Source | None = None,
        **torch_names: Any,
    ) -> None:
        if source is not None and dataset is not None:
            raise TypeError("dataset: expected source or dataset, got both")
        source = dataset if source is None else source
        if not isinstance(source, Source):
            raise TypeError(
                f"source: expected a gpuload Source, got {type(source).__name__}; make one with "
                "gpuload.open"
            )
        if len(source) == 0:
            raise ValueError("source: expected at least one item, got none")
        self._arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "source", "dataset", "torch_names", "__class__")
        } | torch_names
        # Trainers rebuild a loader from attributes that are named as its arguments.
        self.__dict__.update(self._arguments)
        self._options = check_options(
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            seed=seed,
            prefetch=prefetch,
            threads=threads,
            io=io,
            rank=rank,
            world_size=world_size,
            even=even,
            on_error=on_error,
            max_errors=max_errors,
            extras=extras,
            torch_names=torch_names,
        )
        self.dataset = source
        self.batch_size = None if batch_sampler is not None else self._options.batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = self._options.drop_last
        self.seed = self._options.seed
        self.num_workers = self._options.threads or 0
        self._past_errors: list[Failure] = []
        self._device = _find_device(device)
        self._samples = _Samples(source, crop)
        self._dtype = _delivered(source.catalog.layout.dtype, dtype)
        if batch_sampler is not None or self._options.batch_size > 1:
            self._samples.expect_uniform()
        self._files = posix.open_files(source.catalog)
        self._plan: IoPlan | None = None
        self._pipeline: tuple[Pipeline, BatchLayout, Ahead, IoPlan] | None = None
        self._fingerprint: str | None = None
        self._labels = source.labels
        self._epoch = self._first = 0
        self._largest_batch = 0  # that a batch sampler has made
        self._progress: _Progress | None = None
        self._totals = Stats()
        self._flights: weakref.WeakKeyDictionary[Flight, _Progress] = weakref.WeakKeyDictionary()
        self._closed = False
        self._pid = os.getpid()
        self._expect_batches()

    def _expect_batches(self) -> None:
        """Every rank has at least one batch.

        Raises:
            ValueError: there are too few samples, or they cannot be dealt evenly.
            TypeError, IndexError: a list given as a sampler names something else than items.
        """
        o = self._options
        if isinstance(o.batch_sampler, list | tuple):
            self._samples.batches(o.batch_sampler)
        elif isinstance(o.sampler, list | tuple | np.ndarray):
            self._samples.items(o.sampler)
        if len(self) > 0:
            return
        n, what = self._n_dealt()
        if n < o.world_size:
            raise ValueError(
                f"even: expected at least one of {n} {what} for each of {o.world_size} ranks, got "
                f'"{o.even}"; pass even="pad" or fewer ranks'
            )
        raise ValueError(
            f"drop_last: expected at least one full batch of {o.batch_size} from {n} samples on "
            f"each of {o.world_size} ranks, got none; pass drop_last=False or a smaller batch_size"
        )

    # ---- Iteration

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise RuntimeError(
                "DataLoader: expected an open loader, got one that was closed; make a new one"
            )
        if self._pipeline is not None and os.getpid() != self._pid:
            raise RuntimeError(another_process(self._pid))
        epoch, first = self._epoch, self._first
        shares, listed = self._deal(first)
        pipeline = self._ready_pipeline()
        flight = pipeline.start(
            native_epoch(
                shares,
                seed=self.seed,
                epoch=epoch,
                shuffle=self._options.shuffle,
                block=self._samples.block,
                listed=listed,
            )
        )
        self._epoch, self._first = epoch + 1, 0
        self._progress = self._flights[flight] = _Progress(epoch, shares)
        self._totals += Stats(epochs=1)
        batches = self._hand_out(flight, self._progress)
        next(batches)  # from here on, dropping the iterator closes the flight
        return batches

    def _hand_out(self, flight: Flight, progress: _Progress) -> Iterator[Any]:
        take = flight.next
        make = self._batch_maker()
        try:
            yield None
            while (tensors := take()) is not None:
                progress.batches += 1
                made = [make(tensors)]
                del tensors
                yield made.pop()  # while the next one is awaited, the caller alone keeps a batch
        finally:
            flight.close()
            self._flights.pop(flight, None)
            self._totals += self._stats_of(flight, progress)
            self._past_errors += self._errors_of(flight, progress)

    def _batch_maker(self) -> Callable[[list[torch.Tensor]], Any]:
        """Turns the tensors of a batch into what the caller gets."""
        extras = self._options.extras
        named = (("y",) if self._labels is not None else ()) + extras
        if not named:
            return lambda tensors: tensors[0]
        make = batch_type(("x", *named))
        if "path" not in extras:
            return lambda tensors: make(*tensors)
        at = ("x", *named).index("path")

        def with_paths(tensors: list[Any]) -> Any:
            tensors[at] = [self.dataset.paths[i] for i in tensors[at].tolist()]
            return make(*tensors)

        return with_paths

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank; the same on every rank."""
        o = self._options
        if o.batch_sampler is not None:
            return share_count(len(o.batch_sampler), world=o.world_size, even=o.even)
        return self._share(self._n_dealt()[0], first=0).n_batches

    def _n_dealt(self) -> tuple[int, str]:
        """What an epoch deals out to the ranks. A sampler tells its length, and is not gone
        through."""
        o = self._options
        if o.batch_sampler is not None:
            return len(o.batch_sampler), "batches"
        if o.sampler is not None:
            return len(o.sampler) * self._samples.per_item_of_sampler(), "samples"
        return self._samples.n, "samples"

    def _share(self, n_samples: int, *, first: int) -> Shares:
        o = self._options
        return share(
            n_samples,
            first=first,
            batch_size=o.batch_size,
            drop_last=o.drop_last,
            rank=o.rank,
            world=o.world_size,
            even=o.even,
        )

    def _deal(self, first: int) -> tuple[Shares, Listed | None]:
        """Which samples this rank sees in an epoch that goes on at sample `first`. Goes through
        the sampler once."""
        o = self._options
        if o.batch_sampler is not None:
            return self._deal_batches(o.batch_sampler, first)
        if o.sampler is None:
            return self._share(self._samples.n, first=first), None
        per_item = self._samples.per_item_of_sampler()
        listed = list_samples(self._samples.items(o.sampler), per_item)
        shares = self._share(len(listed.items), first=first)
        self._largest_batch = max(self._largest_batch, min(o.batch_size, shares.n_local))
        return shares, listed

    def _deal_batches(
        self, batch_sampler: Sampler[Sequence[int]], first: int
    ) -> tuple[Shares, Listed]:
        o, per_item = self._options, self._samples.per_item_of_sampler()
        batches = self._samples.batches(batch_sampler)
        sizes = np.array([len(batch) * per_item for batch in batches], np.int64)
        self._largest_batch = max(self._largest_batch, int(sizes.max()))
        shares, numbers = share_batches(
            sizes, first=first, rank=o.rank, world=o.world_size, even=o.even
        )
        # Crops are numbered over the whole epoch, whichever part of it this is.
        listed = list_samples(np.concatenate(batches), per_item)
        ends = np.cumsum(sizes)
        rows = [np.arange(ends[k] - sizes[k], ends[k]) for k in numbers]
        return shares, listed.take(np.concatenate([np.empty(0, np.int64), *rows]))

    # ---- How batches are made

    def _columns(self) -> list[Column]:
        wanted = [Column("x", self._dtype)]
        if self._labels is not None:
            kind = (
                INT64
                if self._labels.dtype.kind in "iu"
                else dtypes.from_numpy(self._labels.dtype, "labels")
            )
            wanted.append(Column("y", kind, self._labels.shape[1:]))
        ndim = self._samples.shapes.shape[1]
        known = {
            "index": Column("index", INT64, ()),
            "crop": Column("crop", INT64, ()),
            "start": Column("start", INT64, (ndim,)),
            "valid": Column("valid", BOOL, ()),
            "path": Column("path", INT64, (), on_host=True),  # item numbers, looked up at hand-out
        }
        return wanted + [known[name] for name in self._options.extras]

    def _io_plan(self) -> IoPlan:
        """How files are read."""
        if self._plan is None:
            self._plan = self._fresh_plan()
        return self._plan

    def _fresh_plan(self) -> IoPlan:
        facts = posix.look_at(self.dataset.catalog, self._files)
        return plan_io(facts, io=self._options.io, threads=self._options.threads)

    def _layout(self) -> BatchLayout:
        batch_sampler = self._options.batch_sampler
        if batch_sampler is None:  # never more than an epoch has
            n_local = self._share(self._n_dealt()[0], first=0).n_local
            largest = max(self._largest_batch, min(self._options.batch_size, n_local))
        else:
            largest = self._largest_batch or self._guess_largest_batch(batch_sampler)
        return lay_out(
            self._columns(), batch_size=largest, window_elements=self._samples.largest_window
        )

    def _guess_largest_batch(self, batch_sampler: Sampler[Sequence[int]]) -> int:
        """Before the first epoch: torch's BatchSampler tells, others are gone through."""
        items = getattr(batch_sampler, "batch_size", None)
        if not isinstance(items, int):
            items = max(len(batch) for batch in self._samples.batches(batch_sampler))
        return items * self._samples.per_item_of_sampler()

    def _ahead(self, layout: BatchLayout, plan: IoPlan) -> Ahead:
        return plan_ahead(
            batch_nbytes=layout.nbytes,
            batch_size=self._options.batch_size,
            prefetch=self._options.prefetch,
            threads=plan.threads,
            io=plan.io,
        )

    def _ready_pipeline(self) -> Pipeline:
        """The pipeline of the last epoch, unless files are to be read another way now."""
        plan = self._io_plan()
        if plan.may_warm and self._pipeline is not None:
            fresh = self._fresh_plan()
            plan = self._plan = fresh if fresh.io != plan.io else plan
        layout = self._layout()
        if (
            self._pipeline is not None
            and self._pipeline[1:2] == (layout,)
            and self._pipeline[3] == plan
        ):
            return self._pipeline[0]
        ahead = self._ahead(layout, plan)
        job = Job(
            reader=posix.make_reader(self.dataset.catalog, self._files, self._dtype, plan),
            windows=self._samples.native(),
            labels=_native_labels(self._labels),
            layout=layout,
            ahead=ahead,
            threads=plan.threads,
            on_error=self._options.on_error,
            max_errors=self._options.max_errors,
        )
        self._pipeline = Pipeline(job, self._device), layout, ahead, plan
        return self._pipeline[0]

    # ---- State

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iteration is, as plain JSON data: batches handed out count, prefetched
        ones do not."""
        epoch, samples = self._epoch, self._first
        if self._progress is not None:
            shares, batches = self._progress.shares, self._progress.batches
            if batches < shares.n_batches:
                epoch, samples = self._progress.epoch, shares.handed_out(batches)
        return {"schema": _STATE_SCHEMA, "epoch": epoch, "samples": samples} | self._identity()

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a state to make sense."""
        if self._fingerprint is None:
            self._fingerprint = self.dataset.fingerprint()
        return {
            "seed": self.seed,
            "shuffle": self._options.shuffle,
            "samples_per_epoch": self._samples.n if self.sampler is None else self._n_dealt()[0],
            "data": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, at this loader's batch size and world size. Takes no time.

        Raises:
            ValueError: the state is of other data, another crop count or another kind of shuffle.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state: expected what state_dict returned, got {type(state).__name__}")
        if state.get("schema") != _STATE_SCHEMA:
            raise ValueError(
                f"state: expected schema {_STATE_SCHEMA}, got {state.get('schema')!r}; it is of "
                "another version, or of another loader"
            )
        mine = self._identity()
        for name in ("epoch", "samples", *mine):
            if name not in state:
                raise ValueError(f"state: expected {name}, got {', '.join(state)}")
            if name in mine and name != "seed" and state[name] != mine[name]:
                raise ValueError(
                    f"state: expected {name} {mine[name]!r} as of this loader, got "
                    f"{state[name]!r}; the state was taken from other data or another order"
                )
        seed, epoch, samples = (
            whole_number(name, state[name], None if name == "seed" else 0)
            for name in ("seed", "epoch", "samples")
        )
        if self.batch_sampler is None and samples >= mine["samples_per_epoch"]:
            raise ValueError(
                f"state: expected samples below {mine['samples_per_epoch']}, got {samples}"
            )
        self.seed, self._epoch, self._first = seed, epoch, samples
        self._progress = None

    def set_epoch(self, epoch: int) -> None:
        """Pin the epoch of the next iteration; later ones count on from it. A sampler's set_epoch
        is called too."""
        epoch = whole_number("epoch", epoch, 0)
        if self._progress is not None or epoch != self._epoch:
            self._first = 0  # a loaded position holds only for its own epoch
        self._epoch, self._progress = epoch, None
        inner = getattr(self.batch_sampler, "sampler", None)
        for sampler in (self.sampler, self.batch_sampler, inner):
            pin = getattr(sampler, "set_epoch", None)
            if pin is not None:
                pin(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch

    # ---- Reports

    def stats(self) -> Stats:
        """Totals since the loader was made, the iterations in progress included."""
        blocks = self._pipeline[0].batch_blocks if self._pipeline else 0
        live = [self._stats_of(*item) for item in list(self._flights.items())]
        return sum(live, self._with_reads()) + Stats(batch_blocks=blocks)

    def _stats_of(self, flight: Flight, progress: _Progress) -> Stats:
        n_samples = progress.shares.given(progress.batches)
        if self._options.on_error == "skip":
            n_samples -= sum(batch < progress.batches for batch, *_ in flight.failures())
        return flight.stats() + Stats(batches=progress.batches, samples=n_samples)

    @property
    def errors(self) -> list[Failure]:
        """Samples that could not be read, and were left out or replaced, so far."""
        live = [self._errors_of(*item) for item in list(self._flights.items())]
        return sum(live, self._past_errors)

    def _errors_of(self, flight: Flight, progress: _Progress) -> list[Failure]:
        paths = self.dataset.paths
        return [
            Failure(progress.epoch, batch, index, crop, paths[index], message)
            for batch, index, crop, message in flight.failures()
        ]

    def _with_reads(self) -> Stats:
        files = self._files.native
        return self._totals + Stats(
            read_nbytes=files.read_nbytes, read_requests=files.read_requests
        )

    def memory(self) -> Memory:
        """The bound on host memory: blocks of batch memory, and scratch of threads that read."""
        plan, layout = self._io_plan(), self._layout()
        ahead = self._ahead(layout, plan)
        blocks = ahead.depth + 1
        scratch = plan.threads * plan.max_nbytes if plan.io == "pread" else 0
        return Memory(layout.nbytes, blocks, scratch, layout.nbytes * blocks + scratch)

    def describe(self) -> str:
        """How this loader reads and why, in a few lines for people."""
        plan, layout, memory = self._io_plan(), self._layout(), self.memory()
        ahead = self._ahead(layout, plan)
        o, s = self._options, self._samples
        lines = [
            f"samples   {s.n} per epoch from {len(self.dataset)} items, {len(self)} batches"
            + (
                f" on rank {o.rank} of {o.world_size} ({self._evenness()})"
                if o.world_size > 1
                else ""
            ),
            f"windows   {s.describe()}, {self.dataset.catalog.layout.dtype.name}"
            + (
                f" -> {self._dtype.name}"
                if self._dtype != self.dataset.catalog.layout.dtype
                else ""
            ),
            f"io        {plan.io}: {plan.reason}"
            + ("; no more maps allowed, some files are read" if self._is_out_of_maps() else ""),
            f"threads   {plan.threads}, {ahead.depth} batches ahead",
            f"memory    {memory.host_nbytes / 1e6:.1f} MB: {memory.blocks} batches of "
            f"{memory.batch_nbytes / 1e6:.2f} MB"
            + (
                f" and {memory.scratch_nbytes / 1e6:.1f} MB for reads"
                if memory.scratch_nbytes
                else ""
            ),
            f"device    {self._device.name}",
        ]
        if plan.io == "pread":
            reader = posix.make_reader(self.dataset.catalog, self._files, self._dtype, plan)
            spans, nbytes = reader.split(s.native(), 0)
            lines.insert(3, f"reads     {spans} spans of {nbytes} bytes for the window of item 0")
        return "\n".join(lines)

    def _is_out_of_maps(self) -> bool:
        return (
            self._plan is not None and self._plan.io == "mmap" and self._files.native.is_out_of_maps
        )

    def _evenness(self) -> str:
        o, (n, what) = self._options, self._n_dealt()
        if o.even == "exact" and not o.drop_last:
            return "each once"
        share = len(self) if what == "batches" else self._share(n, first=0).n_local
        covered = share * o.world_size
        if covered < n:
            return f"{n - covered} {what} left out"
        return f"{covered - n} {what} repeated" if covered > n else "even"

    # ---- Ending

    def close(self) -> None:
        """End the threads, close files, free memory. Batches handed out stay valid. May be called
        twice."""
        self._closed = True
        for flight in list(self._flights):
            flight.close()
        self._pipeline = None
        self._totals = self._with_reads()
        self._files = posix.open_files(self.dataset.catalog)  # none of them open

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return partial(DataLoader, **self._arguments), (self.dataset,), self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state)


class _Samples:
    """The windows of a source's items, numbered: sample s is a window of an item."""

    def __init__(self, source: Source, crop: Crop | None) -> None:
        catalog = source.catalog
        self._source = source
        self._used = catalog.used_arrays
        self.shapes = catalog.item_shape_of_array[self._used]
        self.geometry: Geometry = resolve(crop, self.shapes, self._name)
        self._crop = crop

    def _name(self, row: int) -> str:
        return self._source.catalog.path_of_array(int(self._used[row]))

    @property
    def _ends(self) -> Ints | None:
        """Windows of items 0..i, where items have different numbers of them."""
        if self.geometry.per_item is not None:
            return None
        arrays = self._source.catalog.array_of(np.arange(len(self._source), dtype=np.int64))
        return np.cumsum(self.geometry.counts[np.searchsorted(self._used, arrays)])

    @property
    def n(self) -> int:
        ends = self._ends
        return (
            int(ends[-1]) if ends is not None else len(self._source) * (self.geometry.per_item or 0)
        )

    @property
    def largest_window(self) -> int:
        """Elements."""
        return int(self.geometry.extents.prod(axis=1).max())

    @property
    def block(self) -> int:
        """Samples that shuffle="block" keeps together: those of one array, or of about 1 MiB of
        rows."""
        per_item = self.geometry.per_item or max(1, self.n // len(self._source))
        if self._source.catalog.sample_axis is None:
            return per_item
        row_nbytes = int(self.shapes[0].prod()) * self._source.catalog.layout.record_nbytes
        return per_item * max(1, _BLOCK_NBYTES // max(row_nbytes, 1))

    def expect_uniform(self) -> None:
        """Windows of one batch have one shape.

        Raises:
            ValueError: two arrays give windows of different shapes.
        """
        if self.geometry.is_uniform:
            return
        extents = self.geometry.extents
        other = int(np.flatnonzero((extents != extents[0]).any(axis=1))[0])
        raise ValueError(
            f"{self._name(other)}: expected windows of shape {tuple(map(int, extents[0]))} as in "
            f"{self._name(0)}, got "
            f"{tuple(map(int, extents[other]))}; pass crop= with a size for each axis, or "
            "batch_size=1"
        )

    def items(self, sampler: Iterable[int], name: str = "sampler") -> Ints:
        """What a sampler yields, as item numbers.

        Raises:
            TypeError, IndexError: it yields something else, or items that are not there.
            ValueError: it yields nothing.
        """
        drawn = list(sampler)
        try:
            items = np.fromiter(map(operator.index, drawn), np.int64, len(drawn))
        except TypeError:
            other = next((i for i in drawn if not hasattr(i, "__index__")), drawn)
            raise TypeError(
                f"{name}: expected item numbers, got {other!r}; pass lists of items as "
                "batch_sampler="
            ) from None
        if not len(items):
            raise ValueError(f"{name}: expected at least one item, got none")
        n = len(self._source)
        bad = items[(items < -n) | (items >= n)]
        if len(bad):
            raise IndexError(f"{name}: expected items of [{-n}, {n}), got {bad[0]}")
        return np.where(items < 0, items + n, items)

    def batches(self, batch_sampler: Iterable[Sequence[int]]) -> list[Ints]:
        """What a batch sampler yields, as item numbers of each batch.

        Raises:
            TypeError, IndexError, ValueError: as of `items`.
        """
        batches = []
        for drawn in batch_sampler:
            if not isinstance(drawn, Iterable):
                raise TypeError(
                    f"batch_sampler: expected lists of items, got {drawn!r}; pass items as sampler="
                )
            batches.append(self.items(drawn, "batch_sampler"))
        if not batches:
            raise ValueError("batch_sampler: expected at least one batch, got none")
        return batches

    def per_item_of_sampler(self) -> int:
        if self.geometry.per_item is None:
            raise ValueError(
                "sampler: expected a crop with as many windows for each item, got GridCrop on "
                "arrays of "
                "different shapes; use source.select in place of a sampler"
            )
        return self.geometry.per_item

    def native(self) -> _native.Windows:
        return self.geometry.native(self._ends)

    def describe(self) -> str:
        shape = "x".join(map(str, self.geometry.extents[0])) or "scalar"
        if not self.geometry.is_uniform:
            shape += " and other shapes"
        return f"{self._crop or 'whole items'}: {shape}"


def _find_device(device: object) -> Device:
    if isinstance(device, torch.device):
        device = str(device)
    if device in ("auto", "cpu"):
        return CpuDevice()
    if isinstance(device, str):
        raise DeviceError(f'device: expected "auto" or "cpu" in this version, got "{device}"')
    if hasattr(device, "is_host") and hasattr(device, "stream"):
        return device  # type: ignore[return-value]
    raise TypeError(f'device: expected "auto", "cpu" or a Device, got {device!r}')


def _delivered(stored: Dtype, dtype: object) -> Dtype:
    if dtype is None:
        return stored
    wanted = dtypes.parse(dtype, "dtype")
    if stored.is_complex and not wanted.is_complex:
        raise TypeError(
            f"dtype: expected complex64 or complex128 for {stored.name} data, got {wanted.name}; "
            "take the real part of the batch in your loop"
        )
    return wanted


def _native_labels(labels: np.ndarray[Any, Any] | None) -> _native.Labels | None:
    if labels is None:
        return None
    rows = np.ascontiguousarray(labels.astype(np.int64) if labels.dtype.kind in "iu" else labels)
    return _native.Labels(rows.tobytes(), rows.itemsize * math.prod(rows.shape[1:]))
