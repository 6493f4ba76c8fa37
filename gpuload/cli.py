"""The command line: arguments in, library calls, text out."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import gpuload
from gpuload.demo.run import run as run_demo
from gpuload.errors import GpuloadError


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
