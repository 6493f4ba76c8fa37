"""Batches of a Dataset from worker processes of torch, whose errors keep their story."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from gpuload.fetch import Fetcher, Request

_POLL_S = 0.1  # how soon an end, or the death of a worker, is seen
_GRACE_S = 1.0  # for batches that nobody waits for any more
_LEAST_AHEAD = 2  # batches of each worker, as in torch
_FORKED_CUDA = "Cannot re-initialize CUDA in forked subprocess"


class Workers:
    """Processes that fetch the batches of one epoch, in order. Used by one thread, but for `stop`.

    It is that thread that starts them: were it the main one, torch would interrupt the user's code
    wherever it is when a worker dies.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        requests: Sequence[Request],
        *,
        n_workers: int,
        prefetch: int,
        seed: int,
    ) -> None:
        self._loader: torch.utils.data.DataLoader[Any] | None = torch.utils.data.DataLoader(
            _Reading(fetcher),  # type: ignore[arg-type]
            batch_size=None,
            sampler=requests,
            num_workers=n_workers,
            collate_fn=_as_it_is,
            prefetch_factor=batches_per_worker(n_workers, prefetch),
            timeout=_POLL_S,
            worker_init_fn=_end_with_parent,
            generator=torch.Generator().manual_seed(seed % 2**63),
        )
        self._batches: Iterator[Any] | None = None
        self._is_stopped = False

    def next(self) -> Any:
        """The next batch. Its tensors lie in memory that is shared with a worker.

        Raises:
            What the dataset raised, where that can be rebuilt.
            RuntimeError: what it raised cannot be rebuilt, a worker died, or no more is wanted.
        """
        if self._batches is None:
            assert self._loader is not None
            self._batches = iter(self._loader)
        while not self._is_stopped:
            try:
                batch = next(self._batches)
                if isinstance(batch, bytes):
                    return pickle.loads(batch)
            except Exception as error:
                if isinstance(error, RuntimeError) and "timed out" in str(error):
                    continue
                died = _how_one_died(self._batches)
                if died is None:
                    raise
                raise RuntimeError(died) from None
            batch.raise_it()
        raise RuntimeError("dataset: expected no more batches to be wanted, got a request for one")

    def stop(self) -> None:
        """Make `next` return soon."""
        self._is_stopped = True

    def end(self) -> None:
        """End the processes. They may finish what they are at, if it does not take long: torch
        would wait five seconds for each."""
        processes = getattr(self._batches, "_workers", [])
        late = threading.Timer(_GRACE_S, _terminate, [processes])
        late.daemon = True
        try:
            late.start()
        except RuntimeError:  # the interpreter is exiting, and starts no thread
            _terminate(processes)
        self._batches = self._loader = None  # torch's iterator sees to it
        late.cancel()


def batches_per_worker(n_workers: int, prefetch: int) -> int:
    """Batches that each worker is asked for ahead of the consumer."""
    return max(_LEAST_AHEAD, -(-prefetch // n_workers))


def _terminate(processes: Sequence[Any]) -> None:
    for process in processes:
        process.terminate()


def _how_one_died(batches: Any) -> str | None:
    """What the system says of a worker that is no more."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        for worker in getattr(batches, "_workers", ()):
            code = worker.exitcode
            if code is None:
                continue
            if code >= 0:
                how = f"exit code {code}"
            else:
                likely = {signal.SIGKILL: " (out of memory?)", signal.SIGBUS: " (/dev/shm full?)"}
                how = f"signal {-code}{likely.get(-code, '')}"
            return (
                f"dataset: expected a batch of process {worker.pid}, got none: worker died, {how}"
            )
        time.sleep(0.01)
    return None


class _Reading:
    """What torch takes for a dataset: it is asked for whole batches. Errors come back as values,
    since torch would put them into other words."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def __getitem__(self, request: Request) -> Any:
        try:
            batch = self._fetcher(request)
            # A batch that does not pickle would be lost in torch's queue, and waited for.
            return bytes(ForkingPickler.dumps(batch))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Trouble.of(error)


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with_parent(worker_id: int) -> None:
    """torch looks for the parent every five seconds, and only between batches."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="gpuload-parent", daemon=True).start()


@dataclass(frozen=True, slots=True)
class Trouble:
    """An exception on its way from a worker."""

    pickled: bytes | None  # where that brings it back as it was
    text: str  # in one line: type, message, place, notes
    formatted: str  # as Python prints it

    @staticmethod
    def of(error: BaseException) -> Trouble:
        with contextlib.suppress(Exception):
            if _FORKED_CUDA in str(error):
                error.add_note(
                    "a dataset that workers read must not use CUDA; use it in your loop, or read "
                    "by threads"
                )
        notes = getattr(error, "__notes__", [])
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        parts = [f"{type(error).__name__}: {_message(error)}{place}", *notes]
        formatted = "".join(traceback.format_exception(error))
        return Trouble(_pickled(error), ", ".join(parts), formatted)

    def raise_it(self) -> NoReturn:
        """Raise the exception, or a RuntimeError that tells of it. Its cause is the traceback in
        the worker."""
        error: BaseException | None = None
        if self.pickled is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.pickled)
        if error is None:
            error = RuntimeError(f"dataset: expected a batch, got {self.text}")
        raise error from _InWorker(self.formatted)


class _InWorker(Exception):  # noqa: N818 - it is printed as a cause
    """The traceback of an exception in a worker."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:
        return f"(no message: {type(other).__name__})"


def _pickled(error: BaseException) -> bytes | None:
    """The exception in bytes, when they bring back the same. Exceptions that end a process stay."""
    if not isinstance(error, Exception):
        return None
    try:
        pickled = pickle.dumps(error)
        back = pickle.loads(pickled)
    except Exception:
        return None
    is_same = (
        type(back) is type(error)
        and str(back) == str(error)
        and getattr(back, "__notes__", []) == getattr(error, "__notes__", [])
    )
    return pickled if is_same else None
