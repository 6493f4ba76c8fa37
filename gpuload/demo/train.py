"""A small convolutional network learns which photograph a crop comes from, fed by gpuload."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import gpuload as gl

CROP = (20, 20)
CROPS_PER_MATRIX = 10
BATCH_SIZE = 64
LEARNING_RATE = 5e-3  # at its peak; a one-cycle schedule

OnStep = Callable[[float, float], None]  # running loss and training accuracy of this epoch


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch showed. Accuracies and shares are in [0, 1]."""

    number: int  # from 1
    loss: float
    train_accuracy: float
    validation_accuracy: float
    class_accuracy: tuple[float, ...]  # of validation, one per photograph
    waited: float  # share of the training loop's time that it waited for data
    seconds: float


def network(n_classes: int) -> nn.Module:
    """Return the network: (B, 20, 20) crops in, (B, n_classes) logits out."""

    def block(n_in: int, n_out: int) -> list[nn.Module]:
        return [nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(4, n_out), nn.ReLU()]

    return nn.Sequential(
        nn.Unflatten(1, (1, CROP[0])),
        *block(1, 16),
        nn.MaxPool2d(2),
        *block(16, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, n_classes),
    )


def steps_per_epoch(n_matrices: int) -> int:
    """Return how many batches one epoch over `n_matrices` has."""
    return -(-n_matrices * CROPS_PER_MATRIX // BATCH_SIZE)


def train(
    files: Path, held_out: Path, *, epochs: int, seed: int, on_step: OnStep
) -> Iterator[Epoch]:
    """Train on the class folders in `files` and yield each epoch's result as it ends.

    An epoch shows `CROPS_PER_MATRIX` random crops of every matrix; validation looks at the centre
    of every matrix in `held_out`.
    """
    torch.manual_seed(seed)
    crop = gl.RandomCrop(CROP, per_array=CROPS_PER_MATRIX)
    source, validation = gl.open(files), gl.open(held_out)
    n_classes = len(source.classes or ())
    net = network(n_classes)
    with (
        _one_core_free(),
        gl.DataLoader(source, BATCH_SIZE, shuffle=True, seed=seed, crop=crop) as batches,
        gl.DataLoader(validation, 256, crop=gl.CenterCrop(CROP)) as centres,
    ):
        optimizer = torch.optim.AdamW(net.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, LEARNING_RATE, total_steps=epochs * len(batches)
        )
        for number in range(1, epochs + 1):
            begin, waited_s = time.perf_counter(), batches.stats().wait_s
            loss, accuracy = _one_epoch(net, batches, optimizer, schedule, on_step)
            seconds = time.perf_counter() - begin
            waited = (batches.stats().wait_s - waited_s) / seconds
            overall, by_class = _validate(net, centres, n_classes)
            yield Epoch(number, loss, accuracy, overall, by_class, waited, seconds)


@contextmanager
def _one_core_free() -> Iterator[None]:
    """Leave a core to the loader: torch's threads wait for each other, one delayed delays all."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(n_threads, (os.cpu_count() or 1) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def _one_epoch(
    net: nn.Module,
    batches: gl.DataLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    on_step: OnStep,
) -> tuple[float, float]:
    """Take one step per batch and return the mean loss and accuracy over the epoch's samples."""
    net.train()
    total_loss, n_right, n_seen = 0.0, 0, 0
    for x, y in batches:
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        n_seen += len(y)
        total_loss += loss.item() * len(y)
        n_right += _n_right(logits, y)
        on_step(total_loss / n_seen, n_right / n_seen)
    return total_loss / n_seen, n_right / n_seen


@torch.no_grad()
def _validate(
    net: nn.Module, centres: gl.DataLoader, n_classes: int
) -> tuple[float, tuple[float, ...]]:
    """Return the accuracy over all centre crops, and that of each class."""
    net.eval()
    right, seen = torch.zeros(n_classes), torch.zeros(n_classes)
    for x, y in centres:
        seen += torch.bincount(y, minlength=n_classes)
        right += torch.bincount(y[net(x).argmax(1) == y], minlength=n_classes)
    return float(right.sum() / seen.sum()), tuple((right / seen).tolist())


def _n_right(logits: Tensor, y: Tensor) -> int:
    return int((logits.argmax(1) == y).sum())
