"""Arguments of DataLoader, checked at the door."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed

from gpuload.pipeline import ON_ERROR

EXTRAS = ("index", "crop", "start", "path", "valid", "mask", "lengths", "flip", "rot90")
_EVEN = ("pad", "drop", "exact")
_IO = ("auto", "pread", "mmap", "gds")
MOST_THREADS, _MOST_PREFETCH = 1024, 4096  # beyond these, a slip of the pen

# What torch's own loader shows where nothing was passed; trainers look.
TORCH_DEFAULTS: dict[str, Any] = {
    "collate_fn": None,
    "generator": None,
    "in_order": True,
    "multiprocessing_context": None,
    "persistent_workers": False,
    "pin_memory": False,
    "pin_memory_device": "",
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
}

# torch.utils.data.DataLoader has these; here something else does their work.
_NOT_HERE = {
    "collate_fn": "batches are put together natively; change the batch in your loop",
    "worker_init_fn": "there are no worker processes; crops are seeded by seed=",
    "multiprocessing_context": "there are no worker processes",
    "timeout": "reads are bounded by the system, and errors are raised in the loop",
    "pin_memory_device": "pass device=",
    "in_order": "batches always come in order",
}


T_co = TypeVar("T_co", covariant=True)


class Sampler(Protocol[T_co]):
    """Names items, or lists of items, anew each epoch."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of one DataLoader, after their checks. `threads` None means as many as fit."""

    batch_size: int
    shuffle: bool | str
    sampler: Sampler[int] | None
    batch_sampler: Sampler[Sequence[int]] | None
    drop_last: bool
    seed: int
    prefetch: int
    threads: int | None
    io: str
    rank: int
    world_size: int
    even: str
    on_error: str
    max_errors: int | None
    extras: tuple[str, ...]
    cache: str | None


def check_options(
    *,
    batch_size: Any,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    drop_last: Any,
    seed: Any,
    prefetch: Any,
    threads: Any,
    io: Any,
    rank: Any,
    world_size: Any,
    even: Any,
    on_error: Any,
    max_errors: Any,
    extras: Any,
    cache: Any,
    torch_names: Mapping[str, Any],
) -> Options:
    """Check what was passed to DataLoader, and translate torch's own names.

    Raises:
        TypeError: an argument of another type, or one of torch's that has no meaning here.
        ValueError: a value out of its range, or arguments that exclude each other.
    """
    known = _translate(torch_names)
    seed, prefetch, threads = (
        known.get(name, value)
        for name, value in (("seed", seed), ("prefetch", prefetch), ("threads", threads))
    )
    if batch_sampler is not None:
        beside = {"shuffle": shuffle, "sampler": sampler is not None, "drop_last": drop_last}
        beside["batch_size"] = batch_size not in (1, None)
        if any(beside.values()):
            raise ValueError(
                "batch_sampler: expected no batch_size, shuffle, sampler or drop_last beside it, "
                f"got {' and '.join(name for name, given in beside.items() if given)}; a batch "
                "sampler decides all of them"
            )
        batch_size = 1
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None:
            _check_sampler(name, given)
    if sampler is not None and shuffle:
        raise ValueError(
            "sampler: expected shuffle=False beside it, got a sampler and shuffle; the sampler "
            "decides the order"
        )
    if on_error == "skip" and batch_size == 1 and batch_sampler is None:
        raise ValueError(
            'on_error: expected "raise" or "replace" with batch_size 1, got "skip"; a batch would '
            "have no sample left"
        )
    rank, world_size = _place(rank, world_size, is_sharded(sampler) or is_sharded(batch_sampler))
    if not isinstance(extras, Iterable):
        raise TypeError(f'extras: expected names such as "index", got {extras!r}')
    extras = (extras,) if isinstance(extras, str) else tuple(extras)
    for name in extras:
        _one_of("extras", name, EXTRAS)
    return Options(
        batch_size=whole_number("batch_size", batch_size, 1),
        shuffle=_shuffle(shuffle),
        sampler=sampler,
        batch_sampler=batch_sampler,
        drop_last=bool(drop_last),
        seed=whole_number("seed", seed, None),
        prefetch=whole_number("prefetch", prefetch, 1, _MOST_PREFETCH),
        threads=None if threads == "auto" else whole_number("threads", threads, 1, MOST_THREADS),
        io=_one_of("io", io, _IO),
        rank=rank,
        world_size=world_size,
        even=_one_of("even", even, _EVEN),
        on_error=_one_of("on_error", on_error, ON_ERROR),
        max_errors=None if max_errors is None else whole_number("max_errors", max_errors, 0),
        extras=tuple(dict.fromkeys(extras)),
        cache=None if cache is None else _one_of("cache", cache, ("device",)),
    )


def _check_sampler(name: str, sampler: Any) -> None:
    """A sampler is gone through once an epoch, and its length is known before."""
    if not isinstance(sampler, Iterable) or not isinstance(sampler, Sized):
        raise TypeError(
            f"{name}: expected a list, or a sampler with a length that can be gone through every "
            f"epoch, got {type(sampler).__name__}"
        )
    if len(sampler) == 0:
        what = "item" if name == "sampler" else "batch"
        raise ValueError(f"{name}: expected at least one {what}, got none")


def is_sharded(sampler: object) -> bool:
    """Whether a sampler deals out among ranks by itself, as torch's DistributedSampler does."""
    inner = getattr(sampler, "sampler", sampler)
    return hasattr(inner, "num_replicas") and hasattr(inner, "rank")


def _translate(torch_names: Mapping[str, Any]) -> dict[str, Any]:
    """What torch's names mean here."""
    found: dict[str, Any] = {}
    for name, value in torch_names.items():
        if name == "num_workers":
            found["threads"] = value or "auto"
        elif name == "prefetch_factor":
            if value is not None:
                found["prefetch"] = value
        elif name == "generator":
            if value is not None and not isinstance(value, torch.Generator):
                raise TypeError(f"generator: expected a torch.Generator, got {value!r}; pass seed=")
            if value is not None:
                found["seed"] = value.initial_seed()
        elif name in _NOT_HERE:
            if value if name != "in_order" else not value:
                raise TypeError(
                    f"{name}: expected not to be passed, got {value!r}; {_NOT_HERE[name]}"
                )
        elif name not in ("pin_memory", "persistent_workers"):
            raise TypeError(f"DataLoader: expected one of its arguments, got {name!r}")
    return found


def _place(rank: Any, world_size: Any, sampler_is_sharded: bool) -> tuple[int, int]:
    if sampler_is_sharded:  # dealing out twice would lose samples
        return 0, 1
    if (rank == "auto") != (world_size == "auto"):
        raise ValueError(
            f"rank: expected rank and world_size together, got rank={rank!r} and "
            f"world_size={world_size!r}"
        )
    if rank == "auto":
        group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if group and torch.distributed.get_world_size() > 1:
            raise ValueError(
                "rank: expected rank= and world_size= in a process group of "
                f'{torch.distributed.get_world_size()}, got "auto"; pass '
                "rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size()"
            )
        return 0, 1
    world_size = whole_number("world_size", world_size, 1)
    rank = whole_number("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank: expected a number of [0, {world_size}), got {rank}")
    return rank, world_size


def _shuffle(shuffle: Any) -> bool | str:
    if shuffle is None or isinstance(shuffle, bool | np.bool_):
        return bool(shuffle)
    if shuffle != "block":
        raise ValueError(f'shuffle: expected True, False or "block", got {shuffle!r}')
    return "block"


def whole_number(name: str, value: Any, least: int | None, most: int = 2**62) -> int:
    """Check that an argument is a whole number of [least, most]; `least` None allows any."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name}: expected {least} or more, got {value}")
    if least is not None and value > most:
        raise ValueError(f"{name}: expected at most {most}, got {value}")
    return int(value)


def _one_of(name: str, value: Any, names: tuple[str, ...]) -> str:
    if value not in names:
        listed = ", ".join(f'"{n}"' for n in names)
        raise ValueError(f"{name}: expected one of {listed}, got {value!r}")
    return str(value)
