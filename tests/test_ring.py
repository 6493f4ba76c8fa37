"""The ring of slots under streams that run at once and streams that run as late as they may."""

from __future__ import annotations

import pytest
import torch
from late import EagerDevice, LateDevice, alias

from gpuload.dtypes import DTYPES
from gpuload.layout import Column, Route, lay_out
from gpuload.stage import Ring

N_BATCHES, NBYTES, N_SLOTS = 11, 64, 3

# A slab that is a batch, and one that a kernel makes a batch of: bytes have no other order.
LAYOUT = lay_out([Column("x", DTYPES["uint8"])], batch_size=1, window_elements=NBYTES)
COPIED = Route(LAYOUT, LAYOUT, DTYPES["uint8"], DTYPES["uint8"])
PLACED = Route(LAYOUT, LAYOUT, DTYPES["uint8"], DTYPES["uint8"], swap=True)
ROUTES = {"copied": COPIED, "placed": PLACED}

DEVICES = {
    "at once": EagerDevice,
    "late, memory recycled early": lambda: LateDevice("early"),
    "late, memory recycled late": lambda: LateDevice("late"),
}


class Nothing:
    """The event of a record() that was left out."""

    has_come = True

    def synchronize(self) -> None:
        pass


class Drive:
    """A loader's thread and its consumer in one: stages slabs, and reads batches on a stream."""

    def __init__(self, device, route=PLACED, side_stream: bool = False) -> None:
        self.device = device
        self.ring = Ring(device, route, n_slots=N_SLOTS)
        self.stream = device.stream() if side_stream else device.current_stream()
        self.slabs = [device.host_memory(NBYTES) for _ in range(N_SLOTS + 1)]
        self.copied = []
        self.waits_for_slabs = True
        self.got: dict[int, list[int]] = {}

    def run(self, consume, *, ahead: int = 0) -> dict[int, list[int]]:
        """Hand batches out `ahead` batches after they were staged; `consume` gets each one."""
        staged = []
        for i in range(N_BATCHES):
            if i >= len(self.slabs) and self.waits_for_slabs:
                self.copied[i - len(self.slabs)].synchronize()
            slab = self.slabs[i % len(self.slabs)]
            slab.fill_(i + 1)
            staged.append(self.ring.stage(slab, 1, [NBYTES]))
            self.copied.append(staged[-1].copied)
            if i >= ahead:
                consume(self, i - ahead, self.hand_out(staged.pop(0)))
        for i, last in enumerate(staged):
            consume(self, N_BATCHES - ahead + i, self.hand_out(last))
        self.device.synchronize()
        return self.got

    def hand_out(self, staged):
        with self.device.on(self.stream):
            return self.ring.hand_out(staged)[1]

    def read(self, i: int, memory: torch.Tensor) -> None:
        """What training does: a command on its stream, which does not keep the memory."""
        values, memory = self.got.setdefault(i, []), alias(memory)
        self.stream.do(lambda: values.extend(memory.tolist()))


def drop_each(drive, i, memory):
    drive.read(i, memory)


def look_at_each(drive, i, memory):
    drive.read(i, memory)
    drive.stream.synchronize()


def keep_all(drive, i, memory):
    drive.kept = [*getattr(drive, "kept", []), memory]
    drive.read(i, memory)


CONSUMERS = [drop_each, look_at_each, keep_all]
WANTED = {i: [i + 1] * NBYTES for i in range(N_BATCHES)}


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("consume", CONSUMERS)
@pytest.mark.parametrize("ahead", [0, 1, N_SLOTS, N_SLOTS + 2])
@pytest.mark.parametrize("side_stream", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_every_batch_arrives_whole(device, consume, ahead, side_stream, route):
    assert Drive(device(), route, side_stream).run(consume, ahead=ahead) == WANTED


# Each takes one thing away that stage() or hand_out() does.
def without_waiting_for_the_slot(drive, monkeypatch):
    monkeypatch.setattr(drive.ring.copies, "wait", lambda event: None)


def without_recording_the_copy(drive, monkeypatch):
    monkeypatch.setattr(drive.ring.copies, "record", Nothing)


def without_waiting_for_the_copy(drive, monkeypatch):
    monkeypatch.setattr(drive.ring.kernels, "wait", lambda event: None)


def without_recording_the_kernel(drive, monkeypatch):
    monkeypatch.setattr(drive.ring.kernels, "record", Nothing)


def without_the_consumers_wait(drive, monkeypatch):
    monkeypatch.setattr(drive.stream, "wait", lambda event: None)


def without_hand_over(drive, monkeypatch):
    monkeypatch.setattr(drive.device, "hand_over", lambda memory, stream: None)


def without_waiting_for_the_slab(drive, monkeypatch):
    drive.waits_for_slabs = False


REMOVALS = [
    without_waiting_for_the_slot,
    without_recording_the_copy,
    without_waiting_for_the_copy,
    without_recording_the_kernel,
    without_the_consumers_wait,
    without_hand_over,
    without_waiting_for_the_slab,
]


# A batch that is copied as it is has no slot and no kernel.
OF_COPIES = [without_recording_the_copy, *REMOVALS[-3:]]
EACH = [
    *(pytest.param(PLACED, removal, id=f"placed-{removal.__name__}") for removal in REMOVALS),
    *(pytest.param(COPIED, removal, id=f"copied-{removal.__name__}") for removal in OF_COPIES),
]


def runs_without(removal, device, route, monkeypatch):
    """What arrives in each way to consume when one safeguard is missing."""
    for consume in CONSUMERS:
        for ahead in (0, N_SLOTS):
            drive = Drive(device(), route)
            with monkeypatch.context() as patch:
                removal(drive, patch)
                yield drive.run(consume, ahead=ahead)


@pytest.mark.parametrize(("route", "removal"), EACH)
def test_a_missing_safeguard_shows_when_streams_run_late(route, removal, monkeypatch):
    assert any(got != WANTED for got in runs_without(removal, LateDevice, route, monkeypatch))


@pytest.mark.parametrize(("route", "removal"), [e for e in EACH if "slab" not in e.id])
def test_streams_that_run_at_once_hide_it(route, removal, monkeypatch):
    assert all(got == WANTED for got in runs_without(removal, EagerDevice, route, monkeypatch))


def what_a_dropped_ring_leaves(device):
    """The batch of a ring that is gone before its kernel ran, and its staging memory used again."""
    drive = Drive(device)
    drive.slabs[0].fill_(7)
    memory = drive.hand_out(drive.ring.stage(drive.slabs[0], 1, [NBYTES]))
    stream, drive.ring = drive.ring.copies, None
    again = device.memory(NBYTES, stream=stream)
    drive.read(0, memory)
    device.synchronize()
    del again
    return drive.got[0]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_a_ring_that_is_dropped_leaves_its_last_batches_whole(device):
    assert what_a_dropped_ring_leaves(device()) == [7] * NBYTES


def test_staging_memory_that_is_not_handed_over_shows(monkeypatch):
    monkeypatch.setattr(LateDevice, "hand_over", lambda device, memory, stream: None)
    assert what_a_dropped_ring_leaves(LateDevice()) != [7] * NBYTES


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_staging_allocates_nothing_but_the_batches(route):
    device = LateDevice()
    drive = Drive(device, route)
    before = device.reserved_nbytes
    drive.run(look_at_each)
    assert device.reserved_nbytes - before <= 2 * NBYTES  # of batches that were dropped


def device_memory_of(consume_far_ahead_of_the_device, route):
    """Bytes that batches take whose consumer enqueues work and never waits for it."""
    device = LateDevice("late")
    drive = Drive(device, route)
    before = device.reserved_nbytes
    # What the host waits for here is a slab's copy alone: the laziest consumer there is.
    drive.run(consume_far_ahead_of_the_device)
    return device.reserved_nbytes - before


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_a_consumer_that_never_waits_does_not_pile_up_batches(route):
    assert device_memory_of(drop_each, route) <= (2 * N_SLOTS + 3) * NBYTES


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_batches_pile_up_where_the_device_runs_ahead_of_the_consumer(route, monkeypatch):
    bounded = device_memory_of(drop_each, route)
    monkeypatch.setattr(Ring, "_keep_back", lambda ring: None)
    assert device_memory_of(drop_each, route) > bounded
