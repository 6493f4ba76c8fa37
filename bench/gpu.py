"""Measure one GPU beside what it can reach: copies, kernels, whole loaders. In at most six minutes.

python -m bench.gpu [--json FILE] [--quick] [--seconds N] [--no-sanitizer]

Exit codes: 0 all was measured, 1 something failed or gave wrong values, 2 no CUDA device can be
used.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench import ROOT, fresh, gpu_report, machine, note, use_installed_package
from bench.gpu_report import Group, Row

RESULTS = ROOT / "bench" / "results"
FILE_COLUMNS = 200
LIMIT_S = 350.0
CROP2D_BATCH = 256
SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
SANITIZER_LIMIT_S = 60.0  # of each tool: starting torch under it takes most of that
FAILED, NO_DEVICE = 1, 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure, and how often."""

    samples: int  # in the batch of `place`
    repeats: int  # of a kernel or a copy
    volumes: int  # files
    seconds: float  # of a repeat of a loader
    loader_repeats: int
    steps: int


FULL = Effort(samples=64, repeats=10, volumes=16, seconds=1.0, loader_repeats=5, steps=100)
QUICK = Effort(samples=4, repeats=3, volumes=4, seconds=0.2, loader_repeats=2, steps=20)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for. The exit code."""
    from gpuload.devices.choose import choose
    from gpuload.errors import DeviceError

    options = parser().parse_args(arguments)
    try:
        device: Any = choose("cuda")[0]
    except DeviceError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        return NO_DEVICE
    effort = QUICK if options.quick else FULL
    began = datetime.datetime.now(datetime.UTC)
    results: dict[str, Any] = {
        "schema": 1,
        "command": shlex.join(["python", "-m", "bench.gpu", *arguments]),
        "started": began.isoformat(timespec="seconds"),
        "machine": describe(device),
    }
    path = options.json or RESULTS / f"gpu-{began:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(groups: Sequence[Group]) -> None:
        results["groups"] = gpu_report.to_results(groups)
        path.write_text(json.dumps(results, indent=1) + "\n")

    run = Run(options.seconds, save)
    measure(device, effort, run, with_sanitizer=not options.no_sanitizer)
    show(results, run.groups)
    print(f"written to {path}")
    return FAILED if run.has_failed or has_errors(run.groups) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure one GPU.")
    made.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    made.add_argument("--quick", action="store_true", help="small data: does it run? no result")
    made.add_argument(
        "--seconds",
        type=float,
        default=LIMIT_S,
        metavar="N",
        help="measure nothing that would take longer",
    )
    made.add_argument("--no-sanitizer", action="store_true", help=f"leave {SANITIZER} out")
    return made


def describe(device: Any) -> dict[str, str]:
    """The machine, the GPU and the versions, in words."""
    import torch

    about = torch.cuda.get_device_properties(device.index)
    runtime, driver = (
        version_text(number)
        for number in (
            device.cupy.cuda.runtime.runtimeGetVersion(),
            device.cupy.cuda.runtime.driverGetVersion(),
        )
    )
    asked = "driver_version,pcie.link.gen.current,pcie.link.width.current"
    command = (
        "nvidia-smi",
        f"--id={device.index}",
        f"--query-gpu={asked}",
        "--format=csv,noheader",
    )
    told = said(*command) or "unknown, unknown, unknown"
    version, generation, width = [part.strip() for part in told.split(",")]
    return machine.describe() | {
        "GPU": f"{about.name}, {about.total_memory / 2**30:.0f} GiB, compute capability "
        f"{about.major}.{about.minor}, PCIe {generation} x{width}",
        "driver": f"{version} (CUDA {driver})",
        "CUDA": f"{torch.version.cuda} of torch, {runtime} of CuPy",
        "CuPy": device.cupy.__version__,
    }


def version_text(number: int) -> str:
    """ "13.2" of 13020."""
    return f"{number // 1000}.{number % 1000 // 10}"


def said(*command: str) -> str:
    """The first line that a command prints, nothing where there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0]


class Run:
    """Groups that are measured one after the other, while time is left.

    What fails is told and left out, and the others go on: a GPU may be had for minutes only. `save`
    gets what there is after each.
    """

    def __init__(self, seconds: float, save: Callable[[Sequence[Group]], None]) -> None:
        self.groups: list[Group] = []
        self.has_failed = False
        self._save = save
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    def add(self, title: str, make: Callable[[], Group], *, needs_s: float) -> None:
        """Measure a group, unless it needs more time than is left."""
        self.groups.append(self._made(title, make, needs_s))
        self._save(self.groups)

    def _made(self, title: str, make: Callable[[], Group], needs_s: float) -> Group:
        if self.left_s < needs_s:
            return Group(title, skipped="the time is used up")
        note(f"{title} ({self.left_s:.0f} s are left)")
        try:
            return make()
        except Exception as error:
            traceback.print_exc()
            self.has_failed = True
            first = (str(error).splitlines() or [""])[0]
            return Group(title, skipped=f"failed: {type(error).__name__}: {first}")


def measure(device: Any, effort: Effort, run: Run, *, with_sanitizer: bool) -> None:
    """All groups."""
    import torch

    from bench import gpu_loading
    from bench.gpu_clock import Step

    with torch.cuda.device(device.index), torch.cuda.stream(torch.cuda.Stream()):
        pinned_copy = measure_kernels(device, effort, run)
        torch.cuda.empty_cache()
        step = Step(gpu_loading.STEP_MS)
        run.add(
            "Whole volumes, end to end",
            lambda: gpu_loading.volumes(effort.volumes, pinned_copy, repeats=effort.loader_repeats),
            needs_s=30,
        )
        run.add(
            "Random crops of held arrays",
            lambda: gpu_loading.resident(step, n_steps=effort.steps),
            needs_s=20,
        )
        run.add(
            "Time that the GPU waits",
            lambda: gpu_loading.idle(step, n_steps=effort.steps, repeats=effort.loader_repeats),
            needs_s=80,
        )
    torch.cuda.empty_cache()
    run.add("Crops of matrices, samples/s", lambda: crop2d(effort), needs_s=80)
    if with_sanitizer:
        run.add(SANITIZER, lambda: sanitized(run.left_s), needs_s=20)


def measure_kernels(device: Any, effort: Effort, run: Run) -> float:
    """Copies and kernels. The rate of copies from pinned memory, in GB/s."""
    from bench import gpu_kernels

    kernels = gpu_kernels.Bench(
        device, samples=samples_that_fit(device, effort.samples), repeats=effort.repeats
    )
    note("copies")
    rooflines, copies = kernels.copies()
    run.groups.append(copies)
    run.add("place", lambda: kernels.place(rooflines), needs_s=10)
    run.add("Other kernels", lambda: kernels.others(rooflines), needs_s=10)
    return rooflines.pinned_copy


def samples_that_fit(device: Any, wanted: int) -> int:
    """Of `place`: two arrays, and as much again for the checks."""
    from bench.gpu_kernels import WEATHER

    return max(1, min(wanted, device.free_nbytes() // (4 * 4 * math.prod(WEATHER))))


def crop2d(effort: Effort) -> Group:
    """gpuload beside torch, in a process of its own."""
    found = fresh.run("gpu_crop2d", CROP2D_BATCH, effort.seconds, effort.loader_repeats)
    return crop2d_group(found)


def crop2d_group(found: dict[str, Any]) -> Group:
    """Each row, divided by the fastest of torch's."""
    theirs = [row for row in found["rows"] if row["name"].startswith("torch")]
    best = max(median(row["values"]) for row in theirs)
    rows = [
        Row(
            row["name"],
            "samples/s",
            row["values"],
            None if row in theirs else best,
            "" if row in theirs else "best torch",
            note=row["setting"],
        )
        for row in sorted(found["rows"], key=lambda row: -median(row["values"]))
    ]
    caption = (
        f"20^2 crops of 2,000 float32 (200, 200) files, batch {found['batch_size']}, on the GPU; "
        "page cache warm, repeats interleaved."
    )
    return Group("Crops of matrices, samples/s", caption, rows)


def sanitized(left_s: float) -> Group:
    """What compute-sanitizer says of a small run. Each row is the number of its errors."""
    group = Group(SANITIZER, "Errors that it finds in a small run of every kernel.")
    program = shutil.which(SANITIZER)
    if program is None:
        group.skipped = "not installed"
        return group
    for tool in TOOLS:
        command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m"]
        limit_s = min(SANITIZER_LIMIT_S, max(left_s, 10.0))
        try:
            done = subprocess.run(
                [*command, "bench.gpu_small"],
                cwd=ROOT,
                env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            group.skipped = f"{tool} takes more than {limit_s:.0f} s"
            continue
        group.rows.append(sanitizer_row(tool, done.returncode, done.stdout + done.stderr))
    return group


def sanitizer_row(tool: str, returncode: int, output: str) -> Row:
    """The number of errors of a tool, from the line that ends what it says."""
    lines = [line for line in output.splitlines() if "ERROR SUMMARY" in line or "RACECHECK" in line]
    numbers = [int(word) for line in lines for word in line.split() if word.isdigit()]
    n_errors = max(numbers[0] if numbers else 0, int(returncode != 0))
    note_ = lines[-1].strip("= ") if lines else f"exit code {returncode}"
    return Row(tool, "errors", [float(n_errors)], note=note_)


def has_errors(groups: Sequence[Group]) -> bool:
    """Whether a tool that looks for errors has found some."""
    return any(row.unit == "errors" and row.values[0] > 0 for g in groups for row in g.rows)


def show(results: dict[str, Any], groups: Sequence[Group]) -> None:
    console = Console(width=None if sys.stdout.isatty() else FILE_COLUMNS)
    console.print(gpu_report.machine_line(results), highlight=False)
    for table in gpu_report.tables(groups):
        console.print(table.to_rich(), "")
    console.print(gpu_report.summary(groups), highlight=False)


if __name__ == "__main__":
    use_installed_package()
    sys.exit(main(sys.argv[1:]))
