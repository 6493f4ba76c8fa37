"""Benchmarks: gpuload beside other loaders on the same files, values checked first."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def use_installed_package() -> None:
    """Drop the checkout from sys.path, so that `import gpuload` finds the installed package."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


def note(text: str) -> None:
    """Say on stderr what is being done; results go to stdout."""
    print(f"  {text}", file=sys.stderr, flush=True)
