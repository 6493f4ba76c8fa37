"""Formats of files by their first bytes, for messages."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpuload.errors import FormatError, MissingError, ReadError

NPY = b"\x93NUMPY"
_MAGIC = {
    NPY: "NPY",
    b"PK\3\4": "NPZ",
    b"PK\5\6": "NPZ",  # without members
    b"\x89HDF\r\n\x1a\n": "HDF5",
}
HDF5 = "an HDF5 file; this version reads NPY and NPZ"
MAGIC_NBYTES = max(map(len, _MAGIC))


def named(begins: bytes) -> str | None:
    """The format of a file that begins so; None for another one."""
    return next((name for magic, name in _MAGIC.items() if begins.startswith(magic)), None)


def of_file(path: str) -> str | None:
    """The format of a file by its first bytes; None for another, or where they cannot be read."""
    try:
        with open(path, "rb") as file:
            return named(file.read(MAGIC_NBYTES))
    except OSError:
        return None


def of_another(path: str) -> str | None:
    """What a file is that is no NPY file, and a remedy; None where that is not known."""
    remedies = {"NPZ": "an NPZ file; name it .npz", "HDF5": HDF5}
    return remedies.get(of_file(path) or "")


def not_readable(path: str, error: OSError) -> ReadError:
    """The error of a file that cannot be opened or read."""
    kind = MissingError if isinstance(error, FileNotFoundError | NotADirectoryError) else ReadError
    return kind(
        f'{path}: expected a readable file, got "{os.strerror(error.errno or 0)}"',
        errno=error.errno or 0,
        filename=path,
    )


def are_npz(paths: Sequence[str]) -> bool:
    """Whether files are to be read as NPZ (True) or as NPY.

    Raises:
        FormatError: some are named .npy and others .npz.
    """
    suffixes = [os.path.splitext(path)[1].lower() for path in paths]
    for wanted, other in ((".npy", ".npz"), (".npz", ".npy")):
        if suffixes[0] == wanted and other in suffixes:
            raise FormatError(
                f"{paths[suffixes.index(other)]}: expected {wanted} as of {paths[0]}, got {other}; "
                "open the files of each kind by themselves"
            )
    return suffixes[0] == ".npz" or (suffixes[0] != ".npy" and of_file(paths[0]) == "NPZ")
