"""SPDL: a pipeline of threads with a function per batch.

A function per item is the other usual form. It was measured and left out: SPDL makes a task of each
item, 200 us, which gave 4,500 samples/s where the form here gives 265,000 (crop2d, batch 256).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

from spdl.pipeline import Pipeline, PipelineBuilder

from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.torch_rows import (
    KeptMapsByBatch,
    Shuffled,
    VolumeByBatch,
    kept_maps,
)

SINK_BATCHES = 4
Builder = PipelineBuilder[Any, Any]


class SpdlPeer:
    """A pipeline with a continuous source: it is built once and goes from epoch to epoch."""

    def __init__(self, builder: Builder, threads: int) -> None:
        self._pipeline: Pipeline[Batch] = builder.add_sink(SINK_BATCHES).build(
            num_threads=threads, use_thread_output_queue=True
        )
        self._started = False

    def batches(self) -> Iterator[Batch]:
        if not self._started:
            self._pipeline.start()
            self._started = True
        return chain.from_iterable(repeat(self._pipeline))

    def close(self) -> None:
        if self._started:
            self._pipeline.stop()
            self._started = False


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    load = KeptMapsByBatch(kept_maps(files.paths), files.labels).__getitems__
    return [spdl_row("SPDL, kept memmaps", load, data.EPOCH, batch_size, "files")]


def volume_rows(path: str, batch_size: int) -> list[Row]:
    [array] = kept_maps([path])
    load = VolumeByBatch(array).__getitems__
    return [spdl_row("SPDL, kept memmap", load, data.VOLUME_EPOCH, batch_size, "one file")]


def spdl_row(
    name: str, load: Callable[[Any], Any], n_samples: int, batch_size: int, layout: str
) -> Row:
    """A row of a pipeline that calls `load` with the samples of each batch."""

    def peer(concurrency: int) -> Peer:
        source: Builder = Builder().add_source(Shuffled(n_samples, batch_size), continuous=True)
        return SpdlPeer(source.pipe(load, concurrency=concurrency), concurrency + 1)

    settings: dict[str, Callable[[], Peer]] = {
        f"concurrency={n}": partial(peer, n) for n in (1, 2, 4)
    }
    return Row(name, "spdl", settings, layout, queued_batches=4 * SINK_BATCHES)
