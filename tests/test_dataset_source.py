"""gpuload.dataset: a torch Dataset in the loader has the order, shards, state and ends of any
source."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import re
import signal
import threading
import time
import traceback

import numpy as np
import pytest
import torch
from late import EagerDevice, LateDevice
from torch.utils.data import Dataset, Subset, TensorDataset

import gpuload as gl


class Numbers(Dataset):
    """Item i is ([i, i], i)."""

    def __init__(self, n=20):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return torch.full((2,), float(i)), i


class Broken(Numbers):
    """Item 5 raises."""

    def __init__(self, error, n=20):
        super().__init__(n)
        self.error = error

    def __getitem__(self, i):
        if i == 5:
            raise self.error
        return super().__getitem__(i)


class Drawing(Numbers):
    """An item is its number and one that its generator draws."""

    kind = "torch"

    def __getitem__(self, i):
        generator = gl.item_generator(kind=self.kind)
        if self.kind == "numpy":
            return i, int(generator.integers(10**6))
        return i, int(torch.randint(10**6, (), generator=generator))


class InBatches(Numbers):
    """Reads several items in one call."""

    def __init__(self, n=20):
        super().__init__(n)
        self.calls = []

    def __getitems__(self, numbers):
        self.calls.append(numbers)
        return [(i, i * i) for i in numbers]

    def __getitem__(self, i):
        raise AssertionError("items are to be read in batches")


def labels(loader):
    return [batch[1].tolist() for batch in loader]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def no_threads_are_left():
    until = time.monotonic() + 5
    while any(t.name.startswith("gpuload") for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def end_of_threads():
    yield
    if any(t.name.startswith("gpuload") for t in threading.enumerate()):
        gc.collect()
    no_threads_are_left()


# ---- Batches


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_those_of_torchs_loader(threads):
    data = TensorDataset(
        torch.randn(21, 3, generator=torch.Generator().manual_seed(1)), torch.arange(21)
    )
    loader = gl.DataLoader(gl.dataset(data), batch_size=4, threads=threads)
    right = list(torch.utils.data.DataLoader(data, batch_size=4))
    mine = list(loader)
    assert len(loader) == len(mine) == len(right) == 6
    for a, b in zip(mine, right, strict=True):
        assert type(a) is type(b) is list
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True, "seed": 7},
        {"sampler": [3, 3, 1, -1, 0]},
        {"batch_sampler": [[1, 2], [3], [3, 3, 3]]},
        {"shuffle": True, "rank": 1, "world_size": 3},
        {"rank": 2, "world_size": 3, "even": "drop"},
        {"rank": 2, "world_size": 3, "even": "exact", "shuffle": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 4])
def test_the_order_is_that_of_files(numbered, options, threads):
    files = gl.DataLoader(numbered(20), **{"batch_size": 3} | at_once(options), extras="valid")
    mine = gl.DataLoader(
        gl.dataset(Numbers()),
        **{"batch_size": 3} | at_once(options),
        threads=threads,
        extras=("index", "valid"),
    )
    assert len(mine) == len(files)
    for _ in range(2):
        for a, b in zip(mine, files, strict=True):
            assert a._fields == ("x", "index", "valid")
            assert a.x[1].tolist() == a.index.tolist() == b.x[:, 0].tolist()
            assert torch.equal(a.valid, b.valid)


def at_once(options):
    return options | ({"batch_size": 1} if "batch_sampler" in options else {})


def test_items_that_are_tensors_are_bare_batches():
    (batch,) = gl.DataLoader(gl.dataset([torch.ones(2)] * 3), batch_size=3)
    assert torch.equal(batch, torch.ones(3, 2))


def test_a_collate_function_of_ones_own_gets_the_list_of_items():
    source = gl.dataset(Numbers(), collate_fn=lambda items: tuple(label for _, label in items))
    assert list(gl.DataLoader(source, batch_size=8)) == [
        tuple(range(8)),
        tuple(range(8, 16)),
        tuple(range(16, 20)),
    ]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "seed": 3}, {"sampler": [4, 4, 2]}], ids=str
)
def test_a_whole_batch_is_one_call_of_getitems(options):
    data = InBatches()
    batches = list(gl.DataLoader(gl.dataset(data), batch_size=4, **options))
    assert data.calls == [numbers.tolist() for numbers, _ in batches]
    assert all(type(i) is int for call in data.calls for i in call)
    for numbers, squares in batches:
        assert torch.equal(numbers**2, squares)


def test_getitems_that_gives_too_few_items_is_told():
    class Few(InBatches):
        def __getitems__(self, numbers):
            return super().__getitems__(numbers)[1:]

    with pytest.raises(ValueError, match="__getitems__: expected 4 items for 4 numbers, got 3"):
        list(gl.DataLoader(gl.dataset(Few()), batch_size=4))


def test_a_subset_reads_in_batches_when_its_dataset_does():
    data = InBatches()
    batches = list(gl.DataLoader(gl.dataset(Subset(data, [5, 6, 7])), batch_size=2))
    assert data.calls == [[5, 6], [7]]
    assert batches[0][0].tolist() == [5, 6]


# ---- Threads


def test_several_threads_read_at_once_and_one_reads_alone():
    class Meeting(Numbers):
        def __init__(self, n_together):
            super().__init__()
            self.barrier = threading.Barrier(n_together)

        def __getitem__(self, i):
            self.barrier.wait(10)
            return i

    assert len(list(gl.DataLoader(gl.dataset(Meeting(2)), batch_size=1, threads=2))) == 20

    class Alone(Numbers):
        busy = 0

        def __getitem__(self, i):
            self.busy += 1
            time.sleep(0.001)
            assert self.busy == 1
            self.busy -= 1
            return i

    assert len(list(gl.DataLoader(gl.dataset(Alone()), batch_size=3, prefetch=5))) == 7


@pytest.mark.parametrize(("options", "ahead"), [({"prefetch": 3}, 3), ({"threads": 4}, 4)], ids=str)
def test_no_more_batches_are_made_ahead_than_asked_for(options, ahead):
    class Counting(Numbers):
        read = 0

        def __getitem__(self, i):
            self.read += 1
            return i

    data = Counting(100)
    loader = gl.DataLoader(gl.dataset(data), batch_size=1, **options)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
        time.sleep(0.05)
    assert data.read == 2 + ahead
    assert f"{ahead} batches ahead" in loader.describe()
    iterator.close()


# ---- Epochs and state


def test_epochs_differ_and_can_be_pinned():
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True)
    first, second = labels(loader), labels(loader)
    assert first != second
    loader.set_epoch(0)
    assert labels(loader) == first


@pytest.mark.parametrize("batch_size", [3, 5])
def test_a_run_goes_on_where_it_was(batch_size):
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=5, shuffle=True)
    whole = flat(labels(loader))
    loader.set_epoch(0)
    iterator = iter(loader)
    seen = next(iterator)[1].tolist() + next(iterator)[1].tolist()
    state = json.loads(json.dumps(loader.state_dict()))
    other = gl.DataLoader(gl.dataset(Numbers()), batch_size=batch_size, shuffle=True)
    other.load_state_dict(state)
    assert seen + flat(labels(other)) == whole


def test_a_state_of_other_data_is_refused():
    class Marked(Numbers):
        def __init__(self, mark):
            super().__init__()
            self.mark = mark

        def fingerprint(self):
            return self.mark

    state = gl.DataLoader(gl.dataset(Marked("a"))).state_dict()
    gl.DataLoader(gl.dataset(Marked("a"))).load_state_dict(state)
    for other in (Marked("b"), Numbers()):
        with pytest.raises(ValueError, match=r"state: expected data '.+' as of this loader"):
            gl.DataLoader(gl.dataset(other)).load_state_dict(state)


def test_stats_memory_and_describe_tell_of_what_was_made():
    with gl.DataLoader(gl.dataset(Numbers()), batch_size=4, threads=2) as loader:
        assert loader.memory().host_nbytes == 0
        list(loader)
        stats = loader.stats()
        assert (stats.epochs, stats.batches, stats.samples) == (1, 5, 20)
        assert stats.fill_s > 0
        assert loader.memory().batch_nbytes == 4 * (2 * 4 + 8)
        assert "20 items of Numbers, an item in each call" in loader.describe()
        assert "read by 2 threads, 2 batches ahead" in loader.describe()
    with pytest.raises(RuntimeError, match="expected an open loader"):
        iter(loader)
    assert loader.stats() == stats


def test_a_loader_pickles():
    loader = gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True, threads=2)
    assert labels(pickle.loads(pickle.dumps(loader))) == labels(loader)


# ---- The source


def test_a_source_gives_items_and_parts():
    source = gl.dataset(Numbers())
    assert len(source) == 20
    assert source[-1][1] == 19
    assert repr(source) == "<gpuload.DatasetSource: 20 items of Numbers>"
    picked = source.select([4, -1, 2]).select([True, False, True])
    assert [label for _, label in (picked[0], picked[1])] == [4, 2]
    assert picked.summary() == "2 of 20 items of Numbers"
    assert labels(gl.DataLoader(picked, batch_size=2)) == [[4, 2]]
    assert [len(part) for part in source.split([0.5, 0.25])] == [10, 5]
    a, b = source.split([15, 5], seed=0)
    assert sorted([a[i][1] for i in range(15)] + [b[i][1] for i in range(5)]) == list(range(20))
    assert len({s.fingerprint() for s in (source, picked, a, b)}) == 4
    with pytest.raises(IndexError, match=r"source: expected an index of \[-20, 20\), got 20"):
        source[20]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Lengthless:
    def __getitem__(self, i):
        return i


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((Stream(),), {}, TypeError, "dataset: expected items by number, Stream can only be"),
        ((Lengthless(),), {}, TypeError, "map-style Dataset .*, Lengthless has no __len__"),
        ((3,), {}, TypeError, "dataset: expected a map-style Dataset .* int has no __len__"),
        ((gl.dataset([1]),), {}, TypeError, "expected a torch Dataset, got a DatasetSource"),
        (([1],), {"workers": -1}, ValueError, r"workers: expected a number of \[0, 1024\], got -1"),
        (([1],), {"workers": "2"}, TypeError, "workers: expected a whole number, got '2'"),
        (([1],), {"workers": True}, TypeError, "workers: expected a whole number, got True"),
        (([1],), {"collate_fn": 3}, TypeError, "collate_fn: expected a function of a list"),
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_refused(arguments, options, error, match):
    with pytest.raises(error, match=match):
        gl.dataset(*arguments, **options)


REFUSED = {
    "crop": (gl.RandomCrop(2), TypeError, "crop: expected not to be passed with a gpuload.dataset"),
    "dtype": ("float16", TypeError, "got 'float16'; change items in the dataset"),
    "pad": (1, TypeError, "pad: expected not to be passed"),
    "scale": (1 / 255, TypeError, "scale: expected not to be passed"),
    "io": ("mmap", TypeError, "io: expected not to be passed .*, got 'mmap'; the dataset's own"),
    "cache": ("device", TypeError, "cache: expected not to be passed"),
    "on_error": ("replace", TypeError, "on_error: expected not to be passed"),
    "max_errors": (3, TypeError, "max_errors: expected not to be passed"),
    "collate_fn": (list, TypeError, "collate_fn: .*; pass it to gpuload.dataset"),
    "worker_init_fn": (print, TypeError, "worker_init_fn: expected not to be passed"),
    "shuffle": ("block", ValueError, 'shuffle: expected True or False .*, got "block"'),
    "extras": (("index", "start"), ValueError, 'expected "index" or "valid" .*, got "start"'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_without_a_meaning_for_a_dataset_are_refused(name):
    value, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        gl.DataLoader(gl.dataset(Numbers()), **{name: value})


def test_torchs_names_with_a_meaning_are_taken():
    loader = gl.DataLoader(
        gl.dataset(Numbers()),
        batch_size=4,
        num_workers=2,
        prefetch_factor=3,
        pin_memory=True,
        persistent_workers=True,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )
    assert "read by 2 threads, 3 batches ahead" in loader.describe()
    assert labels(loader) == labels(
        gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True, seed=3)
    )
    for extra in ({"threads": 2}, {"num_workers": 2}):
        with pytest.raises(
            ValueError, match=r"expected not to be passed with gpuload.dataset\(workers=2\)"
        ):
            gl.DataLoader(gl.dataset(Numbers(), workers=2), **extra)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="source: expected at least one item, got none"):
        gl.DataLoader(gl.dataset([]))


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


# ---- Randomness


def drawn(data, epoch, **options):
    """What each item drew."""
    loader = gl.DataLoader(gl.dataset(data), **{"batch_size": 3} | options)
    loader.set_epoch(epoch)
    table = {}
    for numbers, values in loader:
        table.update(zip(numbers.tolist(), values.tolist(), strict=True))
    return table


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_draws_depend_on_seed_epoch_and_item_alone(kind):
    data = Drawing(16)
    data.kind = kind
    table = drawn(data, 0)
    assert len(set(table.values())) == 16
    assert drawn(data, 0, threads=4, shuffle=True, batch_size=1) == table
    by_ranks = [drawn(data, 0, rank=r, world_size=2, shuffle=True) for r in range(2)]
    assert by_ranks[0] | by_ranks[1] == table
    assert sum(a == b for a, b in zip(table.values(), drawn(data, 1).values(), strict=True)) < 2
    assert drawn(data, 1) == drawn(data, 1, threads=2)
    assert drawn(data, 0, seed=1) != table


def test_an_item_named_again_draws_other_numbers():
    (batch,) = gl.DataLoader(gl.dataset(Drawing()), batch_size=4, sampler=[3, 3, 4, 3])
    assert batch[0].tolist() == [3, 3, 4, 3]
    assert len(set(batch[1].tolist())) == 4


def test_the_generator_of_an_item_goes_on_where_it_was():
    class Twice(Numbers):
        def __getitem__(self, i):
            generators = gl.item_generator(), gl.item_generator()
            return [int(torch.randint(10**9, (), generator=g)) for g in generators]

    (batch,) = gl.DataLoader(gl.dataset(Twice(8)), batch_size=8)
    assert len({*batch[0].tolist(), *batch[1].tolist()}) == 16


def test_within_getitems_the_item_is_named():
    class Batched(Drawing):
        def __getitems__(self, numbers):
            return [
                (i, int(torch.randint(10**6, (), generator=gl.item_generator(i)))) for i in numbers
            ]

    assert drawn(Batched(16), 0, batch_size=5) == drawn(Drawing(16), 0)

    class Unnamed(Drawing):
        def __getitems__(self, numbers):
            return [self[i] for i in numbers]

    with pytest.raises(ValueError, match="item_generator: expected the number of one of 3 items"):
        drawn(Unnamed(16), 0)


def test_a_part_draws_what_the_whole_does():
    whole = drawn(Drawing(16), 0)
    part = gl.DataLoader(gl.dataset(Drawing(16)).select([3, 9]), batch_size=2)
    assert {int(i): int(value) for i, value in zip(*next(iter(part)), strict=True)} == {
        3: whole[3],
        9: whole[9],
    }
    subset = Subset(Drawing(16), [3, 9])  # torch's own: its items are counted anew
    assert len(set(drawn(subset, 0).values())) == 2


def test_outside_a_loader_torchs_global_generator_decides():
    def draw():
        torch.manual_seed(5)
        return Drawing()[3], Drawing()[3]

    assert draw() == draw()
    assert len(set(draw())) == 2
    assert isinstance(gl.item_generator(kind="numpy"), np.random.Generator)
    with pytest.raises(ValueError, match='kind: expected "torch" or "numpy", got \'jax\''):
        gl.item_generator(kind="jax")
