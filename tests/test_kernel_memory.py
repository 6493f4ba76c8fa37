"""Kernels leave no memory that is theirs: their host build runs under a sanitizer, in a process
where NumPy's memory is guarded on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import kernel_examples
import pytest
from host_kernels import SANITIZE, library

PROGRAM = Path(kernel_examples.__file__)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run kernel_examples.py in a process under AddressSanitizer."""
    folder = tmp_path_factory.getbasetemp().parent
    built = library(folder, kernel_examples.KERNELS, *SANITIZE)

    def find(name: str) -> str:
        command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    preload = " ".join(map(find, ("libasan.so", "libstdc++.so")))
    environment = {
        **os.environ,
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, PROGRAM, built, *arguments],
            env=environment,
            cwd=PROGRAM.parent,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


@pytest.mark.timeout(200)
def test_kernels_stay_within_their_memory(run):
    done = run()
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.split() == list(kernel_examples.EXAMPLES)


@pytest.mark.timeout(200)
def test_each_wrong_number_is_found(run):
    """The sanitizer sees what the test above would have to find."""
    done = run("mistakes")
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout)
    assert len(found) > 5
    for mistake, report in found.items():
        assert "AddressSanitizer: heap-buffer-overflow" in report, f"{mistake}: {report[:2000]}"
