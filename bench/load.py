"""Make one array of all padclass files: seconds, and peak memory above that array.

    python -m bench.load LOADER

prints one JSON object. The files are in the page cache, and memory was used and freed before;
finding and opening the files is counted, imports are not. The result is checked in full. Peak
memory is what the process had at most, mapped pages of files included, above what it had before and
above the result.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # before the base of the measurement is taken

from bench import check, check_whole, data, limits, machine, memory, use_installed_package
from bench.peers.torch_whole import LoadAndPad, place_of

Result = tuple[Any, Any]  # x, y: tensors or arrays
SHAPE = (data.PAD_ARRAYS, *data.PAD_SHAPE)
RESULT_NBYTES = int(np.prod(SHAPE)) * 4


Load = Callable[[data.PadclassFiles], Result]


def gpuload() -> Load:
    import gpuload as gl  # counted neither in seconds nor in memory

    def load(files: data.PadclassFiles) -> Result:
        height, width, _ = data.PAD_SHAPE
        pad = gl.Pad((height, width, None))
        return gl.load(gl.open(files.folder), pad=pad, progress=False)

    return load


def into_one_array(files: data.PadclassFiles) -> Result:
    """np.load of each file into its place in an array of zeros."""
    x = np.zeros(SHAPE, np.float32)
    for padded, path in zip(x, files.paths, strict=True):
        array = np.load(path)
        padded[place_of(array)] = array
    return x, files.labels


def stacked(files: data.PadclassFiles) -> Result:
    """np.load and np.pad of each file, then np.stack: what most people write."""
    items = LoadAndPad(files, by_torch=False)
    return np.stack([items[i][0] for i in range(len(files.paths))]), files.labels


LOADERS: dict[str, Callable[[], Load]] = {
    "gpuload": gpuload,
    "np.load into one array of zeros": lambda: into_one_array,
    "np.load, np.pad, np.stack": lambda: stacked,
}
LIMITS = {
    "C++ limit: bytes read, result filled with zeros": "read-and-zero",
    "C++ limit: arrays placed in zeros": "place",
}
THREADS = 2


def main(loader: str) -> dict[str, Any]:
    files = data.padclass()
    if (resident := machine.warm(files.paths)) < 0.999:
        raise RuntimeError(f"load: expected all files in the page cache, got {resident:.1%}")
    # The first use of memory that a virtual machine's host has not given it yet costs seconds, to
    # whoever comes first.
    np.ones(2 * RESULT_NBYTES, np.uint8)
    if loader in LIMITS:
        return {"seconds": limits.load(LIMITS[loader], THREADS), "extra": None}
    load = LOADERS[loader]()
    torch.zeros(1) + 1
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    base = memory.status()
    begin = time.perf_counter()
    x, y = load(files)
    took_s = time.perf_counter() - begin
    held = base["anonymous"] + base["file pages"] + base["shared"]
    extra = memory.status()["peak"] - held - RESULT_NBYTES / 2**20
    x, y = np.asarray(x), np.asarray(y)
    check.expect("arrays", check_whole.padded_arrays(x, files).tolist(), list(range(len(x))))
    check.expect("labels", y.tolist(), files.labels.tolist())
    return {"seconds": took_s, "extra": extra}


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(sys.argv[1])))
