"""The demo's words, for a terminal or the log of a CI job. Text only: nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from gpuload.demo.compare import Measured, Way
from gpuload.demo.photographs import SIDE, Matrices
from gpuload.demo.train import CROP, CROPS_PER_MATRIX, Epoch, OnStep

LABELS = {"gpuload": "gpuload", "torch-best": "torch, best", "torch-plain": "torch, plain"}
PHRASES = {"torch-best": "torch at its best", "torch-plain": "plain torch"}
FORMS = {
    "gpuload": "gl.DataLoader",
    "torch-best": "kept maps, whole batches",
    "torch-plain": "np.load per crop",
}


def opening(console: Console, *, version: str) -> None:
    """Say what the demo is about."""
    size = "x".join(map(str, CROP))
    console.print(f"\n[bold]gpuload {version}[/]  From which photograph does a {size} crop come?\n")


def data(console: Console, matrices: Matrices, directory: Path, *, kept: bool) -> None:
    """Describe the files that training and validation read."""
    fate = "kept" if kept else "removed at the end"
    rows = {
        "Photographs": f"{len(matrices.names)} from scikit-image: {', '.join(matrices.names)}",
        "Training": f"{matrices.n_train} .npy files, a {SIDE}x{SIDE} float32 matrix each;"
        f" {CROPS_PER_MATRIX} random crops of each per epoch",
        "Validation": f"{matrices.n_validation} such files from the other half of every"
        " photograph; centre crops",
        "On disk": f"{matrices.nbytes / 1e6:.0f} MB in {escape(str(directory))}, {fate}",
    }
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


@contextmanager
def training(console: Console, *, n_steps: int) -> Iterator[OnStep]:
    """Head the table of epochs and, on a terminal, keep a live bar over `n_steps` below it.

    Yields:
        What to call after each step, with the epoch's loss and accuracy so far.
    """
    head = f"{'Epoch':>6}{'Loss':>9}{'Training':>12}{'Validation':>13}{'Waited for data':>18}"
    console.print(f"\n[bold]{head}{'Time':>10}[/]")
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f} %  loss {task.fields[loss]:.3f}"),
        TextColumn("accuracy {task.fields[accuracy]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=n_steps, loss=0.0, accuracy="")
        yield lambda loss, accuracy: bar.update(
            task, advance=1, loss=loss, accuracy=percent(accuracy)
        )


def epoch(console: Console, result: Epoch, *, epochs: int) -> None:
    """Add the line of one epoch."""
    number = f"{result.number}/{epochs}"
    seen, unseen = percent(result.train_accuracy), percent(result.validation_accuracy)
    console.print(
        f"{number:>6}{result.loss:>9.3f}{seen:>12}{unseen:>13}"
        f"{percent(result.waited):>18}{f'{result.seconds:.1f} s':>10}"
    )


def learned(console: Console, last: Epoch, names: Sequence[str]) -> None:
    """Say how well the network names crops it has never seen."""
    ranked = sorted(zip(last.class_accuracy, names, strict=True))
    (worst, hardest), (best, easiest) = ranked[0], ranked[-1]
    console.print(
        f"\nThe network recognises {percent(last.validation_accuracy)} of the crops it has never"
        f" seen; guessing would get {percent(1 / len(names))}."
        f" Easiest: {easiest} ({percent(best)}). Hardest: {hardest} ({percent(worst)})."
    )


@contextmanager
def measuring(console: Console, *, batch_size: int) -> Iterator[Callable[[Way], None]]:
    """Announce the comparison and, on a terminal, show what is being measured.

    Yields:
        What to call as the measurement of a way begins.
    """
    console.print(f"\nThe same crops in batches of {batch_size}, without the network:\n")
    if not console.is_terminal:
        yield lambda way: None
        return
    with console.status("") as status:
        yield lambda way: status.update(f"measuring {LABELS[way.name]}: {_form(way)}")


def comparison(console: Console, measured: Sequence[Measured]) -> None:
    """Show the table of all ways and how gpuload, the first, compares."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("Loader")
    table.add_column("Samples/s", justify="right")
    table.add_column("Peak memory", justify="right")
    table.add_column("Form")
    for row in measured:
        table.add_row(
            LABELS[row.way.name],
            f"{row.samples_per_s:,.0f}",
            megabytes(row.peak_nbytes),
            _form(row.way),
        )
    console.print(table)
    own, *others = measured
    ratios = (
        f"{times(own.samples_per_s / other.samples_per_s)} as fast as {PHRASES[other.way.name]}"
        for other in others
    )
    console.print(
        f"\ngpuload is {' and '.join(ratios)}. Each loader's values were checked against the files"
        " first. Peak memory is what the loader's processes own beyond `import torch`; the page"
        " cache's pages of mapped files are not counted."
    )


def closing(console: Console, *, seconds: float) -> None:
    """Say how long it all took."""
    console.print(f"\nDone in {seconds:.0f} s.")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:,.0f} times"


def megabytes(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 1e6:,.1f} MB"


def _form(way: Way) -> str:
    workers = "" if way.name == "gpuload" else f", {way.workers} workers"
    return FORMS[way.name] + workers
