"""Measure crops of matrices on the GPU: gpuload beside torch's DataLoader with pinned memory.

    python -m bench.gpu_crop2d BATCH_SIZE SECONDS REPEATS

prints one JSON object. It is a process of its own because torch forks its workers. The repeats are
interleaved, the first is dropped, and torch's number of workers is tuned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench import check, data, machine, note, use_installed_package
from bench.peers.torch_rows import GatherFromOneFile, KeptMapsByBatch, Shuffled, kept_maps

TUNING_SHARE = 0.3  # of the seconds of a repeat
WORKERS = (0, 2, 4, 8, 16)
PREFETCH_FACTOR = 4
WARM_UP_BATCHES = 64

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Runner:
    """An endless stream of batches on the GPU."""

    name: str
    setting: str
    stream: Iterator[Batch]
    rates: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> float:
        """Samples per second that have arrived on the GPU."""
        for _ in range(WARM_UP_BATCHES):  # what was queued while others ran must not count
            next(self.stream)
        torch.cuda.synchronize()
        n_samples, begin = 0, time.perf_counter()
        while (time.perf_counter() - begin) < seconds:
            for _ in range(16):
                x, _y = next(self.stream)
                n_samples += len(x)
        torch.cuda.synchronize()
        return n_samples / (time.perf_counter() - begin)


def main(batch_size: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Return the rows as a JSON-able object."""
    files = data.crop2d()
    machine.warm([*files.paths, files.one_file])
    runners = torch_runners(files, batch_size, seconds * TUNING_SHARE)
    runners += gpuload_runners(files, batch_size)
    for runner in runners:
        note(f"{runner.name}: checking values")
        on_host = ((x.cpu(), y.cpu()) for x, y in runner.stream)
        check.crop2d_epochs(on_host, 1, files.labels)
    for k in range(repeats + 1):
        note(f"matrices, repeat {k} of {repeats}")
        for runner in runners:
            runner.rates.append(runner.measure(seconds))
    rows = [{"name": r.name, "setting": r.setting, "values": r.rates[1:]} for r in runners]
    return {"batch_size": batch_size, "rows": rows}


def torch_runners(files: data.Crop2dFiles, batch_size: int, seconds: float) -> list[Runner]:
    """torch's fastest forms, each with its best number of workers."""
    maps = kept_maps(files.paths)
    one = np.asarray(np.load(files.one_file, mmap_mode="r"))
    datasets = {
        "torch, kept memmaps, __getitems__": KeptMapsByBatch(maps, files.labels),
        "torch, gather from one file": GatherFromOneFile(one, files.labels),
    }
    cores = len(os.sched_getaffinity(0))
    runners = []
    for name, dataset in datasets.items():
        note(f"{name}: tuning")
        rates = {}
        for workers in (n for n in WORKERS if n <= cores):
            rates[workers] = Runner(name, "", torch_stream(dataset, batch_size, workers)).measure(
                seconds
            )
        best = max(rates, key=rates.__getitem__)
        setting = f"pin_memory, {best} workers"
        runners.append(Runner(name, setting, torch_stream(dataset, batch_size, best)))
    return runners


def torch_stream(dataset: Any, batch_size: int, workers: int) -> Iterator[Batch]:
    loader = DataLoader(
        dataset,
        batch_sampler=Shuffled(data.EPOCH, batch_size),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        persistent_workers=workers > 0,
        pin_memory=True,
        collate_fn=as_it_is,
    )
    return (
        (x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
        for x, y in chain.from_iterable(repeat(loader))
    )


def as_it_is(batch: Batch) -> Batch:
    return batch


def gpuload_runners(files: data.Crop2dFiles, batch_size: int) -> list[Runner]:
    import gpuload as gl

    crop = gl.RandomCrop(data.CROP, per_array=data.PER_ARRAY)
    one = gl.open(files.one_file, sample_axis=0, labels=files.labels)
    made = {
        "gpuload": (gl.open(files.folder), {}),
        "gpuload, one file": (one, {}),
        'gpuload, cache="device"': (gl.open(files.folder), {"cache": "device"}),
    }
    runners = []
    for name, (source, options) in made.items():
        loader = gl.DataLoader(
            source, batch_size, shuffle=True, crop=crop, device="cuda", **options
        )
        runners.append(Runner(name, "", chain.from_iterable(repeat(loader))))
    return runners


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
