"""Put together what fills a loader's batches: layout, plan, reader, threads; and report on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload import _native, cache, dtypes
from gpuload.arrangement import Arrangement
from gpuload.catalog import Catalog
from gpuload.devices import Device
from gpuload.devices.arguments import MAX_AXES
from gpuload.dtypes import BOOL, INT64, Dtype
from gpuload.errors import DeviceError
from gpuload.journey import Journey, Planner
from gpuload.layout import Column, lay_out
from gpuload.options import Options
from gpuload.order import Listed, Shares
from gpuload.pipeline import Flight, Job, Pipeline
from gpuload.plan import Ahead, IoPlan, plan_ahead, plan_io
from gpuload.readers import posix
from gpuload.resident import Resident, ResidentFlight, Tables, hold
from gpuload.sources.source import Source
from gpuload.stats import Stats
from gpuload.transform import Scaling


@dataclass(frozen=True, slots=True)
class Memory:
    """What a loader takes at most, beside batches that the caller keeps. In bytes.

    `blocks` of `batch_nbytes` are filled by the readers: batches on the CPU, slabs that cross to
    another device. `device_nbytes` are on the device: what was copied, and batches made ahead.
    """

    batch_nbytes: int
    blocks: int
    scratch_nbytes: int
    host_nbytes: int
    device_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A pipeline, and what it was made for."""

    pipeline: Pipeline
    journey: Journey
    plan: IoPlan


Opened = list[tuple[Catalog, posix.OpenFiles]]


class Assembly:
    """The machinery of one loader, kept from epoch to epoch as long as its plan and layout hold."""

    def __init__(
        self,
        source: Source,
        arrangement: Arrangement,
        options: Options,
        *,
        device: Device,
        why_device: str,
    ) -> None:
        self._source = source
        self._arrangement = arrangement
        self._samples = arrangement.samples
        self._options = options
        self._device = device
        self._why_device = why_device
        self._stored = source.catalog.layout.dtype
        self._dtype = arrangement.forms[0].delivered
        self._labels = source.labels
        self._opened: Opened | None = None
        self._plan: IoPlan | None = None
        self._ready: _Ready | None = None
        self._resident: Resident | None = None
        self._loaded = Stats()  # reads of files that are held in memory now
        self._planner = Planner(
            source.catalog, arrangement, options, device, tuple(self._columns()), self._stored
        )
        self._journeys: dict[tuple[IoPlan, int], Journey] = {}
        self._check_inflated()
        most = max(len(form.order) for form in arrangement.forms)
        if not device.is_host and not arrangement.is_plain and most > MAX_AXES:
            raise ValueError(
                f"device: expected items of at most {MAX_AXES} axes on {device.name} where windows "
                f'are more than cut and cast, got {most}; pass device="cpu"'
            )
        self._held: list[cache.Plan] = []
        if options.cache is not None:
            self._held = [cache.plan(field.catalog) for field in source.fields]
            self._check_held(self._held)

    @property
    def _fields(self) -> Opened:
        """Where the readers find the arrays of each field. Deflated ones are inflated here."""
        if self._opened is None:
            self._opened = [(f.catalog, posix.open_files(f.catalog)) for f in self._source.fields]
        return self._opened

    def check(self) -> None:
        """What can be found out before the first epoch.

        Raises:
            DeviceError: files cannot be read as asked for.
        """
        if self._options.io == "gds":
            self._check_direct()

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a batch, in order."""
        names = [form.name for form in self._arrangement.forms]
        return (*names, *(("y",) if self._labels is not None else ()), *self._options.extras)

    @property
    def is_used(self) -> bool:
        """Whether threads have been started, or a device holds arrays for it."""
        return self._ready is not None or self._resident is not None

    def _check_inflated(self) -> None:
        """What is inflated into memory, all at once, is neither mapped nor left out."""
        for field in self._source.fields:
            contents, path = field.catalog.contents, field.catalog.paths[0]
            if contents is None or contents.place:
                continue
            if self._options.io == "mmap":
                raise ValueError(
                    f"io: expected files that can be mapped, got {path}, of which arrays are "
                    'inflated into memory; pass io="auto"'
                )
            if self._options.on_error != "raise":
                raise ValueError(
                    f'on_error: expected "raise" with {path}, of which arrays are inflated into '
                    f'memory at once, got "{self._options.on_error}"; leave bad files out by '
                    'gpuload.open(on_error="skip")'
                )

    def _check_held(self, held: list[cache.Plan]) -> None:
        if self._options.on_error != "raise":
            raise ValueError(
                'on_error: expected "raise" with cache="device", which loads all files at once, '
                f'got "{self._options.on_error}"; leave bad files out by gpuload.open(on_error='
                '"skip")'
            )
        cache.check_fits(sum(plan.nbytes for plan in held), self._device)
        ndim = self._samples.shapes.shape[1]
        if not self._device.is_host and ndim > MAX_AXES:
            raise ValueError(
                f"cache: expected items of at most {MAX_AXES} axes, got {ndim}; pass cache=None"
            )
        if not self._device.is_host and not self._arrangement.is_plain:
            raise ValueError(
                f"cache: expected windows of one field that are only cut and cast on "
                f"{self._device.name}, got pad=, resize=, scale=, layout=, flips or several "
                "fields; pass cache=None"
            )

    def _columns(self) -> list[Column]:
        wanted = self._arrangement.columns()
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
        known |= self._arrangement.told()
        for form in self._arrangement.forms:
            if form.name in self._options.extras:
                raise ValueError(
                    f"extras: expected names that no field has, got {form.name!r}; name the field "
                    "otherwise"
                )
        return wanted + [known[name] for name in self._options.extras]

    def _io_plan(self) -> IoPlan:
        """How files are read."""
        if self._plan is None:
            self._plan = self._fresh_plan()
        return self._plan

    def _fresh_plan(self) -> IoPlan:
        """Where fields lie differently, the one that must be read decides."""
        io = "auto" if self._options.io == "gds" else self._options.io
        facts = [posix.look_at(catalog, files) for catalog, files in self._fields]
        plans = [plan_io(fact, io=io, threads=self._options.threads) for fact in facts]
        plan = next((plan for plan in plans if plan.io == "pread"), plans[0])
        if not self._held or not self._device.is_host:
            return plan
        return replace(
            plan,
            io="mmap",
            reason="arrays are held in memory",
            is_cold=False,
            may_warm=False,
            threads=self._options.threads or facts[0].cores,
        )

    def _journey(self, plan: IoPlan, n: int) -> Journey:
        """The same question is answered once."""
        if (plan, n) not in self._journeys:
            self._journeys[plan, n] = self._planner.plan(plan, n, self._reader, self._arranger)
        return self._journeys[plan, n]

    def _check_direct(self) -> None:
        """io="gds" is strict.

        Raises:
            DeviceError: files cannot be read straight into the device.
        """
        transfer = self._journey(self._io_plan(), 1).transfer
        if transfer is None or transfer.delivery != "listed":
            why = self._why_device or "batches are made on the CPU"
            why = why if transfer is None else transfer.not_direct
            raise DeviceError(
                f'io: expected reads straight into a GPU with io="gds", got none: {why}; pass '
                'io="auto"'
            )

    def _ahead(self, journey: Journey, plan: IoPlan) -> Ahead:
        ahead = plan_ahead(
            batch_nbytes=journey.layout.nbytes,
            batch_size=self._options.batch_size,
            prefetch=self._options.prefetch,
            threads=plan.threads,
            io=plan.io,
        )
        # Reads of a whole batch are listed at once, so that those that overlap are joined.
        return replace(ahead, chunks_per_batch=1) if journey.delivery == "listed" else ahead

    def _reader(self, plan: IoPlan, to: Dtype | None) -> _native.Reader:
        return posix.make_reader(*self._fields[0], to, plan)

    def _arranger(self, plan: IoPlan, is_packed: bool) -> _native.Arranger:
        def make_reader(k: int, to: Dtype, scaling: Scaling | None) -> _native.Reader:
            return posix.make_reader(*self._fields[k], to, plan, scaling)

        return self._arrangement.native(make_reader, is_packed=is_packed)

    def start(
        self, epoch: _native.Epoch, shares: Shares, listed: Listed | None, largest_batch: int
    ) -> Flight:
        """Begin to make the batches of an epoch."""
        if not self._held or self._device.is_host:
            return self._pipeline(largest_batch).start(epoch)
        if self._resident is None:
            self._resident = self._load_on_device(self._held[0])
        return ResidentFlight(self._resident, epoch, shares, listed)

    def _load_on_host(self, held: list[cache.Plan]) -> None:
        """From here on the arrays are read from memory."""
        threads = self._io_plan().threads
        loaded = []
        for plan, (_, files) in zip(held, self._fields, strict=True):
            memory = cache.load_on_host(plan, files, threads=threads)
            loaded.append((plan.catalog, posix.files_of_memory(memory)))
        self._loaded, self._opened = self._read_stats(), loaded

    def _load_on_device(self, held: cache.Plan) -> Resident:
        threads = self._io_plan().threads
        memory = cache.load_on_device(held, self._fields[0][1], self._device, threads=threads)
        labels = self._labels
        if labels is not None and labels.dtype.kind in "iu":
            labels = labels.astype(np.int64)
        catalog, samples = held.catalog, self._samples
        tables = Tables(self._device)
        about = hold(tables, memory, catalog, labels=labels, window_ends=samples.window_ends)
        return Resident(
            device=self._device,
            tables=tables,
            held=about,
            columns=tuple(self._columns()),
            geometry=samples.geometry,
            windows=samples.native(),
            window_of=samples.window_of,
            src_stride=samples.window_stride,
            stored=self._stored,
        )

    def _pipeline(self, largest_batch: int) -> Pipeline:
        """The pipeline of the last epoch, unless files are to be read another way now."""
        plan = self._io_plan()
        if self._held and self._fields[0][0] is self._source.catalog:
            self._load_on_host(self._held)
        if plan.may_warm and self._ready is not None:
            fresh = self._fresh_plan()
            plan = self._plan = fresh if fresh.io != plan.io else plan
        journey = self._journey(plan, largest_batch)
        ready = self._ready
        if ready is None or ready.journey != journey or ready.plan != plan:
            is_packed = not self._device.is_host
            plain = self._arrangement.is_plain
            job = Job(
                reader=self._reader(plan, journey.reads_as),
                windows=self._samples.native(),
                labels=_native_labels(self._labels),
                layout=journey.layout,
                ahead=self._ahead(journey, plan),
                threads=plan.threads,
                on_error=self._options.on_error,
                max_errors=self._options.max_errors,
                element=journey.element,
                route=journey.route,
                delivery=journey.delivery,
                room=journey.room,
                arranger=None if plain else self._arranger(plan, is_packed),
                direct=self._planner.direct_reader() if journey.delivery == "listed" else None,
            )
            ready = self._ready = _Ready(Pipeline(job, self._device), journey, plan)
        return ready.pipeline

    def stats(self) -> Stats:
        """What was read so far, and the memory in use."""
        return (
            self._loaded
            + self._read_stats()
            + Stats(
                batch_blocks=self._ready.pipeline.batch_blocks if self._ready else 0,
                pinned_nbytes=self._pinned_nbytes,
            )
        )

    @property
    def _pinned_nbytes(self) -> int:
        of_tables = self._resident.tables.pinned_nbytes if self._resident else 0
        return of_tables + (self._ready.pipeline.pinned_nbytes if self._ready else 0)

    def _read_stats(self) -> Stats:
        every = [files.native for _, files in self._opened or ()]
        return Stats(
            read_nbytes=sum(files.read_nbytes for files in every),
            read_requests=sum(files.read_requests for files in every),
        )

    def memory(self, largest_batch: int) -> Memory:
        """The bound on host memory: blocks of batch memory, and scratch of threads that read."""
        plan = self._io_plan()
        journey = self._journey(plan, largest_batch)
        depth = self._ahead(journey, plan).depth
        scratch = plan.threads * plan.max_nbytes if plan.io == "pread" else 0
        scratch += plan.threads * self._arrangement.scratch_nbytes
        filled, on_device = journey.layout.nbytes, depth * journey.device_nbytes
        if journey.route is not None:  # batches that wait, and those with the consumer
            on_device += (2 * depth + 3) * journey.route.batch.nbytes + journey.constants_nbytes
        held = sum(plan.nbytes for plan in self._held)
        if self._held and not self._device.is_host:  # nothing crosses but what is loaded once
            batch = lay_out(self._columns(), batch_size=largest_batch)
            pinned = cache.pinned_nbytes(self._held[0])
            return Memory(batch.nbytes, 0, 0, pinned, held + batch.nbytes)
        host = filled * (depth + 1) + scratch + held + journey.constants_nbytes
        return Memory(filled, depth + 1, scratch, host, on_device)

    def describe(self, largest_batch: int) -> list[str]:
        """How batches are made and why, in lines for people."""
        if self._held and not self._device.is_host:
            return self._describe_held(self._held[0])
        plan, memory = self._io_plan(), self.memory(largest_batch)
        lines = [
            f"windows   {self._samples.describe()}, {self._describe_values()}",
            f"io        {plan.io}: {plan.reason}",
        ]
        if plan.io == "mmap" and any(files.native.is_out_of_maps for _, files in self._fields):
            lines[-1] += "; no more maps are allowed, some files are read"
        if plan.io == "pread" and not self._samples.geometry.may_stick_out:
            spans, nbytes = self._reader(plan, self._dtype).split(self._samples.native(), 0)
            reads = "1 span" if spans == 1 else f"{spans} spans"
            lines.append(f"reads     {reads}, {nbytes} bytes in all, for the window of item 0")
        scratch = f" and {memory.scratch_nbytes / 1e6:.1f} MB for reads" * (plan.io == "pread")
        crosses = self._journey(plan, largest_batch).describe()
        why = f" (no GPU: {self._why_device})" if self._why_device else ""
        return [
            *lines,
            f"threads   {plan.threads}, {memory.blocks - 1} batches ahead",
            f"memory    {memory.host_nbytes / 1e6:.1f} MB: {memory.blocks} batches of "
            f"{memory.batch_nbytes / 1e6:.2f} MB{scratch}",
            f"device    {self._device.name}{why}{crosses}",
            *(f"          {note}" for note in self._notes()),
        ]

    def _describe_values(self) -> str:
        """Types that are stored and delivered, field by field."""
        return ", ".join(form.describe() for form in self._arrangement.forms)

    def _notes(self) -> list[str]:
        """What the reader into the device has to say."""
        direct = None if self._ready is None else self._ready.pipeline.direct
        return [] if direct is None else list(direct.notes)

    def _describe_held(self, held: cache.Plan) -> list[str]:
        return [
            f"windows   {self._samples.describe()}, {self._describe_values()}",
            f"memory    {held.nbytes / 1e6:.1f} MB of arrays are held on {self._device.name}",
            f"device    {self._device.name}: each batch is drawn by one launch, nothing crosses",
        ]

    def close(self) -> None:
        """Let go of threads, memory and files; they end when the last flight has ended."""
        self._ready = self._resident = None
        self._opened = None


def _native_labels(labels: np.ndarray[Any, Any] | None) -> _native.Labels | None:
    if labels is None:
        return None
    rows = np.ascontiguousarray(labels.astype(np.int64) if labels.dtype.kind in "iu" else labels)
    return _native.Labels(rows.tobytes(), rows.itemsize * math.prod(rows.shape[1:]))
