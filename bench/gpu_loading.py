"""Whole loaders on one GPU: volumes from files, arrays that the GPU holds, and a consumer that
computes.

Values are checked first. Everything runs on the stream that is current.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat
from statistics import median
from typing import Any

import numpy as np
import torch

import gpuload as gl
from bench import check, data, machine
from bench.gpu_clock import Step
from bench.gpu_report import Group, Row, Target
from gpuload import system

BLOCK_NBYTES = 8 << 20  # of one read
STEP_MS = 13.0
VOLUME_BATCH, CROP2D_BATCH = 2, 256
VOLUME_TARGET = Target(0.85)
STEP_TARGET = Target(0.01, at_most=True)
IDLE_TARGET = Target(0.02, at_most=True)
SYNCHRONIZE_EVERY = 8  # steps: the driver queues a bounded number of launches
CHECKED_BATCHES = 6

Batch = tuple[torch.Tensor, torch.Tensor]


def volumes(n_files: int, pinned_copy: float, *, repeats: int) -> Group:
    """Whole float32 volumes, from the page cache to the GPU.

    Args:
        pinned_copy: GB/s of copies from pinned memory.
    """
    paths = data.cold(n_files)
    resident = machine.warm(paths)
    threads = system.cores()
    reads = [read_gbs(paths, threads) for _ in range(repeats + 1)][1:]
    bound = min(median(reads), pinned_copy)
    with gl.DataLoader(gl.open(paths), VOLUME_BATCH, device="cuda") as loader:
        want = torch.from_numpy(data.numbered(0, (data.COLD_SIDE,) * 3)).cuda()
        for x in loader:
            if not all(torch.equal(volume, want) for volume in x):
                raise check.WrongValuesError("volumes: expected those of the files")
        del x, want
        rates = [_epoch_gbs(loader) for _ in range(repeats + 1)][1:]
        how = _line(loader, "io") + "; " + _line(loader, "device").partition(": ")[2]
    rows = [
        Row(f"pread, {threads} threads", "GB/s", reads, note="into memory of the process"),
        Row("gpuload", "GB/s", rates, bound, "min(pread, pinned)", VOLUME_TARGET, how),
    ]
    cached = f"{resident:.1%} of them in the page cache"
    caption = f"{n_files} files of 64 MiB, {cached}, batch {VOLUME_BATCH}."
    return Group("Whole volumes, end to end", caption, rows)


def read_gbs(paths: list[str], threads: int) -> float:
    """GB/s of threads that read whole files into memory of their own."""
    largest = max(os.stat(path).st_size for path in paths)
    local = threading.local()

    def read(path: str) -> int:
        if not hasattr(local, "memory"):
            local.memory = memoryview(bytearray(largest))
        file = os.open(path, os.O_RDONLY)
        try:
            done = 0
            while n := os.preadv(file, [local.memory[done : done + BLOCK_NBYTES]], done):
                done += n
            return done
        finally:
            os.close(file)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, paths))  # memory is there, threads are
        begin = time.perf_counter()
        nbytes = sum(pool.map(read, paths))
        return nbytes / (time.perf_counter() - begin) / 1e9


def _epoch_gbs(loader: gl.DataLoader) -> float:
    begin, nbytes = time.perf_counter(), 0
    for x in loader:
        nbytes += x.nbytes
    torch.cuda.synchronize()
    return nbytes / (time.perf_counter() - begin) / 1e9


def _line(loader: gl.DataLoader, name: str) -> str:
    """What describe() says under a name."""
    lines = loader.describe().splitlines()
    return next((line[10:] for line in lines if line.startswith(name)), "")


# ---- Crops


def crop2d_loader(batch_size: int = CROP2D_BATCH, **options: Any) -> gl.DataLoader:
    """Crops of the matrices, values checked."""
    files = data.crop2d()
    machine.warm(files.paths)
    crop = gl.RandomCrop(data.CROP, per_array=data.PER_ARRAY)
    loader = gl.DataLoader(
        gl.open(files.folder), batch_size, shuffle=True, crop=crop, device="cuda", **options
    )
    check.crop2d_epochs(on_host(endless(loader)), 2, files.labels)
    return loader


def volume_loader(**options: Any) -> gl.DataLoader:
    """Crops of one volume, values checked."""
    path = data.volume()
    machine.warm([path])
    crop = gl.RandomCrop((None, *(data.VOLUME_CROP,) * 3), per_array=data.VOLUME_EPOCH)
    source = gl.open(path, labels=np.zeros(1, np.int64))
    loader = gl.DataLoader(source, VOLUME_BATCH, shuffle=True, crop=crop, device="cuda", **options)
    check.volume_batches(islice(on_host(endless(loader)), CHECKED_BATCHES), data.VOLUME_SIDE)
    return loader


def endless(loader: gl.DataLoader) -> Iterator[Batch]:
    """Batches of epoch after epoch."""
    return chain.from_iterable(repeat(loader))


def on_host(batches: Iterator[Batch]) -> Iterator[Batch]:
    return ((x.cpu(), y.cpu()) for x, y in batches)


CROPS = {
    f"matrices, 20^2, batch {CROP2D_BATCH}": crop2d_loader,
    f"volume, 96^3, batch {VOLUME_BATCH}": volume_loader,
}


def resident(step: Step, *, n_steps: int) -> Group:
    """What a loader of arrays that the GPU holds takes of a step: of the host, and of the GPU."""
    rows = []
    for name, make in CROPS.items():
        with make(cache="device") as loader:
            host_us, gpu_us = _per_batch(endless(loader), step, n_steps)
        for where, values in (("host", host_us), ("GPU", gpu_us)):
            bound = STEP_MS * 1e3
            of = f"step of {STEP_MS:g} ms"
            rows.append(Row(f"{name}, {where}", "us", values, bound, of, STEP_TARGET))
    caption = f'cache="device", random crops; {n_steps} steps of {step.milliseconds:.1f} ms.'
    return Group("Random crops of held arrays", caption, rows)


def _per_batch(
    batches: Iterator[Batch], step: Step, n_steps: int
) -> tuple[list[float], list[float]]:
    """Microseconds of next() on the host, and of what it enqueues on the GPU."""
    x, _ = next(batches)
    host_us, pairs = [], []
    for k in range(n_steps):
        step(x)  # the GPU is busy while the host asks for a batch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter()
        x, _ = next(batches)
        host_us.append((time.perf_counter() - start) * 1e6)
        end.record()
        pairs.append((begin, end))
        if k % SYNCHRONIZE_EVERY == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return host_us, [begin.elapsed_time(end) * 1e3 for begin, end in pairs]


def idle(step: Step, *, n_steps: int, repeats: int) -> Group:
    """The share of time that the GPU waits for batches: the same steps, on one batch that is
    there and on those of a loader, in turn."""
    rows = []
    for name, make in CROPS.items():
        for how, options in (("from files", {}), ("held", {"cache": "device"})):
            with make(**options) as loader:
                batches = endless(loader)
                x, _ = next(batches)
                runs = [
                    (_steps_s(repeat((x, None)), step, n_steps), _steps_s(batches, step, n_steps))
                    for _ in range(repeats + 1)
                ][1:]
            shares = [max(0.0, 1 - alone / fed) for alone, fed in runs]
            rows.append(Row(f"{name}, {how}", "share", shares, target=IDLE_TARGET))
    caption = (
        f"{n_steps} steps of {step.milliseconds:.1f} ms, by the clock, beside as many on a batch "
        "that is there."
    )
    return Group("Time that the GPU waits", caption, rows)


def _steps_s(batches: Iterator[Any], step: Step, n_steps: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for x, _ in islice(batches, n_steps):
        step(x)
    torch.cuda.synchronize()
    return time.perf_counter() - begin
