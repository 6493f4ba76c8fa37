"""The command line: arguments in, library calls, text out."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import gpuload
from gpuload import doctor as examination
from gpuload import info as description
from gpuload.demo.run import run as run_demo
from gpuload.doctor.report import sections
from gpuload.errors import GpuloadError
from gpuload.info import report as told


class NewFolder(click.Path):
    """A path where nothing is, or an empty folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            self.fail(f"expected a new or an empty folder, got {path}", param, ctx)
        return path


@click.group(name="gpuload", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gpuload.__version__, prog_name="gpuload")
def main() -> None:
    """Load crops of stored arrays into PyTorch."""
    # A command that is told to end, or loses its terminal, leaves no temporary file behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


@main.command()
@click.option(
    "--epochs", type=click.IntRange(min=1), help="Epochs to train: 10, or 2 with --quick."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all choices."
)
@click.option("--quick", is_flag=True, help="A fifth of the files, short measurements.")
@click.option(
    "--keep",
    type=NewFolder(),
    metavar="DIR",
    help="Write the files to DIR, new or empty, and keep them.",
)
def demo(epochs: int | None, seed: int, quick: bool, keep: Path | None) -> None:
    """Train a small network on photographs, then compare with torch.

    Cuts the photographs that scikit-image ships into .npy files, teaches a small network which
    photograph a random crop comes from, and measures gpuload and torch's DataLoader on those files.
    Needs pip install gpuload[demo]; downloads nothing.
    """
    try:
        run_demo(
            Console(highlight=False),
            version=gpuload.__version__,
            epochs=epochs,
            seed=seed,
            quick=quick,
            keep=keep,
        )
    except (GpuloadError, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(path: str | None, as_json: bool) -> None:
    """Say what this machine offers, and which way the data at PATH would take.

    PATH is what gpuload.open takes: a .npy file, a folder, a glob; or any folder, to see what it
    lies on. Needs no GPU. Headers are read, and at most 272 KiB of values to measure what a read
    costs.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        with errors.status("") as status:  # nothing where there is no terminal
            report = examination.examine(path, on_step=lambda step: status.update(_plain(step)))
    except (GpuloadError, OSError) as error:
        raise click.ClickException(_shown(str(error))) from error
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    for section in sections(report):
        _print_rows(console, section.title, section.rows)
    _print_rows(console, "Findings", [(finding.level, finding.text) for finding in report.findings])


@main.command()
@click.argument("path", type=click.Path())
@click.option(
    "--sample-axis",
    type=click.IntRange(min=0),
    metavar="N",
    help="Items are the rows along axis N of each file.",
)
@click.option("--key", metavar="NAME", help="The member of .npz files.")
@click.option("--member", metavar="NAME", help="The field of a structured dtype.")
@click.option(
    "--labels",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Whether class folders are classes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(
    path: str,
    sample_axis: int | None,
    key: str | None,
    member: str | None,
    labels: str,
    as_json: bool,
) -> None:
    """Say what arrays lie at PATH, and what padding them would cost.

    PATH is what gpuload.open takes: a .npy or .npz file, a folder, a glob. It may mix files of
    different types. Headers alone are read; files that are not like the others are listed.
    """
    try:
        found = description.examine(
            path,
            sample_axis=sample_axis,
            key=key,
            member=member,
            use_classes=labels == "auto",
        )
    except (GpuloadError, OSError) as error:
        raise click.ClickException(_shown(str(error))) from error
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    bars = told.BARS if console.encoding.startswith("utf") else told.ASCII_BARS
    for section in told.sections(found, bars=bars):
        if section.headers:
            _print_table(console, section.title, section.headers, section.rows)
        else:
            _print_rows(console, section.title, [(name, text) for name, text in section.rows])


_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def _print_rows(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A title, and below it the rows, their texts side by side."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=15)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(f"  {name}", _COLOURS.get(name, "")), _plain(text))
    console.print(Text(f"\n{title}", "bold"))
    console.print(table)


def _print_table(
    console: Console, title: str, headers: Iterable[str], rows: Iterable[Iterable[str]]
) -> None:
    """A title, and below it columns of numbers with a name on the left."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, header in enumerate(headers):
        table.add_column(f"  {header}" if i == 0 else header, justify="left" if i == 0 else "right")
    for first, *others in rows:
        table.add_row(f"  {first}", *(_plain(other) for other in others))
    console.print(Text(f"\n{title}", "bold"))
    console.print(table)


def _plain(text: str) -> Text:
    """Text without markup: a path may hold brackets."""
    return Text(_shown(text))


def _shown(text: str) -> str:
    """Text that can be printed: a path may hold bytes that are no UTF-8."""
    return text.encode(errors="backslashreplace").decode()
