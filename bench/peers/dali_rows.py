"""NVIDIA DALI: fn.readers.numpy with a region of interest, in a CPU-only pipeline."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.torch_rows import STARTS

# DALI keeps a file mapped while one of its samples is queued. A reader queue that holds most of an
# epoch therefore keeps all files mapped: 145,000 samples/s instead of 45,000 with the default of 1.
READ_AHEAD_SAMPLES = (16384, 4096)
PIPELINE_DEPTH = 3

dali: Any = importlib.import_module("nvidia.dali")  # its stubs do not know all of its arguments
fn: Any = importlib.import_module("nvidia.dali.fn")


class PathLabels:
    """The class number from the two digits that stand after "class" in each path; 0 where a path
    has none: the volume."""

    def __init__(self, path: str) -> None:
        self._at = path.rfind("/class") + len("/class")
        self._has_classes = "/class" in path

    def __call__(self, paths: Any) -> torch.Tensor:
        """Read the numbers from the paths that DALI reports for a batch."""
        text = np.asarray(paths.as_tensor())
        if not self._has_classes:
            return torch.zeros(len(text), dtype=torch.int64)
        digits = text[:, self._at : self._at + 2].astype(np.int64) - ord("0")
        return torch.from_numpy(digits[:, 0] * 10 + digits[:, 1])


class DaliPeer:
    """A pipeline over a list of paths, one entry per sample.

    The list is shuffled beforehand and again by the reader after each epoch, so the order is a
    permutation of all samples. Batches are always full: one may span the end of an epoch. The
    executor that uses its output buffers again is chosen, as it is the faster one; its batches are
    lent until the next but PIPELINE_DEPTH, and a caller who wants to keep one has to copy it.

    `define` makes a batch of samples: it is handed fn.readers.numpy, told all that does not depend
    on what is read, and returns the samples and what the reader read.
    """

    def __init__(
        self,
        paths: Sequence[str],
        batch_size: int,
        define: Callable[[Any], tuple[Any, Any]],
        *,
        mmap: bool,
        threads: int,
        reader_depth: int,
    ) -> None:
        pipe = dali.Pipeline(
            batch_size=batch_size,
            num_threads=threads,
            device_id=None,
            seed=0,
            prefetch_queue_depth=PIPELINE_DEPTH,
            exec_dynamic=False,
        )
        read = partial(
            fn.readers.numpy,
            files=random.Random(0).sample(paths, len(paths)),
            cache_header_information=True,
            shuffle_after_epoch=True,
            dont_use_mmap=not mmap,
            prefetch_queue_depth=reader_depth,
        )
        with pipe:
            x, array = define(read)
            pipe.set_outputs(x, fn.get_property(array, key="source_info"))
        pipe.build()
        self._pipeline = pipe
        self._labels = PathLabels(paths[0])

    def batches(self) -> Iterator[Batch]:
        while self._pipeline is not None:
            x, path = self._pipeline.run()
            yield from_dlpack(x.as_tensor()), self._labels(path)

    def close(self) -> None:
        self._pipeline = None


def _window(shape: Sequence[int], n_starts: int, read: Any) -> tuple[Any, Any]:
    """Each sample at a random start along the axes of more than one element."""
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    # Of a list of values: a cast to integers rounds, so a range would reach its end.
    starts = [float(start) for start in range(n_starts)]
    start = fn.random.uniform(values=starts, shape=[len(axes)])
    x = read(
        roi_start=fn.cast(start, dtype=dali.types.INT32),
        roi_shape=[shape[axis] for axis in axes],
        roi_axes=axes,
    )
    return x, x


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    def peer(paths: list[str], mmap: bool, threads: int, reader_depth: int) -> Peer:
        return DaliPeer(
            paths * data.PER_ARRAY,
            batch_size,
            partial(_window, (data.CROP, data.CROP), STARTS),
            mmap=mmap,
            threads=threads,
            reader_depth=reader_depth,
        )

    deep = [(threads, n // batch_size) for threads in (1, 2) for n in READ_AHEAD_SAMPLES]
    # Pipelines share maps by path: the row with the default queue must not profit from the other.
    default = partial(peer, files.linked, True)
    return [
        dali_row("DALI, mmap on", partial(peer, files.paths, True), deep),
        dali_row("DALI, mmap on, default queue", default, [(1, 1), (2, 1)]),
        dali_row("DALI, mmap off", partial(peer, files.paths, False), [(1, 1), (1, 4), (2, 4)]),
    ]


def volume_rows(path: str, batch_size: int) -> list[Row]:
    """Only with mmap: without it DALI reads the whole 512 MiB file for each window."""

    def peer(threads: int, reader_depth: int) -> Peer:
        n_starts = data.VOLUME_SIDE - data.VOLUME_CROP + 1
        return DaliPeer(
            [path] * data.VOLUME_EPOCH,
            batch_size,
            partial(_window, (1, *(data.VOLUME_CROP,) * 3), n_starts),
            mmap=True,
            threads=threads,
            reader_depth=reader_depth,
        )

    return [dali_row("DALI, mmap on", peer, [(4, 4), (2, 4), (2, 1), (1, 4)], "one file")]


def dali_row(
    name: str,
    peer: Callable[[int, int], Peer],
    tried: list[tuple[int, int]],
    layout: str = "files",
) -> Row:
    """A row of pipelines with so many threads and so deep a queue of the reader."""
    settings: dict[str, Callable[[], Peer]] = {
        f"threads={threads}, reader queue={depth}": partial(peer, threads, depth)
        for threads, depth in tried
    }
    queued = max(depth for _, depth in tried) + PIPELINE_DEPTH + 1
    return Row(name, "dali", settings, layout, queued)
