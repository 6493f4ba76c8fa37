"""Measure what one window of a file costs that is not in the page cache.

    python -m bench.cold LOADER FILE

drops the file from the page cache, cuts the middle 32^3 window out of its 256^3 float32 (0.125 of
64 MiB), and prints how many bytes of the file are then in the page cache, and the seconds it took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from bench import check, data, machine, use_installed_package

BEGIN = (data.COLD_SIDE - data.COLD_CROP) // 2
MIDDLE = (slice(BEGIN, BEGIN + data.COLD_CROP),) * 3
Read = Callable[[str], npt.NDArray[np.float32]]


def gpuload() -> Read:
    import gpuload as gl

    def read(path: str) -> npt.NDArray[np.float32]:
        crop = gl.CenterCrop(data.COLD_CROP)
        with gl.DataLoader(gl.open(path, labels=None), crop=crop, device="cpu") as loader:
            batch: torch.Tensor = next(iter(loader))
            return batch.numpy().copy()

    return read


def memmap() -> Read:
    return lambda path: np.array(np.load(path, mmap_mode="r")[MIDDLE])


def dali_reader(mmap: bool) -> Read:
    """Return a DALI reader of the one window: what it reads ahead is that same window again."""
    from bench.peers.dali_rows import dali, fn

    def read(path: str) -> npt.NDArray[np.float32]:
        pipe = dali.Pipeline(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
        with pipe:
            x = fn.readers.numpy(
                files=[path],
                roi_start=[BEGIN] * 3,
                roi_shape=[data.COLD_CROP] * 3,
                dont_use_mmap=not mmap,
            )
            pipe.set_outputs(x)
        pipe.build()
        (batch,) = pipe.run()
        return from_dlpack(batch.as_tensor()).numpy().copy()

    return read


LOADERS: dict[str, Callable[[], Read]] = {
    "gpuload": gpuload,
    "np.memmap": memmap,
    "DALI, mmap on": lambda: dali_reader(mmap=True),
    "DALI, mmap off": lambda: dali_reader(mmap=False),
}


def main(loader: str, path: str) -> dict[str, float]:
    read = LOADERS[loader]()
    np.load(path, mmap_mode="r").sum()  # all pages in, so that dropping them is what makes it cold
    machine.drop(path)
    before = machine.resident_nbytes(path)
    if before > 0.01 * data.COLD_SIDE**3 * 4:
        raise RuntimeError(f"{path}: expected an empty page cache, got {before} bytes resident")
    begin = time.perf_counter()
    window = read(path)
    took_s = time.perf_counter() - begin
    resident = machine.resident_nbytes(path)
    check.cold_window(window)
    return {"resident_nbytes": resident, "useful_nbytes": window.nbytes, "seconds": took_s}


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
