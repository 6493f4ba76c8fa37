"""prefetch(): what any iterable yields arrives on the device, in order, whole and safe."""

from __future__ import annotations

import collections
import gc
import os
import signal
import threading
import time
import traceback

import pytest
import torch
from late import EagerDevice, LateDevice, alias

import gpuload as gl

Pair = collections.namedtuple("Pair", "x y")
DEVICES = {
    "at once": EagerDevice,
    "late, memory recycled early": lambda: LateDevice("early"),
    "late, memory recycled late": lambda: LateDevice("late"),
}
each_device = pytest.mark.parametrize("make_device", DEVICES.values(), ids=DEVICES)


def batches(n=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    for i in range(n):
        x = torch.rand(3 + i % 2, 4, 5, generator=g)
        yield Pair(
            x, {"label": torch.arange(3) + i, "name": f"batch {i}", "half": [x[:, ::2].half()]}
        )


def check_same(mine, right):
    assert type(mine) is type(right)
    assert torch.equal(mine.x, right.x)
    assert list(mine.y) == list(right.y)
    assert torch.equal(mine.y["label"], right.y["label"])
    assert mine.y["label"].dtype == torch.int64
    assert mine.y["name"] == right.y["name"]
    assert torch.equal(mine.y["half"][0], right.y["half"][0])


@each_device
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "looked at"])
def test_nested_batches_arrive_as_they_were(make_device, depth, keep):
    device, got = make_device(), []
    for batch in gl.prefetch(list(batches()), device, depth):
        if not keep:
            device.current_stream().synchronize()
            check_same(batch, list(batches())[len(got)])
        got.append(batch)
    device.synchronize()
    assert len(got) == 9
    for mine, right in zip(got, batches(), strict=True):
        check_same(mine, right)


@pytest.mark.parametrize("recycling", ["early", "late"])
def test_a_batch_that_is_dropped_is_not_recycled_under_its_reader(recycling):
    device, sums = LateDevice(recycling), []
    for batch in gl.prefetch(list(batches(30)), device):
        x = alias(batch.x)
        device.current_stream().do(lambda x=x: sums.append(x.double().sum().item()))
        del batch
    device.synchronize()
    assert sums == [batch.x.double().sum().item() for batch in batches(30)]


@each_device
def test_tensors_of_any_kind_cross(make_device):
    device = make_device()
    given = [
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.zeros(0, 4),
        torch.arange(24).reshape(2, 3, 4).transpose(0, 2),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True) * 2,
        torch.tensor([1, 65535]).to(torch.uint16),
    ]
    (got,) = gl.prefetch([given], device)
    device.synchronize()
    for a, b in zip(got, given, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b.detach())


@each_device
def test_batches_without_numbers_pass_through(make_device):
    given = ["text", None, (), {"a": []}, [torch.zeros(0)], 7]
    got = list(gl.prefetch(given, make_device()))
    assert got[:4] == given[:4]
    assert got[4][0].shape == (0,)
    assert got[5] == 7


@each_device
def test_several_epochs_and_two_iterations_at_once(make_device):
    device = make_device()
    loader = gl.prefetch(list(batches(5)), device)
    assert len(loader) == 5
    for _ in range(3):
        pairs = list(zip(loader, loader, strict=True))
        device.synchronize()
        for i, (a, b) in enumerate(pairs):
            check_same(a, list(batches(5))[i])
            check_same(b, list(batches(5))[i])


def test_it_wraps_a_torch_loader():
    data = torch.utils.data.TensorDataset(torch.arange(20.0), torch.arange(20))
    loader = torch.utils.data.DataLoader(data, batch_size=6)
    device = LateDevice()
    got = list(gl.prefetch(loader, device))
    device.synchronize()
    assert [len(x) for x, y in got] == [6, 6, 6, 2]
    assert torch.cat([y for x, y in got]).tolist() == list(range(20))


@each_device
def test_what_the_iterable_raises_comes_after_what_it_gave(make_device):
    def breaks_at(n):
        yield from batches(n)
        raise KeyError("img")

    device, got = make_device(), []
    with pytest.raises(KeyError, match="img") as caught:
        got.extend(gl.prefetch(Breaking(breaks_at, 3), device))
    assert "breaks_at" in "".join(traceback.format_tb(caught.value.__traceback__))
    device.synchronize()
    for mine, right in zip(got, batches(3), strict=True):
        check_same(mine, right)


class Breaking:
    def __init__(self, make, *arguments):
        self.make, self.arguments = make, arguments

    def __iter__(self):
        return self.make(*self.arguments)


def test_memory_is_that_of_the_largest_batch_in_every_slab():
    """One large batch among small ones, in another place each epoch."""
    device = LateDevice()
    sizes = [[10_000 if i == epoch * 3 else 100 for i in range(12)] for epoch in range(4)]
    epochs = iter(sizes)
    loader = gl.prefetch(Breaking(lambda: (torch.ones(n) for n in next(epochs))), device, 2)
    for _ in range(4):
        for x in loader:
            device.current_stream().synchronize()
            del x
    gc.collect()
    kept = sum(len(slab) for c in loader._copier._carriers for slab in c._slabs)
    assert kept <= 3 * (40_000 + 64)
    assert device.dropped_too_soon == 0


@each_device
def test_breaking_off_ends_the_thread(make_device):
    device = make_device()
    loader = gl.prefetch(list(batches(50)), device)
    for _ in range(3):
        for batch in loader:
            del batch
            break
    gc.collect()
    until = time.monotonic() + 5
    while any(t.name == "gpuload-prefetch" for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(list(loader)) == 50


def test_an_iterable_that_does_not_answer_does_not_hold_up_the_end():
    gate = threading.Event()

    def waits():
        yield torch.ones(3)
        gate.wait(30)

    start = time.monotonic()
    for x in gl.prefetch(Breaking(waits), EagerDevice()):
        assert x.tolist() == [1, 1, 1]
        break
    gc.collect()
    assert time.monotonic() - start < 10
    gate.set()


def test_pinning_that_fails_is_told_each_time_and_got_over(monkeypatch):
    device = EagerDevice()
    loader = gl.prefetch(list(batches(4)), device, depth=1)

    def refuse(nbytes):
        raise gl.DeviceError("cannot pin")

    with monkeypatch.context() as patch:
        patch.setattr(device, "host_memory", refuse)
        for _ in range(4):
            with pytest.raises(gl.DeviceError, match="cannot pin"):
                list(loader)
    assert len(list(loader)) == 4


def test_a_forked_child_is_told_instead_of_waiting():
    batches = iter(gl.prefetch([torch.ones(2)] * 50, EagerDevice()))
    next(batches)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        signal.alarm(20)
        try:
            next(batches)
        except RuntimeError as error:
            said = str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    said = os.read(read, 1000).decode()
    os.close(read)
    assert "prefetch: expected use in process" in said
    assert "go through it after the fork" in said
    assert len(list(batches)) == 49


def test_on_the_cpu_batches_are_handed_on_as_they_are():
    given = list(batches(3))
    loader = gl.prefetch(given, "cpu")
    assert all(a is b for a, b in zip(loader, given, strict=True))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3,), TypeError, "prefetch: expected an iterable, got int"),
        (([], "cpu", 0), ValueError, "depth: expected 1 or more, got 0"),
        (([], "cpu", "two"), TypeError, "depth: expected a whole number, got 'two'"),
        (([], "tpu"), ValueError, 'device: expected "auto", "cpu", "cuda" or "cuda:N", got "tpu"'),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments, error, match):
    with pytest.raises(error, match=match):
        gl.prefetch(*arguments)


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "on another device": lambda: torch.empty(3, device="meta"),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(3)]),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")  # torch's own, about quantized tensors
def test_tensors_that_are_not_bytes_in_a_row_are_refused(make):
    with pytest.raises(TypeError, match=r"prefetch: expected (dense )?tensors"):
        list(gl.prefetch([{"mask": make()}], EagerDevice()))


def test_kinds_of_dicts_stay_what_they_are():
    given = collections.defaultdict(list, a=torch.ones(2))
    (got,) = gl.prefetch([given], EagerDevice())
    assert type(got) is collections.defaultdict
    assert got["b"] == []
    assert torch.equal(got["a"], given["a"])
    assert gl.prefetch(iter([]), EagerDevice())


def test_a_length_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="prefetch: expected a length, generator has none"):
        len(gl.prefetch((x for x in []), "cpu"))
