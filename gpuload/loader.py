"""DataLoader: from a source to batches in the caller's hands."""

from __future__ import annotations

import inspect
import os
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gpuload.arrangement import TOLD, arrange
from gpuload.assembly import Assembly, Memory
from gpuload.batch import batch_type
from gpuload.deal import Dealer
from gpuload.devices.choose import choose
from gpuload.fit import Pad, Resize
from gpuload.items import ItemAssembly, check_arguments
from gpuload.options import TORCH_DEFAULTS, check_options, whole_number
from gpuload.order import Shares, native_epoch
from gpuload.pipeline import Flight, another_process
from gpuload.randomness import batch_seed
from gpuload.samples import Items
from gpuload.sources.dataset import DatasetSource
from gpuload.sources.source import Source
from gpuload.stats import Stats
from gpuload.window import Crop

_STATE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that could not be read, and was left out or replaced."""

    epoch: int
    batch: int
    index: int
    crop: int
    path: str
    message: str


@dataclass(slots=True)
class _Progress:
    """How far the newest iteration has come."""

    epoch: int
    shares: Shares
    key: int  # of seed and epoch
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
        source: what `gpuload.open` or `gpuload.dataset` returned. Also taken as `dataset`, torch's
            name.
        batch_size: samples per batch.
        shuffle: False, True (a permutation of all samples of an epoch), or "block": neighbours stay
            together. Blocks (the windows of one array, or about 1 MiB of rows) are permuted, then
            the samples of each 64 blocks are mixed.
        sampler: yields items; each gives all its crops. Has a length.
        batch_sampler: yields lists of items, each a batch. Has a length.
        drop_last: leave out a last batch that is not full.
        seed: any whole number; the same on all ranks.
        crop: RandomCrop, CenterCrop, GridCrop, or None for whole items. One that is larger than an
            item is an error, unless pad= fills the rest.
        resize: Resize, done to windows before they are flipped and padded.
        pad: Pad, where windows have different shapes.
        dtype: deliver values cast to this type; None keeps the stored type in the machine's byte
            order. float to integer truncates toward zero, saturates, and takes NaN to 0; integers
            that do not fit wrap, as in NumPy. This and the next four may be dicts by field; a bare
            value is that of the first field.
        scale, mean, std: deliver (x * scale - mean) / std, computed in float32, or in float64
            where the stored or delivered type has more than 24 bits. mean and std are one number,
            or one for each channel. Values are then float32 unless dtype= says otherwise.
        layout: the order of axes: "channels_first" ("NCHW", "NCDHW"...) moves the last axis of
            items to the front, "channels_last" ("NHWC"...) the first one to the end: it says what
            is wanted of data that are stored the other way. crop=, pad=,
            flip= and the extra "start" count axes as they are stored.
        flip: axes along which windows are reversed at random, each half of the time.
        rot90: two axes; windows are turned in their plane by 0 to 3 quarters at random, as by
            numpy.rot90, after they were flipped. Drawn by (seed, epoch, item, crop number), as
            crops are.
        transform: a function of a whole batch and a torch.Generator on its device, seeded by
            (seed, epoch, number of the batch); what it returns is handed out.
        device: "cuda" or "cuda:1" (batches are made on that GPU), "cpu", or "auto": the GPU that
            torch calls "cuda" where there is one and CuPy imports, else the CPU; `describe()` says
            why.
        prefetch: batches filled ahead of the caller; more when they are small, up to about 4 MiB.
        threads: native threads, "auto" for the cores granted, more for cold files.
        io: "mmap" copies from kept maps, "pread" reads; "auto" decides by file system and page
            cache. "gds" reads large windows straight into the GPU (GPUDirect Storage), or raises
            with the reason why that is not possible here.
        cache: "device" loads all arrays once, when the first epoch begins, and keeps them where
            batches are made: in the GPU's memory, or in this machine's. On a GPU each batch is then
            drawn by one launch.
        rank, world_size: this process among those that share an epoch. "auto": a process by itself.
        even: what gives every rank as many batches: "pad" repeats samples (extra "valid" tells),
            "drop" leaves samples out, "exact" gives each sample once in batches that may be one
            sample short.
        on_error: "raise"; "skip" leaves unreadable samples out of their batch; "replace" puts
            others in their place. `errors` lists them.
        max_errors: more failures than that in one epoch are raised.
        extras: names of further fields: "index" (item), "crop" (its number), "start" (B, ndim),
            "path" (list), "valid" (False for repeats), "mask" (True on data and False on padding;
            of one element along axes that nothing pads), "lengths" (B, ndim) extents of the data
            as delivered, "flip" (B, ndim) and "rot90" (B,) as drawn.
        **torch_names: num_workers (-> threads), prefetch_factor (-> prefetch), generator (its
            seed), pin_memory and persistent_workers (without effect here).

    Raises:
        ValueError, TypeError: an argument is not as said above, windows do not fit, shapes differ.
        DeviceError: the device cannot be used.
        ReadError: while iterating: a file is gone, changed, short or broken.
    """

    def __init__(
        self,
        source: Source | DatasetSource | None = None,
        batch_size: int = 1,
        *,
        shuffle: bool | str | None = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        crop: Crop | None = None,
        resize: Resize | None = None,
        pad: Pad | None = None,
        dtype: object = None,
        scale: object = None,
        mean: object = None,
        std: object = None,
        layout: object = None,
        flip: object = (),
        rot90: object = None,
        transform: Callable[..., Any] | None = None,
        device: object = "auto",
        prefetch: int = 2,
        threads: int | str = "auto",
        io: str = "auto",
        cache: str | None = None,
        rank: int | str = "auto",
        world_size: int | str = "auto",
        even: str = "pad",
        on_error: str = "raise",
        max_errors: int | None = None,
        extras: Sequence[str] | str = (),
        dataset: Source | DatasetSource | None = None,
        **torch_names: Any,
    ) -> None:
        if source is not None and dataset is not None:
            raise TypeError("dataset: expected source or dataset, got both")
        source = dataset if source is None else source
        if not isinstance(source, Source | DatasetSource):
            raise TypeError(
                f"source: expected a gpuload Source, got {type(source).__name__}; make one with "
                "gpuload.open or gpuload.dataset"
            )
        if len(source) == 0:
            raise ValueError("source: expected at least one item, got none")
        self._arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "source", "dataset", "torch_names", "__class__")
        } | torch_names
        if isinstance(source, DatasetSource):
            check_arguments(self._arguments, _DEFAULTS, source)
        # Trainers rebuild a loader from attributes that are named as its and torch's arguments.
        self.__dict__.update(TORCH_DEFAULTS | self._arguments)
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
            cache=cache,
            rank=rank,
            world_size=world_size,
            even=even,
            on_error=on_error,
            max_errors=max_errors,
            extras=extras,
            torch_names=torch_names,
        )
        self.dataset: Source | DatasetSource = source
        self.batch_size = None if batch_sampler is not None else self._options.batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = self._options.drop_last
        if transform is not None and not callable(transform):
            raise TypeError(
                "transform: expected a function of a batch and a generator, got "
                f"{type(transform).__name__}"
            )
        self.transform = transform
        self.seed = self._options.seed
        self.num_workers = self._options.threads or 0
        on, why = choose(device)
        self._samples: Items
        self._assembly: Assembly | ItemAssembly
        if isinstance(source, DatasetSource):
            self._samples = Items(len(source))
            self._assembly = ItemAssembly(
                source, self._samples, self._options, device=on, why_device=why
            )
        else:
            arrangement = arrange(
                source,
                crop=crop,
                pad=pad,
                resize=resize,
                flip=flip,
                rot90=rot90,
                dtype=dtype,
                scale=scale,
                mean=mean,
                std=std,
                layout=layout,
                is_batched=batch_sampler is not None or self._options.batch_size > 1,
                tells=any(name in TOLD for name in self._options.extras),
            )
            self._samples = arrangement.samples
            self._assembly = Assembly(source, arrangement, self._options, device=on, why_device=why)
        self._dealer = Dealer(self._samples, self._options)
        self._fingerprint: str | None = None
        self._epoch = self._first = 0
        self._past_errors: list[Failure] = []
        self._progress: _Progress | None = None
        self._totals = Stats()
        self._flights: weakref.WeakKeyDictionary[Flight, _Progress] = weakref.WeakKeyDictionary()
        self._closed = False
        self._pid = os.getpid()
        self._dealer.expect_batches()
        self._assembly.check()

    # ---- Iteration

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise RuntimeError(
                "DataLoader: expected an open loader, got one that was closed; make a new one"
            )
        if self._assembly.is_used and os.getpid() != self._pid:
            raise RuntimeError(another_process(self._pid))
        epoch, first = self._epoch, self._first
        shares, listed = self._dealer.deal(first, seed=self.seed, epoch=epoch)
        order = native_epoch(
            shares,
            seed=self.seed,
            epoch=epoch,
            shuffle=self._options.shuffle,
            block=self._samples.block,
            listed=listed,
        )
        flight = self._assembly.start(order, shares, listed, self._dealer.largest_batch)
        self._epoch, self._first = epoch + 1, 0
        self._progress = self._flights[flight] = _Progress(epoch, shares, order.key)
        self._totals += Stats(epochs=1)
        batches = self._hand_out(flight, self._progress)
        next(batches)  # from here on, dropping the iterator closes the flight
        return batches

    def _hand_out(self, flight: Flight, progress: _Progress) -> Iterator[Any]:
        take = flight.next
        make = self._batch_maker()
        if self.transform is not None:
            make = self._transformed(make, self.transform, progress)
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
        names = self._assembly.fields
        if names == ("x",):
            return lambda tensors: tensors[0]
        make = batch_type(names)
        if "path" not in names:
            return lambda tensors: make(*tensors)
        at = names.index("path")

        def with_paths(tensors: list[Any]) -> Any:
            tensors[at] = [self.dataset.paths[i] for i in tensors[at].tolist()]
            return make(*tensors)

        return with_paths

    def _transformed(
        self,
        make: Callable[[list[torch.Tensor]], Any],
        transform: Callable[..., Any],
        progress: _Progress,
    ) -> Callable[[list[torch.Tensor]], Any]:
        """Batches as the user's function changes them."""
        generators: dict[torch.device, torch.Generator] = {}

        def make_and_transform(tensors: list[torch.Tensor]) -> Any:
            device = _device_of(tensors)
            if device not in generators:
                generators[device] = torch.Generator(device)
            begin = progress.shares.handed_out(progress.batches - 1)
            seed = batch_seed(progress.key, begin=begin, rank=self._options.rank)
            generators[device].manual_seed(seed)
            batch = make(tensors)
            del tensors
            try:
                return transform(batch, generators[device])
            except Exception as error:
                error.add_note(
                    f"gpuload: in transform=, batch {progress.batches - 1} of this iteration, "
                    f"epoch {progress.epoch}"
                )
                raise

        return make_and_transform

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank; the same on every rank."""
        return self._dealer.n_batches

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
        buckets = {"bucket": self._samples.sizes_hash} if self._samples.has_buckets else {}
        return {
            "seed": self.seed,
            **buckets,
            "shuffle": self._options.shuffle,
            "samples_per_epoch": self._samples.n
            if self.sampler is None
            else self._dealer.n_dealt()[0],
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
        if "bucket" in state and "bucket" not in mine:
            raise ValueError(
                "state: expected one of a loader without buckets, got one with; pass bucket=True "
                "to pad="
            )
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
        live = [self._stats_of(*item) for item in list(self._flights.items())]
        return sum(live, self._totals + self._assembly.stats())

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

    def memory(self) -> Memory:
        """The bound on host memory: blocks of batch memory, and scratch of threads that read."""
        return self._assembly.memory(self._dealer.largest_batch)

    def describe(self) -> str:
        """How this loader reads and why, in a few lines for people."""
        o = self._options
        ranks = f" on rank {o.rank} of {o.world_size} ({self._dealer.describe()})"
        first = (
            f"samples   {self._samples.n} per epoch from {len(self.dataset)} items, "
            f"{len(self)} batches{ranks if o.world_size > 1 else ''}"
        )
        return "\n".join([first, *self._assembly.describe(self._dealer.largest_batch)])

    # ---- Ending

    def close(self) -> None:
        """End the threads, close files, free memory. Batches handed out stay valid. May be called
        twice."""
        self._closed = True
        for flight in list(self._flights):
            flight.close()
        self._totals += replace(self._assembly.stats(), batch_blocks=0, pinned_nbytes=0)
        self._assembly.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self.transform is not None:
            _check_pickles(self.transform)
        return partial(DataLoader, **self._arguments), (self.dataset,), self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state)


def _device_of(batch: Any) -> torch.device:
    """Where the first tensor of a batch lies."""
    if isinstance(batch, torch.Tensor):
        return batch.device
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, tuple | list | Mapping):
        for part in parts:
            if (device := _device_of(part)).type != "cpu":
                return device
    return torch.device("cpu")


def _check_pickles(transform: Callable[..., Any]) -> None:
    """Say which argument it is that cannot be sent to another process.

    Raises:
        TypeError: a lambda, or a function inside another.
    """
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise TypeError(
            "transform: expected a function that can be pickled, such as one of a module, got "
            f"{transform!r} ({error})"
        ) from None


_DEFAULTS = TORCH_DEFAULTS | {
    name: parameter.default
    for name, parameter in inspect.signature(DataLoader.__init__).parameters.items()
}
