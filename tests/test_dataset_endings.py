"""Errors of a Dataset read by threads, batches on a device, and how a loader of it ends."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import traceback

import pytest
import torch
from late import EagerDevice, LateDevice
from some_datasets import Broken, InBatches, Numbers, labels, no_threads_are_left

import gpuload as gl


@pytest.fixture(autouse=True)
def end_of_threads():
    yield
    no_threads_are_left()


# ---- Errors


class TwoPartsError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} of {b}")


ERRORS = [
    TwoPartsError("a", "b"),
    KeyError("img"),
    OSError(2, "gone"),
    SystemExit(3),
    IndexError(5),
]


@pytest.mark.parametrize("device", [None, EagerDevice], ids=["cpu", "eager"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_is_raised_as_it_is_and_names_its_item(error, threads, device):
    loader = gl.DataLoader(
        gl.dataset(Broken(error)),
        batch_size=2,
        threads=threads,
        device="cpu" if device is None else device(),
    )
    for _ in range(2):
        got = []
        error.__notes__ = []
        with pytest.raises(type(error), match=re.escape(str(error))) as caught:
            got.extend(batch[1].tolist() for batch in loader)
        assert caught.value is error
        assert error.__notes__ == ["while item 5 of the dataset was read"]
        assert "raise self.error" in "".join(traceback.format_exception(error))
        assert got == [[0, 1], [2, 3]]


def test_stop_iteration_does_not_end_the_loop_in_silence():
    loader = gl.DataLoader(gl.dataset(Broken(StopIteration())), batch_size=2)
    with pytest.raises(
        RuntimeError, match="dataset: expected an item, got StopIteration"
    ) as caught:
        list(loader)
    assert caught.value.__cause__.__notes__ == ["while item 5 of the dataset was read"]


def test_items_of_a_call_are_named_together():
    class Bad(InBatches):
        def __getitems__(self, numbers):
            raise KeyError("img")

    with pytest.raises(KeyError) as caught:
        list(gl.DataLoader(gl.dataset(Bad(20)), batch_size=10))
    assert caught.value.__notes__ == [
        "while items 0, 1, 2, 3, 4, 5, 6, 7, ... (10 in all) of the dataset were read"
    ]


def test_a_collate_function_that_raises_names_the_batch():
    source = gl.dataset(Numbers(), collate_fn=lambda items: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        list(gl.DataLoader(source, batch_size=2))
    assert caught.value.__notes__ == ["while a batch of items 0, 1 of the dataset was put together"]


def test_items_that_do_not_fit_together_are_named_as_the_dataset_does():
    data = [torch.ones(2), torch.ones(2), torch.ones(3)]
    loader = gl.DataLoader(gl.dataset(data).select([1, 2]), batch_size=2)
    with pytest.raises(
        ValueError, match=r"expected shape \(2,\) as in item 1, got \(3,\) in item 2"
    ):
        list(loader)


# ---- A device


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("recycling", ["early", "late"])
def test_batches_arrive_whole_on_a_late_device(recycling, threads):
    device = LateDevice(recycling)
    loader = gl.DataLoader(
        gl.dataset(Numbers()),
        batch_size=3,
        shuffle=True,
        device=device,
        threads=threads,
        extras=("index", "valid"),
    )
    right = gl.DataLoader(gl.dataset(Numbers()), batch_size=3, shuffle=True, extras="index")
    for _ in range(2):
        batches = list(loader)
        device.synchronize()
        for a, b in zip(batches, right, strict=True):
            assert torch.equal(a.x[0], b.x[0])
            assert a.x[1].tolist() == a.index.tolist() == b.index.tolist()
            assert a.valid.all()
    assert loader.stats().pinned_nbytes == 2 * 3 * 128  # x, y, index, valid: 3 rows each
    assert "late, one copy for each batch" in loader.describe()
    del batches, a, b
    loader.close()
    gc.collect()
    assert device.dropped_too_soon == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_arrive_on_a_gpu(cuda, threads):
    with gl.DataLoader(
        gl.dataset(Numbers()), batch_size=4, device="cuda:1", extras="index", threads=threads
    ) as loader:
        for _ in range(2):
            batches = list(loader)
            cuda.synchronize()
            assert [batch.x[1].tolist() for batch in batches] == [
                [i, i + 1, i + 2, i + 3] for i in range(0, 20, 4)
            ]
            assert all(torch.equal(batch.x[1], batch.index) for batch in batches)


def test_a_copy_that_fails_is_raised_after_the_batches_before_it(monkeypatch):
    from gpuload.stage import Ring

    stage, n = Ring.stage, []

    def fails(self, *arguments):
        n.append(1)
        if len(n) == 4:
            raise gl.DeviceError("the link is gone")
        return stage(self, *arguments)

    monkeypatch.setattr(Ring, "stage", fails)
    loader = gl.DataLoader(gl.dataset(Numbers(12)), batch_size=2, device=EagerDevice())
    got = []
    with pytest.raises(gl.DeviceError, match="the link is gone"):
        got.extend(batch[1].tolist() for batch in loader)
    assert got == [[0, 1], [2, 3], [4, 5]]
    assert len(labels(loader)) == 6


# ---- Ends


@pytest.mark.parametrize("device", [None, EagerDevice], ids=["cpu", "eager"])
@pytest.mark.parametrize("threads", [1, 3])
def test_breaking_off_ends_the_threads(threads, device):
    loader = gl.DataLoader(
        gl.dataset(Numbers(1000)),
        batch_size=2,
        threads=threads,
        device="cpu" if device is None else device(),
    )
    for _ in range(3):
        for batch in loader:
            del batch
            break
    no_threads_are_left()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    no_threads_are_left()
    assert list(iterator) == []


def test_an_item_that_takes_long_does_not_hold_up_the_end():
    gate = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, i):
            if i == 3:
                gate.wait(30)
            return i

    loader = gl.DataLoader(gl.dataset(Slow()), batch_size=1)
    iterator = iter(loader)
    next(iterator)
    begin = time.monotonic()
    iterator.close()
    assert time.monotonic() - begin < 5
    gate.set()


def test_two_iterations_at_once_do_not_disturb_each_other():
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=3, shuffle=True, threads=2)
    loader.set_epoch(0)
    first, second = labels(loader), labels(loader)
    loader.set_epoch(0)
    pairs = list(zip(loader, loader, strict=True))
    assert [a[1].tolist() for a, _ in pairs] == first
    assert [b[1].tolist() for _, b in pairs] == second


def in_child(function):
    """What a forked child says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            said = repr(function())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    said = os.read(read, 10_000).decode()
    os.close(read)
    return said


@pytest.mark.parametrize("device", [None, EagerDevice], ids=["cpu", "eager"])
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_waiting(device):
    loader = gl.DataLoader(
        gl.dataset(Numbers()), batch_size=4, device="cpu" if device is None else device()
    )
    iterator = iter(loader)
    next(iterator)
    assert f"RuntimeError: loader: expected use in process {os.getpid()}" in in_child(
        lambda: next(iterator)
    )
    assert in_child(lambda: (iterator.close(), loader.close())) == "(None, None)"
    if device is None:
        assert in_child(lambda: len(list(loader))) == "5"  # an epoch of its own
    assert len(list(iterator)) == 4


UNFINISHED = {
    "a global iterator": "iterator = iter(loader); next(iterator)",
    "sys.exit in the loop": "for x in loader: sys.exit()",
    "an item in the making": "iterator = iter(loader); next(iterator); time.sleep(0.02)",
}


@pytest.mark.parametrize("how", UNFINISHED.values(), ids=UNFINISHED)
def test_exit_with_an_unfinished_iterator_is_quick_and_silent(run_python, how):
    begin = time.monotonic()
    program = run_python(
        SLOW.format(n_workers=0, item_s=0.1) + how,
        timeout_s=10,
    )
    assert (program.returncode, program.stderr, program.stdout) == (0, "", "")
    assert time.monotonic() - begin < 5


SLOW = """\
import sys, time
import torch
import gpuload as gl

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep({item_s})
        return torch.full((100,), i)

loader = gl.DataLoader(gl.dataset(Slow(), workers={n_workers}), 1, threads="auto")
"""


def test_ctrl_c_is_one_keyboard_interrupt(start_python):
    program = start_python(
        SLOW.format(n_workers=0, item_s=0.3)
        + "print('running', flush=True)\nfor x in loader: pass\n"
    )
    program.wait_for_output("running")
    time.sleep(0.1)
    begin = time.monotonic()
    program.send(signal.SIGINT)
    assert program.wait(5) == -signal.SIGINT
    assert time.monotonic() - begin < 5
    assert program.stderr.count("KeyboardInterrupt") == 1
