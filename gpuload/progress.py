"""A progress bar on the terminal, where somebody watches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown(what: str, nbytes: int, *, least_nbytes: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how many of `nbytes` are done; the caller tells by calling what it gets.

    Nothing is shown where standard error is no terminal, or for less than `least_nbytes`.
    """
    if nbytes < least_nbytes or not sys.stderr.isatty():
        yield lambda n: None
        return
    # Here, not above: most programs never show a bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=nbytes)
        yield lambda n: progress.advance(task, n)
