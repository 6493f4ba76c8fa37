"""Make the files that the benchmarks read, once, under one folder.

Every element of the crop2d, padclass, volume and cold files is its own number: element k of a set
(in C order over the whole set) is the float32 whose bits are BASE_BITS + k. All of them are normal
floats, no two are equal, and from any element of a delivered window its array, row and column can
be told. check.py uses that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

BASE_BITS = 0x3F800000  # the bits of 1.0; 2**27 numbers on, the bits of 65536.0
DATA_VERSION = "2"  # a folder made by another version is made again

MATRICES = 2000
CLASSES = 20
SIDE = 200
CROP = 20
PER_ARRAY = 10
EPOCH = MATRICES * PER_ARRAY

VOLUME_SIDE = 512
VOLUME_CROP = 96
VOLUME_EPOCH = 1000  # windows

PAD_ARRAYS = 240
PAD_CLASSES = 3
PAD_SIDES = (150, 400)  # of each array, the second one excluded
PAD_SHAPE = (400, 400, 6)

STACK_SHAPE = (20_000, 3, 64, 64)

IN_MEMORY = 1_000_000  # samples

TINY_SIDE = 8
TINY_FOLDERS = 100

COLD_SIDE = 256
COLD_CROP = 32

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Crop2dFiles:
    """2,000 matrices of float32 (200, 200): as files in class folders, and as one file."""

    folder: Path
    paths: list[str]  # in text order: file m holds matrix m
    labels: Labels  # (MATRICES,), the number of the class folder
    one_file: str  # (2000, 200, 200)
    linked: list[str]  # the same files by other names, through a symbolic link


@dataclass(frozen=True, slots=True)
class PadclassFiles:
    """240 arrays of float32 (H, W, 6) with sides of 150 to 399, in three class folders."""

    folder: Path
    paths: list[str]  # in text order
    labels: Labels  # (240,), the number of the class folder
    shapes: Labels  # (240, 3)
    firsts: Labels  # (240,), the number of each array's first element


def folder() -> Path:
    """Return the folder of all bench data: $GPULOAD_BENCH_DATA, or one under the temp folder."""
    named = os.environ.get("GPULOAD_BENCH_DATA")
    return Path(named) if named else Path(tempfile.gettempdir()) / "gpuload-bench"


def numbered(first: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return float32 values whose bits are BASE_BITS + first, + first + 1, ... in C order."""
    start = BASE_BITS + first
    bits = np.arange(start, start + int(np.prod(shape)), dtype=np.int32)
    return bits.view(np.float32).reshape(shape)


def crop2d() -> Crop2dFiles:
    """Return the matrices of the crop2d workload, making them when they are not there."""
    root = _made("crop2d", _make_crop2d)
    labels = np.arange(MATRICES, dtype=np.int64) // (MATRICES // CLASSES)
    paths, linked = (
        [str(_matrix_path(root / name, m)) for m in range(MATRICES)] for name in ("files", "linked")
    )
    return Crop2dFiles(root / "files", paths, labels, str(root / "all.npy"), linked)


def padclass() -> PadclassFiles:
    """Return the arrays of the padclass workload, making them when they are not there."""
    root = _made("padclass", _make_padclass)
    labels = np.arange(PAD_ARRAYS, dtype=np.int64) // (PAD_ARRAYS // PAD_CLASSES)
    paths = [str(_padclass_path(root, i)) for i in range(PAD_ARRAYS)]
    shapes = _padclass_shapes()
    nexts = np.cumsum(shapes.prod(axis=1))
    return PadclassFiles(root, paths, labels, shapes, np.concatenate(([0], nexts[:-1])))


def stack() -> str:
    """Return the path of one uint8 file of shape (20000, 3, 64, 64).

    The first two bytes of a sample are its number, the lower first; the others are random.
    """
    return str(_made("stack", _make_stack) / "stack.npy")


def in_memory() -> tuple[npt.NDArray[np.float32], ...]:
    """Return three float32 (1000000, 1): the number of each sample, its negative, and twice it."""
    numbers = np.arange(IN_MEMORY, dtype=np.float32)[:, None]
    return numbers, -numbers, 2 * numbers


def volume() -> str:
    """Return the path of one float32 file of shape (1, 512, 512, 512)."""
    return str(_made("volume", _make_volume) / "volume.npy")


def cold(n_files: int) -> list[str]:
    """Return paths of float32 files of shape (256, 256, 256), 64 MiB each."""
    root = _made(f"cold-{n_files}", lambda path: _make_cold(path, n_files))
    return [str(root / f"{i}.npy") for i in range(n_files)]


def tiny(n_files: int) -> Path:
    """Return a class tree of 100 folders that hold `n_files` float32 (8, 8) files in all."""
    return _made(f"tiny-{n_files}", lambda path: _make_tiny(path, n_files))


def _matrix_path(files: Path, matrix: int) -> Path:
    return files / f"class{matrix // (MATRICES // CLASSES):02d}" / f"matrix{matrix:04d}.npy"


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name`, filled by `make` unless a complete one is there."""
    done = folder() / f"{name}-v{DATA_VERSION}"
    if not done.is_dir():
        partial = folder() / f"{name}.partial-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(done)
    return done


def _make_crop2d(root: Path) -> None:
    matrices = numbered(0, (MATRICES, SIDE, SIDE))
    (root / "linked").symlink_to("files")
    np.save(root / "all.npy", matrices)
    for m in range(MATRICES):
        path = _matrix_path(root / "files", m)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, matrices[m])


def _padclass_path(root: Path, i: int) -> Path:
    return root / f"class{i // (PAD_ARRAYS // PAD_CLASSES):02d}" / f"array{i:03d}.npy"


def _padclass_shapes() -> Labels:
    sides = np.random.default_rng(0).integers(*PAD_SIDES, size=(PAD_ARRAYS, 2))
    return np.column_stack([sides, np.full(PAD_ARRAYS, PAD_SHAPE[2])])


def _make_padclass(root: Path) -> None:
    first = 0
    for i, shape in enumerate(_padclass_shapes().tolist()):
        path = _padclass_path(root, i)
        path.parent.mkdir(exist_ok=True)
        np.save(path, numbered(first, tuple(shape)))
        first += int(np.prod(shape))


def _make_stack(root: Path) -> None:
    samples = np.random.default_rng(0).integers(256, size=STACK_SHAPE, dtype=np.uint8)
    numbers = np.arange(len(samples), dtype="<u2")[:, None].view(np.uint8)
    samples.reshape(len(samples), -1)[:, :2] = numbers
    np.save(root / "stack.npy", samples)


def _make_volume(root: Path) -> None:
    shape = (1, VOLUME_SIDE, VOLUME_SIDE, VOLUME_SIDE)
    out = np.lib.format.open_memmap(root / "volume.npy", "w+", np.dtype(np.float32), shape)
    plane = VOLUME_SIDE * VOLUME_SIDE
    for z in range(VOLUME_SIDE):
        out[0, z] = numbered(z * plane, (VOLUME_SIDE, VOLUME_SIDE))
    out.flush()


def _make_cold(root: Path, n_files: int) -> None:
    values = numbered(0, (COLD_SIDE, COLD_SIDE, COLD_SIDE))
    for i in range(n_files):
        with open(root / f"{i}.npy", "wb") as file:
            np.save(file, values)
            file.flush()
            os.fsync(file.fileno())  # only clean pages can be dropped from the page cache


def _make_tiny(root: Path, n_files: int) -> None:
    model = root / "model.npy"
    np.save(model, numbered(0, (TINY_SIDE, TINY_SIDE)))
    content = model.read_bytes()
    model.unlink()
    per_folder = -(-n_files // TINY_FOLDERS)
    for first in range(0, n_files, per_folder):
        branch = root / f"class{first // per_folder:03d}"
        branch.mkdir()
        for i in range(first, min(first + per_folder, n_files)):
            (branch / f"item{i:06d}.npy").write_bytes(content)
