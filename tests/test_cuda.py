"""The CUDA device, as it is, on GPUs that are made up: values, threads, streams, kernels, pinned
memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os

import numpy as np
import pytest
import torch
from cuda_standin import PAGE
from late import alias

import gpuload as gl
import gpuload.journey
from gpuload import system
from gpuload.devices import cuda as module
from gpuload.devices.choose import choose
from gpuload.devices.cuda import CudaDevice, first_touch
from gpuload.plan import Transfer

RNG = np.random.default_rng(7)
EXTRAS = ("index", "start")


def numbers(shape, dtype="f4"):
    return (RNG.random(shape) * 200).astype(dtype)


ARRAYS = {
    "rows": [numbers((9, 11)) for _ in range(7)],
    "big-endian": [numbers((9, 11), ">i2") for _ in range(7)],
    "columns": [np.asfortranarray(numbers((9, 11, 2))) for _ in range(7)],
}
WAYS = {  # what a loader is told
    "copied": {},
    "placed": {"dtype": "float64"},
    "shipped": {},
    "held": {"cache": "device"},
    "held and cast": {"cache": "device", "dtype": "int32"},
}
KERNELS = {  # of float32 arrays
    "copied": set(),
    "placed": {"place_float32_to_float64"},
    "shipped": {"place_4"},
    "held": {"crops_4"},
    "held and cast": {"crops_4", "place_float32_to_int32"},
}


@pytest.fixture(params=list(WAYS))
def way(request, monkeypatch):
    delivery = "shipped" if request.param == "shipped" else "placed"
    monkeypatch.setattr(
        gpuload.journey, "plan_transfer", lambda *_, **__: Transfer(delivery, "the test")
    )
    return request.param


def save(folder, arrays):
    for i, array in enumerate(arrays):
        np.save(folder / f"{i:02}.npy", array)
    return gl.open(folder, labels=np.arange(len(arrays)) * 3)


def loader_of(source, way, **options):
    crop = gl.RandomCrop((4, 3, None)[: source.shapes.shape[1]], per_array=3)
    options = {"batch_size": 4, "shuffle": True, "extras": EXTRAS, "crop": crop} | options
    return gl.DataLoader(source, **({"device": "cuda"} | WAYS[way] | options))


def check_values(batches, arrays, dtype):
    """Each window is what NumPy cuts out of its array."""
    for batch in batches:
        rows = zip(batch.x.numpy(), batch.index.tolist(), batch.start.tolist(), strict=True)
        for x, i, start in rows:
            box = tuple(slice(b, b + n) for b, n in zip(start, x.shape, strict=True))
            cut = arrays[i][box]
            np.testing.assert_array_equal(x, cut.astype(dtype or cut.dtype.newbyteorder("=")))
        assert (batch.y == batch.index * 3).all()


# ---- Values


@pytest.mark.parametrize("arrays", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_batches_are_what_numpy_cuts(tmp_path, cuda, way, device, arrays):
    with loader_of(save(tmp_path, arrays), way, device=device) as loader:
        for _ in range(2):
            batches = list(loader)
            cuda.synchronize()
            assert len(batches) == len(loader)
            check_values(batches, arrays, WAYS[way].get("dtype"))
    gpus = {stream.index for stream in cuda.on_streams}
    assert gpus == {int(device[-1]) if ":" in device else 0}


def test_batches_of_other_loaders_are_those_of_the_loader(cuda):
    batches = [{"x": torch.arange(12).view(3, 4) + k, "name": f"{k}"} for k in range(5)]
    for _ in range(2):
        got = list(gl.prefetch(batches, "cuda:1"))
        cuda.synchronize()
        assert [batch["name"] for batch in got] == ["0", "1", "2", "3", "4"]
        assert all(torch.equal(a["x"], b["x"]) for a, b in zip(got, batches, strict=True))
    assert {stream.index for stream in cuda.on_streams} == {1}


# ---- Streams and threads


def test_batches_are_there_for_the_stream_that_is_current(tmp_path, cuda, way):
    """Nobody waits for any other stream before the values are looked at."""
    arrays = ARRAYS["rows"]
    side = cuda.torch.cuda.Stream(torch.device("cuda", 0))
    with loader_of(save(tmp_path, arrays), way) as loader, cuda.on(side):
        for batch in loader:
            side.late.synchronize()
            check_values([batch], arrays, WAYS[way].get("dtype"))


def look_later(stream, batch, seen):
    """What training does: a command, which does not keep the memory alive."""
    make, aliases = type(batch), [alias(tensor) for tensor in batch]
    stream.late.do(lambda: seen.append(make(*(tensor.clone() for tensor in aliases))))


def test_batches_that_are_dropped_early_were_whole_for_what_was_enqueued(tmp_path, cuda, way):
    """Their memory is used again, but not before the stream has come to the end of its use."""
    arrays, seen = ARRAYS["rows"], []
    side = cuda.torch.cuda.Stream(torch.device("cuda", 0))
    with loader_of(save(tmp_path, arrays), way) as loader, cuda.on(side):
        for _ in range(4):
            for batch in loader:
                look_later(side, batch, seen)
                del batch
    side.late.synchronize()
    check_values(seen, arrays, WAYS[way].get("dtype"))


def test_nothing_runs_on_a_default_stream_but_what_the_caller_asks_for(tmp_path, cuda, way):
    with loader_of(save(tmp_path, ARRAYS["rows"]), way) as loader:
        batches = len(list(loader)) + len(list(loader))
    on_default = [stream for stream in cuda.on_streams if stream.is_default]
    if way == "held":  # one launch for each batch, where the caller is
        assert len(on_default) == batches
    elif way != "held and cast":
        assert on_default == []


def test_a_loader_makes_its_streams_once(tmp_path, cuda, way):
    with loader_of(save(tmp_path, ARRAYS["rows"]), way) as loader:
        list(loader)
        n_streams = len(cuda.streams)
        for _ in range(3):
            list(loader)
    assert len(cuda.streams) == n_streams


def test_each_thread_of_ours_leaves_captures_of_others_alone(tmp_path, cuda):
    with loader_of(save(tmp_path, ARRAYS["rows"]), "placed", device="cuda:1") as loader:
        list(loader)
    list(gl.prefetch([torch.ones(2)], "cuda:1"))
    ours = {thread.name for thread in cuda.threads} - {"MainThread"}
    assert ours == {"gpuload-stage", "gpuload-prefetch"}
    assert {thread.name: gpu for thread, gpu in cuda.relaxed.items()} == dict.fromkeys(ours, 1)


# ---- Kernels


def test_kernels_are_compiled_before_the_first_batch_and_never_after(tmp_path, cuda, way):
    with loader_of(save(tmp_path, ARRAYS["rows"]), way) as loader:
        batches = iter(loader)
        before = list(cuda.compiled), list(cuda.loaded)
        list(batches)
        list(loader)
        assert (cuda.compiled, cuda.loaded) == before
    assert set(cuda.compiled) == set(cuda.loaded) == set(cuda.launched) == KERNELS[way]


def test_compiled_kernels_are_found_by_the_next_loader(tmp_path, cuda):
    source = save(tmp_path, ARRAYS["rows"])
    for _ in range(2):
        with loader_of(source, "placed") as loader:
            list(loader)
    assert cuda.compiled == ["place_float32_to_float64"]
    assert cuda.loaded == cuda.compiled * 2


@pytest.fixture
def nvrtc():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    nvrtc = importlib.import_module("cupy").cuda.nvrtc
    nvrtc.getVersion()  # finds the library
    return nvrtc


def test_what_nvrtc_makes_is_what_is_loaded(tmp_path, nvrtc, cuda):
    cuda.cupy.cuda.nvrtc = nvrtc
    with loader_of(save(tmp_path, ARRAYS["rows"]), "placed") as loader:
        list(loader)
    (cubin,) = (tmp_path / "kernels").iterdir()
    assert cubin.read_bytes().startswith(b"\x7fELF")
    assert set(cuda.launched) == KERNELS["placed"]


# ---- Pinned memory


def test_slabs_are_pinned_once_and_unpinned_when_the_loader_closes(tmp_path, cuda, way):
    with loader_of(save(tmp_path, ARRAYS["rows"]), way) as loader:
        list(loader)
        n_pinned = cuda.n_registered
        pinned = sum(registration.nbytes for registration in cuda.registrations)
        assert pinned == loader.stats().pinned_nbytes
        list(loader)
        assert cuda.n_registered == n_pinned
    assert n_pinned > 0
    assert cuda.registrations == []


def drop_in_the_middle(loader):
    next(iter(loader))


def fail_in_the_middle(loader):
    batches = iter(loader)
    next(batches)
    try:
        raise KeyError("the loop of the caller")
    except KeyError:
        return


def keep_the_iterator(loader):
    loader.kept = iter(loader)  # a cycle, which only the garbage collector breaks
    next(loader.kept)


@pytest.mark.parametrize("leave", [drop_in_the_middle, fail_in_the_middle, keep_the_iterator])
def test_nothing_stays_pinned_of_a_loader_that_is_dropped(tmp_path, cuda, way, leave):
    loader = loader_of(save(tmp_path, ARRAYS["rows"]), way)
    leave(loader)
    del loader
    gc.collect()
    assert cuda.registrations == []


def test_nothing_stays_pinned_after_a_file_that_cannot_be_read(tmp_path, cuda, way):
    source = save(tmp_path, ARRAYS["rows"])
    (tmp_path / "04.npy").write_bytes(b"")
    with (
        loader_of(source, way, shuffle=False, batch_size=2) as loader,
        pytest.raises(gl.ReadError, match=r"04\.npy: expected"),
    ):
        list(loader)
    gc.collect()
    assert cuda.registrations == []


@pytest.fixture
def no_collector():
    """What is a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_error_that_was_handled_keeps_nothing_pinned(tmp_path, cuda, way, no_collector):
    source = save(tmp_path, ARRAYS["rows"])
    (tmp_path / "04.npy").write_bytes(b"")
    with loader_of(source, way) as loader, contextlib.suppress(gl.ReadError):
        list(loader)
    del loader
    assert cuda.registrations == []


def test_an_iterable_that_fails_keeps_nothing_pinned(cuda, no_collector):
    def batches():
        yield torch.ones(3)
        raise KeyError("the loader of others")

    copied = gl.prefetch(batches(), "cuda")
    with contextlib.suppress(KeyError):
        list(copied)
    del copied
    assert cuda.registrations == []


def test_slabs_begin_on_pages_and_are_touched(cuda):
    device = CudaDevice(0)
    for nbytes in (1, PAGE, 3 * PAGE + 17):
        slab = device.host_memory(nbytes)
        assert (slab.dtype, slab.shape) == (torch.uint8, (nbytes,))
        assert slab.data_ptr() % PAGE == 0
        part = slab[nbytes // 2 :].view(torch.int8)
        del slab
        assert len(cuda.registrations) == 1  # a view of it is left
        del part


def test_a_forked_child_unpins_nothing(cuda):
    device = CudaDevice(0)
    slab = device.host_memory(PAGE)
    module._unregister(device.cupy, slab.data_ptr(), slab.numpy(), os.getpid() + 1)
    assert len(cuda.registrations) == 1


def test_memory_is_touched_from_the_cores_near_the_gpu():
    allowed = os.sched_getaffinity(0)
    memory = np.full(5 << 20, 7, np.uint8)
    for cores in (frozenset(), frozenset({max(allowed)}), frozenset({1 << 20})):
        memory[:] = 7
        first_touch(memory.ctypes.data, memory.nbytes, cores=cores)
        assert not memory.any()
    assert os.sched_getaffinity(0) == allowed


def test_the_cores_near_the_gpu_are_those_of_its_memory_node(cuda, monkeypatch):
    nodes = [system.NumaNode(0, "0-3", None), system.NumaNode(1, "4-5,8", None)]
    monkeypatch.setattr(system, "numa_nodes", lambda: nodes)
    for node, cores in ((0, {0, 1, 2, 3}), (1, {4, 5, 8}), (2, set()), (None, set())):
        monkeypatch.setattr(system, "pci_numa_node", lambda address, node=node: node)
        assert CudaDevice(0)._near_cores == cores


# ---- What can be had


def test_free_memory_is_what_the_driver_and_torch_have(cuda):
    device = CudaDevice(0)
    stream = device.stream()
    cuda.says.free_nbytes = 1000
    kept = device.memory(100, stream=stream)
    assert device.free_nbytes() == 1000
    dropped = device.memory(200, stream=stream)
    del dropped
    assert device.free_nbytes() == 1200
    del kept


def test_the_device_that_torch_calls_cuda_is_taken(cuda):
    cuda.says.current = 1
    assert choose("cuda")[0].name == choose("auto")[0].name == "cuda:1"
    assert choose(torch.device("cuda", 0))[0].name == "cuda:0"


def test_describe_names_the_gpu(tmp_path, cuda):
    with loader_of(save(tmp_path, ARRAYS["rows"]), "copied", device="auto") as loader:
        assert "device    cuda:0: windows cross as float32" in loader.describe()
