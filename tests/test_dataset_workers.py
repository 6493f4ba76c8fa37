"""gpuload.dataset(workers=n): worker processes of torch give the same batches, errors keep their
story, and nobody stays behind."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import time
import traceback

import numpy as np
import psutil
import pytest
import torch
from late import LateDevice
from torch.utils.data import Dataset, get_worker_info

import gpuload as gl

pytestmark = pytest.mark.filterwarnings(  # Python 3.12 and later, once there are threads
    "ignore:.*use of fork.*:DeprecationWarning"
)


class Drawing(Dataset):
    """An item is its number, its process, and numbers that several generators draw."""

    def __init__(self, n=16):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        own = int(torch.randint(10**6, (), generator=gl.item_generator()))
        return i, os.getpid(), own, np.random.randint(10**6)


class Acting(Dataset):
    """Item 5 does something else than to be read."""

    def __init__(self, act):
        self.act = act

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 5:
            self.act()
        return torch.full((3,), i)


def loader_of(data, workers=2, **options):
    return gl.DataLoader(gl.dataset(data, workers=workers), **{"batch_size": 2} | options)


@pytest.fixture(autouse=True)
def nobody_stays_behind():
    yield
    until = time.monotonic() + 8
    while left := workers_of(psutil.Process()):
        assert time.monotonic() < until, left
        time.sleep(0.02)


def workers_of(process):
    """Descendants of a process, but for the one that starts programs for tests."""
    return [
        child
        for child in process.children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "json.loads" not in "".join(child.cmdline())
    ]


# ---- Batches


def test_the_batches_are_those_of_threads():
    options = {"shuffle": True, "batch_size": 3, "extras": ("index", "valid")}
    with loader_of(Drawing(), **options) as loader:
        by_threads = gl.DataLoader(gl.dataset(Drawing()), **options)
        processes = set()
        for _ in range(2):
            for mine, right in zip(loader, by_threads, strict=True):
                assert mine.x[0].tolist() == right.x[0].tolist() == mine.index.tolist()
                assert torch.equal(mine.x[2], right.x[2])
                assert torch.equal(mine.valid, right.valid)
                processes |= set(mine.x[1].tolist())
        assert len(processes) == 4
        assert os.getpid() not in processes
        assert "read by 2 worker processes, 5 batches ahead" in loader.describe()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
def test_draws_of_items_do_not_depend_on_the_number_of_workers():
    def drawn(workers, epoch, **options):
        loader = loader_of(Drawing(), workers, **options)
        loader.set_epoch(epoch)
        batches = [(batch[0].tolist(), batch[2].tolist()) for batch in loader]
        return {i: value for b in batches for i, value in zip(*b, strict=True)}

    table = drawn(0, 0)
    assert len(set(table.values())) == 16
    assert drawn(1, 0) == drawn(4, 0) == table
    ranks = [drawn(1, 0, rank=r, world_size=2) for r in range(2)]
    assert ranks[0] | ranks[1] == table
    assert drawn(2, 1) == drawn(0, 1) != table


def test_numpys_global_generator_differs_between_workers_and_epochs():
    loader = loader_of(Drawing())
    tables = [list(itertools.chain(*(batch[3].tolist() for batch in loader))) for _ in range(2)]
    assert [len(set(table)) for table in tables] == [16, 16]
    assert tables[0] != tables[1]


def test_the_dataset_knows_its_worker():
    class Telling(Drawing):
        def __getitem__(self, i):
            return get_worker_info().id

    assert {int(i) for batch in loader_of(Telling()) for i in batch} == {0, 1}


def test_batches_that_are_kept_keep_no_descriptors():
    loader = loader_of(Acting(lambda: None), batch_size=1)
    before = len(os.listdir("/proc/self/fd"))
    batches = [batch for _ in range(4) for batch in loader]
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    assert [int(batch[0, 0]) for batch in batches] == list(range(12)) * 4
    for batch in batches:
        assert not batch.is_shared()


def test_batches_arrive_on_a_late_device():
    device = LateDevice()
    batches = list(loader_of(Acting(lambda: None), device=device))
    device.synchronize()
    assert [batch[:, 0].tolist() for batch in batches] == [[i, i + 1] for i in range(0, 12, 2)]


def test_strings_and_collate_functions_of_ones_own_come_through():
    source = gl.dataset(["a", "b", "c"], workers=1, collate_fn="-".join)
    assert list(gl.DataLoader(source, batch_size=2)) == ["a-b", "c"]


# ---- Errors


class TwoPartsError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} of {b}")


class OpenFileError(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("holds a file")
        self.file = sys.stdout


def raising(error):
    def act():
        raise error

    return act


HERE = f"{re.escape(__file__)}, line \\d+"
ITEM = "while item 5 of the dataset was read"
RAISED = {
    "as it is": (raising(KeyError("img")), KeyError, "'img'"),
    "with a number": (raising(OSError(2, "gone")), FileNotFoundError, "gone"),
    "with two arguments": (
        raising(TwoPartsError("a", "b")),
        RuntimeError,
        rf"^dataset: expected a batch, got TwoPartsError: a of b \({HERE}\), {ITEM}$",
    ),
    "that cannot be pickled": (
        raising(OpenFileError()),
        RuntimeError,
        rf"^dataset: expected a batch, got OpenFileError: holds a file \({HERE}\), {ITEM}$",
    ),
    "sys.exit": (
        lambda: sys.exit(3),
        RuntimeError,
        rf"^dataset: expected a batch, got SystemExit: 3 \({HERE}\), {ITEM}$",
    ),
    "CUDA after a fork": (
        raising(RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA ...")),
        RuntimeError,
        "Cannot re-initialize CUDA in forked subprocess",
    ),
}


@pytest.mark.parametrize(("act", "error", "match"), RAISED.values(), ids=RAISED)
def test_an_exception_in_a_worker_keeps_its_story(act, error, match):
    loader = loader_of(Acting(act))
    got, begin = [], time.monotonic()
    with pytest.raises(error, match=match) as caught:
        got.extend(batch[:, 0].tolist() for batch in loader)
    assert time.monotonic() - begin < 5
    assert got == [[0, 1], [2, 3]]
    text = "".join(traceback.format_exception(caught.value))
    assert ITEM in text
    assert "in a worker:\nTraceback" in text
    assert re.search(rf'File "{re.escape(__file__)}", line \d+, in __getitem__', text)
    if "CUDA" in match:
        assert "a dataset that workers read must not use CUDA; use it in your loop" in text
    loader.close()
    assert len(list(loader_of(Acting(lambda: None)))) == 6


def test_an_item_on_a_device_is_refused():
    data = [torch.ones(2, device="meta")]
    with pytest.raises(TypeError, match="got one on meta in item 0; a dataset must not use CUDA"):
        list(loader_of(data, 1))


def test_a_batch_that_does_not_pickle_is_an_error_and_not_waited_for():
    source = gl.dataset([1, 2], workers=1, collate_fn=lambda items: lambda: items)
    with pytest.raises(Exception, match="pickle"):
        list(gl.DataLoader(source, batch_size=2))


DEATHS = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), r"signal 9 \(out of memory\?\)"),
    "ended": (lambda: os.kill(os.getpid(), signal.SIGTERM), "signal 15$"),
    "gone": (lambda: os._exit(3), "exit code 3$"),
}


@pytest.mark.parametrize("device", ["cpu", "late"])
@pytest.mark.parametrize(("act", "how"), DEATHS.values(), ids=DEATHS)
def test_a_worker_that_dies_is_told_with_the_reason(act, how, device):
    loader = loader_of(Acting(act), device=LateDevice() if device == "late" else device)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"dataset: expected a batch .*: worker died, {how}"):
        list(loader)
    assert time.monotonic() - begin < 5
    loader.close()
    assert len(list(loader_of(Acting(lambda: None)))) == 6


def test_a_worker_that_dies_does_not_interrupt_the_loop_elsewhere():
    def act():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    loader = loader_of(Acting(act))
    iterator = iter(loader)
    assert next(iterator)[:, 0].tolist() == [0, 1]
    until = time.monotonic() + 1
    while time.monotonic() < until:  # the user's work, meanwhile
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="worker died"):
        list(iterator)


# ---- Ends


def test_breaking_off_ends_the_workers():
    loader = loader_of(Drawing(200), batch_size=1)
    for _ in range(2):
        for batch in loader:
            del batch
            break
    iterator = iter(loader)
    next(iterator)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 5
    assert list(iterator) == []
    until = time.monotonic() + 5
    while any(t.name == "gpuload-fetch" for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_workers_that_are_busy_do_not_hold_up_the_end():
    class Slow(Drawing):
        def __getitem__(self, i):
            time.sleep(0 if i == 0 else 30)
            return i

    iterator = iter(loader_of(Slow(), batch_size=1))
    next(iterator)
    begin = time.monotonic()
    iterator.close()
    assert time.monotonic() - begin < 2


def test_a_forked_child_is_told(run_python):
    program = run_python(
        SLOW.format(item_s=0.01)
        + """
import os
iterator = iter(loader)
next(iterator)
pid = os.fork()
if pid == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], int(next(iterator)[0, 0]))
iterator.close()
"""
    )
    assert (program.returncode, program.stderr) == (0, "")
    assert "loader: expected use in process" in program.stdout
    assert program.stdout.endswith("\n0 1\n")


SLOW = """\
import sys, time
import torch
import gpuload as gl

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep({item_s})
        return torch.full((100,), i)

loader = gl.DataLoader(gl.dataset(Slow(), workers=2), 1)
"""
LOOP = "print('running', flush=True)\nfor x in loader: pass\n"


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGINT, True),
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
    ],
    ids=["Ctrl-C in a terminal", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_signal_to_the_program_ends_its_workers(start_python, number, to_all):
    program = start_python(SLOW.format(item_s=20) + LOOP)
    program.wait_for_output("running")
    process = psutil.Process(program.pid)
    until = time.monotonic() + 10
    while len(workers := process.children(recursive=True)) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.2)  # they read by now
    begin = time.monotonic()
    if to_all:
        os.killpg(program.pid, number)
    else:
        program.send(number)
    assert program.wait(10) == -number
    while any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers):
        assert time.monotonic() - begin < 5
        time.sleep(0.01)
    assert program.stderr.count("Traceback") == (number == signal.SIGINT)
    assert program.stderr.count("KeyboardInterrupt") == (number == signal.SIGINT)


def test_exit_with_an_unfinished_iterator_is_quick_and_silent(run_python):
    begin = time.monotonic()
    program = run_python(SLOW.format(item_s=0.05) + "iterator = iter(loader); next(iterator)")
    assert (program.returncode, program.stderr, program.stdout) == (0, "", "")
    assert time.monotonic() - begin < 8
