"""Small numbered files, and what a source says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gpuload as gl


def save_numbered(folder: Path, files: dict[str, int]) -> Path:
    """Save files (by their paths below a new folder) of shape (3,), filled with their numbers."""
    for name, number in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, np.full(3, number, np.float32))
    return folder


def save_table(path: Path, *lines: str, encoding: str = "utf-8", end: str = "\n") -> Path:
    """Write lines of text."""
    path.write_bytes(end.join([*lines, ""]).encode(encoding, "surrogateescape"))
    return path


def labels_of(source: gl.Source) -> dict[int, object]:
    """From the first value of each item to its label."""
    return {int(x.reshape(-1)[0]): y.tolist() for x, y in source}
