"""gpuload itself: with its defaults, with the reader that is not the default here, and with arrays
that are loaded once and held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import gpuload as gl
from bench import data
from bench.peers import Batch, Peer, Row


class GpuloadPeer:
    def __init__(self, source: Any, batch_size: int, crop: Any, **options: Any) -> None:
        self._loader = gl.DataLoader(
            source, batch_size=batch_size, shuffle=True, seed=0, crop=crop, device="cpu", **options
        )

    def batches(self) -> Iterator[Batch]:
        return chain.from_iterable(repeat(self._loader))

    def close(self) -> None:
        self._loader.close()


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    crop = gl.RandomCrop(data.CROP, per_array=data.PER_ARRAY)

    def from_files(**options: Any) -> dict[str, Callable[[], Peer]]:
        return {"": lambda: GpuloadPeer(gl.open(files.folder), batch_size, crop, **options)}

    def from_one_file() -> Peer:
        source = gl.open(files.one_file, sample_axis=0, labels=files.labels)
        return GpuloadPeer(source, batch_size, crop)

    return [
        Row("gpuload", "gpuload", from_files()),
        Row('gpuload, io="pread"', "gpuload", from_files(io="pread")),
        Row('gpuload, cache="device"', "gpuload", from_files(cache="device")),
        Row("gpuload", "gpuload", {"": from_one_file}, "one file"),
    ]


def volume_rows(path: str, batch_size: int) -> list[Row]:
    crop = gl.RandomCrop((None, *(data.VOLUME_CROP,) * 3), per_array=data.VOLUME_EPOCH)

    def peer(**options: Any) -> dict[str, Callable[[], Peer]]:
        return {"": lambda: GpuloadPeer(gl.open(path, labels=[0]), batch_size, crop, **options)}

    return [
        Row("gpuload", "gpuload", peer(), "one file"),
        Row('gpuload, io="pread"', "gpuload", peer(io="pread"), "one file"),
        Row('gpuload, cache="device"', "gpuload", peer(cache="device"), "one file"),
    ]
