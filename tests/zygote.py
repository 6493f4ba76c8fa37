"""Fresh processes in milliseconds: a process that has imported gpuload forks one for each program.

Importing torch takes seconds. The process that forks has run nothing: no loader, no thread of ours,
no signal handler, CUDA not touched. A program ends as any other does, with everything that the
interpreter does at exit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

_SERVE = """
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been started to ignore it
import numpy, torch, gpuload
for _line in iter(sys.stdin.readline, ""):
    _request = json.loads(_line)
    _pid = os.fork()
    if _pid == 0:
        break
    print(_pid, flush=True)
    print(os.waitpid(_pid, 0)[1], flush=True)
else:
    sys.exit()
os.chdir(_request["cwd"])
os.setsid()
for _number, (_name, _flags) in enumerate(
    [(os.devnull, os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)]
):
    os.dup2(os.open(_name, _flags | os.O_CREAT, 0o600), _number)
os.closerange(3, 100)
sys.argv[1:] = _request["arguments"]
exec(compile(_request["code"], "<program>", "exec"))
"""


@dataclass
class Program:
    """A running program. Its output is in files of its working directory."""

    pid: int
    directory: Path
    answers: Answers
    returncode: int | None = None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code, or minus the signal that ended it. Kills it when it takes too long.

        Raises:
            TimeoutError: it took too long.
        """
        if self.returncode is None:
            status = self.answers.line(timeout_s)
            if status is None:
                os.kill(self.pid, signal.SIGKILL)
                self.answers.line(20)
                self.returncode = -9
                raise TimeoutError(f"no end within {timeout_s} s; stderr: {self.stderr[-2000:]}")
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode

    def wait_for_output(self, text: str, timeout_s: float = 20) -> None:
        until = time.monotonic() + timeout_s
        while text not in self.stdout:
            assert time.monotonic() < until, f"{text!r} not in {self.stdout!r}, {self.stderr!r}"
            assert not self.answers.has_line(), f"ended without {text!r}: {self.stderr!r}"
            time.sleep(0.005)

    @property
    def stdout(self) -> str:
        return (self.directory / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()


class Answers:
    """Lines of a pipe, with a time-out."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.bytes = b""

    def has_line(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])

    def line(self, timeout_s: float) -> str | None:
        until = time.monotonic() + timeout_s
        while b"\n" not in self.bytes:
            if not select.select([self.fd], [], [], max(until - time.monotonic(), 0))[0]:
                return None
            more = os.read(self.fd, 4096)
            assert more, "the process that forks has ended"
            self.bytes += more
        line, self.bytes = self.bytes.split(b"\n", 1)
        return line.decode()


class Zygote:
    """Starts programs, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=os.path.dirname(sys.executable),  # not a folder that holds the source
        )
        assert self.process.stdout is not None
        self.answers = Answers(self.process.stdout.fileno())
        self.program: Program | None = None

    def start(self, code: str, *arguments: object, cwd: Path) -> Program:
        if self.program is not None:
            self.program.wait(0)
        for name in ("stdout", "stderr"):
            (cwd / name).write_text("")
        request = {
            "code": textwrap.dedent(code),
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        pid = self.answers.line(60)
        assert pid is not None
        self.program = Program(int(pid), cwd, self.answers)
        return self.program

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
