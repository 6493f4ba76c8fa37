"""DataLoader: from a source to batches in the caller's hands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from gpuload.options import check_options
from gpuload.order import (
    Listed,
    Shares,
    list_samples,
    native_epoch,
    share,
    share_batches,
)
from gpuload.pipeline import Flight, Job, Pipeline
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
        self.errors: list[Failure] = []
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
        self._progress: _Progress | None = None
        self._totals = Stats()
        self._closed = False
        if len(self) == 0:
            raise ValueError(
                f"drop_last: expected at least one full batch of {batch_size} from "
                f"{self._n_samples()} samples on {self._options.world_size} ranks, got none"
            )

    # ---- Iteration

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise RuntimeError("DataLoader: expected an open loader, got one that was closed")
        epoch, first = self._epoch, self._first
        shares, listed = self._shares(first)
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
        self._progress = _Progress(epoch, shares)
        self._totals += Stats(epochs=1)
        batches = self._hand_out(flight, self._progress)
        next(batches)  # from here on, dropping the iterator closes the flight
        return batches

    def _hand_out(self, flight: Flight, progress: _Progress) -> Iterator[Any]:
        take = flight.next
        make = self._batch_maker()
        first = progress.shares.handed_out(0)
        try:
            yield None
            while (tensors := take()) is not None:
                progress.batches += 1
                yield make(tensors)
        finally:
            flight.close()
            seen = progress.shares.handed_out(progress.batches) - first
            self._totals += flight.stats() + Stats(batches=progress.batches, samples=seen)
            for batch, index, crop, message in flight.failures():
                path = self.dataset.paths[index]
                self.errors.append(Failure(progress.epoch, batch, index, crop, path, message))

    def _batch_maker(self) -> Callable[[list[torch.Tensor]], Any]:
        """Turns the tensors of a batch into what the caller gets."""
        extras = self._options.extras
        named = (("y",) if self._labels is not None else ()) + extras
        if not named:
            return lambda tensors: tensors[0]
        make = batch_type(("x", *named))
        if "path" not in extras:
            return lambda tensors: make(*tensors)
        columns = self._columns()
        at = next(i for i, column in enumerate(columns) if column.name == "index")
        order = [i for name in ("x", *named) for i, c in enumerate(columns) if c.name == name]
        where = ("x", *named).index("path")

        def with_paths(tensors: list[torch.Tensor]) -> Any:
            paths = [self.dataset.paths[i] for i in tensors[at].tolist()]
            values: list[Any] = [tensors[i] for i in order]
            values.insert(where, paths)
            return make(*values)

        return with_paths

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank; the same on every rank."""
        return self._shares(0)[0].n_batches

    def _n_samples(self) -> int:
        return self._shares(0)[0].n_samples

    def _shares(self, first: int) -> tuple[Shares, Listed | None]:
        """Which samples this rank sees in an epoch that goes on at sample `first`."""
        o = self._options
        if o.batch_sampler is not None:
            per_item = self._samples.per_item_of_sampler()
            lists = [self._samples.items(batch) for batch in o.batch_sampler]
            lists = [batch for batch in lists if len(batch)]
            sizes = np.array([len(batch) * per_item for batch in lists], np.int64)
            shares, numbers = share_batches(
                sizes, first=first, rank=o.rank, world=o.world_size, even=o.even
            )
            items = [lists[number] for number in numbers]
            return shares, list_samples(np.concatenate([np.empty(0, np.int64), *items]), per_item)
        listed = None
        n_samples = self._samples.n
        if o.sampler is not None:
            listed = list_samples(
                self._samples.items(o.sampler), self._samples.per_item_of_sampler()
            )
            n_samples = len(listed.items)
        shares = share(
            n_samples,
            first=first,
            batch_size=o.batch_size,
            drop_last=o.drop_last,
            rank=o.rank,
            world=o.world_size,
            even=o.even,
        )
        return shares, listed

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
        }
        extras = self._options.extras
        wanted += [known[name] for name in extras if name in known]
        if "path" in extras and "index" not in extras:
            wanted.append(known["index"])
        return wanted

    def _io_plan(self) -> IoPlan:
        """How files are read; looked at again as long as they are cold."""
        if self._plan is None or self._plan.is_cold:
            facts = posix.look_at(self.dataset.catalog, self._files)
            self._plan = plan_io(facts, io=self._options.io, threads=self._options.threads)
        return self._plan

    def _layout(self) -> BatchLayout:
        largest = self._options.batch_size
        if self._options.batch_sampler is not None:
            per_item = self._samples.per_item_of_sampler()
            largest = max(
                (len(batch) * per_item for batch in self._options.batch_sampler), default=1
            )
        return lay_out(
            self._columns(), batch_size=largest, window_elements=self._samples.largest_window
        )

    def _ahead(self, layout: BatchLayout, plan: IoPlan) -> Ahead:
        return plan_ahead(
            batch_nbytes=layout.nbytes,
            batch_size=self._options.batch_size,
            prefetch=self._options.prefetch,
            threads=plan.threads,
        )

    def _ready_pipeline(self) -> Pipeline:
        """The pipeline of the last epoch, unless files are to be read another way now."""
        plan = self._io_plan()
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
            "samples_per_epoch": self._samples.n,
            "data": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, at this loader's batch size and world size. Takes no time.

        Raises:
            ValueError: the state is of other data, another crop count or another kind of shuffle.
        """
        if state.get("schema") != _STATE_SCHEMA:
            raise ValueError(
                f"state: expected schema {_STATE_SCHEMA}, got {state.get('schema')!r}; it is of "
                "another version"
            )
        mine = self._identity() | {"seed": state["seed"]}
        for name, value in mine.items():
            if state[name] != value:
                raise ValueError(
                    f"state: expected {name} {value!r} as of this loader, got {state[name]!r}; "
                    "the state was taken from other data or another order"
                )
        self.seed = int(state["seed"])
        self._epoch, self._first = int(state["epoch"]), int(state["samples"])
        self._progress = None

    def set_epoch(self, epoch: int) -> None:
        """Pin the epoch of the next iteration; later ones count on from it. A sampler's set_epoch
        is called too."""
        if epoch < 0:
            raise ValueError(f"epoch: expected 0 or more, got {epoch}")
        if self._progress is not None or epoch != self._epoch:
            self._first = 0  # a loaded position holds only for its own epoch
        self._epoch, self._progress = int(epoch), None
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
        """Totals of the iterations that have ended."""
        blocks = self._pipeline[0].batch_blocks if self._pipeline else 0
        files = self._files.native
        return replace(
            self._totals,
            read_nbytes=files.read_nbytes,
            read_requests=files.read_requests,
            batch_blocks=blocks,
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
            f"io        {plan.io}: {plan.reason}",
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

    def _evenness(self) -> str:
        shares = self._shares(0)[0]
        covered = shares.n_local * shares.world
        if covered < shares.n_samples:
            return f"{shares.n_samples - covered} samples left out"
        return (
            f"{covered - shares.n_samples} samples repeated"
            if covered > shares.n_samples
            else "even"
        )

    # ---- Ending

    def close(self) -> None:
        """End the threads, close files, free memory. Batches handed out stay valid. May be called
        twice."""
        self._closed = True
        if self._pipeline is not None:
            self._pipeline[0].close()
            self._pipeline = None

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

    def items(self, sampler: Iterable[int]) -> Ints:
        """What a sampler yields, as item numbers.

        Raises:
            TypeError, IndexError: it yields something else, or items that are not there.
        """
        items = np.array([int(i) for i in sampler], np.int64)
        n = len(self._source)
        bad = items[(items < -n) | (items >= n)]
        if len(bad):
            raise IndexError(f"sampler: expected items of [{-n}, {n}), got {bad[0]}")
        return np.where(items < 0, items + n, items)

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
