"""What cuFile is given back, when, by whom: registered memory and open files."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from kvikio_standin import PAGE, memory_of, opened, rows

SIZES = (10 * PAGE, 7 * PAGE + 123)


def registered(kvikio) -> list[str]:
    return [what for what, _ in kvikio.log if "register" in what]


def test_memory_is_registered_once_and_kept_until_it_is_deregistered(save_bytes, standin):
    kvikio = standin()
    source = opened(kvikio, save_bytes(*SIZES)[0])
    memory = memory_of(PAGE)
    source.register(memory)
    source.register(memory)
    assert registered(kvikio) == ["register"]
    kept = weakref.ref(memory)
    del memory
    assert kept() is not None
    source.deregister(kept())
    assert registered(kvikio) == ["register", "deregister"]
    assert kept() is None
    assert source.notes == []
    source.close()


def test_memory_is_deregistered_before_the_files_are_closed(save_bytes, standin):
    kvikio = standin()
    source = opened(kvikio, save_bytes(*SIZES)[0])
    memory = memory_of(PAGE)
    source.register(memory)
    source.read(rows((0, 0, PAGE, 0)), memory)
    source.close()
    assert [what for what, _ in kvikio.log] == ["register", "open", "deregister", "close"]
    source.deregister(memory)  # whoever ends later
    source.close()
    assert len(kvikio.log) == 4


def test_what_is_dropped_is_given_back(save_bytes, standin):
    kvikio = standin()
    source = opened(kvikio, save_bytes(*SIZES)[0])
    source.register(memory_of(PAGE))
    source.read(rows((0, 0, PAGE, 0)), memory_of(PAGE))
    del source
    gc.collect()
    assert [what for what, _ in kvikio.log] == ["register", "open", "deregister", "close"]


NOTES = {
    "refused": ("cuFile error: GPU memory\n pinning failed", ["pinning failed"]),
    "part of an allocation that is known": ("device pointer already registered", []),
}


@pytest.mark.parametrize(("error", "notes"), NOTES.values(), ids=NOTES)
def test_memory_that_is_not_registered_is_read_into_all_the_same(save_bytes, standin, error, notes):
    paths, files = save_bytes(*SIZES)
    kvikio = standin()
    kvikio.register_error = error
    memory = memory_of(PAGE)
    with opened(kvikio, paths) as source:
        for _ in range(2):
            source.register(memory)
        assert len(source.notes) == len(notes)
        assert all(part in note for part, note in zip(notes, source.notes, strict=True))
        source.read(rows((0, 0, PAGE, 0)), memory)
    np.testing.assert_array_equal(memory.numpy(), files[0][:PAGE])
    assert registered(kvikio) == []


def test_memory_that_begins_within_a_page_is_noted(standin):
    with opened(standin(), []) as source:
        source.register(memory_of(2 * PAGE)[512:])
        assert source.notes == ["memory begins 512 bytes behind a page, so cuFile copies each read"]


def test_memory_that_is_not_let_go_of_is_never_freed(standin):
    kvikio = standin()
    source = opened(kvikio, [])
    memory = memory_of(PAGE)
    kept = weakref.ref(memory)
    source.register(memory)
    kvikio.deregister_error = "nvidia-fs is gone"
    with pytest.warns(
        RuntimeWarning, match='let go of 4096 bytes, got "nvidia-fs is gone"; they stay'
    ):
        source.close()
    del memory, source
    gc.collect()
    assert kept() is not None


def test_deregistering_and_closing_wait_for_the_read_in_progress(save_bytes, standin):
    paths, _ = save_bytes(8 * PAGE)
    kvikio = standin()
    reading, go = threading.Event(), threading.Event()
    kvikio.before_read = lambda *_: reading.set() or (go.wait(10) and None)
    source, memory = opened(kvikio, paths), memory_of(8 * PAGE)
    source.register(memory)
    thread = threading.Thread(target=source.read, args=(rows((0, 0, 8 * PAGE, 0)), memory))
    thread.start()
    assert reading.wait(10)
    source.deregister(memory)  # returns, and is done after the read
    closing = threading.Thread(target=source.close)
    closing.start()
    time.sleep(0.02)
    assert [what for what, _ in kvikio.log] == ["register", "open"]
    go.set()
    thread.join(10)
    closing.join(10)
    assert [what for what, _ in kvikio.log] == ["register", "open", "deregister", "close"]


@pytest.mark.parametrize("how", ["deregister", "close"])
def test_the_garbage_collector_may_give_back_within_a_read(save_bytes, standin, how):
    paths, files = save_bytes(8 * PAGE)
    kvikio = standin()
    source, memory, other = opened(kvikio, paths), memory_of(8 * PAGE), memory_of(PAGE)
    source.register(other)
    opening = source._open

    def collected(file):
        source.deregister(other) if how == "deregister" else source.close()
        return opening(file)

    source._open = collected  # what the thread of the read may have to do at any point
    source.read(rows((0, 0, 8 * PAGE, 0)), memory)
    np.testing.assert_array_equal(memory.numpy(), files[0])
    assert registered(kvikio) == ["register", "deregister"]
    source.close()


def test_after_close_nothing_can_be_read(save_bytes, standin):
    source = opened(standin(), save_bytes(*SIZES)[0])
    source.close()
    for use in (lambda: source.read(rows(), memory_of(1)), lambda: source.register(memory_of(1))):
        with pytest.raises(RuntimeError, match=r"expected use before close\(\), got it after"):
            use()


# --- other processes


def test_another_process_must_not_use_it(save_bytes, standin, monkeypatch):
    kvikio = standin()
    source = opened(kvikio, save_bytes(*SIZES)[0])
    memory = memory_of(PAGE)
    source.register(memory)
    source.read(rows((0, 0, PAGE, 0)), memory)
    before = kvikio.log[:]
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        for use in (lambda: source.read(rows(), memory), lambda: source.register(memory)):
            with pytest.raises(
                RuntimeError, match=r"expected use in process \d+ that made it, got"
            ):
                use()
        source.close()
    assert kvikio.log == before
    source.close()
    assert len(kvikio.log) == len(before) + 2


FORKING = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from kvikio_standin import CuFile, StandIn
from gpuload.catalog import Paths
from gpuload.readers.device_files import DeviceFiles

def say(what):
    print(what if os.getpid() == parent else "a child " + what, flush=True)

class File(CuFile):
    def close(self):
        say("closes")

    def __del__(self):
        say("drops")

class Watched(StandIn):
    def CuFile(self, file):
        handle = File(self, file, "r")
        self.open_files.clear()
        return handle

parent = os.getpid()
size = os.stat(sys.argv[2]).st_size
files = DeviceFiles(Watched(), Paths.of([sys.argv[2]]), np.array([size]), max_open=2)
memory = torch.zeros(4096, dtype=torch.uint8)
files.register(memory)
files.read(np.array([[0, 0, 4096, 0]]), memory)
child = os.fork()
if child == 0:
    try:
        files.read(np.array([[0, 0, 4096, 0]]), memory)
    except RuntimeError as error:
        print(error, flush=True)
    del files
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_forked_child_closes_nothing(save_bytes, run_python):
    program = run_python(FORKING, Path(__file__).parent, save_bytes(*SIZES)[0][0])
    assert program.returncode == 0, program.stderr
    first, *others = program.stdout.splitlines()
    assert "make a DataLoader after the fork, or use spawn" in first
    assert others == ["3", "closes", "drops"]
