"""Compile and run limits.cpp: what loops that know the files' layout reach on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import check, check_whole, data

SOURCE = Path(__file__).with_name("limits.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-pthread")
CHECKED_WINDOWS = 300
CHECKED_WHOLE = 8  # padded arrays
Samples = np.ndarray[Any, np.dtype[np.float32]]


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
        "maps": "kept maps",
        "cached": "kept descriptors, pread",
        "open": "open each time",
    }
    arrays = [np.load(path, mmap_mode="r") for path in files.paths]
    for method in names:
        _check_windows(method, listing, arrays, files.labels, data.CROP)
    return _limits(names, batch_size, listing)


def volume(path: str, batch_size: int) -> list[Limit]:
    """Return the limits of the volume workload, their windows checked."""
    labels = np.zeros(1, np.int64)
    listing = _listing("volume", [path], labels)
    array = np.load(path, mmap_mode="r")[0]
    _check_windows("volume", listing, [array], labels, data.VOLUME_CROP)
    return _limits({"volume": "kept map"}, batch_size, listing)


def padclass(files: data.PadclassFiles, batch_size: int) -> list[Limit]:
    """Return the limits of the padclass workload, their samples checked."""
    listing = _listing("padclass", files.paths, files.labels)
    names = {"pad": "kept maps", "pad-pread": "kept descriptors, pread"}
    which = np.random.default_rng(0).integers(data.PAD_ARRAYS, size=CHECKED_WHOLE)
    for method in names:
        x, y = _written(method, listing, which[:, None])
        _expect(method, check_whole.padded_arrays(x.reshape(-1, *data.PAD_SHAPE), files), which)
        _expect(method, y, files.labels[which])
    return _limits(names, batch_size, listing)


def stack(path: str, batch_size: int) -> list[Limit]:
    """Return the limits of the stack workload, their samples checked."""
    listing = _listing("stack", [path], np.zeros(1, np.int64))
    names = {"stack": "kept map", "stack-pread": "kept descriptors, pread"}
    samples = np.load(path, mmap_mode="r")
    which = np.random.default_rng(0).integers(len(samples), size=CHECKED_WINDOWS)
    for method in names:
        x, _ = _written(method, listing, np.column_stack([np.zeros_like(which), which]))
        want = samples[which] * np.float32(1 / 255)
        _expect(method, x.reshape(want.shape), want)
    return _limits(names, batch_size, listing)


def load(form: str, threads: int) -> float:
    """Return the seconds that one padded array of all padclass files takes: "place" puts each file
    in its place, "read-and-zero" reads all bytes and fills the result with zeros."""
    files = data.padclass()
    listing = _listing("padclass", files.paths, files.labels)
    return float(_run("load", form, str(threads), str(listing)))


def _limits(names: dict[str, str], batch_size: int, listing: Path) -> list[Limit]:
    """Each method with one thread and with two; `names` are by method."""
    return [
        Limit(f"C++ limit: {name}, {n} thread{'s' * (n > 1)}", method, n, batch_size, listing)
        for method, name in names.items()
        for n in (1, 2)
    ]


def _check_windows(
    method: str, listing: Path, arrays: list[np.memmap], labels: data.Labels, crop: int
) -> None:
    """Have the method write random windows, and compare them with what NumPy cuts."""
    rng = np.random.default_rng(0)
    ndim = arrays[0].ndim
    n_windows = CHECKED_WINDOWS if ndim == 2 else 4
    which = rng.integers(len(arrays), size=n_windows)
    starts = rng.integers(np.array(arrays[0].shape) - crop + 1, size=(n_windows, ndim))
    x, y = _written(method, listing, np.column_stack([which, starts]))
    want = [
        arrays[file][tuple(slice(start, start + crop) for start in at)]
        for file, at in zip(which, starts, strict=True)
    ]
    _expect(method, x.reshape(n_windows, *(crop,) * ndim), np.array(want))
    _expect(method, y, labels[which])


def _written(method: str, listing: Path, plan: data.Labels) -> tuple[Samples, data.Labels]:
    """What the method makes of a plan: rows of a file's number and the starts of a window."""
    named, out = listing.with_name(f"{method}.plan"), listing.with_name(f"{method}.out")
    np.savetxt(named, plan, fmt="%d")
    _run("write", method, str(listing), str(named), str(out))
    made = np.fromfile(f"{out}.x", np.float32), np.fromfile(f"{out}.y", np.int64)
    for left in (named, Path(f"{out}.x"), Path(f"{out}.y")):
        left.unlink()
    return made


def _expect(method: str, got: Any, want: Any) -> None:
    if not np.array_equal(got, want):
        raise check.WrongValuesError(f"limits.cpp, {method}: samples or labels differ from NumPy's")


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
