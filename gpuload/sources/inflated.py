"""Deflated members of archives, inflated into memory once, when they are first wanted."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import system
from gpuload.catalog import Ints
from gpuload.errors import FormatError, ReadError
from gpuload.sources import formats

_STEP_NBYTES = 1 << 20  # compressed bytes that are read at a time
_HEADROOM = 1.05  # free memory that is left for batches and for others

_lock = threading.Lock()  # one thread inflates, the others wait for what it makes


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # its holder has stayed in the parent

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Deflated:
    """A member of an archive: `stored_nbytes` at byte `offset` give `nbytes`."""

    path: str
    key: str
    offset: int
    stored_nbytes: int
    nbytes: int
    crc: int
    file_nbytes: int


@dataclass
class Inflated:
    """Members that stand for files of a catalog; None for files that are read where they lie.

    What was inflated is kept until this object dies, and does not travel with it.
    """

    members: list[Deflated | None]
    held: dict[int, Bytes] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return ""

    @property
    def name(self) -> str:
        """The keys: of one archive, several members may have one shape."""
        return "\0".join(sorted({member.key for member in self.members if member is not None}))

    def arrays(self, files: Ints) -> list[Bytes | None]:
        """The bytes of these files.

        Raises:
            ReadError: a file has changed or cannot be read, or memory is too small.
            FormatError: a member is damaged.
        """
        wanted = {i: m for i in files.tolist() if (m := self.members[i]) is not None}
        with _lock:
            missing = [i for i in wanted if i not in self.held]
            if missing:
                members = [wanted[i] for i in missing]
                _check_fits(members)
                with ThreadPoolExecutor(system.cores(), "gpuload-inflate") as pool:
                    self.held.update(zip(missing, pool.map(inflate, members), strict=True))
        return [self.held[i] if i in wanted else None for i in range(len(self.members))]

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "held": {}}


def _check_fits(members: Sequence[Deflated]) -> None:
    nbytes = sum(member.nbytes for member in members)
    free = system.free_nbytes()
    if nbytes * _HEADROOM > free:
        raise ReadError(
            f"{members[0].path}: expected {nbytes / 1e6:,.1f} MB of deflated arrays to fit in "
            f"memory ({len(members)} files), got {free / 1e6:,.1f} MB free; select fewer items, or "
            "save them with numpy.savez",
            errno=errno.ENOMEM,
            filename=members[0].path,
        )


def inflate(member: Deflated) -> Bytes:
    """All bytes of a member.

    Raises:
        ReadError: the file has changed or cannot be read.
        FormatError: the bytes are not what was deflated.
    """
    try:
        with open(member.path, "rb", buffering=0) as file:
            got = os.fstat(file.fileno()).st_size
            if got != member.file_nbytes:
                raise ReadError(
                    f"{member.path}: expected {member.file_nbytes} bytes as when the source was "
                    f"opened, got {got}; the file was changed, open the source again",
                    errno=errno.EIO,
                    filename=member.path,
                )
            return _inflate(file.fileno(), member)
    except ReadError:
        raise
    except OSError as error:
        raise formats.not_readable(member.path, error) from None
    except zlib.error as error:
        raise _damaged(member, str(error)) from None


def _inflate(descriptor: int, member: Deflated) -> Bytes:
    out = np.empty(member.nbytes, np.uint8)
    done, crc = 0, 0
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for skip in range(0, member.stored_nbytes, _STEP_NBYTES):
        wanted = min(_STEP_NBYTES, member.stored_nbytes - skip)
        packed = os.pread(descriptor, wanted, member.offset + skip)
        while packed:
            part = stream.decompress(packed, _STEP_NBYTES)
            packed = stream.unconsumed_tail
            if done + len(part) > len(out):
                raise _damaged(member, f"more than {len(out)} bytes")
            out[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done, crc = done + len(part), zlib.crc32(part, crc)
    rest = stream.flush()
    out[done : done + len(rest)] = np.frombuffer(rest, np.uint8)[: len(out) - done]
    done, crc = done + len(rest), zlib.crc32(rest, crc)
    if done != len(out):
        raise _damaged(member, f"{done} bytes of {len(out)}")
    if crc != member.crc:
        raise _damaged(member, f"CRC-32 {crc:08x} in place of {member.crc:08x}")
    return out


def _damaged(member: Deflated, got: str) -> FormatError:
    return FormatError(
        f"{member.path}::{member.key}: expected the bytes that were deflated, got {got}; the file "
        "is damaged"
    )
