"""NVIDIA DALI over whole arrays: fn.readers.numpy, then a crop larger than they are, which pads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from torch.utils.dlpack import from_dlpack

from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.dali_rows import PIPELINE_DEPTH, PathLabels, dali, dali_row, fn

TRIED = [(1, 1), (2, 1), (2, 16), (2, 64)]  # threads, batches that the reader holds


class DaliPadPeer:
    """A pipeline over the files, in a new order after each epoch.

    The executor that uses its output buffers again is chosen, as in DaliPeer: batches are lent.
    """

    def __init__(
        self, paths: list[str], batch_size: int, *, mmap: bool, threads: int, reader_depth: int
    ) -> None:
        pipe = dali.Pipeline(
            batch_size=batch_size,
            num_threads=threads,
            device_id=None,
            seed=0,
            prefetch_queue_depth=PIPELINE_DEPTH,
            exec_dynamic=False,
        )
        with pipe:
            array = fn.readers.numpy(
                files=paths,
                cache_header_information=True,
                shuffle_after_epoch=True,
                dont_use_mmap=not mmap,
                prefetch_queue_depth=reader_depth,
            )
            path = fn.get_property(array, key="source_info")
            x = fn.crop(
                fn.reshape(array, layout="HWC"),
                crop=data.PAD_SHAPE[:2],
                out_of_bounds_policy="pad",
                fill_values=0,
                # The margin before an array is the smaller one, as everywhere here.
                rounding="truncate",
            )
            pipe.set_outputs(x, path)
        pipe.build()
        self._pipeline = pipe
        self._labels = PathLabels(paths[0])

    def batches(self) -> Iterator[Batch]:
        while self._pipeline is not None:
            x, path = self._pipeline.run()
            yield from_dlpack(x.as_tensor()), self._labels(path)

    def close(self) -> None:
        self._pipeline = None


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    def peer(mmap: bool, threads: int, reader_depth: int) -> Peer:
        return DaliPadPeer(
            random.Random(0).sample(files.paths, len(files.paths)),
            batch_size,
            mmap=mmap,
            threads=threads,
            reader_depth=reader_depth,
        )

    return [
        dali_row(f"DALI, mmap {'on' if mmap else 'off'}", partial(peer, mmap), TRIED)
        for mmap in (True, False)
    ]
