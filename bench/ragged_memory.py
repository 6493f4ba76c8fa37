"""How much memory a folder of arrays of all sizes takes, by four ways to go through it.

    python -m bench.ragged_memory [--megabytes 600] [--repeats 3]

prints one JSON object. The files are float32 (H, W, 6) with sides of 150 to 399, in three class
folders; samples are padded to (400, 400, 6), with the array in the middle. Each way runs in
processes of its own: one checks every value of every sample, the others measure. The files are in
the page cache. Seconds are those until each sample was in memory once, finding the files counted,
imports not. Two peaks are told, both above what the process had before:

    owned     memory that is the process's alone (anonymous and shared), looked at each 2 ms
    resident  the same with pages of mapped files, which the kernel may take back at any time
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch  # before the base of the measurement is taken

from bench import data, machine, memory, note, use_installed_package

SIDES = (150, 400)  # the second one excluded
SHAPE = (400, 400, 6)
N_CLASSES = 3
BATCH_SIZE = 16
LOOK_S = 0.002

Samples = Iterator[npt.NDArray[Any]]  # one for each file in text order


def list_of_arrays(folder: Path) -> Samples:
    """np.load of each file. Samples of one shape have to be made of these later."""
    return iter([np.load(path) for path in _paths(folder)])


def padded_float64(folder: Path) -> Samples:
    """np.load of each file into its place in np.zeros, which is float64 unless told otherwise."""
    paths = _paths(folder)
    x = np.zeros((len(paths), *SHAPE))
    for sample, path in zip(x, paths, strict=True):
        array = np.load(path)
        sample[_place(array.shape)] = array
    return iter(x)


def gpuload_load(folder: Path) -> Samples:
    import gpuload as gl

    x, _ = gl.load(gl.open(folder), pad=gl.Pad((*SHAPE[:2], None)), progress=False)
    return iter(x.numpy())


def gpuload_loader(folder: Path) -> Samples:
    import gpuload as gl

    pad = gl.Pad((*SHAPE[:2], None))
    with gl.DataLoader(gl.open(folder), BATCH_SIZE, pad=pad, device="cpu") as loader:
        for x, _ in loader:
            yield from x.numpy()


WAYS: dict[str, Callable[[Path], Samples]] = {
    "list of np.load arrays": list_of_arrays,
    "padded float64 array": padded_float64,
    "gl.load": gpuload_load,
    "gl.DataLoader": gpuload_loader,
}


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.npy"))


def _place(shape: tuple[int, ...]) -> tuple[slice, ...]:
    begins = [(to - n) // 2 for to, n in zip(SHAPE, shape, strict=True)]
    return tuple(slice(b, b + n) for b, n in zip(begins, shape, strict=True))


# ---- In a process for each way


def check(name: str, folder: Path) -> None:
    """Compare every value of every sample with its file, and what is around with zero."""
    n = 0
    for sample, path in zip(WAYS[name](folder), _paths(folder), strict=True):
        array = np.load(path)
        wanted = array
        if sample.shape != array.shape or name != "list of np.load arrays":
            wanted = np.zeros(SHAPE, np.float32)
            wanted[_place(array.shape)] = array
        if not np.array_equal(sample, wanted):
            raise RuntimeError(f"{name}: expected the values of {path}, got others")
        n += 1
    note(f"{name}: {n} samples are right")


def measure(name: str, folder: Path) -> dict[str, float]:
    """Seconds, and MiB of both peaks."""
    import gpuload  # noqa: F401  # counted neither in seconds nor in memory

    torch.zeros(1) + 1
    # The first use of memory that a virtual machine's host has not given it yet costs seconds.
    np.ones((len(_paths(folder)), *SHAPE))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    base = memory.status()
    peak, is_over = [_owned(base)], threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            peak.append(max(peak.pop(), _owned(memory.status())))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    begin = time.perf_counter()
    samples = WAYS[name](folder)
    n = sum(1 for _ in samples)
    took_s = time.perf_counter() - begin
    is_over.set()
    watcher.join()
    if n != len(_paths(folder)):
        raise RuntimeError(f"{name}: expected {len(_paths(folder))} samples, got {n}")
    resident = memory.status()["peak"] - _owned(base) - base["file pages"]
    return {"seconds": took_s, "owned": peak[0] - _owned(base), "resident": resident}


def _owned(status: dict[str, float]) -> float:
    return status["anonymous"] + status["shared"]


# ---- All of them


def make_files(folder: Path, nbytes: int) -> int:
    """Save arrays until there are `nbytes` of them; give their bytes."""
    rng, first, i = np.random.default_rng(0), 0, 0
    while 4 * first < nbytes:
        height, width = rng.integers(*SIDES, 2).tolist()
        path = folder / f"class{i % N_CLASSES}" / f"array{i:05}.npy"
        path.parent.mkdir(exist_ok=True)
        # The numbers of all benchmarks repeat after 400 MB; here those of neighbours need differ.
        np.save(path, data.numbered(first % (1 << 26), (height, width, SHAPE[2])))
        first += height * width * SHAPE[2]
        i += 1
    return 4 * first


def main(megabytes: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gpuload-ragged-") as name:
        folder = Path(name)
        nbytes = make_files(folder, megabytes * 10**6)
        paths = [str(path) for path in _paths(folder)]
        if (resident := machine.warm(paths)) < 0.999:
            raise RuntimeError(f"files: expected all in the page cache, got {resident:.1%}")
        for way in WAYS:
            _child("check", way, folder)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(repeats):  # one after another, so that all meet the same weather
            for way, found in runs.items():
                found.append(json.loads(_child("measure", way, folder)))
    rows = [
        {"name": way} | {key: statistics.median(run[key] for run in found) for key in found[0]}
        for way, found in runs.items()
    ]
    return {
        "machine": machine.describe(),
        "files": len(paths),
        "nbytes": nbytes,
        "sample_shape": SHAPE,
        "batch_size": BATCH_SIZE,
        "repeats": repeats,
        "rows": rows,
        "runs": runs,
    }


def _child(what: str, way: str, folder: Path) -> str:
    command = [sys.executable, "-m", "bench.ragged_memory", f"--{what}", way, str(folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{way}: expected the process to end well, got {done.returncode}")
    return done.stdout


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=600, help="of files")
    parser.add_argument("--repeats", type=int, default=3)
    for what in ("check", "measure"):
        parser.add_argument(f"--{what}", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    use_installed_package()
    if given.check:
        check(given.check[0], Path(given.check[1]))
    elif given.measure:
        print(json.dumps(measure(given.measure[0], Path(given.measure[1]))))
    else:
        print(json.dumps(main(given.megabytes, given.repeats), indent=1))
