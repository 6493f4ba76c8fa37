"""Registers and spills of every kernel on every architecture, as NVRTC's assembler counts them.

    python tests/registers.py            print the table
    python tests/registers.py --write    write it to tests/golden/registers.json

Needs no GPU and no driver. Takes minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuload.devices import programs

GOLDEN = Path(__file__).parent / "golden" / "registers.json"
PER_PROGRAM = 24  # kernels: the headers are parsed once for all of them
_USAGE = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)a?'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.S,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes of a thread."""

    kernel: str
    architecture: int
    registers: int
    spill_nbytes: int

    @property
    def family(self) -> str:
        """The kernels of one template: "place", "place affine", "pad", ..."""
        first = self.kernel.split("_")[0]
        return f"{first} affine" if self.kernel.endswith("_affine") else first


def processes() -> ProcessPoolExecutor:
    """One for each core granted: within a process NVRTC compiles one program after another."""
    n = len(os.sched_getaffinity(0))
    return ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn"))


def usages(pool: Executor, architecture: int) -> list[Usage]:
    """Compile every kernel.

    Raises:
        RuntimeError: NVRTC refuses one; the message is its log.
    """
    kernels = list(programs.every_kernel())
    parts = [kernels[i : i + PER_PROGRAM] for i in range(0, len(kernels), PER_PROGRAM)]
    tasks = [pool.submit(compile_part, part, architecture) for part in parts]
    found = [usage for task in tasks for usage in task.result()]
    assert {usage.kernel for usage in found} == {kernel.name for kernel in kernels}
    return found


def compile_part(kernels: list[programs.Kernel], architecture: int) -> list[Usage]:
    """Compile kernels as one program."""
    from cupy.cuda import nvrtc

    cubin, log = programs.compile_program(nvrtc, kernels, architecture, "--ptxas-options=-v")
    assert cubin.startswith(b"\x7fELF")
    assert "warning" not in log, log
    return parse(log)


def parse(log: str) -> list[Usage]:
    """What the assembler says about each entry point."""
    return [
        Usage(
            found["kernel"],
            int(found["architecture"]),
            int(found["registers"]),
            int(found["stores"]) + int(found["loads"]),
        )
        for found in _USAGE.finditer(log)
    ]


def table(found: Iterable[Usage]) -> dict[str, dict[str, dict[str, int]]]:
    """By family and architecture: the most registers of a kernel, and the bytes that it spills."""
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for usage in found:
        row = rows.setdefault(usage.family, {}).setdefault(
            f"sm_{usage.architecture}", {"registers": 0, "spill_nbytes": 0}
        )
        row["registers"] = max(row["registers"], usage.registers)
        row["spill_nbytes"] = max(row["spill_nbytes"], usage.spill_nbytes)
    return rows


def main() -> None:
    from cupy.cuda import nvrtc

    with processes() as pool:
        found = [usage for a in programs.ARCHITECTURES for usage in usages(pool, a)]
    version = ".".join(map(str, nvrtc.getVersion()))
    text = json.dumps({"nvrtc": version, "kernels": table(found)}, indent=1) + "\n"
    if "--write" in sys.argv[1:]:
        GOLDEN.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
