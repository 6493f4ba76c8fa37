"""Files read straight into device memory by the kvikio that is passed in. Nothing is imported here.

cuFile follows no stream. kvikio waits, on the calling thread, for the legacy default stream before
each read: that is for the kernels of a PyTorch program that uses no stream of its own. Where kvikio
cannot use cuFile for a file it reads through host memory and does not say so: what `gds.probe` has
found holds for the file system of its file alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpuload.catalog import Ints, Paths
from gpuload.errors import ReadError
from gpuload.readers.holdings import Holdings, quoted

PAGE = 4096  # bytes; cuFile moves whole pages without a copy of its own


def align(
    offset: npt.ArrayLike, nbytes: npt.ArrayLike, file_nbytes: npt.ArrayLike
) -> tuple[Ints, Ints]:
    """The bytes [begin, end) to ask for, to get `nbytes` at `offset`: whole pages, clipped to the
    file's end. Where nothing is wanted, nothing is asked for."""
    first, wanted = np.asarray(offset, np.int64), np.asarray(nbytes, np.int64)
    begin = first & -PAGE
    end = np.minimum((first + wanted + PAGE - 1) & -PAGE, np.asarray(file_nbytes, np.int64))
    return begin, np.where(wanted > 0, end, begin)


def page_aligned(memory: torch.Tensor) -> torch.Tensor:
    """`memory` (uint8) from its first page on: at most PAGE - 1 bytes less. Never copies."""
    skip = -memory.data_ptr() % PAGE
    return memory.narrow(0, skip, len(memory) - skip)


@dataclass(slots=True)
class _Part:
    """A read that was issued. kvikio runs it as one task: when that ends, it writes no more."""

    file: int
    handle: Any
    offset: int
    nbytes: int
    future: Any


@dataclass(slots=True)
class _Flight:
    """Parts that nobody has waited for, oldest first, and the first error."""

    parts: deque[_Part] = field(default_factory=deque)
    n_of_file: Counter[int] = field(default_factory=Counter)
    error: ReadError | None = None


class DeviceFiles:
    """The files of a source, opened by kvikio when they are first read.

    At most `max_open` are open, with two descriptors each. Calls from several threads run one after
    another. Use `with` or `close`; what is dropped is closed too. `notes` is what people should
    know about how it works here: sentences for the loader's description.
    """

    def __init__(self, kvikio: Any, paths: Paths, sizes: Ints, *, max_open: int) -> None:
        if max_open < 1:
            raise ValueError(f"max_open: expected 1 or more, got {max_open}")
        self.notes: list[str] = []
        self._kvikio, self._paths, self._sizes, self._max_open = kvikio, paths, sizes, max_open
        self._part_nbytes = max(int(kvikio.defaults.get("task_size")) // PAGE, 1) * PAGE
        self._held = Holdings(kvikio)
        self._end = weakref.finalize(self, self._held.end)

    def __enter__(self) -> DeviceFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of memory and close the files, after the read in progress. Twice is fine; in a
        forked child it does nothing."""
        if os.getpid() == self._held.pid:
            self._end()

    def register(self, memory: torch.Tensor) -> None:
        """Have cuFile pin device memory that many reads go to, with the allocation that it is part
        of. It is kept alive until `deregister`.

        Where that is not possible, reads are copied once more on the device, and `notes` say why.
        """
        with self._held.use():
            if memory.data_ptr() in self._held.memory:
                return
            if skip := memory.data_ptr() % PAGE:
                self._note(f"memory begins {skip} bytes behind a page, so cuFile copies each read")
            try:
                self._kvikio.buffer.memory_register(memory)
            except Exception as error:
                # Already registered: by the owner of another part of the allocation, who gives it
                # back before that part is freed, and so before ours can be.
                if "already registered" not in str(error):
                    self._note(f"cuFile does not register memory, got {quoted(error)}")
            else:
                self._held.memory[memory.data_ptr()] = memory

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def deregister(self, memory: torch.Tensor) -> None:
        """Let go of memory, after the read in progress. Memory not known is fine."""
        self._held.leave(memory)

    def read(self, requests: Ints, memory: torch.Tensor) -> None:
        """Read into device memory; returns when every byte is there.

        Nothing on the device may use these bytes when this is called: cuFile follows no stream, so
        wait for the event of the last user on the host. After an error nothing is written any more.

        Args:
            requests: rows of file, offset, nbytes, dst (a byte of `memory`). Offsets and dst are
                multiples of PAGE, and so is nbytes unless it ends with the file.
            memory: (n,) uint8 on the device.

        Raises:
            ValueError: a request is not as above, or two of them write the same byte.
            ReadError: a file is not what it was, or a read gave fewer bytes.
        """
        check_requests(requests, self._sizes, memory)
        flight = _Flight()
        with self._held.use():
            try:
                for file, offset, nbytes, dst in self._parts(requests):
                    handle = self._handle(file, flight)
                    if flight.error is not None:
                        break
                    future = _issue(handle, memory.narrow(0, dst, nbytes), offset)
                    flight.parts.append(_Part(file, handle, offset, nbytes, future))
                    flight.n_of_file[file] += 1
            finally:
                while flight.parts:
                    self._wait_for_one(flight)
        if flight.error is not None:
            raise flight.error

    def _parts(self, requests: Ints) -> Iterator[tuple[int, int, int, int]]:
        """The requests, cut where kvikio would cut them."""
        for file, offset, nbytes, dst in requests.tolist():
            for at in range(0, nbytes, self._part_nbytes):
                yield file, offset + at, min(self._part_nbytes, nbytes - at), dst + at

    def _handle(self, file: int, flight: _Flight) -> Any:
        """The open file. Makes room for it: waits for parts when all that are open are in use."""
        files = self._held.files
        if file not in files:
            while len(files) >= self._max_open:
                idle = next((f for f in files if not flight.n_of_file[f]), None)
                if idle is None:
                    self._wait_for_one(flight)
                else:
                    files.pop(idle).close()
            files[file] = self._open(file)
        files.move_to_end(file)
        return files[file]

    def _open(self, file: int) -> Any:
        path, expected = self._paths[file], int(self._sizes[file])
        try:
            handle = self._kvikio.CuFile(path)
        except Exception as error:
            raise _not_opened(path, quoted(error)) from error
        found = os.fstat(handle.fileno()).st_size
        if found == expected and handle.is_direct_io_supported():
            return handle
        handle.close()
        if found == expected:
            raise _not_opened(path, "no descriptor with O_DIRECT")
        text = (
            f"{path}: expected {expected} bytes as when the source was opened, got {found}; the "
            f"file was {'truncated' if found < expected else 'changed'}, open the source again"
        )
        raise ReadError(text, errno=errno.EIO, filename=path)

    def _wait_for_one(self, flight: _Flight) -> None:
        """Wait for the oldest part, and keep the first error."""
        part = flight.parts.popleft()
        cause, got = None, 0
        try:
            got = int(part.future.get())
        except Exception as error:
            cause = error
        flight.n_of_file[part.file] -= 1
        if flight.error is None and (cause is not None or got != part.nbytes):
            flight.error = self._failed(part, got, cause)
            flight.error.__cause__ = cause

    def _failed(self, part: _Part, got: int, cause: Exception | None) -> ReadError:
        path, expected = self._paths[part.file], int(self._sizes[part.file])
        size = expected
        with contextlib.suppress(OSError):
            size = os.fstat(part.handle.fileno()).st_size
        if size < expected:
            found = str(min(max(size - part.offset, 0), part.nbytes))
            then = "the file was truncated"
        else:
            found = str(got) if cause is None else quoted(cause)
            then = 'pass io="pread" to read without cuFile'
        text = f"{path}: expected {part.nbytes} bytes at byte {part.offset}, got {found}; {then}"
        return ReadError(text, errno=errno.EIO, filename=path)


@dataclass(frozen=True, slots=True)
class _Raised:
    """The future of a read that failed before it returned one."""

    error: Exception

    def get(self) -> int:
        raise self.error


def _issue(handle: Any, memory: torch.Tensor, offset: int) -> Any:
    n = len(memory)
    try:
        # A task as large as the read: of several, kvikio leaves the others running when one fails,
        # and they would still write after the error is known.
        return handle.pread(memory, n, offset, n)
    except Exception as error:
        return _Raised(error)


_OPENING = {
    errno.EMFILE: "expected two free file descriptors, got too few; raise `ulimit -n`",
    errno.ENOENT: "expected the file that was there when the source was opened, got none; it was "
    "deleted or moved",
    errno.EINVAL: "expected a file system that opens files with O_DIRECT, got one that does not; "
    'pass io="pread"',
}


def _not_opened(path: str, said: str) -> ReadError:
    """Why a file was not opened: the system knows better than kvikio."""
    code = 0
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
    except OSError as error:
        code = error.errno or 0
    got = f'"{os.strerror(code)}"' if code else said
    text = _OPENING.get(code, f"opening the file for cuFile failed, got {got}")
    return ReadError(f"{path}: {text}", errno=code or errno.EIO, filename=path)


def check_requests(requests: Ints, sizes: Ints, memory: torch.Tensor) -> None:
    """Check rows of file, offset, nbytes, dst against files' sizes and the memory they go to."""
    if memory.dtype is not torch.uint8 or memory.stride() != (1,):
        raise ValueError(
            f"memory: expected (n,) uint8, got {tuple(memory.shape)} {memory.dtype} with strides "
            f"{memory.stride()}"
        )
    n = len(memory)
    file, offset, nbytes, dst = requests.T
    is_file = (file >= 0) & (file < len(sizes))
    size = np.append(sizes, 0)[np.where(is_file, file, -1)]
    is_right = (
        is_file
        & ((offset >= 0) & (offset <= size) & (offset % PAGE == 0))
        & ((dst >= 0) & (dst <= n) & (dst % PAGE == 0))
        & ((nbytes >= 0) & (nbytes <= size - offset) & (nbytes <= n - dst))
        & ((nbytes % PAGE == 0) | (offset + nbytes == size))
    )
    for i in np.flatnonzero(~is_right)[:1]:
        raise ValueError(
            f"requests[{i}]: expected whole pages of {PAGE} bytes of a file, within {n} bytes of "
            f"memory, got file {file[i]}, offset {offset[i]}, nbytes {nbytes[i]}, dst {dst[i]}"
        )
    order = np.argsort(dst, kind="stable")
    begins, ends = dst[order], (dst + nbytes)[order]
    for i in np.flatnonzero(ends[:-1] > begins[1:])[:1]:
        raise ValueError(f"requests: expected each byte of memory once, got {begins[i + 1]} twice")
