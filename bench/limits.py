"""Compile and run limits.cpp: what loops that know the files' layout reach on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import check, data

SOURCE = Path(__file__).with_name("limits.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-pthread")
CHECKED_WINDOWS = 300


@dataclass(frozen=True, slots=True)
class Limit:
    """One method of limits.cpp on the files of `listing`."""

    name: str
    method: str
    threads: int
    batch_size: int
    listing: Path

    def measure(self, seconds: float) -> float:
        """Return samples per second over about `seconds`."""
        arguments = (self.method, str(self.threads), str(self.batch_size), str(seconds))
        n_samples, took_s = _run("time", *arguments, str(self.listing)).split()
        return int(n_samples) / float(took_s)


def crop2d(files: data.Crop2dFiles, batch_size: int) -> list[Limit]:
    """Return the limits of the crop2d workload, their windows checked."""
    listing = _listing("crop2d", files.paths, files.labels)
    names = {
        "maps": "C++ limit: kept maps",
        "cached": "C++ limit: kept descriptors, pread",
        "open": "C++ limit: open each time",
    }
    arrays = [np.load(path, mmap_mode="r") for path in files.paths]
    for method in names:
        _check(method, listing, arrays, files.labels, data.CROP)
    return [
        Limit(
            f"{name}, {threads} thread{'s' * (threads > 1)}", method, threads, batch_size, listing
        )
        for method, name in names.items()
        for threads in (1, 2)
    ]


def volume(path: str, batch_size: int) -> list[Limit]:
    """Return the limits of the volume workload, their windows checked."""
    labels = np.zeros(1, np.int64)
    listing = _listing("volume", [path], labels)
    _check("volume", listing, [np.load(path, mmap_mode="r")[0]], labels, data.VOLUME_CROP)
    return [
        Limit(f"C++ limit: kept map, {t} thread{'s' * (t > 1)}", "volume", t, batch_size, listing)
        for t in (1, 2)
    ]


def _check(
    method: str, listing: Path, arrays: list[np.memmap], labels: data.Labels, crop: int
) -> None:
    """Have the method write random windows, and compare them with what NumPy cuts."""
    rng = np.random.default_rng(0)
    ndim = arrays[0].ndim
    n_windows = CHECKED_WINDOWS if ndim == 2 else 4
    which = rng.integers(len(arrays), size=n_windows)
    starts = rng.integers(np.array(arrays[0].shape) - crop + 1, size=(n_windows, ndim))
    plan, out = listing.with_name(f"{method}.plan"), listing.with_name(f"{method}.out")
    np.savetxt(plan, np.column_stack([which, starts]), fmt="%d")
    _run("write", method, str(listing), str(plan), str(out))
    got = np.fromfile(f"{out}.x", np.float32).reshape(n_windows, *(crop,) * ndim)
    want = [
        arrays[file][tuple(slice(start, start + crop) for start in at)]
        for file, at in zip(which, starts, strict=True)
    ]
    if not np.array_equal(got, np.array(want)):
        raise check.WrongValuesError(f"limits.cpp, {method}: windows differ from NumPy's")
    if not np.array_equal(np.fromfile(f"{out}.y", np.int64), labels[which]):
        raise check.WrongValuesError(f"limits.cpp, {method}: labels differ")
    for left in (plan, Path(f"{out}.x"), Path(f"{out}.y")):
        left.unlink()


def _listing(name: str, paths: list[str], labels: data.Labels) -> Path:
    path = data.folder() / f"{name}.list"
    lines = (f"{label} {file}\n" for label, file in zip(labels.tolist(), paths, strict=True))
    path.write_text("".join(lines))
    return path


def _run(*arguments: str) -> str:
    command = (str(_binary()), *arguments)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _binary() -> Path:
    """Return the compiled program, compiling it when its source has changed."""
    compiler = os.environ.get("CXX", "g++")
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join((compiler, *FLAGS)).encode())
    binary = data.folder() / f"limits-{key.hexdigest()[:12]}"
    if not binary.exists():
        partial = binary.with_suffix(f".partial-{os.getpid()}")
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(partial)], check=True)
        partial.rename(binary)
    return binary
