"""prefetch(): batches of any iterable, copied to a device ahead of the consumer."""

from __future__ import annotations

import copy
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sized
from typing import Any

import torch

from gpuload.devices import Device, Event
from gpuload.devices.choose import choose
from gpuload.dtypes import DTYPES
from gpuload.layout import Column, Route, lay_out
from gpuload.options import whole_number
from gpuload.pipeline import Failing, another_process
from gpuload.stage import Ring, Staged

_ALIGN = 64  # bytes, of each tensor within a batch
_JOIN_S = 2.0  # how long the end waits for an iterable that does not answer


def prefetch(iterable: Iterable[Any], device: object = "auto", depth: int = 2) -> Prefetcher:
    """Copy batches to a device while the ones before them are used.

    For those who keep their own loader: `for x, y in gpuload.prefetch(loader): ...`. All tensors of
    a batch are packed into pinned memory and cross in one asynchronous copy, so the loader's own
    pin_memory is better off. Tensors arrive on the stream that is current at each step, and are the
    caller's for good; those of a batch share their memory, so clone a small one that you keep. Two
    iterations at once do not disturb each other.

    Args:
        iterable: yields dense CPU tensors, or tuples, lists, dicts and NamedTuples of them, nested
            in any way. What else is in there, but for other tensors, stays as it is. It is gone
            through in a thread of its own, anew for each iteration.
        device: "auto", "cuda", "cuda:1" or "cpu", as for DataLoader. On the CPU there is nothing to
            copy: batches are handed on as they come, and no thread is started.
        depth: batches copied ahead of the caller. Pinned memory is depth + 1 times the largest
            batch.

    Raises:
        DeviceError: the device cannot be used.
        TypeError, ValueError: an argument is not as said above.
    """
    if not isinstance(iterable, Iterable):
        raise TypeError(f"prefetch: expected an iterable, got {type(iterable).__name__}")
    return Prefetcher(iterable, choose(device)[0], whole_number("depth", depth, 1, 64))


class Prefetcher:
    """What prefetch() returns: an iterable as long as the one it goes through."""

    def __init__(self, iterable: Iterable[Any], device: Device, depth: int) -> None:
        self.iterable = iterable
        self.device = device
        self.depth = depth
        self._copier = Copier(device, depth)

    def __bool__(self) -> bool:
        return True  # also where there is no length

    def __len__(self) -> int:
        if not isinstance(self.iterable, Sized):
            raise TypeError(f"prefetch: expected a length, {type(self.iterable).__name__} has none")
        return len(self.iterable)

    def __iter__(self) -> Iterator[Any]:
        if self.device.is_host:
            return iter(self.iterable)
        return self._copied()

    def _copied(self) -> Iterator[Any]:
        copies = self._copier.start(self.iterable)
        try:
            while (batch := copies.next()) is not None:
                yield batch[0]
                del batch
        finally:
            copies.close()


class Copier:
    """Takes batches of iterables to a device. Pinned memory is kept from one to the next: pinning
    is slow."""

    def __init__(self, device: Device, depth: int) -> None:
        self._device = device
        self._depth = depth
        self._carriers: list[_Carrier] = []
        self._all: weakref.WeakSet[_Carrier] = weakref.WeakSet()

    def start(self, iterable: Iterable[Any]) -> Copies:
        """Begin to go through an iterable."""
        carrier = self._carriers.pop() if self._carriers else _Carrier(self._device, self._depth)
        self._all.add(carrier)
        return Copies(iterable, carrier, self._carriers.append)

    @property
    def pinned_nbytes(self) -> int:
        """Pinned memory in use and kept."""
        return sum(carrier.nbytes for carrier in self._all)


class _Carrier:
    """Pinned slabs and a ring that takes their bytes to the device."""

    def __init__(self, device: Device, depth: int) -> None:
        layout = lay_out([Column("x", DTYPES["uint8"])], batch_size=1, window_elements=0)
        route = Route(layout, layout, DTYPES["uint8"], DTYPES["uint8"])  # bytes as they are
        self.device = device
        self.depth = depth
        self.ring = Ring(device, route, n_slots=depth)
        self._slabs: deque[torch.Tensor] = deque([torch.empty(0, dtype=torch.uint8)] * (depth + 1))
        self._copying: deque[tuple[torch.Tensor, Event]] = deque()
        self._largest = 0
        self.nbytes = 0  # pinned

    def take(self, nbytes: int) -> torch.Tensor:
        """A slab that nothing reads any more, of at least `nbytes`."""
        if not self._slabs:
            slab, copied = self._copying.popleft()
            copied.synchronize()
            self._slabs.append(slab)
        self._largest = max(self._largest, nbytes)
        if len(self._slabs[0]) < nbytes:
            self.nbytes -= len(self._slabs[0])
            self._slabs[0] = torch.empty(0, dtype=torch.uint8)  # given back before more is taken
            self._slabs[0] = self.device.host_memory(self._largest)
            self.nbytes += self._largest
        return self._slabs.popleft()

    def put_back(self, slab: torch.Tensor) -> None:
        """A slab that was taken and is not staged."""
        self._slabs.append(slab)

    def stage(self, slab: torch.Tensor, nbytes: int) -> Staged:
        """Enqueue the copy of a slab that was taken."""
        try:
            staged = self.ring.stage(slab, 1, [nbytes])
        except BaseException:
            self._copying.append((slab, self.ring.copies.record()))  # its copy may have begun
            raise
        self._copying.append((slab, staged.copied))
        return staged

    def settle(self) -> None:
        """Wait for all copies: slabs may go, or be used again."""
        while self._copying:
            slab, copied = self._copying.popleft()
            copied.synchronize()
            self._slabs.append(slab)


# A batch on its way: how to put it together from its memory on the device.
_Coming = tuple[Staged | None, Callable[[torch.Tensor | None], Any]]


class Copies(Failing):
    """One iteration: a thread goes through the iterable and stages batches, a bounded number ahead.

    What the iterable raises is raised in the consumer, in its place. `give_back` gets the carrier
    when no slab of it is in use any more.
    """

    def __init__(
        self, iterable: Iterable[Any], carrier: _Carrier, give_back: Callable[[_Carrier], None]
    ) -> None:
        self._carrier = carrier
        self._give_back: Callable[[_Carrier], None] | None = give_back
        self._coming: deque[_Coming] = deque()
        self._changed = threading.Condition()
        self._done = self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._work, args=(iterable,), name="gpuload-prefetch", daemon=True
        )
        self._thread.start()

    def _work(self, iterable: Iterable[Any]) -> None:
        try:
            self._carrier.device.enter_thread()
            try:
                for batch in iterable:
                    coming = _stage(batch, self._carrier)
                    del batch
                    if not self._append(coming):
                        break
            finally:
                self._carrier.settle()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _append(self, coming: _Coming) -> bool:
        """Whether more is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._coming) < self._carrier.depth)
            self._coming.append(coming)
            self._changed.notify_all()
            return not self._closed

    def next(self) -> tuple[Any] | None:
        """The next batch in a tuple of one, None at the end."""
        if os.getpid() != self._pid:  # the thread stayed in the parent
            raise RuntimeError(another_process(self._pid, "prefetch", "go through it"))
        with self._changed:
            while not (self._coming or self._done or self._closed):
                self._changed.wait(0.1)  # a time-out, so that Ctrl-C gets through
            if not self._coming:
                if self._error is not None:
                    self._raise()
                return None
            staged, rebuild = self._coming.popleft()
            self._changed.notify_all()
        return (rebuild(None if staged is None else self._carrier.ring.hand_out(staged)[1]),)

    def close(self) -> None:
        """End the thread, unless the iterable does not let go of it in time. May be called
        twice."""
        if os.getpid() != self._pid:  # nor is the lock to be trusted
            return
        with self._changed:
            self._closed = True
            self._coming.clear()
            self._changed.notify_all()
            give_back, self._give_back = self._give_back, None
        if self._thread is threading.current_thread():
            return
        self._thread.join(_JOIN_S)
        if give_back is not None and not self._thread.is_alive():  # else it keeps the slabs itself
            give_back(self._carrier)


def _stage(batch: Any, carrier: _Carrier) -> _Coming:
    """Copy the tensors of a batch into one slab, and the slab to the device."""
    tensors: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> object:
        tensors.append(tensor)
        return _HERE

    shell = map_tensors(batch, take)
    begins, end = [], 0
    for tensor in tensors:
        begins.append(end)
        end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    staged = None
    if end:
        slab = carrier.take(end)
        try:
            for tensor, begin in zip(tensors, begins, strict=True):
                _view(slab, begin, tensor.dtype, tensor.shape).copy_(tensor.detach())
        except BaseException:
            carrier.put_back(slab)
            raise
        staged = carrier.stage(slab, end)
    looks = [(begin, t.dtype, t.shape) for begin, t in zip(begins, tensors, strict=True)]

    def rebuild(memory: torch.Tensor | None) -> Any:
        if memory is None:  # tensors without elements, if any
            memory = carrier.device.memory(_ALIGN, stream=carrier.device.current_stream())
        views = iter([_view(memory, *look) for look in looks])
        return map_tensors(shell, lambda _: next(views), wanted=lambda part: part is _HERE)

    return staged, rebuild


_HERE = object()  # where a tensor was


def _view(
    memory: torch.Tensor, begin: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    return memory.narrow(0, begin if nbytes else 0, nbytes).view(dtype).view(shape)


def _is_copied(part: Any) -> bool:
    """Whether this is a tensor.

    Raises:
        TypeError: one that cannot be copied as bytes in a row, or that is on a device: the stream
            that it is safe on is not the caller's.
    """
    if isinstance(part, torch.nn.utils.rnn.PackedSequence):
        raise TypeError("prefetch: expected tensors, got a PackedSequence; pack it in your loop")
    if not isinstance(part, torch.Tensor):
        return False
    is_plain = part.layout == torch.strided and not part.is_quantized and not part.is_nested
    if part.device.type != "cpu" or not is_plain:
        kind = "nested" if part.is_nested else "quantized" if part.is_quantized else part.layout
        raise TypeError(
            f"prefetch: expected dense tensors on the CPU, got a tensor ({kind}) on {part.device}; "
            "make it in your loop"
        )
    return True


def map_tensors(
    batch: Any, change: Callable[[Any], Any], wanted: Callable[[Any], bool] = _is_copied
) -> Any:
    """The same tuples, lists, dicts and NamedTuples with other tensors in them."""
    if wanted(batch):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_make"):  # a NamedTuple
        return batch._make(map_tensors(part, change, wanted) for part in batch)
    if type(batch) in (tuple, list):
        return type(batch)(map_tensors(part, change, wanted) for part in batch)
    if isinstance(batch, Mapping):
        items = {key: map_tensors(part, change, wanted) for key, part in batch.items()}
        if not isinstance(batch, MutableMapping) or type(batch) is dict:
            return items
        changed = copy.copy(batch)  # of its kind, whatever it takes to make one
        changed.update(items)
        return changed
    return batch
