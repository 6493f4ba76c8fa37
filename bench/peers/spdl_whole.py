"""SPDL over whole samples: a pipeline of threads with a function per batch."""

from __future__ import annotations

from bench import data
from bench.peers import Row
from bench.peers.spdl_rows import spdl_row
from bench.peers.torch_rows import kept_maps
from bench.peers.torch_whole import StackFill, ZerosByBatch


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    load = ZerosByBatch(kept_maps(files.paths), files.labels).__getitems__
    return [spdl_row("SPDL, kept memmaps", load, data.PAD_ARRAYS, batch_size, "files")]


def stack_rows(path: str, batch_size: int) -> list[Row]:
    [samples] = kept_maps([path])
    load = StackFill(samples).__getitems__
    return [spdl_row("SPDL, kept memmap", load, len(samples), batch_size, "one file")]
