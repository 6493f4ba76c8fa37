"""Measure what Python costs per batch: samples of one element, so that little else is left.

    python -m bench.overhead BATCH_SIZE SECONDS

prints, for gpuload and for torch's DataLoader, microseconds of wall time per batch and of CPU time
of the thread that consumes. torch's dataset has a __getitems__ that returns the same batch each
time, so that only torch's own machinery is left. A consumer that spins while it waits uses CPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch.utils.data import Dataset

from bench import data, use_installed_package
from bench.peers import Batch
from bench.peers.torch_rows import TorchPeer

WARM_UP_S = 0.1


class SameBatch(Dataset[Batch]):
    def __init__(self, batch_size: int) -> None:
        self.batch = (torch.zeros(batch_size, 1, 1), torch.zeros(batch_size, dtype=torch.int64))

    def __getitems__(self, samples: list[int]) -> Batch:
        return self.batch


def main(batch_size: int, seconds: float) -> dict[str, dict[str, float]]:
    results = {}
    peer = TorchPeer(
        SameBatch(batch_size),
        data.EPOCH,
        batch_size,
        workers=0,
        prefetch_factor=None,
        whole_batches=True,
    )
    results["torch, 0 workers"] = _per_batch(peer.batches(), seconds)
    try:
        import gpuload as gl
        from bench.peers.gpuload_rows import GpuloadPeer
    except ModuleNotFoundError:
        return results
    source = gl.open(data.crop2d().one_file, sample_axis=0, labels=np.zeros(data.MATRICES, int))
    crop = gl.RandomCrop(1, per_array=data.PER_ARRAY)
    loader = GpuloadPeer(source, batch_size, crop)
    results["gpuload"] = _per_batch(loader.batches(), seconds)
    loader.close()
    return results


def _per_batch(stream: Iterator[Batch], seconds: float) -> dict[str, float]:
    begin, n_batches = time.perf_counter(), 0
    while time.perf_counter() - begin < WARM_UP_S:
        next(stream)
        n_batches += 1
    chunk = max(1, int(n_batches / WARM_UP_S * seconds / 8))
    n_batches, begin, begin_cpu = 0, time.perf_counter(), time.thread_time()
    while (took_s := time.perf_counter() - begin) < seconds:
        for _x, _y in islice(stream, chunk):
            pass
        n_batches += chunk
    cpu_s = time.thread_time() - begin_cpu
    return {"wall_us": took_s / n_batches * 1e6, "consumer_cpu_us": cpu_s / n_batches * 1e6}


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]))))
