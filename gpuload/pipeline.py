"""Fill batches ahead of the consumer and take them to the device; errors surface in the consumer.

Native threads plan, read and place (csrc/run.cpp). On a host device the consumer takes what they
filled; for any
other device one thread here takes filled slabs through the ring.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from gpuload import _native
from gpuload.devices import Device, Event
from gpuload.dtypes import Dtype
from gpuload.layout import PACKED, BatchLayout, Filled, Way
from gpuload.plan import Ahead
from gpuload.stage import DirectReader, Ring, Staged
from gpuload.stats import Stats

_from_dlpack = torch.utils.dlpack.from_dlpack

ON_ERROR = ("raise", "skip", "replace")
DELIVERIES = ("placed", "shipped", "listed")  # of csrc/ship.hpp


@dataclass(frozen=True, slots=True)
class Job:
    """What every epoch of a loader has in common."""

    reader: _native.Reader
    windows: _native.Windows
    labels: _native.Labels | None
    layout: BatchLayout  # of what the native threads fill
    ahead: Ahead
    threads: int
    on_error: str
    max_errors: int | None
    element: Dtype  # of x: in what the native threads fill, or else when it is delivered
    route: Way | None = None  # where the device is not the host
    delivery: str = "placed"
    room: int = 0  # bytes for each window, where they are not placed
    direct: DirectReader | None = None
    arranger: _native.Arranger | None = None  # of windows that are more than cut and cast


class Flight(Protocol):
    """One epoch in progress. `close` ends it, may be called twice and by any thread."""

    def next(self) -> list[torch.Tensor] | None:
        """The tensors of the next batch, None at the end. Raises what went wrong while it was
        made."""

    @property
    def is_in_native(self) -> bool:
        """Whether a thread that uses this is in native code."""

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
        self._idle: list[Carrier] = []
        self._carriers: weakref.WeakSet[Carrier] = weakref.WeakSet()

    def start(self, epoch: _native.Epoch) -> Flight:
        """Begin to fill the batches of an epoch."""
        return begin(lambda: self._start(epoch))

    def _start(self, epoch: _native.Epoch) -> Flight:
        if self._device.is_host:
            return HostFlight(self._run(epoch, self._memory, is_slabs=False))
        carrier = self._idle.pop() if self._idle else Carrier(self._job, self._device)
        self._carriers.add(carrier)
        run = self._run(epoch, carrier.memory, is_slabs=True)
        return StagedFlight(self._job, carrier, run, self._idle.append)

    def _run(
        self, epoch: _native.Epoch, memory: _native.BatchMemory, *, is_slabs: bool
    ) -> _native.Run:
        job, ahead = self._job, self._job.ahead
        at, outputs = job.layout.offset, []
        for column, offset in zip(job.layout.columns, job.layout.offsets, strict=True):
            if column.field != PACKED:
                outputs.append((offset, column.dtype.number, column.row_shape, column.field))
        fields = job.layout.fields()
        others = ("y", "index", "crop", "start", "valid", "path", "table", "reads")
        return _native.Run(
            self._workers,
            job.reader,
            job.windows,
            epoch,
            memory,
            job.labels,
            [fields[0][0], *(at(name) for name in others)],
            outputs,
            ahead.depth,
            ahead.batches_per_claim,
            ahead.chunks_per_batch,
            ahead.consumer_helps and not is_slabs,
            ON_ERROR.index(job.on_error),
            -1 if job.max_errors is None else job.max_errors,
            DELIVERIES.index(job.delivery),
            job.room,
            job.element.number,
            job.layout.others_nbytes,
            job.arranger,
            fields if job.arranger is not None else [],
            [job.layout.mask_offset(), *(at(name) for name in ("lengths", "flip", "rot90"))],
        )

    @property
    def direct(self) -> DirectReader | None:
        return self._job.direct

    @property
    def batch_blocks(self) -> int:
        return self._memory.n_blocks

    @property
    def pinned_nbytes(self) -> int:
        """Host memory that the device copies from, of carriers in use and kept."""
        return sum(carrier.nbytes for carrier in self._carriers)


class _AtExit:
    """Ends what is in progress before the interpreter does: it would stop a daemon thread of the
    user's wherever it is, and inside native code that ends the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.flights: weakref.WeakSet[Any] = weakref.WeakSet()
        self.has_begun = False

    def __call__(self) -> None:
        with self.lock:
            self.has_begun = True
        for flight in list(self.flights):
            flight.close()
        until = time.monotonic() + _EXIT_TIMEOUT_S
        while any(flight.is_in_native for flight in self.flights) and time.monotonic() < until:
            time.sleep(0.001)

    def check(self) -> None:
        """Nothing is begun any more once the interpreter ends."""
        if not self.has_begun:
            return
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("loader: expected a running interpreter, got one that is exiting")
        raise SystemExit  # of the thread alone, and silently

    def renew_lock(self) -> None:
        self.lock = threading.Lock()


_EXIT_TIMEOUT_S = 2.0
_at_exit = _AtExit()
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_at_exit.renew_lock)


def begin(start: Callable[[], Flight]) -> Flight:
    """Start a flight, which ends before the interpreter does."""
    with _at_exit.lock:
        _at_exit.check()
        flight = start()
        _at_exit.flights.add(flight)
    return flight


class HostFlight:
    """An epoch whose batches are filled where the consumer reads them."""

    def __init__(self, run: _native.Run) -> None:
        self._run: _native.Run | _Ended = run
        self._pid = os.getpid()
        self._is_waiting = self._is_closing = False

    @property
    def is_in_native(self) -> bool:
        return self._is_waiting or self._is_closing

    def next(self) -> list[torch.Tensor] | None:
        self._is_waiting = True
        try:
            capsules = self._run.next()
        finally:
            self._is_waiting = False
        return None if capsules is None else [_from_dlpack(capsule) for capsule in capsules]

    def close(self) -> None:
        self._is_closing = True
        try:
            self._run = _end(self._run, self._pid)
        finally:
            self._is_closing = False

    def stats(self) -> Stats:
        return _run_stats(self._run)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return self._run.failures()


class Carrier:
    """What takes filled slabs to the device: slabs, a ring, its streams. One flight at a time uses
    it, and a later one again."""

    def __init__(self, job: Job, device: Device) -> None:
        n_slabs = job.ahead.depth + 1
        nbytes = job.layout.nbytes
        self.nbytes = n_slabs * nbytes  # of host memory
        self.slabs = {
            slab.data_ptr(): slab for slab in (device.host_memory(nbytes) for _ in range(n_slabs))
        }
        self.memory = _native.BatchMemory(nbytes, n_slabs, list(self.slabs))
        assert job.route is not None
        self.ring = Ring(device, job.route, n_slots=job.ahead.depth, direct=job.direct)


# A read that never returned may still write to the slabs of these.
_stuck: list[Carrier] = []


class Failing:
    """What a thread works for: its error surfaces in the consumer."""

    _error: BaseException | None = None

    def _raise(self) -> NoReturn:
        """Raise what ended the thread. Afterwards nothing here refers to it, and it to nothing
        pinned."""
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:
            del error


class StagedFlight(Failing):
    """An epoch whose batches a thread takes to the device, a bounded number ahead of the consumer.

    `give_back` gets the carrier when no slab of it is in use any more.
    """

    is_in_native = False  # its own thread alone is, and close() joins that

    def __init__(
        self, job: Job, carrier: Carrier, run: _native.Run, give_back: Callable[[Carrier], None]
    ) -> None:
        assert job.route is not None
        self._layout, self._slab = job.route.batch, job.route.slab
        self._depth = job.ahead.depth
        self._carrier = carrier
        self._run: _native.Run | _Ended = run
        self._give_back = give_back
        self._pid = os.getpid()
        self._ready: deque[tuple[Staged, list[list[int]], dict[int, torch.Tensor]]] = deque()
        self._changed = threading.Condition()
        self._done = self._closed = self._is_reusable = False
        self._stage_s = self._wait_s = 0.0
        self._thread = threading.Thread(
            target=self._work, args=(run,), name="gpuload-stage", daemon=True
        )
        self._thread.start()

    def _work(self, run: _native.Run) -> None:
        copying: deque[tuple[Event, int]] = deque()  # slabs that a copy may still read
        try:
            self._carrier.ring.device.enter_thread()
            try:
                self._stage_all(run, copying)
            finally:
                while copying:
                    self._release(run, copying)
            self._is_reusable = True
        except BaseException as error:
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _stage_all(self, run: _native.Run, copying: deque[tuple[Event, int]]) -> None:
        ring, slabs = self._carrier.ring, self._carrier.slabs
        while not self._closed:
            if len(copying) == self._depth:  # keep one slab free for the readers
                self._release(run, copying)
            filled = run.next_slab()
            if filled is None:
                return
            address, block, n_rows, packed_end, shapes = filled
            start = time.perf_counter()
            on_host = self._slab.host_copies(slabs[address], shapes)
            n, *window = shapes[0]  # of the first field
            try:
                what = Filled(n, tuple(window), n_rows, shapes, packed_end)
                staged = ring.stage_filled(slabs[address], what)
            except BaseException:
                copying.append((ring.copies.record(), block))  # its copy may have begun
                raise
            self._stage_s += time.perf_counter() - start
            copying.append((staged.copied, block))
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                self._ready.append((staged, shapes, on_host))
                self._changed.notify_all()

    def _release(self, run: _native.Run, copying: deque[tuple[Event, int]]) -> None:
        copied, block = copying.popleft()
        copied.synchronize()
        run.release(block)

    def next(self) -> list[torch.Tensor] | None:
        if os.getpid() != self._pid:  # the thread stayed in the parent
            raise RuntimeError(another_process(self._pid))
        start = time.perf_counter()
        with self._changed:
            while not (self._ready or self._done or self._closed):
                self._changed.wait(0.1)  # a time-out, so that Ctrl-C gets through
            self._wait_s += time.perf_counter() - start
            if not self._ready:
                if self._error is not None:
                    self._raise()
                return None
            staged, shapes, on_host = self._ready.popleft()
            self._changed.notify_all()
        shapes = shapes[: len(self._layout.columns)]
        tensors = self._layout.tensors(*self._carrier.ring.hand_out(staged), shapes)
        for i, tensor in on_host.items():
            tensors[i] = tensor
        return tensors

    def close(self) -> None:
        if os.getpid() != self._pid:  # nor is the lock to be trusted
            self._run = _end(self._run, self._pid)
            return
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        run, self._run = self._run, _end(self._run, self._pid)
        is_stuck = isinstance(run, _native.Run) and run.is_stuck
        if is_stuck:
            _stuck.append(self._carrier)
        if self._thread is threading.current_thread():
            return
        self._thread.join()
        with self._changed:
            is_reusable, self._is_reusable = self._is_reusable, False
        if is_reusable and not is_stuck:
            self._give_back(self._carrier)

    def stats(self) -> Stats:
        counted = _run_stats(self._run)
        return counted + Stats(stage_s=self._stage_s, wait_s=self._wait_s - counted.wait_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return self._run.failures()


def another_process(pid: int, what: str = "loader", made: str = "make a DataLoader") -> str:
    """What to say to a child that uses what its parent made."""
    return (
        f"{what}: expected use in process {pid} that made it, got process {os.getpid()}; {made} "
        "after the fork, or use spawn"
    )


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is left of a run: its counts. The run itself would keep its threads."""

    useful_nbytes: int = 0
    fill_ns: int = 0
    wait_ns: int = 0
    failed: tuple[tuple[int, int, int, str], ...] = ()

    def next(self) -> None:
        return None

    def failures(self) -> list[tuple[int, int, int, str]]:
        return list(self.failed)


def _end(run: _native.Run | _Ended, pid: int) -> _Ended:
    """Close a run that process `pid` made. A forked child touches none of its locks."""
    if isinstance(run, _Ended):
        return run
    if os.getpid() != pid:
        return _Ended()
    run.close()
    return _Ended(run.useful_nbytes, run.fill_ns, run.wait_ns, tuple(run.failures()))


def _run_stats(run: _native.Run | _Ended) -> Stats:
    return Stats(
        useful_nbytes=run.useful_nbytes, fill_s=run.fill_ns / 1e9, wait_s=run.wait_ns / 1e9
    )
