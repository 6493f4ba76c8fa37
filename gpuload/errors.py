"""What can go wrong, as exceptions. Each is also a built-in exception, so that plain handlers catch
it.

GpuloadError
├── FormatError (ValueError)                 a file does not hold what it should
│   └── UnsupportedDtypeError (TypeError)    a file holds values that no tensor can
├── ReadError (OSError)                      bytes could not be read
│   └── MissingError (FileNotFoundError)     nothing is where it should be
└── DeviceError (RuntimeError)               a device cannot be used
"""

from __future__ import annotations


class GpuloadError(Exception):
    """Any error that is about data or devices rather than about an argument."""


class FormatError(GpuloadError, ValueError):
    """A file does not hold what its format, its header or its neighbours say."""


class UnsupportedDtypeError(FormatError, TypeError):
    """A file holds objects, text, dates or long doubles. Nothing is ever unpickled."""


class ReadError(GpuloadError, OSError):
    """Bytes of a file could not be read. `filename` is its path, `errno` the system's number or
    0."""

    def __init__(self, message: str, *, errno: int = 0, filename: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errno = errno
        self.filename = filename

    def __str__(self) -> str:
        return self.message


class MissingError(ReadError, FileNotFoundError):
    """A path, a folder or a glob leads to nothing."""


class DeviceError(GpuloadError, RuntimeError):
    """A device cannot be used as asked."""
