"""Run benchmarks, print their tables and write their numbers as JSON.

python -m bench.run crop2d|volume|padclass|stack|inmemory|load|overhead|start|cold|memory|all
    [--json FILE] [--repeats N] [--quick]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import (
    ROOT,
    cold,
    data,
    fresh,
    load,
    machine,
    memory,
    note,
    report,
    start,
    use_installed_package,
)

RESULTS = ROOT / "bench" / "results"
FILE_COLUMNS = 160
MEMORY_BATCH = 256
PACKAGES = {"gpuload": "gpuload", "DALI": "nvidia"}  # by the first word of a loader's name


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often to measure; the first repeat is dropped."""

    seconds: float
    repeats: int
    fresh_repeats: int  # of what needs a new process each time
    batch_sizes: tuple[int, ...]
    tiny_files: int
    memory_epochs: int


FULL = Effort(
    seconds=1.0,
    repeats=6,
    fresh_repeats=6,
    batch_sizes=(256, 32),
    tiny_files=100_000,
    memory_epochs=5,
)
QUICK = Effort(
    seconds=0.1,
    repeats=2,
    fresh_repeats=2,
    batch_sizes=(256,),
    tiny_files=10_000,
    memory_epochs=2,
)

Tables = dict[str, Any]


def crop2d(effort: Effort) -> Tables:
    return {f"crop2d-{n}": _throughput("crop2d", n, effort) for n in effort.batch_sizes}


def volume(effort: Effort) -> Tables:
    return {"volume-2": _throughput("volume", 2, effort)}


def padclass(effort: Effort) -> Tables:
    return {"padclass-16": _throughput("padclass", 16, effort)}


def stack(effort: Effort) -> Tables:
    return {"stack-256": _throughput("stack", 256, effort)}


def inmemory(effort: Effort) -> Tables:
    return {"inmemory-128": _throughput("inmemory", 128, effort)}


def whole_load(effort: Effort) -> Tables:
    data.padclass()
    runs = _interleaved("load", [*load.LOADERS, *load.LIMITS], effort, lambda _: ())
    rows = [
        {
            "name": name,
            "seconds": [run["seconds"] for run in results],
            "extra": [run["extra"] for run in results],
        }
        for name, results in runs.items()
    ]
    return {"load": {"result_nbytes": load.RESULT_NBYTES, "rows": rows}}


def overhead(effort: Effort) -> Tables:
    rows: list[dict[str, Any]] = []
    for batch_size in (1, 32):
        note(f"overhead, batch {batch_size}")
        data.crop2d()
        runs = [
            fresh.run("overhead", batch_size, effort.seconds / 2)
            for _ in range(effort.fresh_repeats)
        ]
        for name in runs[0]:
            wall, cpu = (
                [run[name][field] for run in _kept(runs)]
                for field in ("wall_us", "consumer_cpu_us")
            )
            rows.append({"name": name, "batch_size": batch_size, "wall_us": wall, "cpu_us": cpu})
    return {"overhead": {"rows": rows}}


def start_up(effort: Effort) -> Tables:
    note(f"start: making {effort.tiny_files:,} files")
    folder, index = data.tiny(effort.tiny_files), data.folder() / "start.index"
    runs = _interleaved("start", start.LOADERS, effort, lambda _: (folder, index))
    rows = [{"name": name, "seconds": seconds} for name, seconds in runs.items()]
    return {"start": {"files": effort.tiny_files, "rows": rows}}


def cold_cache(effort: Effort) -> Tables:
    paths = dict(zip(cold.LOADERS, data.cold(len(cold.LOADERS)), strict=True))
    runs = _interleaved("cold", list(cold.LOADERS), effort, lambda name: (paths[name],))
    rows = [
        {
            "name": name,
            "resident_nbytes": [run["resident_nbytes"] for run in results],
            "useful_nbytes": results[0]["useful_nbytes"],
            "seconds": [run["seconds"] for run in results],
        }
        for name, results in runs.items()
    ]
    return {"cold": {"rows": rows}}


def resident_memory(effort: Effort) -> Tables:
    data.crop2d()
    once = replace(effort, fresh_repeats=1)
    arguments = (MEMORY_BATCH, effort.memory_epochs)
    runs = _interleaved("memory", list(memory.LOADERS), once, lambda _: arguments)
    return {"memory": {"rows": [{"name": name, **run[0]} for name, run in runs.items()]}}


COMMANDS: dict[str, Callable[[Effort], Tables]] = {
    "crop2d": crop2d,
    "volume": volume,
    "padclass": padclass,
    "stack": stack,
    "inmemory": inmemory,
    "load": whole_load,
    "overhead": overhead,
    "start": start_up,
    "cold": cold_cache,
    "memory": resident_memory,
}


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(arguments)
    effort = QUICK if options.quick else FULL
    if options.repeats is not None:
        effort = replace(effort, repeats=options.repeats, fresh_repeats=options.repeats)
    began = datetime.datetime.now(datetime.UTC)
    results: dict[str, Any] = {
        "schema": 1,
        "command": shlex.join(["python", "-m", "bench.run", *arguments]),
        "started": began.isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "tables": {},
    }
    for name in COMMANDS if options.what == "all" else [options.what]:
        results["tables"] |= COMMANDS[name](effort)
    path = options.json or RESULTS / f"{options.what}-{began:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    console = Console(width=None if sys.stdout.isatty() else FILE_COLUMNS)
    console.print(report.machine_line(results), highlight=False)
    for table in report.tables(results):
        console.print(table.to_rich(), "")
    console.print(f"written to {path}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measure loaders.")
    parser.add_argument("what", choices=[*COMMANDS, "all"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats, the first is dropped")
    parser.add_argument("--quick", action="store_true", help="a look in under 90 s, not a result")
    return parser


def _throughput(workload: str, batch_size: int, effort: Effort) -> Any:
    note(f"{workload}, batch {batch_size}")
    return fresh.run("throughput", workload, batch_size, effort.seconds, effort.repeats)


def _interleaved(
    module: str,
    loaders: Sequence[str],
    effort: Effort,
    arguments: Callable[[str], tuple[object, ...]],
) -> dict[str, list[Any]]:
    """Return the results of each loader that is installed, each in a fresh process."""
    installed = [name for name in loaders if _is_installed(name)]
    runs: dict[str, list[Any]] = {name: [] for name in installed}
    for repeat in range(effort.fresh_repeats):
        note(f"{module}: repeat {repeat + 1} of {effort.fresh_repeats}")
        for name in installed:
            runs[name].append(fresh.run(module, name, *arguments(name)))
    return {name: _kept(results) for name, results in runs.items()}


def _is_installed(loader: str) -> bool:
    package = PACKAGES.get(loader.split()[0].rstrip(","), "")
    return not package or importlib.util.find_spec(package) is not None


def _kept(runs: list[Any]) -> list[Any]:
    return runs[1:] or runs


if __name__ == "__main__":
    use_installed_package()
    sys.exit(main(sys.argv[1:]))
