"""Order and memory on a real GPU, whose streams are held back: batches stay whole.

Needs a CUDA device. A kernel that spins until the host releases it makes a stream late, as
tests/late.py does without a GPU.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque

import numpy as np
import pytest
import torch

import gpuload as gl
from gpuload.devices.programs import Kernel
from gpuload.dtypes import DTYPES
from gpuload.layout import Column, Route, lay_out
from gpuload.stage import Ring

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is found"),
]

HELD_S = 0.15  # how long a stream is late
LIMIT_S = 10.0  # a latch that nobody releases lets go after that
N_BATCHES, NBYTES, N_SLOTS = 25, 1 << 20, 3
STRESS_EPOCHS, STRESS_BATCHES, BATCH = 10, 500, 64  # for each way: 15,000 batches in all
N_HELD = 6  # batches that the consumer of the stress test keeps
N_CAPTURES, N_CAPTURED = 8, 400  # graphs, and operations in each
N_LARGE, LARGE_NBYTES = 100, 16 << 20

LATCH = Kernel(
    "latch",
    """
extern "C" __global__ void latch(const volatile int *released, long long limit_ns, int *ran_out) {
    long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        if (*released) return;
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < limit_ns);
    *ran_out = 1;
}
""",
)

LAYOUT = lay_out([Column("x", DTYPES["uint8"])], batch_size=1, window_elements=NBYTES)
ROUTES = {  # a slab that is a batch, and one that a kernel makes a batch of
    "copied": Route(LAYOUT, LAYOUT, DTYPES["uint8"], DTYPES["uint8"]),
    "placed": Route(LAYOUT, LAYOUT, DTYPES["uint8"], DTYPES["uint8"], swap=True),
}
WAYS = {
    "copied": {},
    "placed": {"dtype": "float32"},
    "held": {"cache": "device", "dtype": "float32"},
}


class Latch:
    """Holds what comes after it in a stream, until it is released."""

    def __init__(self, gpu) -> None:
        self._gpu = gpu
        self._flags = torch.zeros(2, dtype=torch.int32).pin_memory()  # the GPU reads it in place
        self._kernel = gpu.load(LATCH)
        _ = self._kernel.num_regs  # loaded now

    def hold(self, stream) -> None:
        released = self._flags.data_ptr()
        arguments = (np.uint64(released), np.int64(LIMIT_S * 1e9), np.uint64(released + 4))
        with torch.cuda.device(self._gpu.index), stream._cupy:
            self._kernel((1,), (1,), arguments)

    def release(self) -> None:
        self._flags[0] = 1

    def release_soon(self) -> threading.Timer:
        """Not by hand: loading a kernel may wait for what runs on the GPU."""
        timer = threading.Timer(HELD_S, self.release)
        timer.start()
        return timer

    @property
    def is_released(self) -> bool:
        return bool(self._flags[0])

    @property
    def ran_out(self) -> bool:
        return bool(self._flags[1])


@pytest.fixture
def latch(gpu):
    made = Latch(gpu)
    yield made
    made.release()
    torch.cuda.synchronize()
    assert not made.ran_out


@pytest.fixture
def numbered_rows(tmp_path):
    """A file whose row i is filled with i."""
    n = STRESS_BATCHES * BATCH
    path = tmp_path / "rows.npy"
    np.save(path, np.broadcast_to(np.arange(n, dtype=np.int32)[:, None], (n, 256)))
    return gl.open(path, sample_axis=0)


# ---- The ring


def test_a_latch_holds_a_stream_until_it_is_released(gpu, latch):
    stream = gpu.stream()
    latch.hold(stream)
    event = stream.record()
    time.sleep(HELD_S)
    assert not event.torch.query()
    latch.release()
    event.synchronize()
    assert event.torch.query()


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("held", ["copies", "kernels", "consumer"])
@pytest.mark.parametrize("ahead", [0, N_SLOTS])
def test_batches_are_whole_whichever_stream_is_late(gpu, latch, route, held, ahead):
    """The consumer enqueues its use of a batch, and drops it at once."""
    ring, consumer = Ring(gpu, route, n_slots=N_SLOTS), gpu.stream()
    slabs = [gpu.host_memory(NBYTES) for _ in range(N_SLOTS + 1)]
    stream = {"copies": ring.copies, "kernels": ring.kernels, "consumer": consumer}[held]
    latch.hold(stream)
    is_late = stream.record()
    timer = latch.release_soon()
    staged, copied, got = deque(), [], []

    def consume():
        with torch.cuda.stream(consumer.torch):
            memory = ring.hand_out(staged.popleft())
            got.append(memory.clone())

    for i in range(N_BATCHES):
        if i >= len(slabs):
            copied[i - len(slabs)].synchronize()
        has_come = is_late.torch.query()
        assert latch.is_released or not has_come
        slab = slabs[i % len(slabs)]
        slab.fill_(i + 1)
        staged.append(ring.stage(slab, 1, [NBYTES]))
        copied.append(staged[-1].copied)
        if len(staged) > ahead:
            consume()
    while staged:
        consume()
    timer.join()
    torch.cuda.synchronize()
    for i, memory in enumerate(got):
        assert torch.equal(memory, torch.full_like(memory, i + 1)), f"batch {i}"


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_a_ring_that_is_dropped_leaves_its_last_batch_whole(gpu, latch, route):
    ring, consumer = Ring(gpu, route, n_slots=N_SLOTS), gpu.stream()
    slab = gpu.host_memory(NBYTES)
    slab.fill_(7)
    latch.hold(ring.kernels)
    timer = latch.release_soon()
    with torch.cuda.stream(consumer.torch):
        staged = ring.stage(slab, 1, [NBYTES])
        memory = ring.hand_out(staged)
        copies = ring.copies
        staged.copied.synchronize()
        del ring, staged
        again = [gpu.memory(LAYOUT.nbytes, stream=copies) for _ in range(2 * N_SLOTS)]
        with torch.cuda.stream(copies.torch):
            for other in again:
                other.fill_(9)
    timer.join()
    torch.cuda.synchronize()
    assert (memory == 7).all()


# ---- Loaders under stress


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
def test_many_batches_on_three_streams_held_and_dropped(gpu, numbered_rows, way):
    rng = random.Random(1)
    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong = [torch.zeros((), dtype=torch.int64, device=gpu.torch) for _ in streams]
    load = torch.rand(512, 512, device=gpu.torch)
    torch.cuda.synchronize()
    held: list[tuple[int, object]] = []
    n_seen = 0

    def look(k, batch):
        wrong[k] += (batch.x != batch.index[:, None]).sum()

    with gl.DataLoader(
        numbered_rows, BATCH, shuffle=True, device="cuda", extras=("index",), **WAYS[way]
    ) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader, STRESS_EPOCHS))
        for n in itertools.count():
            k = n % 3
            with torch.cuda.stream(streams[k]):
                batch = next(batches, None)
                if batch is None:
                    break
                look(k, batch)
                n_seen += 1
                if rng.random() < 0.1:  # this stream falls behind
                    load @ load
            if rng.random() < 0.5:
                held.append((k, batch))
            if len(held) > N_HELD:
                k, batch = held.pop(rng.randrange(len(held)))
                with torch.cuda.stream(streams[k]):
                    look(k, batch)
                    nbytes = batch.x.nbytes
                    del batch
                    torch.full((nbytes,), 255, dtype=torch.uint8, device=gpu.torch)
            batch = None
    torch.cuda.synchronize()
    assert n_seen == STRESS_EPOCHS * STRESS_BATCHES
    assert [int(count) for count in wrong] == [0, 0, 0]


def test_large_batches_of_other_loaders_do_not_mix(gpu):
    made = (torch.full((LARGE_NBYTES // 4,), i, dtype=torch.int32) for i in range(N_LARGE))
    wrong = torch.zeros((), dtype=torch.int64, device=gpu.torch)
    for i, x in enumerate(gl.prefetch(made, "cuda", depth=2)):
        wrong += (x != i).sum()
    assert i == N_LARGE - 1
    assert int(wrong) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_outlives_a_loader_that_is_dropped_at_once(gpu, numbered_rows, way):
    for seed in range(10):
        loader = gl.DataLoader(
            numbered_rows,
            BATCH,
            shuffle=True,
            seed=seed,
            device="cuda",
            extras=("index",),
            **WAYS[way],
        )
        batch = next(iter(loader))
        del loader
        noise = torch.full((64 << 20,), 255, dtype=torch.uint8, device=gpu.torch)
        assert (batch.x == batch.index[:, None]).all()
        del noise


# ---- CUDA graphs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
def test_graphs_are_captured_while_a_loader_works(gpu, numbered_rows, way):
    """In torch's default mode, in which most calls of other threads would end a capture."""
    stop, seen = threading.Event(), [0]
    wrong = torch.zeros((), dtype=torch.int64, device=gpu.torch)
    failed: list[BaseException] = []

    def consume():
        try:
            gpu.enter_thread()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
                    wrong.add_((batch.x != batch.index[:, None]).sum())
                    seen[0] += 1
                    if stop.is_set():
                        break
                    stream.synchronize()  # not further ahead than a training loop
        except BaseException as error:
            failed.append(error)

    with gl.DataLoader(
        numbered_rows, BATCH, shuffle=True, device="cuda", extras=("index",), **WAYS[way]
    ) as loader:
        next(iter(loader))
        torch.cuda.synchronize()
        thread = threading.Thread(target=consume)
        thread.start()
        try:
            meanwhile = [capture_and_replay(gpu, seen) for _ in range(N_CAPTURES)]
        finally:
            stop.set()
            thread.join()
    torch.cuda.synchronize()
    assert failed == []
    assert int(wrong) == 0
    assert max(meanwhile) > 0, "no batch was made during any capture"


def capture_and_replay(gpu, seen) -> int:
    """Batches that were taken while a graph was captured."""
    x = torch.zeros(1000, device=gpu.torch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before, until = seen[0], time.monotonic() + 1
        y = x
        for _ in range(N_CAPTURED):
            y = y + 1
        while seen[0] == before and time.monotonic() < until:
            time.sleep(0.001)
        taken = seen[0] - before
    for start in (0.0, 5.0):
        x.fill_(start)
        graph.replay()
        assert (y == start + N_CAPTURED).all()
    return taken


def test_batches_are_the_input_of_a_captured_step(gpu, numbered_rows):
    x = torch.zeros(BATCH, 256, device=gpu.torch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = (x * 2).sum(1)
    with gl.DataLoader(
        numbered_rows, BATCH, shuffle=True, device="cuda", extras=("index",), dtype="float32"
    ) as loader:
        for batch in loader:
            x.copy_(batch.x)
            graph.replay()
            assert torch.equal(total, batch.index * 512.0)
