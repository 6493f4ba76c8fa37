"""Flights of batches that Python code makes: threads ahead of the consumer, in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from gpuload.pipeline import Flight, another_process
from gpuload.prefetch import Copier, Copies
from gpuload.stats import Stats

_JOIN_S = 2.0  # how long the end waits for user code that does not return


class Maker(Protocol):
    """Makes the batches of one epoch."""

    def make(self, b: int) -> list[Any]:
        """Batch `b`, in a list with the extras. Called by the threads of a flight, for b = 0, 1,
        ..."""

    def stop(self) -> None:
        """Called when no more is wanted, by any thread, while batches may be in the making."""

    def end(self) -> None:
        """Called once, by the last thread of the flight, when it ends."""


class FetchFlight:
    """An epoch whose batches threads make, each a whole batch at a time, `ahead` of the consumer.

    What goes wrong is raised in the consumer, after the batches before it.
    """

    is_in_native = False

    def __init__(self, maker: Maker, n_batches: int, *, n_threads: int, ahead: int) -> None:
        self._maker = maker
        self._n_batches = n_batches
        self._ahead = ahead
        self._changed = threading.Condition()
        self._made: dict[int, list[Any]] = {}
        self._errors: dict[int, BaseException] = {}
        self._claimed = self._handed_out = 0
        self._closed = False
        self._fill_s = self._wait_s = 0.0
        self._pid = os.getpid()
        self._n_running = min(n_threads, n_batches)
        self._threads = [
            threading.Thread(target=self._work, name="gpuload-fetch", daemon=True)
            for _ in range(self._n_running)
        ]
        for thread in self._threads:
            thread.start()

    # ---- The threads

    def _work(self) -> None:
        try:
            while (b := self._claim()) is not None:
                self._make(b)
        finally:
            with self._changed:
                self._n_running -= 1
                is_last = self._n_running == 0
            if is_last:
                self._maker.end()

    def _claim(self) -> int | None:
        """The next batch to make, once it is wanted; None when there is none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or self._claimed < self._handed_out + self._ahead
            )
            if self._is_over:
                return None
            self._claimed += 1
            return self._claimed - 1

    @property
    def _is_over(self) -> bool:
        """Whether no more batches are to be begun."""
        return self._closed or bool(self._errors) or self._claimed == self._n_batches

    def _make(self, b: int) -> None:
        start = time.perf_counter()
        try:
            parts = self._maker.make(b)
        except BaseException as error:
            with self._changed:
                self._errors[b] = error
                self._changed.notify_all()
            return
        with self._changed:
            self._fill_s += time.perf_counter() - start
            if not self._closed:
                self._made[b] = parts
            self._changed.notify_all()

    # ---- The consumer

    def next(self) -> list[Any] | None:
        if os.getpid() != self._pid:  # the threads stayed in the parent
            raise RuntimeError(another_process(self._pid))
        start = time.perf_counter()
        with self._changed:
            b = self._handed_out
            while not (
                self._closed or b == self._n_batches or b in self._made or b in self._errors
            ):
                self._changed.wait(0.1)  # a time-out, so that Ctrl-C gets through
            self._wait_s += time.perf_counter() - start
            if b in self._made:
                self._handed_out += 1
                self._changed.notify_all()
                return self._made.pop(b)
        if b in self._errors:
            self._raise(b)
        return None

    def _raise(self, b: int) -> NoReturn:
        """Raise what went wrong with a batch. Afterwards nothing here refers to it."""
        error = self._errors.pop(b)
        self._closed = True
        try:
            if isinstance(error, StopIteration):  # it would end the loop, or be a riddle
                raise RuntimeError("dataset: expected an item, got StopIteration") from error
            raise error
        finally:
            del error

    def __iter__(self) -> Iterator[list[Any]]:
        while (parts := self.next()) is not None:
            yield parts
            del parts

    def close(self) -> None:
        if os.getpid() != self._pid:  # nor is the lock to be trusted
            return
        with self._changed:
            self._closed = True
            self._made.clear()
            self._changed.notify_all()
        self._maker.stop()
        until = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def stats(self) -> Stats:
        return Stats(fill_s=self._fill_s, wait_s=self._wait_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return []


class CopiedFlight:
    """A flight whose batches are copied to a device ahead of the consumer."""

    is_in_native = False

    def __init__(self, inner: FetchFlight, copier: Copier) -> None:
        self._inner = inner
        self._copies: Copies = copier.start(inner)
        self._wait_s = 0.0
        self._pid = os.getpid()

    def next(self) -> list[Any] | None:
        if os.getpid() != self._pid:
            raise RuntimeError(another_process(self._pid))
        start = time.perf_counter()
        batch = self._copies.next()
        self._wait_s += time.perf_counter() - start
        return None if batch is None else batch[0]

    def close(self) -> None:
        self._inner.close()  # what the thread that copies waits for
        self._copies.close()

    def stats(self) -> Stats:
        inner = self._inner.stats()
        return Stats(fill_s=inner.fill_s, wait_s=self._wait_s)

    def failures(self) -> list[tuple[int, int, int, str]]:
        return []


def start(
    maker: Maker,
    n_batches: int,
    *,
    n_threads: int,
    ahead: int,
    copier: Copier | None,
) -> Flight:
    """A flight of batches on the host, or copied to a device."""
    inner = FetchFlight(maker, n_batches, n_threads=n_threads, ahead=ahead)
    return inner if copier is None else CopiedFlight(inner, copier)
