"""Kernels and copies of one GPU beside what the GPU itself reaches: bytes moved, by time.

Values are checked first. Everything runs on the stream that is current.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from bench.check import WrongValuesError
from bench.gpu_clock import gpu_seconds
from bench.gpu_report import Group, Row, Target
from gpuload.devices import Pad, Place, Resize, Unshuffle
from gpuload.devices.arguments import row_major
from gpuload.devices.cuda import CudaDevice
from gpuload.dtypes import DTYPES

WEATHER = (768, 1152, 17)  # one sample: rows, columns, channels
PLACE_TARGET = Target(0.85)
PINNED_TARGET = Target(0.95)
LAUNCHES = 5
PINNED_NBYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Rooflines:
    """What this GPU reaches, in GB/s: copies in its own memory (bytes read and written), and from
    pinned memory of torch's."""

    device_copy: float
    pinned_copy: float


class Bench:
    """Rows of kernels on one GPU.

    Args:
        samples: of WEATHER in the batch of `place`.
        repeats: of each measurement.
    """

    def __init__(self, device: CudaDevice, *, samples: int, repeats: int) -> None:
        self._device = device
        self._samples = samples
        self._repeats = repeats
        self.nbytes = samples * math.prod(WEATHER) * 4
        self._src = torch.randint(0, 256, (self.nbytes,), dtype=torch.uint8, device=device.torch)
        self._dst = torch.empty_like(self._src)

    # ---- What the machine reaches

    def copies(self) -> tuple[Rooflines, Group]:
        """Rooflines, and the copy of our slabs beside that of torch's pinned memory."""
        on_device = self._time(lambda: self._dst.copy_(self._src), 2 * self.nbytes)
        n = min(PINNED_NBYTES, self.nbytes)
        theirs = torch.empty(n, dtype=torch.uint8).pin_memory()
        ours = self._device.host_memory(n)
        ours.copy_(self._src[:n])
        stream = self._device.current_stream()
        stream.copy(self._dst[:n], ours)
        _expect(torch.equal(self._dst[:n], self._src[:n]), "a slab")
        pinned = self._time(lambda: self._dst[:n].copy_(theirs, non_blocking=True), n)
        slab = self._time(lambda: stream.copy(self._dst[:n], ours), n)
        rooflines = Rooflines(median(on_device), median(pinned))
        rows = [
            Row("torch: device to device", "GB/s", on_device, note="read and written"),
            Row("torch: pinned memory to device", "GB/s", pinned),
            Row(
                "gpuload: slab to device",
                "GB/s",
                slab,
                rooflines.pinned_copy,
                "pinned copy",
                PINNED_TARGET,
            ),
        ]
        caption = f"{n / 2**20:.0f} MiB from the host, {self.nbytes / 2**20:.0f} MiB on the device."
        return rooflines, Group("Copies", caption, rows)

    # ---- place

    def place(self, rooflines: Rooflines) -> Group:
        """A batch of weather fields: as it is, with channels first, and cast."""
        n = self._samples
        shape = f"({n}, {', '.join(map(str, WEATHER))})"
        rows = []
        for name, stored, is_first in (
            ("float32 as it is", "float32", False),
            ("float32, channels first", "float32", True),
            ("uint8 to float32", "uint8", False),
            ("uint8 to float32, channels first", "uint8", True),
        ):
            operation, nbytes = self._place(stored, is_first)
            self._launch(operation)
            self._check_place(operation, stored, is_first)
            gbs = self._time(lambda operation=operation: self._launch(operation), nbytes)
            target = None if stored == "uint8" and is_first else PLACE_TARGET
            rows.append(Row(name, "GB/s", gbs, rooflines.device_copy, "copy on the device", target))
        return Group("place", f"Batches of {shape}; bytes read and written.", rows)

    def _place(self, stored: str, is_first: bool) -> tuple[Place, int]:
        from_dtype, to_dtype = DTYPES[stored], DTYPES["float32"]
        src_stride, src_step = row_major(WEATHER, from_dtype.nbytes)
        dst_stride, dst_step = row_major(WEATHER, to_dtype.nbytes)
        if is_first:
            y, x, c = WEATHER
            z_first, _ = row_major((c, y, x), to_dtype.nbytes)
            dst_stride = (z_first[1], z_first[2], z_first[0])
        operation = Place(
            self._src,
            self._dst,
            from_dtype.number,
            to_dtype.number,
            WEATHER,
            src_stride,
            dst_stride,
            n_pieces=self._samples,
            src_step=src_step,
            dst_step=dst_step,
        )
        return operation, self._samples * (src_step + dst_step)

    def _check_place(self, operation: Place, stored: str, is_first: bool) -> None:
        dtype = DTYPES[stored].torch
        y, x, c = WEATHER
        for k in {0, self._samples // 2, self._samples - 1}:
            src = self._src[k * operation.src_step :][: operation.src_step].view(dtype)
            dst = self._dst[k * operation.dst_step :][: operation.dst_step].view(torch.float32)
            want = src.view(y, x, c).to(torch.float32)
            got = dst.view(c, y, x).permute(1, 2, 0) if is_first else dst.view(y, x, c)
            # Bits: random ones are NaNs here and there.
            _expect(torch.equal(got.contiguous().view(torch.int32), want.view(torch.int32)), stored)

    # ---- Other kernels

    def others(self, rooflines: Rooflines) -> Group:
        """pad, resize and unshuffle."""
        made = {
            "pad, constant, float32 (1024, 1024) around 896^2": self._pad("constant"),
            "pad, reflect, float32 (1024, 1024) around 896^2": self._pad("reflect"),
            "resize, linear, float32 512^2 to 1024^2": self._resize(
                (512, 512), (1024, 1024), "linear"
            ),
            "resize, antialias, float32 1024^2 to 512^2": self._resize(
                (1024, 1024), (512, 512), "antialias"
            ),
            "resize, linear, float32 128^3 to 160^3": self._resize(
                (128, 128, 128), (160, 160, 160), "linear"
            ),
            "unshuffle, chunks of 1 MiB, 4 bytes": self._unshuffle(4),
            "unshuffle, chunks of 1 MiB, 8 bytes": self._unshuffle(8),
        }
        rows = []
        for name, (operation, nbytes) in made.items():
            gbs = self._time(lambda operation=operation: self._launch(operation), nbytes)
            rows.append(Row(name, "GB/s", gbs, rooflines.device_copy, "copy on the device"))
        caption = (
            "Bytes read and written once: of pad the frame alone, of resize both arrays. Without a "
            "target: resize reads its source many times."
        )
        return Group("Other kernels", caption, rows)

    def _pad(self, mode: str) -> tuple[Pad, int]:
        side, inner, begin = 1024, 896, 64
        nbytes = 4 * side * side
        n = self.nbytes // nbytes
        stride, _ = row_major((side, side), 4)
        operation = Pad(
            self._dst,
            4,
            (side, side),
            stride,
            begin=(begin, begin),
            extent=(inner, inner),
            mode=mode,
            value=b"\0\0\x80?",
            n_pieces=n,
            dst_step=nbytes,
        )
        source = self._src[: 4 * inner * inner].view(torch.int32).view(inner, inner)
        piece = self._dst[:nbytes].view(torch.int32).view(side, side)
        piece[begin : begin + inner, begin : begin + inner] = source
        self._launch(operation)
        frame = [begin, begin, begin, begin]
        if mode == "constant":
            want = torch.nn.functional.pad(source, frame, value=0x3F800000)
        else:  # torch pads floating point numbers alone
            exact = source.double()[None]
            want = torch.nn.functional.pad(exact, frame, mode=mode)[0].to(torch.int32)
        _expect(torch.equal(piece, want), f"pad, {mode}")
        moved = 4 * (side * side - inner * inner) * (1 if mode == "constant" else 2)
        return operation, n * moved

    def _resize(
        self, source: tuple[int, ...], shape: tuple[int, ...], mode: str
    ) -> tuple[Resize, int]:
        src_stride, src_nbytes = row_major(source, 4)
        dst_stride, dst_nbytes = row_major(shape, 4)
        n = self.nbytes // max(src_nbytes, dst_nbytes)
        number = DTYPES["float32"].number
        operation = Resize(
            self._src,
            self._dst,
            number,
            number,
            shape,
            source,
            src_stride,
            dst_stride,
            tuple(range(len(shape))),
            mode,
            n_pieces=n,
            src_step=src_nbytes,
            dst_step=dst_nbytes,
        )
        values = self._src[: n * src_nbytes].view(torch.float32)
        values.copy_(torch.rand_like(values))
        self._launch(operation)
        theirs = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(shape)]
        want = torch.nn.functional.interpolate(
            values[: math.prod(source)].view(1, 1, *source),
            shape,
            mode=theirs,
            antialias=mode == "antialias",
            align_corners=False,
        )
        got = self._dst[:dst_nbytes].view(torch.float32).view(want.shape)
        _expect(torch.allclose(got, want, rtol=1e-5, atol=1e-5), f"resize, {mode}")
        return operation, n * (src_nbytes + dst_nbytes)

    def _unshuffle(self, item_nbytes: int) -> tuple[Unshuffle, int]:
        chunk = 1 << 20
        n = self.nbytes // chunk
        operation = Unshuffle(
            self._src, self._dst, item_nbytes, chunk, n_pieces=n, src_step=chunk, dst_step=chunk
        )
        self._launch(operation)
        planes = self._src[: n * chunk].view(n, item_nbytes, -1)
        got = self._dst[: n * chunk].view(n, -1, item_nbytes)
        _expect(torch.equal(got, planes.transpose(1, 2)), "unshuffle")
        return operation, 2 * n * chunk

    # ---- Timing

    def _launch(self, operation: Place | Pad | Resize | Unshuffle) -> None:
        self._device.current_stream().launch(operation)

    def _time(self, run: Callable[[], object], nbytes: int) -> list[float]:
        """GB/s of each repeat."""

        def ahead() -> None:
            self._dst.copy_(self._src)

        seconds = gpu_seconds(run, repeats=self._repeats, launches=LAUNCHES, ahead=ahead)
        return [nbytes / s / 1e9 for s in seconds]


def _expect(is_right: bool, what: str) -> None:
    if not is_right:
        raise WrongValuesError(f"{what}: expected other values")
