"""Put together what fills a loader's batches: layout, plan, reader, threads; and report on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import _native, dtypes
from gpuload.devices import Device
from gpuload.dtypes import BOOL, INT64, Dtype
from gpuload.options import Options
from gpuload.pipeline import Job, Pipeline
from gpuload.plan import Ahead, IoPlan, plan_ahead, plan_io
from gpuload.readers import posix
from gpuload.samples import Samples
from gpuload.sources.source import Source
from gpuload.stage import BatchLayout, Column, lay_out
from gpuload.stats import Stats


@dataclass(frozen=True, slots=True)
class Memory:
    """What a loader takes at most, beside batches that the caller keeps. In bytes."""

    batch_nbytes: int
    blocks: int
    scratch_nbytes: int
    host_nbytes: int


@dataclass(frozen=True, slots=True)
class _Ready:
    """A pipeline, and what it was made for."""

    pipeline: Pipeline
    layout: BatchLayout
    plan: IoPlan


class Assembly:
    """The machinery of one loader, kept from epoch to epoch as long as its plan and layout hold."""

    def __init__(
        self, source: Source, samples: Samples, options: Options, *, device: Device, dtype: object
    ) -> None:
        self._source = source
        self._samples = samples
        self._options = options
        self._device = device
        self._stored = source.catalog.layout.dtype
        self._dtype = _delivered(self._stored, dtype)
        self._labels = source.labels
        self._files = posix.open_files(source.catalog)
        self._plan: IoPlan | None = None
        self._ready: _Ready | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a batch, in order."""
        return ("x", *(("y",) if self._labels is not None else ()), *self._options.extras)

    @property
    def is_used(self) -> bool:
        """Whether threads have been started."""
        return self._ready is not None

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
        facts = posix.look_at(self._source.catalog, self._files)
        return plan_io(facts, io=self._options.io, threads=self._options.threads)

    def _layout(self, largest_batch: int) -> BatchLayout:
        return lay_out(
            self._columns(),
            batch_size=largest_batch,
            window_elements=self._samples.largest_window,
        )

    def _ahead(self, layout: BatchLayout, plan: IoPlan) -> Ahead:
        return plan_ahead(
            batch_nbytes=layout.nbytes,
            batch_size=self._options.batch_size,
            prefetch=self._options.prefetch,
            threads=plan.threads,
            io=plan.io,
        )

    def _reader(self, plan: IoPlan) -> _native.Reader:
        return posix.make_reader(self._source.catalog, self._files, self._dtype, plan)

    def pipeline(self, largest_batch: int) -> Pipeline:
        """The pipeline of the last epoch, unless files are to be read another way now."""
        plan = self._io_plan()
        if plan.may_warm and self._ready is not None:
            fresh = self._fresh_plan()
            plan = self._plan = fresh if fresh.io != plan.io else plan
        layout = self._layout(largest_batch)
        ready = self._ready
        if ready is None or ready.layout != layout or ready.plan != plan:
            job = Job(
                reader=self._reader(plan),
                windows=self._samples.native(),
                labels=_native_labels(self._labels),
                layout=layout,
                ahead=self._ahead(layout, plan),
                threads=plan.threads,
                on_error=self._options.on_error,
                max_errors=self._options.max_errors,
            )
            ready = self._ready = _Ready(Pipeline(job, self._device), layout, plan)
        return ready.pipeline

    def stats(self) -> Stats:
        """What was read so far, and the memory in use."""
        files = self._files.native
        return Stats(
            read_nbytes=files.read_nbytes,
            read_requests=files.read_requests,
            batch_blocks=self._ready.pipeline.batch_blocks if self._ready else 0,
        )

    def memory(self, largest_batch: int) -> Memory:
        """The bound on host memory: blocks of batch memory, and scratch of threads that read."""
        plan, layout = self._io_plan(), self._layout(largest_batch)
        blocks = self._ahead(layout, plan).depth + 1
        scratch = plan.threads * plan.max_nbytes if plan.io == "pread" else 0
        return Memory(layout.nbytes, blocks, scratch, layout.nbytes * blocks + scratch)

    def describe(self, largest_batch: int) -> list[str]:
        """How batches are made and why, in lines for people."""
        plan, memory = self._io_plan(), self.memory(largest_batch)
        cast = f" -> {self._dtype.name}" if self._dtype != self._stored else ""
        lines = [
            f"windows   {self._samples.describe()}, {self._stored.name}{cast}",
            f"io        {plan.io}: {plan.reason}",
        ]
        if plan.io == "mmap" and self._files.native.is_out_of_maps:
            lines[-1] += "; no more maps are allowed, some files are read"
        if plan.io == "pread":
            spans, nbytes = self._reader(plan).split(self._samples.native(), 0)
            reads = "1 span" if spans == 1 else f"{spans} spans"
            lines.append(f"reads     {reads}, {nbytes} bytes in all, for the window of item 0")
        scratch = f" and {memory.scratch_nbytes / 1e6:.1f} MB for reads" * (plan.io == "pread")
        return [
            *lines,
            f"threads   {plan.threads}, {memory.blocks - 1} batches ahead",
            f"memory    {memory.host_nbytes / 1e6:.1f} MB: {memory.blocks} batches of "
            f"{memory.batch_nbytes / 1e6:.2f} MB{scratch}",
            f"device    {self._device.name}",
        ]

    def close(self) -> None:
        """Let go of threads, memory and files; they end when the last flight has ended."""
        self._ready = None
        self._files = posix.open_files(self._source.catalog)  # none of them open


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
