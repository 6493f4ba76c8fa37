"""Fill batches ahead of the consumer and take them to the device; errors surface in the consumer.

Native threads plan, read and place (csrc/run.cpp). On a host device the consumer takes what they
filled; for any
other device one thread here takes filled slabs through the ring.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gpuload import _native
from gpuload.devices import Device, Event
from gpuload.plan import Ahead
from gpuload.stage import BatchLayout, Ring, Staged
from gpuload.stats import Stats

_from_dlpack = torch.utils.dlpack.from_dlpack

ON_ERROR = ("raise", "skip", "replace")


@dataclass(frozen=True, slots=True)
class Job:
    """What every epoch of a loader has in common."""

    reader: _native.Reader
    windows: _native.Windows
    labels: _native.Labels | None
    layout: BatchLayout
    ahead: Ahead
    threads: int
    on_error: str
    max_errors: int | None


class Flight(Protocol):
    """One epoch in progress. `close` ends it, may be called twice and by any thread."""

    def next(self) -> list[torch.Tensor] | None:
        """The tensors of the next batch, None at the end. Raises what went wrong while it was
        made."""

    def close(self) -> None: ...

    def stats(self) -> Stats: ...

    def failures(self) -> list[tuple[int, int, int, str]]: ...


class Pipeline:
    """Threads and batch memory that are kept from epoch to epoch."""

    def __init__(self, job: Job, device: Device) -> None:
        self._job = job
        self._device = device
        self._workers = _native.Workers(job.threads)
        self._memory = _native.BatchMemory(job.layout.nbytes, job.ahead.depth + 1, [])
        self._flights: weakref.WeakSet[Any] = weakref.WeakSet()

    def start(self, epoch: _native.Epoch) -> Flight:
        """Begin to fill the batches of an epoch."""
        flight: Flight
        if self._device.is_host:
            flight = HostFlight(self._run(epoch, self._memory, is_slabs=False))
        else:
            flight = StagedFlight(self._job, self._device, epoch, self._run)
        self._flights.add(flight)
        return flight

    def _run(
        self, epoch: _native.Epoch, memory: _native.BatchMemory, *, is_slabs: bool
    ) -> _native.Run:
        job, ahead = self._job, self._job.ahead
        names = ("x", "y", "index", "crop", "start", "valid")
        return _native.Run(
            self._workers,
            job.reader,
            job.windows,
            epoch,
            memory,
            job.labels,
            [job.layout.offset(name) for name in names],
            [
                (offset, column.dtype.number, column.row_shape)
                for column, offset in zip(job.layout.columns, job.layout.offsets, strict=True)
            ],
            ahead.depth,
            ahead.batches_per_claim,
            ahead.chunks_per_batch,
            ON_ERROR.index(job.on_error),
            -1 if job.max_errors is None else job.max_errors,
            is_slabs,
        )

    @property
    def batch_blocks(self) -> int:
        return self._memory.n_blocks

    def close(self) -> None:
        for flight in list(self._flights):
            flight.close()


class HostFlight:
    """An epoch whose batches are filled where the consumer reads them."""

    def __init__(self, run: _native.Run) -> None:
        self._run = run

    def next(self) -> list[torch.Tensor] | None:
        capsules = self._run.next()
        return None if capsules is None else [_from_dlpack(capsule) for capsule in capsules]

    def close(self) -> None:
        self._run.close()

    def stats(self) -> Stats:
        return _run_stats(self._run)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return self._run.failures()


class StagedFlight:
    """An epoch whose batches a thread takes to the device, a bounded number ahead of the
    consumer."""

    def __init__(
        self, job: Job, device: Device, epoch: _native.Epoch, start: Callable[..., _native.Run]
    ) -> None:
        self._layout = job.layout
        self._depth = job.ahead.depth
        n_slabs = self._depth + 1
        self._slabs = {
            slab.data_ptr(): slab
            for slab in (device.host_memory(job.layout.nbytes) for _ in range(n_slabs))
        }
        memory = _native.BatchMemory(job.layout.nbytes, n_slabs, list(self._slabs))
        self._ring = Ring(device, nbytes=job.layout.nbytes, n_slots=self._depth)
        self._run = start(epoch, memory, is_slabs=True)
        self._ready: deque[tuple[Staged, list[list[int]]]] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._done = self._closed = False
        self._stage_s = self._wait_s = 0.0
        self._thread = threading.Thread(target=self._work, name="gpuload-stage", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._stage_all()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _stage_all(self) -> None:
        copying: deque[tuple[Event, int]] = deque()  # slabs that a copy may still read
        while not self._closed:
            if len(copying) == self._depth:  # keep one slab free for the readers
                self._release(copying)
            filled = self._run.next_slab()
            if filled is None:
                break
            address, block, shapes = filled
            start = time.perf_counter()
            staged = self._ring.stage(self._slabs[address])
            self._stage_s += time.perf_counter() - start
            copying.append((staged.copied, block))
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                self._ready.append((staged, shapes))
                self._changed.notify_all()
        while copying:
            self._release(copying)

    def _release(self, copying: deque[tuple[Event, int]]) -> None:
        copied, block = copying.popleft()
        copied.synchronize()
        self._run.release(block)

    def next(self) -> list[torch.Tensor] | None:
        start = time.perf_counter()
        with self._changed:
            while not (self._ready or self._done or self._closed):
                self._changed.wait(0.1)  # a time-out, so that Ctrl-C gets through
            self._wait_s += time.perf_counter() - start
            if not self._ready:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                return None
            staged, shapes = self._ready.popleft()
            self._changed.notify_all()
        return self._layout.tensors(self._ring.hand_out(staged), shapes)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._run.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def stats(self) -> Stats:
        counted = _run_stats(self._run)
        return counted + Stats(stage_s=self._stage_s, wait_s=self._wait_s - counted.wait_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return self._run.failures()


def _run_stats(run: _native.Run) -> Stats:
    return Stats(
        useful_nbytes=run.useful_nbytes, fill_s=run.fill_ns / 1e9, wait_s=run.wait_ns / 1e9
    )
