"""NPY files made by hand: headers that numpy.save would not write, whole or damaged."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

MAGIC = b"\x93NUMPY"


def header(descr: object = "<f4", shape: object = (3,), fortran: object = False) -> str:
    """The dictionary of a header as numpy.save words it, without padding."""
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape!r}, }}"


def write_npy(
    path: Path,
    text: str,
    data: bytes = b"",
    *,
    version: tuple[int, int] = (1, 0),
    data_at: int | None = None,
) -> Path:
    """Write a header and data. `data_at`: the byte that the data begin at; None for no padding."""
    encoded = text.encode("utf8" if version[0] >= 3 else "latin1")
    length_nbytes = 2 if version[0] == 1 else 4
    if data_at is not None:
        missing = data_at - len(MAGIC) - 2 - length_nbytes - len(encoded)
        assert missing >= 1, f"the header is {1 - missing} bytes longer than that"
        encoded += b" " * (missing - 1) + b"\n"
    length = len(encoded).to_bytes(length_nbytes, "little")
    path.write_bytes(MAGIC + bytes(version) + length + encoded + data)
    return path


def numpy_reads(path: Path) -> np.ndarray:
    """What NumPy makes of a file. It warns of Python 2's numbers, and bounds headers to 10 kB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.load(path, allow_pickle=False, max_header_size=1 << 20)
