"""How a program with a loader ends: Ctrl-C, a signal, exit. Quickly, and with nothing to say."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest


@pytest.fixture
def folder(save_arrays):
    return save_arrays(40, (16, 16))[0]


STUCK = """
    import os, sys
    import numpy as np
    import gpuload as gl

    for i in range(10):
        np.save(f"{i}.npy", np.zeros((512, 1024), np.float32))
    loader = gl.DataLoader(gl.open("."), 1, io="mmap", prefetch=2, threads=2)
    iterator = iter(loader)
    next(iterator)
    os.unlink("8.npy")
    os.mkfifo("8.npy")  # opening it takes until somebody writes to it
    print("waiting", flush=True)
    list(iterator)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_that_waits_for_a_read(start_python, number):
    program = start_python(STUCK)
    program.wait_for_output("waiting")
    time.sleep(0.5)  # it is in next() by now
    begin = time.monotonic()
    program.send(number)
    assert program.wait(10) == -number
    assert time.monotonic() - begin < 5
    assert program.stderr.count("Traceback") == (number == signal.SIGINT)
    assert program.stderr.count("KeyboardInterrupt") == (number == signal.SIGINT)


def test_exit_while_a_daemon_thread_waits_for_a_batch_is_silent(start_python):
    program = start_python(
        STUCK.replace(
            "list(iterator)",
            "import threading, time\n"
            "    threading.Thread(target=list, args=(iterator,), daemon=True).start()\n"
            "    time.sleep(0.5)",
        )
    )
    assert program.wait(10) == 0
    assert program.stderr == ""


@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_ctrl_c_in_a_loop_is_one_keyboard_interrupt(folder, start_python, io):
    program = start_python(
        """
        import sys
        import gpuload as gl

        loader = gl.DataLoader(gl.open(sys.argv[1]), 4, io=sys.argv[2])
        print("running", flush=True)
        while True:
            for x in loader:
                pass
        """,
        folder,
        io,
    )
    program.wait_for_output("running")
    time.sleep(0.1)
    program.send(signal.SIGINT)
    assert program.wait(5) == -signal.SIGINT
    assert program.stderr.count("KeyboardInterrupt") == 1


def test_ctrl_c_can_be_caught_and_the_loader_used_again(folder, start_python):
    program = start_python(
        """
        import sys, time
        import gpuload as gl

        loader = gl.DataLoader(gl.open(sys.argv[1]), 4)
        print("running", flush=True)
        try:
            while True:
                for x in loader:
                    pass
        except KeyboardInterrupt:
            print(len(list(loader)), flush=True)
        """,
        folder,
    )
    program.wait_for_output("running")
    time.sleep(0.1)
    program.send(signal.SIGINT)
    assert program.wait(5) == 0
    assert program.stdout.split() == ["running", "10"]
    assert program.stderr == ""


UNFINISHED = {
    "a global iterator": "iterator = iter(loader); next(iterator)",
    "an iterator in a cycle": "c = [iter(loader)]; c.append(c); next(c[0])",
    "one that was never asked": "iterator = iter(loader)",
    "batches that are held": "batches = list(loader)",
    "sys.exit in the loop": "for x in loader: sys.exit()",
    "a held loader with a broken loop": "for x in loader: break",
    # A thread that is in the middle of torch's own code then is a matter of torch.
    "a daemon thread in its loop": (
        "import threading\n"
        "began = threading.Event()\n"
        "def loop():\n"
        "    for x in loader: began.set(); threading.Event().wait()\n"
        "threading.Thread(target=loop, daemon=True).start()\n"
        "began.wait()"
    ),
    "an iterator that only a module holds": "sys.modules['mine'] = iter(loader)",
}


@pytest.mark.parametrize("device", ["cpu", "late"])
@pytest.mark.parametrize("how", UNFINISHED.values(), ids=UNFINISHED)
def test_exit_with_an_unfinished_iterator_is_quick_and_silent(folder, run_python, how, device):
    begin = time.monotonic()
    program = run_python(
        "import sys\n"
        "import gpuload as gl\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from late import LateDevice\n"
        f"device = {'LateDevice()' if device == 'late' else repr(device)}\n"
        "loader = gl.DataLoader(gl.open(sys.argv[1]), 1, threads=2, device=device)\n" + how,
        folder,
        timeout_s=10,
    )
    assert (program.returncode, program.stderr, program.stdout) == (0, "", "")
    assert time.monotonic() - begin < 5
