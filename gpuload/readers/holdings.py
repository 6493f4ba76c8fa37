"""What was taken from cuFile: open files and registered memory. It is given back once, in order.

cuFile must get memory back before the memory is freed (or the driver can hang), no read may be in
progress in what is given back, and a forked child must not call cuFile at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Holdings:
    """Open files by number, least recently used first, and memory by address, kept alive.

    One thread at a time is in `use`. The garbage collector may call `leave` and `end` from
    anywhere, from within `use` of the same thread too: they never wait for their own thread.
    """

    kvikio: Any
    pid: int = field(default_factory=os.getpid)
    files: OrderedDict[int, Any] = field(default_factory=OrderedDict)
    memory: dict[int, torch.Tensor] = field(default_factory=dict)
    _leaving: deque[torch.Tensor] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _user: int | None = None
    _is_closed: bool = False

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Be the only thread in here.

        Raises:
            RuntimeError: in a process that did not make this, and after `end`.
        """
        if os.getpid() != self.pid:
            raise RuntimeError(
                f"loader: expected use in process {self.pid} that made it, got process "
                f"{os.getpid()}; make a DataLoader after the fork, or use spawn"
            )
        with self._lock:
            if self._is_closed:
                raise RuntimeError("files: expected use before close(), got it after")
            self._user = threading.get_ident()
            try:
                yield
            finally:
                self._user = None
                if self._is_closed:
                    self._give_back()
        self._settle()

    def leave(self, memory: torch.Tensor) -> None:
        """Deregister memory now or, while somebody is in `use`, at the end of that use. Memory not
        known is fine."""
        known = self.memory.pop(memory.data_ptr(), None)
        if known is not None and os.getpid() == self.pid:
            self._leaving.append(known)
            self._settle()

    def end(self) -> None:
        """Give everything back, at the end of the use in progress. Twice is fine."""
        if os.getpid() != self.pid:
            for handle in self.files.values():  # closing it would call cuFile
                _keep_for_ever(handle)
            return
        self._is_closed = True
        if self._user != threading.get_ident():
            with self._lock:
                self._give_back()

    def _settle(self) -> None:
        # Who cannot get the lock leaves the work to its holder, who comes here after letting go.
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                while self._leaving:
                    self._deregister(self._leaving.popleft())
            finally:
                self._lock.release()

    def _give_back(self) -> None:
        for address in list(self.memory):  # another thread may be in `leave`
            if (memory := self.memory.pop(address, None)) is not None:
                self._leaving.append(memory)
        try:
            while self._leaving:
                self._deregister(self._leaving.popleft())
        finally:
            while self.files:
                self.files.popitem()[1].close()

    def _deregister(self, memory: torch.Tensor) -> None:
        try:
            self.kvikio.buffer.memory_deregister(memory)
        except Exception as error:
            _keep_for_ever(memory)
            warnings.warn(
                f"cuFile: expected it to let go of {memory.nbytes} bytes, got {quoted(error)}; "
                "they stay allocated until the process ends",
                RuntimeWarning,
                stacklevel=2,
            )


def quoted(error: Exception) -> str:
    """What an error says, on one line and in quotes."""
    return f'"{" ".join(str(error).split()) or type(error).__name__}"'


def _keep_for_ever(thing: object) -> None:
    """Have its destructor never run, at the interpreter's end neither."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
