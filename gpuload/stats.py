"""Counters of what a loader has done."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since a loader was made. Times in seconds, sizes in bytes.

    Attributes:
        epochs: iterations begun.
        batches, samples: handed out.
        useful_nbytes: stored bytes of the windows that were filled.
        read_nbytes: bytes read from files or copied from maps for them; more than useful where
            windows lie apart.
        read_requests: positioned reads made (none for maps).
        fill_s: reading, cropping and casting, summed over threads.
        stage_s: handing batches to the device, in the pipeline's thread (0 on the CPU: nothing
            to do).
        wait_s: the consumer waited for a batch.
        batch_blocks: blocks of batch memory in use or kept.
        pinned_nbytes: host memory that the device copies from (none on the CPU).
    """

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    useful_nbytes: int = 0
    read_nbytes: int = 0
    read_requests: int = 0
    fill_s: float = 0.0
    stage_s: float = 0.0
    wait_s: float = 0.0
    batch_blocks: int = 0
    pinned_nbytes: int = 0

    def __add__(self, other: Stats) -> Stats:
        return Stats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
