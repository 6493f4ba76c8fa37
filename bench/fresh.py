"""Run one measurement in a fresh process, so that none sees what another left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bench import ROOT

TIMEOUT_S = 600


def run(module: str, *arguments: object) -> Any:
    """Return what `python -m bench.MODULE ARGUMENTS` prints, as JSON; its stderr goes to ours.

    Raises: subprocess.CalledProcessError when it fails, TimeoutExpired after ten minutes.
    """
    command = [sys.executable, "-m", f"bench.{module}", *(str(a) for a in arguments)]
    done = subprocess.run(
        command, cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)
