"""NVIDIA DALI over whole arrays: fn.readers.numpy, then a crop larger than they are, which pads."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench import data
from bench.peers import Peer, Row
from bench.peers.dali_rows import DaliPeer, dali_row, fn

TRIED = [(1, 1), (2, 1), (2, 16), (2, 64)]  # threads, batches that the reader holds


def _padded(read: Any) -> tuple[Any, Any]:
    array = read()
    x = fn.crop(
        fn.reshape(array, layout="HWC"),
        crop=data.PAD_SHAPE[:2],
        out_of_bounds_policy="pad",
        fill_values=0,
        # The margin before an array is the smaller one, as everywhere here.
        rounding="truncate",
    )
    return x, array


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    def peer(mmap: bool, threads: int, reader_depth: int) -> Peer:
        return DaliPeer(
            files.paths,
            batch_size,
            _padded,
            mmap=mmap,
            threads=threads,
            reader_depth=reader_depth,
        )

    return [
        dali_row(f"DALI, mmap {'on' if mmap else 'off'}", partial(peer, mmap), TRIED)
        for mmap in (True, False)
    ]
