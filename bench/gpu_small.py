"""A small run of every kind of kernel, for compute-sanitizer to watch.

compute-sanitizer --tool memcheck python -m bench.gpu_small
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import use_installed_package

NBYTES = 1 << 16
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
RESIZES = ("nearest", "linear", "antialias", "area")


def main() -> None:
    """Run loaders of several ways, then kernels by themselves, on odd sizes."""
    from gpuload.devices.choose import choose

    device = choose("cuda")[0]
    run_loaders()
    src = torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, device="cuda")
    dst = torch.zeros_like(src)
    run_places(device.current_stream(), src, dst)
    run_others(device.current_stream(), src, dst)
    torch.cuda.synchronize()
    print("done")


def run_loaders() -> None:
    import gpuload as gl

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(6):
            array = (rng.random((33, 21, 5)) * 100).astype(">f4")
            np.save(Path(folder) / f"{i}.npy", np.asfortranarray(array) if i % 2 else array)
        source = gl.open(folder, labels=np.arange(6))
        held = {"cache": "device"}
        for options in ({}, {"dtype": "float64"}, held, held | {"dtype": "float64"}):
            with gl.DataLoader(
                source,
                5,
                shuffle=True,
                crop=gl.RandomCrop((7, 5, None), 4),
                device="cuda",
                extras=("index", "start"),
                **options,
            ) as loader:
                for batch in loader:
                    _check(batch, source.paths)


def _check(batch: Any, paths: Any) -> None:
    for x, i, start in zip(batch.x.cpu(), batch.index.tolist(), batch.start.tolist(), strict=True):
        box = tuple(slice(b, b + n) for b, n in zip(start, x.shape, strict=True))
        want = torch.from_numpy(np.load(paths[i])[box].astype(np.float32)).to(x.dtype)
        assert torch.equal(x, want), f"item {i} at {start}"


def run_places(stream: Any, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Windows of int16 (37, 29) pieces as float32, transposed or not, alike or from a table."""
    from gpuload.devices import Place
    from gpuload.dtypes import DTYPES

    numbers = [DTYPES[name].number for name in ("int16", "float32")]
    shape, row = (11, 13), 29 * 2
    pieces = src[: 7 * 37 * row].view(torch.int16).view(7, 37, 29)
    want = pieces[:, 3:14, 5:18].float()
    offsets = [[k * 37 * row + 3 * row + 10, k * 11 * 13 * 4] for k in range(7)]
    table = torch.tensor(offsets, device="cuda")
    for stride, is_turned in (((13 * 4, 4), False), ((4, 11 * 4), True)):
        for how in (
            {"table": table},
            {"src_offset": offsets[0][0], "src_step": 37 * row, "dst_step": 11 * 13 * 4},
        ):
            dst.zero_()
            stream.launch(Place(src, dst, *numbers, shape, (row, 2), stride, n_pieces=7, **how))
            got = dst[: 7 * 11 * 13 * 4].view(torch.float32)
            got = got.view(7, 13, 11).transpose(1, 2) if is_turned else got.view(7, 11, 13)
            assert torch.equal(got.cpu(), want.cpu()), how


def run_others(stream: Any, src: torch.Tensor, dst: torch.Tensor) -> None:
    from gpuload.devices import Pad, Resize, Unshuffle
    from gpuload.devices.arguments import row_major
    from gpuload.dtypes import DTYPES

    number = DTYPES["float32"].number
    whole, other = (31, 29), (17, 45)
    strides = {shape: row_major(shape, 4)[0] for shape in (whole, other)}
    for mode in MODES:
        stream.launch(Pad(dst, 4, whole, strides[whole], (5, 3), (20, 19), mode))
    for mode in RESIZES:
        shapes = (other, whole, strides[whole], strides[other])
        stream.launch(Resize(src, dst, number, number, *shapes, (0, 1), mode))
    for item_nbytes in (1, 2, 3, 4, 8, 16):
        stream.launch(Unshuffle(src, dst, item_nbytes, NBYTES - 3))


if __name__ == "__main__":
    use_installed_package()
    main()
