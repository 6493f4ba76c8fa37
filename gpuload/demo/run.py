"""The demo from beginning to end: photographs, training, comparison."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gpuload.demo import report
from gpuload.demo.compare import compare
from gpuload.demo.measure import BATCH_SIZE
from gpuload.demo.photographs import Matrices, cut
from gpuload.demo.train import Epoch, steps_per_epoch, train


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything the demo does."""

    n_train: int  # matrices per photograph
    n_validation: int
    epochs: int
    seconds: float  # of each measurement


FULL = Extent(n_train=40, n_validation=20, epochs=10, seconds=1.5)
QUICK = Extent(n_train=8, n_validation=4, epochs=2, seconds=0.3)


def run(
    console: Console, *, version: str, epochs: int | None, seed: int, quick: bool, keep: Path | None
) -> None:
    """Run the demo and write what happens to `console`.

    Args:
        epochs: None takes the usual number.
        keep: folder for the matrices, new or empty; None takes one that is removed at the end.

    Raises:
        GpuloadError: scikit-image is missing, or a measurement failed.
    """
    begin = time.perf_counter()
    extent = QUICK if quick else FULL
    with _folder(keep) as directory:
        matrices = cut(
            directory, n_train=extent.n_train, n_validation=extent.n_validation, seed=seed
        )
        report.opening(console, version=version)
        report.data(console, matrices, directory, kept=keep is not None)
        last = _train(console, matrices, epochs=epochs or extent.epochs, seed=seed)
        report.learned(console, last, matrices.names)
        with report.measuring(console, batch_size=BATCH_SIZE) as on_start:
            measured = compare(matrices.train, seconds=extent.seconds, on_start=on_start)
        report.comparison(console, measured)
    report.closing(console, seconds=time.perf_counter() - begin)


def _train(console: Console, matrices: Matrices, *, epochs: int, seed: int) -> Epoch:
    """Train, with a line per epoch, and return the last one."""
    n_steps = epochs * steps_per_epoch(matrices.n_train)
    with report.training(console, n_steps=n_steps) as on_step:
        for result in train(
            matrices.train, matrices.validation, epochs=epochs, seed=seed, on_step=on_step
        ):
            report.epoch(console, result, epochs=epochs)
    return result


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="gpuload-demo-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True, exist_ok=True)
    yield keep
