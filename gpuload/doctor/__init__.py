"""What this machine offers, and which path a data set would take: facts and what follows from them.

Works on a machine without a GPU. Nothing is printed, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gpuload.doctor import data, findings, gpu, machine
from gpuload.doctor.data import Data
from gpuload.doctor.findings import Finding
from gpuload.doctor.gpu import Gpu
from gpuload.doctor.machine import Machine
from gpuload.doctor.step import Steps

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Facts, and the findings that follow from them. `data` is None when no path was given."""

    machine: Machine
    gpu: Gpu
    data: Data | None
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it. Keys of one `schema` keep their names and meaning."""
        return {"schema": SCHEMA, **asdict(self)}


def examine(path: str | None, *, on_step: Callable[[str], None] = lambda step: None) -> Report:
    """Gather the facts of this machine and, with a path, of the data set there.

    Args:
        path: what gpuload.open takes, or any other file or folder.
        on_step: called with the words of each step that may take a while.

    Raises:
        MissingError: nothing is at `path`.
    """
    steps = Steps(on_step)
    of_machine = machine.examine()
    of_gpu = gpu.examine(steps)
    of_data = None if path is None else data.examine(path, gpu=of_gpu, steps=steps)
    return Report(of_machine, of_gpu, of_data, findings.judge(of_machine, of_gpu, of_data))
