"""Whole loaders on a real GPU: the batches are those of the CPU device, to the bit.

Needs a CUDA device; `pytest -m gpu` takes about a minute.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import gpuload as gl
import gpuload.journey
from gpuload.plan import Transfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is found"),
]

N_ARRAYS = 12
RNG = np.random.default_rng(3)
EXTRAS = ("index", "crop", "start", "valid", "path")
EPOCHS_FOR_MEMORY = 12
BREAKS = 20


def numbers(shape, dtype="f4"):
    return (RNG.random(shape) * 200 - 50).astype(dtype)


def both_orders(i):
    return np.asarray(numbers((40, 60)), order="FC"[i % 2])


# Arrays as they are saved, and the crop.
ARRAYS = {
    "rows": ([numbers((40, 61)) for _ in range(N_ARRAYS)], (17, 20)),
    "whole": ([numbers((33, 7), "u1") for _ in range(N_ARRAYS)], None),
    "columns": (
        [np.asfortranarray(numbers((30, 20, 9), "i2")) for _ in range(N_ARRAYS)],
        (9, 8, 4),
    ),
    "big-endian": ([numbers((40, 61), ">f8") for _ in range(N_ARRAYS)], (16, 16)),
    "of other shapes": ([numbers((30 + i, 60 - i)) for i in range(N_ARRAYS)], (17, 20)),
    "of both orders": ([both_orders(i) for i in range(N_ARRAYS)], (17, 20)),
    "complex": (
        [numbers((20, 30)) + 1j * numbers((20, 30)) for _ in range(N_ARRAYS)],
        (7, 11),
    ),
    "bool": ([numbers((40, 61)) > 0 for _ in range(N_ARRAYS)], (17, 20)),
    "eight axes": (
        [numbers((2, 3, 2, 1, 2, 3, 2, 5), "f2") for _ in range(N_ARRAYS)],
        (1, 2, 2, 1, 2, 2, 1, 4),
    ),
}
WAYS = ["placed", "shipped", "held"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Make loaders take this way, whatever it costs. What they are told for it."""
    delivery = "shipped" if request.param == "shipped" else "placed"
    monkeypatch.setattr(
        gpuload.journey, "plan_transfer", lambda *_, **__: Transfer(delivery, "the test")
    )
    return {"cache": "device"} if request.param == "held" else {}


def save(folder, arrays, **options):
    for i, array in enumerate(arrays):
        np.save(folder / f"{i:02}.npy", array)
    return gl.open(folder, **({"labels": np.arange(len(arrays)) * 3} | options))


@pytest.fixture
def rows(tmp_path):
    return save(tmp_path, ARRAYS["rows"][0])


def crop_of(size):
    return None if size is None else gl.RandomCrop(size, per_array=5)


def check_same(source, way, *, epochs=2, **options):
    """Epochs on the GPU are those on the CPU, whose values other tests compare with NumPy."""
    options = {"batch_size": 8, "shuffle": True, "extras": EXTRAS} | options
    with (
        gl.DataLoader(source, device="cpu", **options) as on_cpu,
        gl.DataLoader(source, device="cuda", **options, **way) as on_gpu,
    ):
        for _ in range(epochs):
            wanted, got = list(on_cpu), list(on_gpu)
            assert len(got) == len(wanted) == len(on_gpu)
            for mine, right in zip(got, wanted, strict=True):
                assert_same(mine, right)


def assert_same(mine, right):
    for name, a, b in zip(right._fields, mine, right, strict=True):
        if name == "path":
            assert a == b
            continue
        assert a.device.type == "cuda", name
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        assert torch.equal(a.cpu().view(torch.uint8), b.view(torch.uint8)), name


# ---- Values


@pytest.mark.parametrize("case", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_batches_are_those_of_the_cpu(gpu, tmp_path, way, case, dtype):
    arrays, size = case
    if dtype is not None and np.iscomplexobj(arrays[0]):
        dtype = "complex128"
    check_same(save(tmp_path, arrays), way, crop=crop_of(size), dtype=dtype)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_every_order_and_reader(gpu, rows, way, io, shuffle):
    check_same(rows, way, crop=crop_of((17, 20)), io=io, shuffle=shuffle)


def test_labels_of_any_kind(gpu, tmp_path, way):
    arrays = [numbers((5, 6)) for _ in range(N_ARRAYS)]
    for labels in (np.arange(N_ARRAYS, dtype="i1"), numbers((N_ARRAYS, 3), "f8"), None):
        check_same(save(tmp_path, arrays, labels=labels), way, crop=gl.CenterCrop((2, 3)))


def test_rows_of_files_samplers_and_shares(gpu, tmp_path, way):
    source = save(
        tmp_path, [numbers((4 + i, 6, 5)) for i in range(N_ARRAYS)], sample_axis=0, labels=None
    )
    check_same(source, way, crop=gl.RandomCrop((3, 2), 2))
    check_same(source.select([9, 2, 2, 14]), way, batch_size=3)
    check_same(source, way, shuffle=False, sampler=[5, 0, 0, 3, 2], batch_size=2)
    check_same(source, way, rank=1, world_size=3, even="pad")


def test_items_of_other_shapes_come_one_by_one(gpu, tmp_path, way):
    source = save(tmp_path, [numbers((5 + i, 90 - i)) for i in range(N_ARRAYS)])
    check_same(source, way, batch_size=1)


def test_arrays_of_many_megabytes(gpu, tmp_path, way):
    """Several requests and steps of loading, rows of many segments."""
    arrays = [numbers((3, 700, 1201), "i4") for _ in range(4)]
    source = save(tmp_path, arrays)
    check_same(source, way, batch_size=2, crop=gl.RandomCrop((2, 650, None), 3), dtype="float32")


def test_unreadable_samples_are_left_out(gpu, tmp_path, rows):
    (tmp_path / "03.npy").write_bytes(b"")
    options = {"batch_size": 4, "on_error": "skip", "io": "pread"}
    check_same(rows, {}, crop=crop_of((17, 20)), **options)


def test_an_epoch_goes_on_where_it_was_left(gpu, rows, way):
    options = {"shuffle": True, "crop": crop_of((17, 20)), "extras": EXTRAS}
    with (
        gl.DataLoader(rows, 8, device="cpu", **options) as on_cpu,
        gl.DataLoader(rows, 8, device="cuda", **options, **way) as on_gpu,
    ):
        batches = iter(on_gpu)
        got = [next(batches) for _ in range(3)]
        state = on_gpu.state_dict()
        del batches
        on_gpu.load_state_dict(state)
        for mine, right in zip([*got, *on_gpu], on_cpu, strict=True):
            assert_same(mine, right)


def test_batches_of_other_loaders(gpu):
    made = [
        {"x": torch.rand(3 + k, 5), "y": (torch.arange(k), "text"), "half": torch.ones(2).half()}
        for k in range(40)
    ]
    copied = gl.prefetch(made, "cuda", depth=3)
    for _ in range(2):
        got = list(copied)
        for mine, right in zip(got, made, strict=True):
            assert mine["y"][1] == "text"
            assert mine["x"].device.type == "cuda"
            assert torch.equal(mine["x"].cpu(), right["x"])
            assert torch.equal(mine["y"][0].cpu(), right["y"][0])
            assert torch.equal(mine["half"].cpu(), right["half"])


def test_reads_into_the_gpu_are_right_or_refused(gpu, tmp_path):
    arrays = [numbers((600, 700)) for _ in range(N_ARRAYS)]
    source = save(tmp_path, arrays)
    try:
        gl.DataLoader(source, 4, device="cuda", io="gds").close()
    except gl.DeviceError as error:
        assert "expected reads straight into a GPU" in str(error)  # noqa: PT017
    else:
        for crop in (None, gl.RandomCrop((500, 600), 2)):
            for mine, right in zip(
                gl.DataLoader(source, 4, device="cuda", io="gds", crop=crop, extras=EXTRAS),
                gl.DataLoader(source, 4, device="cpu", crop=crop, extras=EXTRAS),
                strict=True,
            ):
                assert_same(mine, right)


# ---- Memory, endings, several at once


def test_memory_is_flat_from_epoch_to_epoch(gpu, rows, way, monkeypatch):
    made, stream = [], type(gpu).stream
    monkeypatch.setattr(type(gpu), "stream", lambda self: made.append(1) or stream(self))
    with gl.DataLoader(
        rows, 8, device="cuda", crop=crop_of((17, 20)), dtype="float64", **way
    ) as loader:
        kept = [list(loader) for _ in range(2)]  # more at once than ever after
        sums = [sum(x.sum().item() for x, _ in batches) for batches in kept]
        del kept
        torch.cuda.synchronize()
        reserved, n_streams = torch.cuda.memory_reserved(), len(made)
        pinned = loader.stats().pinned_nbytes
        for _ in range(EPOCHS_FOR_MEMORY):
            sums.append(sum(x.sum().item() for x, _ in loader))
            assert torch.cuda.memory_reserved() == reserved
        assert len(made) == n_streams
        assert loader.stats().pinned_nbytes == pinned
    assert len(set(sums)) == len(sums)  # other crops


def test_memory_goes_back_when_a_loader_is_dropped(gpu, rows, way):
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    loader = gl.DataLoader(rows, 8, device="cuda", crop=crop_of((17, 20)), dtype="float64", **way)
    kept = list(loader)
    loader.close()
    wanted = [batch.x.sum().item() for batch in kept]
    del loader
    gc.collect()
    torch.cuda.synchronize()
    of_batches = sum(-(-(batch.x.nbytes + 64 * 8 + 512) // 512) * 512 for batch in kept)
    assert torch.cuda.memory_allocated() - before <= 2 * of_batches
    assert [batch.x.sum().item() for batch in kept] == wanted
    del kept
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_loop_that_is_left_early_starts_anew(gpu, rows, way):
    options = {"shuffle": True, "crop": crop_of((17, 20)), "extras": EXTRAS}
    with (
        gl.DataLoader(rows, 2, device="cuda", **options, **way) as on_gpu,
        gl.DataLoader(rows, 2, device="cpu", **options) as on_cpu,
    ):
        for k in range(BREAKS):
            for i, _ in enumerate(on_gpu):
                if i == k:
                    break
        on_gpu.set_epoch(7)
        on_cpu.set_epoch(7)
        for mine, right in zip(on_gpu, on_cpu, strict=True):
            assert_same(mine, right)


def test_several_loaders_do_not_disturb_each_other(gpu, rows, way):
    options = {"shuffle": True, "crop": crop_of((17, 20)), "extras": EXTRAS}
    loaders = [
        gl.DataLoader(rows, 4, device="cuda", seed=k, dtype=dtype, **options, **way)
        for k, dtype in enumerate([None, "float64", "int16"])
    ]
    wanted = [
        list(gl.DataLoader(rows, 4, device="cpu", seed=k, dtype=dtype, **options))
        for k, dtype in enumerate([None, "float64", "int16"])
    ]
    for i, batches in enumerate(zip(*loaders, strict=True)):
        for mine, right in zip(batches, wanted, strict=True):
            assert_same(mine, right[i])
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("index", range(min(torch.cuda.device_count(), 2)))
def test_every_gpu_is_used_by_its_number(gpu, rows, way, index):
    """Whichever one is current."""
    options = {"crop": crop_of((17, 20)), "dtype": "float64", "extras": EXTRAS}
    with (
        gl.DataLoader(rows, 8, device=f"cuda:{index}", **options, **way) as on_gpu,
        gl.DataLoader(rows, 8, device="cpu", **options) as on_cpu,
        torch.cuda.device(0),
    ):
        for mine, right in zip(on_gpu, on_cpu, strict=True):
            assert mine.x.device.index == index
            assert_same(mine, right)


# ---- Processes

FORKED = """
import gc, os, sys
os.environ["GPULOAD_KERNEL_CACHE_DIR"] = os.getcwd()
import numpy as np, torch
import gpuload as gl

def told(act):
    try:
        return act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

np.save("a.npy", np.arange(64, dtype=np.float32).reshape(16, 4))
source = gl.open("a.npy", sample_axis=0)
loader = gl.DataLoader(source, 2, device="cuda", dtype="float64")
batches = iter(loader)
first = next(batches).sum().item()
print(first, flush=True)
child = os.fork()
if child == 0:
    print(told(lambda: gl.DataLoader(source, 2, device="cuda")))
    print(gl.DataLoader(source, 2).describe().splitlines()[-1])
    print(told(lambda: next(batches)))
    print([x.sum().item() for x in gl.DataLoader(source, 8, device="cpu")])
    del batches, loader
    gc.collect()
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sum(x.sum().item() for x in batches) + first)
"""


def test_a_forked_child_is_told_and_the_parent_goes_on(gpu, run_python):
    done = run_python(FORKED, timeout_s=50)
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[0] == "28.0"
    assert lines[1].startswith("DeviceError: device: expected CUDA to start in this process, got ")
    assert lines[1].endswith("after a fork it cannot, use spawn")
    assert lines[2].startswith("device    cpu (no GPU: expected CUDA to start in this process")
    assert lines[3].startswith("RuntimeError: loader: expected use in process")
    assert lines[4] == "[496.0, 1520.0]"
    assert lines[5] == "2016.0"


ON_THE_CPU = """
import sys
import numpy as np, torch
import gpuload as gl

np.save("a.npy", np.arange(64, dtype=np.float32).reshape(16, 4))
for options in ({}, {"cache": "device"}):
    print(sum(x.sum().item() for x in gl.DataLoader(gl.open("a.npy"), device="cpu", **options)))
print(torch.cuda.is_initialized(), {"cupy", "kvikio"} & set(sys.modules))
"""


def test_a_loader_on_the_cpu_leaves_the_gpu_alone(run_python):
    assert run_python(ON_THE_CPU).stdout.splitlines() == ["2016.0", "2016.0", "False set()"]
