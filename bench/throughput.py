"""Measure one table of samples per second: every loader in turn, again and again.

    python -m bench.throughput WORKLOAD BATCH_SIZE SECONDS REPEATS

prints one JSON object; workloads.py has the names. All files are in the page cache, values are
checked before anything is timed, and the repeats are interleaved (A B C, A B C, ...), so that a
change in the machine's load meets all loaders alike. Each loader runs on from repeat to repeat,
through the ends of its epochs.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bench import check, machine, note, use_installed_package
from bench.peers import Batch, Peer, Row
from bench.workloads import WORKLOADS, Workload

WARM_UP_S = 0.1
TUNED_S = 0.2  # with shorter repeats each row has its first setting
TUNING_SHARE = 0.4  # of the seconds of a repeat
LIMIT_SHARE = 0.5
LIMIT_S = 0.2  # at least


@dataclass(slots=True)
class Runner:
    """A loader with its chosen setting, its endless stream of batches, and the rates so far."""

    row: Row
    setting: str
    peer: Peer
    stream: Iterator[Batch]

    def measure(self, seconds: float) -> float:
        """Return samples per second, taken from the first batch after a warm-up."""
        # Batches that were made while other loaders ran must not count.
        rate = _batches_per_s(self.stream, self.row.queued_batches)
        chunk = max(1, int(rate * seconds / 8))
        n_samples, begin = 0, time.perf_counter()
        while (took_s := time.perf_counter() - begin) < seconds:
            for batch in islice(self.stream, chunk):
                n_samples += len(batch[0])
        return n_samples / took_s


def main(workload: str, batch_size: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Return the table as a JSON-able object."""
    work = WORKLOADS[workload](batch_size)
    resident = machine.warm(work.paths) if work.paths else None
    if resident is not None and resident < 0.999:
        raise RuntimeError(f"{workload}: expected all files in the page cache, got {resident:.1%}")
    rows, missing = _rows(work)
    bounds = work.limits()
    runners = [_started(row, seconds >= TUNED_S, seconds * TUNING_SHARE, work) for row in rows]
    runs: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(rows) + len(bounds))}
    for repeat in range(repeats):
        note(f"{workload} batch {batch_size}: repeat {repeat + 1} of {repeats}")
        measures = [*(r.measure for r in runners), *(b.measure for b in bounds)]
        for i, measure in enumerate(measures):
            others = machine.Others(time.perf_counter())
            rate = measure(seconds if i < len(rows) else max(LIMIT_S, seconds * LIMIT_SHARE))
            runs[i].append((rate, others.cores(time.perf_counter())))
    for runner in runners:
        runner.peer.close()
    lines = [
        {"name": r.row.name, "family": r.row.family, "layout": r.row.layout, "setting": r.setting}
        for r in runners
    ]
    lines += [{"name": b.name, "family": "limit", "layout": "", "setting": ""} for b in bounds]
    return {
        "workload": workload,
        "batch_size": batch_size,
        "seconds": seconds,
        "cache": "warm" if work.paths else "none",
        "resident": resident,
        "missing": missing,
        "rows": [{**line, **_kept(runs[i])} for i, line in enumerate(lines)],
    }


def _rows(work: Workload) -> tuple[list[Row], list[str]]:
    """Return the rows of all loaders that are installed, and the names of those that are not."""
    rows: list[Row] = []
    missing: list[str] = []
    for module, package in work.modules.items():
        try:
            peers = importlib.import_module(f"bench.peers.{module}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != package:
                raise
            missing.append(package)
            continue
        rows += work.rows(peers)
    return rows, missing


def _started(row: Row, tune: bool, seconds: float, work: Workload) -> Runner:
    """Return the row's loader with the fastest (or first) setting, its first values checked."""
    note(f"{row.name}: {'tuning and ' * tune}checking values")
    rates: dict[str, float] = {}
    tried = row.settings.items() if tune and len(row.settings) > 1 else ()
    for setting, make in tried:
        trial = Runner(row, setting, peer := make(), peer.batches())
        rates[setting] = trial.measure(seconds)
        peer.close()
    chosen = max(rates, key=rates.__getitem__) if rates else next(iter(row.settings))
    peer = row.settings[chosen]()
    runner = Runner(row, chosen, peer, peer.batches())
    try:
        work.check(runner.stream, row.family)
    except check.WrongValuesError as error:
        raise check.WrongValuesError(f"{row.name}: {error}") from None
    return runner


def _batches_per_s(stream: Iterator[Batch], at_least: int) -> float:
    n_batches, begin = 0, time.perf_counter()
    while n_batches < at_least or time.perf_counter() - begin < WARM_UP_S:
        next(stream)
        n_batches += 1
    return n_batches / (time.perf_counter() - begin)


def _kept(runs: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Return the repeats after the first, which warms caches and the allocator."""
    kept = runs[1:] or runs
    return {"samples_per_s": [r for r, _ in kept], "others_cores": [round(o, 2) for _, o in kept]}


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
