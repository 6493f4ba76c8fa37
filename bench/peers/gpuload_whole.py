"""gpuload itself over whole samples: padded arrays, rows of one file, arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import gpuload as gl
from bench import data
from bench.peers import Batch, Peer, Row
from bench.peers.torch_whole import Features


class WholePeer:
    """A loader without windows. `bare`: its batches are tensors, which are made tuples of one."""

    def __init__(self, source: Any, batch_size: int, *, bare: bool = False, **options: Any) -> None:
        self._loader = gl.DataLoader(
            source, batch_size, shuffle=True, seed=0, device="cpu", **options
        )
        self._bare = bare

    def batches(self) -> Iterator[Batch]:
        endless = chain.from_iterable(repeat(self._loader))
        return zip(endless, strict=True) if self._bare else endless

    def close(self) -> None:
        self._loader.close()


def padclass_rows(files: data.PadclassFiles, batch_size: int) -> list[Row]:
    height, width, _ = data.PAD_SHAPE

    def peer(**options: Any) -> dict[str, Callable[[], Peer]]:
        pad = gl.Pad((height, width, None))
        return {"": lambda: WholePeer(gl.open(files.folder), batch_size, pad=pad, **options)}

    return [
        Row("gpuload", "gpuload", peer()),
        Row('gpuload, io="pread"', "gpuload", peer(io="pread")),
    ]


def stack_rows(path: str, batch_size: int) -> list[Row]:
    def peer(**options: Any) -> dict[str, Callable[[], Peer]]:
        scaled = {"bare": True, "dtype": "float32", "scale": 1 / 255, **options}
        return {"": lambda: WholePeer(gl.open(path, sample_axis=0), batch_size, **scaled)}

    return [
        Row("gpuload", "gpuload", peer(), "one file"),
        Row('gpuload, io="pread"', "gpuload", peer(io="pread"), "one file"),
    ]


def inmemory_rows(features: Features, batch_size: int) -> list[Row]:
    settings = {"": lambda: WholePeer(gl.arrays(*features), batch_size)}
    return [Row("gpuload", "gpuload", settings, "memory")]
