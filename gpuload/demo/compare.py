"""Measure gpuload and torch's DataLoader on the same files, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuload.errors import GpuloadError

TIMEOUT_S = 120.0  # of one measurement


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load the crops; `name` is measure.py's word for it."""

    name: str
    workers: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What one way reached."""

    way: Way
    samples_per_s: float
    peak_nbytes: int | None  # above `import torch`; None where the system does not tell


WAYS = (Way("gpuload", 0), Way("torch-best", 0), Way("torch-plain", 0), Way("torch-plain", 2))


def compare(directory: Path, *, seconds: float, on_start: Callable[[Way], None]) -> list[Measured]:
    """Measure every way on the class folders in `directory`, for about 2.3 x `seconds` each.

    Returns:
        gpuload, torch-best and torch-plain, the last with the number of workers that served it
        best.

    Raises:
        GpuloadError: a way delivered wrong values or did not end.
    """
    best: dict[str, Measured] = {}
    for way in WAYS:
        on_start(way)
        new = _measure(way, directory, seconds)
        old = best.get(way.name, new)
        best[way.name] = max(old, new, key=lambda m: m.samples_per_s)
    return list(best.values())


def _measure(way: Way, directory: Path, seconds: float) -> Measured:
    # -P: the script's folder must not come first on the path of the modules it imports.
    command = [sys.executable, "-P", str(Path(__file__).with_name("measure.py")), way.name]
    command += [str(directory), f"--workers={way.workers}", f"--seconds={seconds}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise GpuloadError(
            f"demo: expected {way.name} to be measured within {TIMEOUT_S:.0f} s, got no answer"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise GpuloadError(f"demo: measuring {way.name} failed: {reason}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Measured(way, result["samples_per_s"], result["peak_nbytes"])
