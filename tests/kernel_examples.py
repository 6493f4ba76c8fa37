"""A bounded set of examples of the kernels, for a library that was built with a sanitizer.

    python kernel_examples.py LIBRARY             run the examples
    python kernel_examples.py LIBRARY mistakes    run launches that leave their memory, and print
                                                  what the sanitizer says of each

To be started under LD_PRELOAD of the sanitizer, which then guards what NumPy allocates.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import placed
import test_pad_kernel
import test_resize_batches
import test_unshuffle_kernel
import torch
from host_kernels import HostKernels
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpuload.devices import Affine, Pad, Place, Resize, Unshuffle, programs
from gpuload.devices.arguments import Launch, pack
from gpuload.dtypes import DTYPES

# Copies of each width, and casts to wider and narrower types.
PAIRS = [(name, name) for name in ("uint8", "int16", "float32", "float64", "complex128")]
PAIRS += [("uint8", "float32"), ("float64", "uint8"), ("uint16", "bfloat16"), ("bool", "complex64")]
SCALED = [("uint8", "float32"), ("float64", "float16")]
KERNELS = [
    *(programs.cast(*pair) for pair in PAIRS),
    *(programs.place(*pair, affine=True) for pair in SCALED),
    *(programs.resize(name, name) for name in test_resize_batches.TYPES),
    *map(programs.pad, programs.ITEM_NBYTES),
    *map(programs.unshuffle, (0, *programs.ITEM_NBYTES[1:])),
]
EXAMPLES = {  # kernel -> (operations to try, how one is checked)
    "place": (placed.batches(st.sampled_from(PAIRS)), placed.check),
    "scaled": (placed.scaled_batches(st.sampled_from(SCALED)), placed.check),
    "pad": (test_pad_kernel.pads(), test_pad_kernel.check),
    "resize": (test_resize_batches.batches(), test_resize_batches.check),
    "unshuffle": (test_unshuffle_kernel.chunks(), test_unshuffle_kernel.check),
}
_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def memory(nbytes: int) -> torch.Tensor:
    return torch.from_numpy(np.zeros(nbytes, np.uint8))


def mistakes() -> dict[str, Launch]:
    """Launches that leave their memory by a few bytes, each by one wrong number."""
    float32, uint8 = DTYPES["float32"].number, DTYPES["uint8"].number
    rows = {"shape": (3, 100), "src_stride": (408, 4), "dst_stride": (400, 4)}
    place = Place(memory(1216), memory(1200), float32, float32, **rows)
    channels = torch.from_numpy(np.ones((3, 2)))
    scaled = Place(memory(300), memory(1200), uint8, float32, (3, 100), (100, 1), (400, 4))
    scaled = dataclasses.replace(scaled, affine=Affine(1.0, channels, axis=0))
    pad = Pad(memory(100), 1, (10, 10), (10, 1), (1, 1), (5, 5), "reflect")
    sides = (10, 10), (10, 10), (10, 1), (10, 1)
    resize = Resize(memory(100), memory(100), uint8, uint8, *sides, (0, 1))
    unshuffle = Unshuffle(memory(96), memory(96), 4, 96)
    return {
        "place reads beyond the end": _with(place, "src_stride", 412, axis=0),
        "place writes beyond the end": _with(place, "dst_stride", 404, axis=0),
        "place writes before the start": _with(place, "dst_stride", -400, axis=0),
        "place takes one row too many": _with(place, "shape", 4, axis=0),
        "place looks for a channel beyond the last": _with(scaled, "channel_axis", 1),
        "pad writes beyond the end": _with(pad, "dst_stride", 11, axis=0),
        "pad reads beyond the end": _with(pad, "begin", 90, axis=1),
        "resize reads beyond the end": _with(resize, "src_shape", 11, axis=0),
        "resize writes beyond the end": _with(resize, "dst_stride", 11, axis=0),
        "unshuffle writes beyond the end": _with(unshuffle, "nbytes", 97),
    }


def _with(operation, field: str, value: int, axis: int | None = None) -> Launch:
    """The launch of an operation, with one number of its parameters changed."""
    launch = pack(operation)
    _KEPT.append(operation)
    if axis is None:
        setattr(launch.params, field, value)
    else:
        getattr(launch.params, field)[axis] = value
    return launch


_KEPT: list[object] = []  # what launches point into


def main() -> None:
    kernels = HostKernels(Path(sys.argv[1]))
    if sys.argv[2:] == ["mistakes"]:
        print(json.dumps({name: report(kernels, launch) for name, launch in mistakes().items()}))
        return
    for name, (operations, check) in EXAMPLES.items():
        try_all(kernels, operations, check)
        print(name)


def try_all(kernels: HostKernels, operations, check) -> None:
    @_SETTINGS
    @given(operations)
    def run(case):
        check(kernels, *case)

    run()


def report(kernels: HostKernels, launch: Launch) -> str:
    """Run a launch in a process of its own: what it wrote to stderr."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            os.dup2(file.fileno(), 2)
            kernels.run(launch)
            os._exit(0)
        os.waitpid(child, 0)
        file.seek(0)
        return file.read().decode()


if __name__ == "__main__":
    main()
