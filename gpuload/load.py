"""load(): a whole source as one tensor, for data that fit in memory."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload import _native, system
from gpuload.arrangement import Arrangement, arrange
from gpuload.batch import batch_type
from gpuload.dtypes import Dtype
from gpuload.fit import Pad, Resize
from gpuload.options import MOST_THREADS, whole_number
from gpuload.plan import plan_io
from gpuload.progress import shown
from gpuload.readers import posix
from gpuload.sources import open as open_source
from gpuload.sources.folder import Where
from gpuload.sources.labels import label_tensor
from gpuload.sources.source import Source
from gpuload.transform import Scaling

_HEADROOM_NBYTES = 64 << 20  # of free memory that is left
_STEP_NBYTES = 64 << 20  # made between two looks at the progress bar and at Ctrl-C


def load(
    source: Source | Where,
    *,
    pad: Pad | None = None,
    resize: Resize | None = None,
    dtype: object = None,
    scale: object = None,
    mean: object = None,
    std: object = None,
    layout: object = None,
    progress: bool = True,
    must_fit: bool = True,
    threads: int | str | None = None,
) -> Any:
    """Read all items of a source into one tensor, which is allocated once.

    Files are read by native threads straight to their places; beside the result no more than a few
    megabytes are taken.

    Args:
        source: a Source, or what gpuload.open takes.
        pad, resize, dtype, scale, mean, std, layout: as of DataLoader. "batch" means all items.
        progress: show a bar, where standard error is a terminal.
        must_fit: refuse what does not fit in free memory. False lets the system swap, or end the
            process.
        threads: native threads, None or "auto" for the cores granted.

    Returns:
        A NamedTuple (x, y): x (N, *shape) on the CPU, y the labels (whole numbers as int64) or
        None. With several fields, one tensor for each before y. They are the caller's.

    Raises:
        ValueError: items differ in shape and there is no pad=, or the result does not fit.
        ReadError: a file is gone, changed, short or broken.
        TypeError, ValueError: an argument is not as DataLoader or gpuload.open say.
    """
    if isinstance(source, str | os.PathLike | list | tuple):
        source = open_source(source)
    if not isinstance(source, Source):
        raise TypeError(
            f"source: expected a gpuload Source or a path, got {type(source).__name__}; a "
            "Dataset is gone through with gpuload.DataLoader"
        )
    if len(source) == 0:
        raise ValueError("source: expected at least one item, got none")
    arrangement = arrange(
        source,
        pad=pad,
        resize=resize,
        dtype=dtype,
        scale=scale,
        mean=mean,
        std=std,
        layout=layout,
        is_batched=len(source) > 1,
    )
    forms, largest = arrangement.forms, arrangement.samples.fit.largest
    shapes = [(len(source), *form.shape(largest)) for form in forms]
    sizes = [
        math.prod(shape) * form.delivered.nbytes for shape, form in zip(shapes, forms, strict=True)
    ]
    if must_fit:
        _check_fits(shapes, arrangement, sum(sizes))
    if sum(sizes) >= 1 << 62:
        raise ValueError(f"load: expected fewer than 2**62 bytes, got {sum(sizes)}")
    if threads in (None, "auto"):
        threads = system.cores()
    n_threads = whole_number("threads", threads, 1, MOST_THREADS)
    arranger = _arranger(source, arrangement, n_threads)
    memory = [_native.Resident(nbytes) for nbytes in sizes]
    what = f"loading {len(source)} items into {sum(sizes) / 1e6:,.1f} MB"
    step = max(1, _STEP_NBYTES * len(source) // max(sum(sizes), 1))
    with shown(what, sum(sizes), least_nbytes=0 if progress else sum(sizes) + 1) as advance:
        for first in range(0, len(source), step):
            last = min(first + step, len(source))
            arranger.fill([m.address for m in memory], sizes, first, last, n_threads)
            advance(sum(sizes) * (last - first) // len(source))
    tensors = [
        _tensor(m, shape, form.delivered)
        for m, shape, form in zip(memory, shapes, forms, strict=True)
    ]
    y = None if source.labels is None else label_tensor(source.labels)
    return batch_type((*(form.name for form in forms), "y"))(*tensors, y)


def _check_fits(shapes: list[tuple[int, ...]], arrangement: Arrangement, nbytes: int) -> None:
    free = system.free_nbytes()
    if nbytes + _HEADROOM_NBYTES <= free:
        return
    what = ", ".join(
        f"{form.delivered.name} {shape}"
        for form, shape in zip(arrangement.forms, shapes, strict=True)
    )
    raise ValueError(
        f"load: expected {nbytes / 1e6:,.1f} MB ({what}) to fit in memory, got "
        f"{free / 1e6:,.1f} MB free; go through the source with gpuload.DataLoader, pass a "
        "smaller dtype= or pad=, or must_fit=False"
    )


def _arranger(source: Source, arrangement: Arrangement, threads: int) -> _native.Arranger:
    """What fills the rows. Files are read, not mapped: their pages would count as memory."""
    opened = [(field.catalog, posix.open_files(field.catalog)) for field in source.fields]
    facts = posix.look_at(*opened[0])
    plan = plan_io(facts, io="mmap" if facts.is_memory else "pread", threads=threads)

    def make_reader(k: int, to: Dtype, scaling: Scaling | None) -> _native.Reader:
        return posix.make_reader(*opened[k], to, plan, scaling)

    return arrangement.native(make_reader, is_packed=False, is_zeroed=True)


class _Memory:
    """Memory of the process as NumPy takes it; lives as long as an array of it."""

    def __init__(self, resident: _native.Resident) -> None:
        self._resident = resident
        self.__array_interface__ = {
            "shape": (resident.nbytes,),
            "typestr": "|u1",
            "data": (resident.address, False),
            "version": 3,
        }


def _tensor(resident: _native.Resident, shape: tuple[int, ...], dtype: Dtype) -> torch.Tensor:
    if resident.nbytes == 0:
        return torch.empty(shape, dtype=dtype.torch)
    flat: npt.NDArray[np.uint8] = np.asarray(_Memory(resident))
    return torch.from_numpy(flat).view(dtype.torch).view(shape)
