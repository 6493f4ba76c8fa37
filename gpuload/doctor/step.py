"""Steps that may wait for what is dead, a file server or a driver: each runs for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NoAnswerError(Exception):
    """A step did not end in its time; the message names it. Its thread is left behind."""


class Steps:
    """Runs steps one after the other, and tells which one is being run.

    Args:
        on_step: called with the words of each step as it begins.
    """

    def __init__(self, on_step: Callable[[str], None]) -> None:
        self._on_step = on_step

    def run(self, step: str, work: Callable[[], T], *, limit_s: float) -> T:
        """Return what `work` returns, or raise what it raises.

        Raises:
            NoAnswerError: it took longer than `limit_s`.
        """
        self._on_step(step)
        results: list[T] = []
        errors: list[BaseException] = []

        def work_and_keep() -> None:
            try:
                results.append(work())
            except BaseException as error:  # raised again in the thread that waits
                errors.append(error)

        # A daemon, since a thread that waits for a dead server cannot be ended and is not joined.
        thread = threading.Thread(target=work_and_keep, name=f"doctor: {step}", daemon=True)
        thread.start()
        thread.join(limit_s)
        if errors:
            raise errors[0]
        if not results:
            raise NoAnswerError(f"{step}: expected an answer within {limit_s:g} s, got none")
        return results[0]
