"""What every launch has: a kernel, its parameters and its grid. No I/O here."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch

from gpuload.devices import Place, Resize
from gpuload.devices.boxes import Axis, Box, arranged, fixed
from gpuload.devices.programs import Kernel
from gpuload.dtypes import DTYPES

LANES = 256  # threads of a block
WARP = 32
MAX_PIECES = (1 << 16) - 1  # along y: what CUDA allows
_MAX_BLOCKS = 1 << 16  # along x; threads go on with further units

BY_NUMBER = list(DTYPES.values())


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, its parameters as it takes them, and its grid: (blocks, pieces)."""

    kernel: Kernel
    params: ctypes.Structure
    grid: tuple[int, int]


def grid(n_units: int, units_per_block: int, n_pieces: int) -> tuple[int, int]:
    """Blocks for the units of a piece, and pieces."""
    n_blocks = max(1, min(math.ceil(n_units / units_per_block), _MAX_BLOCKS))
    return n_blocks, max(1, min(n_pieces, MAX_PIECES))


def lanes(wanted: int) -> int:
    """Lanes per row: as many as a row keeps busy, at most a warp."""
    return min(WARP, 1 << max(0, wanted - 1).bit_length())


def box_of(kernel: str, axes: tuple[Axis, ...], operation: Place | Resize) -> Box:
    """The box of an operation, its axes in order unless a table names them.

    Raises:
        ValueError: more than 8 axes are left.
    """
    o = operation
    if o.table is None:
        return arranged(kernel, axes, Axis(o.n_pieces, o.src_step, o.dst_step))
    if o.table.shape[1] == 2:
        return arranged(kernel, axes, None)
    return fixed(kernel, axes)


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor begins; nullptr for none."""
    return None if tensor is None else tensor.data_ptr()


def row_length(table: torch.Tensor | None) -> int:
    """Numbers in a row of a table."""
    return 0 if table is None else table.shape[1]
