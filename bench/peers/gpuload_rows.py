"""gpuload itself, with its defaults, and with the reader that is not the default here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import gpuload as gl
from bench import data
from bench.peers import Batch, Peer, Row


class GpuloadPeer:
    def __init__(self, source: Any, batch_size: int, crop: Any, io: str) -> None:
        self._loader = gl.DataLoader(
            source, batch_size=batch_size, shuffle=True, seed=0, crop=crop, io=io, device="cpu"
        )

    def batches(self) -> Iterator[Batch]:
        return chain.from_iterable(repeat(self._loader))

    def close(self) -> None:
        self._loader.close()


def crop2d_rows(files: data.Crop2dFiles, batch_size: int) -> list[Row]:
    crop = gl.RandomCrop(data.CROP, per_array=data.PER_ARRAY)

    def from_files(io: str) -> dict[str, Callable[[], Peer]]:
        return {"": lambda: GpuloadPeer(gl.open(files.folder), batch_size, crop, io)}

    def from_one_file() -> Peer:
        source = gl.open(files.one_file, sample_axis=0, labels=files.labels)
        return GpuloadPeer(source, batch_size, crop, "auto")

    return [
        Row("gpuload", "gpuload", from_files("auto")),
        Row('gpuload, io="pread"', "gpuload", from_files("pread")),
        Row("gpuload", "gpuload", {"": from_one_file}, "one file"),
    ]


def volume_rows(path: str, batch_size: int) -> list[Row]:
    crop = gl.RandomCrop((None, *(data.VOLUME_CROP,) * 3), per_array=data.VOLUME_EPOCH)

    def peer(io: str) -> dict[str, Callable[[], Peer]]:
        return {"": lambda: GpuloadPeer(gl.open(path, labels=[0]), batch_size, crop, io)}

    return [
        Row("gpuload", "gpuload", peer("auto"), "one file"),
        Row('gpuload, io="pread"', "gpuload", peer("pread"), "one file"),
    ]
