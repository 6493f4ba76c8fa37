"""Whole loaders on a device that is not the host: values, errors, early ends, memory."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import traceback

import numpy as np
import pytest
from late import EagerDevice, LateDevice, LateStream, alias

import gpuload as gl
import gpuload.assembly
import gpuload.journey
from gpuload import pipeline
from gpuload.plan import Ahead, Transfer

DEVICES = {
    "at once": EagerDevice,
    "late, memory recycled early": lambda: LateDevice("early"),
    "late, memory recycled late": lambda: LateDevice("late"),
}
N_ITEMS, SHAPE, CROP = 26, (9, 7), (4, 3)

each_device = pytest.mark.parametrize("make_device", DEVICES.values(), ids=DEVICES)


@pytest.fixture
def files(save_arrays):
    directory, arrays = save_arrays(N_ITEMS, SHAPE)
    return gl.open(directory, labels=np.arange(N_ITEMS) * 10), arrays


def expected(batch, arrays):
    """What the files hold where the batch says that it was taken."""
    corners = zip(batch.index.tolist(), batch.start.tolist(), strict=True)
    return np.stack([arrays[i][r : r + CROP[0], c : c + CROP[1]] for i, (r, c) in corners])


def make_loader(files, device, **options):
    options = {"batch_size": 4, "shuffle": True, "prefetch": 2, "threads": 2} | options
    return gl.DataLoader(
        files[0],
        crop=gl.RandomCrop(CROP, per_array=2),
        device=device,
        extras=("index", "crop", "start", "valid"),
        **options,
    )


@pytest.fixture(autouse=True)
def _two_ahead(monkeypatch):
    """Look two batches ahead only, so that slots and slabs are used again within an epoch."""
    monkeypatch.setattr(gpuload.assembly, "plan_ahead", lambda **_: Ahead(2, 1, 1, False))


@pytest.fixture(autouse=True)
def _cut_out_on_the_host(monkeypatch):
    """Windows of these tiny arrays would be cut out by the device; test_routes.py does that."""
    monkeypatch.setattr(
        gpuload.journey, "plan_transfer", lambda *_, **__: Transfer("placed", "as the test wants")
    )


def keep_all(loader, device):
    return list(loader)


def look_at_each(loader, device):
    for batch in loader:
        device.current_stream().synchronize()
        yield batch


@each_device
@pytest.mark.parametrize("consume", [keep_all, look_at_each])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_batches_are_those_of_the_cpu_and_of_the_files(files, make_device, consume, io):
    device = make_device()
    with make_loader(files, "cpu", io=io) as on_cpu, make_loader(files, device, io=io) as loader:
        for _ in range(2):
            wanted, got = list(on_cpu), list(consume(loader, device))
            device.synchronize()
            assert len(got) == len(loader) == 13
            for mine, cpu in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(mine.x, expected(mine, files[1]))
                assert mine.y.tolist() == [10 * i for i in mine.index.tolist()]
                for a, b in zip(mine, cpu, strict=True):
                    assert (a.shape, a.dtype) == (b.shape, b.dtype)
                    np.testing.assert_array_equal(a, b)


@each_device
def test_a_side_stream_of_the_consumer_is_made_to_wait(files, make_device):
    device = make_device()
    mine = device.stream()
    with make_loader(files, device) as loader:
        iterator, n = iter(loader), 0
        with device.on(mine):  # the stream that is current at next() counts
            for batch in iterator:
                mine.synchronize()  # and no other
                np.testing.assert_array_equal(batch.x, expected(batch, files[1]))
                n += len(batch.x)
    assert n == 2 * N_ITEMS


@pytest.mark.parametrize("recycling", ["early", "late"])
def test_a_batch_that_is_dropped_is_not_recycled_under_its_reader(files, recycling):
    device = LateDevice(recycling)
    wanted, sums = [], []
    with make_loader(files, "cpu") as loader:
        wanted = [batch.x.sum().item() for batch in loader]
    with make_loader(files, device) as loader:
        for batch in loader:
            x = alias(batch.x)
            device.current_stream().do(lambda x=x: sums.append(x.sum().item()))
            del batch
        device.synchronize()
    assert sums == wanted


def test_a_slab_that_is_refilled_too_soon_shows(files, monkeypatch):
    def release_at_once(flight, run, copying):
        run.release(copying.popleft()[1])

    monkeypatch.setattr(pipeline.StagedFlight, "_release", release_at_once)
    device = LateDevice()
    with make_loader(files, "cpu") as on_cpu, make_loader(files, device) as loader:
        wanted, got = list(on_cpu), list(loader)
        device.synchronize()
    assert [batch.x.tolist() for batch in got] != [batch.x.tolist() for batch in wanted]


# Early ends


@each_device
def test_break_leaves_the_batches_taken_whole_and_begins_anew(files, make_device):
    device = make_device()
    with make_loader(files, device) as loader:
        kept = []
        for epoch in range(3):
            for n, batch in enumerate(loader):
                kept.append(batch)
                if n == epoch:
                    break
        whole = list(loader)
        device.synchronize()
    del loader
    gc.collect()
    assert getattr(device, "dropped_too_soon", 0) == 0
    assert len(whole) == 13
    for batch in kept + whole:
        np.testing.assert_array_equal(batch.x, expected(batch, files[1]))
    assert threads_named("gpuload") == []


@each_device
def test_a_transfer_that_fails_surfaces_at_its_batch(files, make_device, monkeypatch):
    device = make_device()
    stage, numbers = pipeline.Ring.stage_filled, itertools.count()

    def fail_at_three(ring, *batch, **rows):
        if next(numbers) == 3:
            raise RuntimeError("the copy engine is on fire")
        return stage(ring, *batch, **rows)

    monkeypatch.setattr(pipeline.Ring, "stage_filled", fail_at_three)
    with make_loader(files, "cpu") as loader:
        wanted = list(loader)
    with make_loader(files, device) as loader:
        got = []
        with pytest.raises(RuntimeError, match="the copy engine is on fire") as caught:
            got.extend(loader)
        # A call of extend() that fails keeps what came before it.
        assert "fail_at_three" in "".join(traceback.format_tb(caught.value.__traceback__))
        del caught
        gc.collect()
        second = list(loader)
        device.synchronize()
        assert len(got) == 3
        for batch, right in zip(got, wanted[:3], strict=True):
            np.testing.assert_array_equal(batch.x, right.x)
        assert len(second) == 13
        for batch in second:
            np.testing.assert_array_equal(batch.x, expected(batch, files[1]))
    assert threads_named("gpuload") == []


# Of the fourth batch: the loader asks for memory of two slots first, then twice per batch, and
# copies twice per batch.
@pytest.mark.parametrize(("name", "nth"), [("copy", 6), ("launch", 3), ("memory", 8)])
def test_what_fails_in_the_middle_of_a_transfer_drops_no_slab_too_soon(
    files, monkeypatch, name, nth
):
    """A copy may have begun when a later step fails; batches before it arrive whole."""
    device = LateDevice()
    owner = LateDevice if name == "memory" else LateStream
    call, numbers = getattr(owner, name), itertools.count()

    def fail_at_three(*arguments, **named):
        if next(numbers) == nth:
            raise MemoryError("no memory is left on the device")
        return call(*arguments, **named)

    with make_loader(files, "cpu", dtype="float64") as loader:
        wanted = list(loader)
    monkeypatch.setattr(owner, name, fail_at_three)
    with make_loader(files, device, dtype="float64") as loader:
        got = []
        with pytest.raises(MemoryError, match="no memory is left on the device") as caught:
            got.extend(loader)
        del caught
        gc.collect()
        assert device.dropped_too_soon == 0
        assert len(list(loader)) == 13
    device.synchronize()
    assert len(got) == 3
    for batch, right in zip(got, wanted, strict=False):
        np.testing.assert_array_equal(batch.x, right.x)


@each_device
def test_a_file_that_is_gone_surfaces_at_its_batch(files, make_device):
    device = make_device()
    os.unlink(files[0].paths[13])
    got = []
    with make_loader(files, device, shuffle=False, io="pread") as loader:
        with pytest.raises(gl.ReadError, match=r"00013\.npy: expected the file"):
            got.extend(loader)
        device.synchronize()
    assert [batch.index.tolist() for batch in got] == [
        [2 * i, 2 * i, 2 * i + 1, 2 * i + 1] for i in range(6)
    ]
    for batch in got:
        np.testing.assert_array_equal(batch.x, expected(batch, files[1]))


@each_device
def test_close_from_another_thread_ends_a_waiting_consumer(files, make_device, monkeypatch):
    device = make_device()
    blocked, go_on = threading.Event(), threading.Event()
    stage, numbers = pipeline.Ring.stage_filled, itertools.count()

    def wait_at_the_third(ring, *batch, **rows):
        if next(numbers) == 2:
            blocked.set()
            go_on.wait(20)
        return stage(ring, *batch, **rows)

    monkeypatch.setattr(pipeline.Ring, "stage_filled", wait_at_the_third)
    loader = make_loader(files, device)
    got = []
    consumer = threading.Thread(target=lambda: got.extend(loader))
    consumer.start()
    assert blocked.wait(20)
    threading.Timer(0.2, go_on.set).start()
    loader.close()
    consumer.join(10)
    assert not consumer.is_alive()
    assert len(got) <= 2
    assert threads_named("gpuload") == []


# Memory


@pytest.mark.parametrize("n_ends_early", [0, 1], ids=["whole epochs", "epochs that end early"])
def test_device_memory_and_streams_are_fixed_after_the_first_epochs(files, n_ends_early):
    device = LateDevice()
    with make_loader(files, device) as loader:
        for _ in range(12):
            for n, batch in enumerate(loader):
                device.current_stream().synchronize()
                del batch
                if n_ends_early and n == 4:
                    break
            assert len(device.streams) == 3  # the consumer's, one for copies and one for kernels
            assert len(device.host_blocks) == 3  # (prefetch + 1) slabs
            # Two slots; batches: two waiting, one on either side of them, one being dropped.
            assert device.reserved_nbytes <= (2 + 7) * device.host_blocks[0].memory.nbytes


def test_two_iterations_at_once_do_not_disturb_each_other(files):
    device = LateDevice()
    with make_loader(files, "cpu") as loader:
        wanted = [list(loader), list(loader)]
    with make_loader(files, device) as loader:
        pairs = list(zip(loader, loader, strict=True))
        device.synchronize()
    for epoch in range(2):
        for batch, right in zip([pair[epoch] for pair in pairs], wanted[epoch], strict=True):
            np.testing.assert_array_equal(batch.x, right.x)


def threads_named(name):
    """Python threads whose name begins so, after those that are about to end have ended."""
    until = time.monotonic() + 5
    while True:
        found = [t.name for t in threading.enumerate() if t.name.startswith(name)]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.01)
