"""Random loaders: any files, windows, threads and look-ahead deliver what NumPy reads."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from late import EagerDevice, LateDevice

import gpuload as gl

DTYPES = ["<f4", ">f4", "<i2", ">u4", "|u1", "<f8", ">f2", "<c8", "|b1", "<i8"]


@st.composite
def datasets(draw):
    """Shapes of files, how they are stored, and the axis that items lie along."""
    ndim = draw(st.integers(1, 4))
    n_files = draw(st.integers(1, 6))
    sample_axis = draw(st.sampled_from([None, *range(ndim)]))
    shape = draw(st.lists(st.integers(1, 7), min_size=ndim, max_size=ndim))
    shapes = []
    for _ in range(n_files):
        own = list(shape)
        if sample_axis is not None:
            own[sample_axis] = draw(st.integers(1, 9))
        shapes.append(tuple(own))
    return {
        "shapes": shapes,
        "dtype": draw(st.sampled_from(DTYPES)),
        "fortran": draw(st.lists(st.booleans(), min_size=n_files, max_size=n_files)),
        "sample_axis": sample_axis,
    }


@st.composite
def crops(draw, shape):
    size = tuple(draw(st.one_of(st.none(), st.integers(1, n))) for n in shape)
    kind = draw(st.sampled_from(["whole", "random", "center", "grid"]))
    if kind == "whole" or not shape:
        return None
    if kind == "random":
        return gl.RandomCrop(size, per_array=draw(st.integers(1, 4)))
    return gl.CenterCrop(size) if kind == "center" else gl.GridCrop(size)


OPTIONS = {
    "batch_size": st.integers(1, 20),
    "threads": st.integers(1, 8),
    "prefetch": st.integers(1, 6),
    "io": st.sampled_from(["pread", "mmap", "auto"]),
    "shuffle": st.sampled_from([False, True, "block"]),
    "drop_last": st.booleans(),
    "seed": st.integers(0, 2**64),
}


def write(directory: Path, dataset) -> list[np.ndarray]:
    """Write the files, and return the items as NumPy reads them."""
    items = []
    random = np.random.default_rng(0)
    for i, (shape, fortran) in enumerate(zip(dataset["shapes"], dataset["fortran"], strict=True)):
        array = random.integers(0, 256, size=(*shape, np.dtype(dataset["dtype"]).itemsize))
        array = array.astype(np.uint8).view(dataset["dtype"])[..., 0]
        if array.dtype.kind == "b":
            array = random.integers(0, 2, size=shape).astype(bool)
        np.save(directory / f"{i}.npy", np.asfortranarray(array) if fortran else array)
        stored = np.load(directory / f"{i}.npy")
        axis = dataset["sample_axis"]
        items += [stored] if axis is None else list(np.moveaxis(stored, axis, 0))
    return items


def bits(array) -> bytes:
    array = np.asarray(array)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).tobytes()


def check_epoch(loader, items, crop, n_per_item) -> None:
    """Each sample comes once, and shows what the file holds at its start."""
    seen = []
    for batch in loader:
        assert len({len(column) for column in batch}) == 1
        window = tuple(batch.x.shape[1:])
        for row in range(len(batch.x)):
            item, start = int(batch.index[row]), batch.start[row].tolist()
            where = tuple(slice(b, b + n) for b, n in zip(start, window, strict=True))
            assert bits(batch.x[row]) == bits(items[item][where])
            seen.append((item, int(batch.crop[row])))
            assert int(batch.y[row]) == 3 * item
    n = len(items) * n_per_item
    wanted = n // loader.batch_size * loader.batch_size if loader.drop_last else n
    assert len(seen) == len(set(seen)) == wanted
    if not loader.drop_last:
        assert set(seen) == {(i, k) for i in range(len(items)) for k in range(n_per_item)}


DEVICES = {"cpu": lambda: "cpu", "at once": EagerDevice, "late": LateDevice}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(dataset=datasets(), options=st.fixed_dictionaries(OPTIONS), data=st.data())
@pytest.mark.parametrize("device", ["cpu", "at once"])
def test_random_loaders_deliver_what_numpy_reads(device, dataset, options, data):
    with tempfile.TemporaryDirectory() as directory:
        items = write(Path(directory), dataset)
        source = gl.open(
            directory, sample_axis=dataset["sample_axis"], labels=3 * np.arange(len(items))
        )
        assert [tuple(shape) for shape in source.shapes] == [item.shape for item in items]
        crop = data.draw(crops(items[0].shape))
        n_per_item = {gl.RandomCrop: getattr(crop, "per_array", 1)}.get(type(crop), 1)
        if isinstance(crop, gl.GridCrop):
            sizes = [n if s is None else s for n, s in zip(items[0].shape, crop.size, strict=True)]
            n_per_item = int(
                np.prod([-(-(n - s) // s) + 1 for n, s in zip(items[0].shape, sizes, strict=True)])
            )
        if options["drop_last"]:
            options["batch_size"] = min(options["batch_size"], len(items) * n_per_item)
        with gl.DataLoader(
            source,
            crop=crop,
            device=DEVICES[device](),
            extras=("index", "crop", "start"),
            **options,
        ) as loader:
            for _ in range(2):
                check_epoch(loader, items, crop, n_per_item)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple),
    batch_size=st.integers(1, 9),
    prefetch=st.integers(1, 4),
    threads=st.integers(1, 4),
    n_taken=st.lists(st.integers(0, 14), min_size=1, max_size=5),
)
def test_random_stops_and_starts_leave_every_epoch_whole(
    shape, batch_size, prefetch, threads, n_taken
):
    """Iterations that end anywhere, on a device whose streams run late; all batches are kept."""
    n = 13
    with tempfile.TemporaryDirectory() as directory:
        values = np.broadcast_to(
            np.arange(n, dtype=np.int32).reshape(n, *[1] * len(shape)), (n, *shape)
        )
        np.save(Path(directory, "rows.npy"), values)
        source = gl.open(directory, sample_axis=0)
        device, kept = LateDevice(), []
        with gl.DataLoader(
            source,
            batch_size,
            shuffle=True,
            device=device,
            prefetch=prefetch,
            threads=threads,
            extras="index",
        ) as loader:
            for n_batches in n_taken:
                kept += [batch for batch, _ in zip(loader, range(n_batches), strict=False)]
            last = list(loader)
            device.synchronize()
        for batch in kept + last:
            np.testing.assert_array_equal(batch.x, values[batch.index.numpy()])
        assert sorted(i for batch in last for i in batch.index.tolist()) == list(range(n))


def test_many_loaders_in_many_threads_do_not_disturb_each_other(save_arrays):
    directory, arrays = save_arrays(50, (12, 9))
    source = gl.open(directory)
    failures = []

    def work(seed):
        try:
            with gl.DataLoader(
                source,
                1 + seed,
                shuffle=True,
                seed=seed,
                threads=1 + seed % 3,
                io=("pread", "mmap")[seed % 2],
                extras="index",
            ) as loader:
                for _ in range(15):
                    seen = []
                    for batch in loader:
                        np.testing.assert_array_equal(batch.x, arrays[batch.index.numpy()])
                        seen += batch.index.tolist()
                    assert sorted(seen) == list(range(50))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert failures == []


def test_one_loader_may_be_iterated_by_several_threads(save_arrays):
    directory, arrays = save_arrays(40, (6, 5))
    failures = []
    with gl.DataLoader(gl.open(directory), 3, threads=2, extras="index") as loader:

        def work():
            try:
                for _ in range(20):
                    seen = []
                    for batch in loader:
                        np.testing.assert_array_equal(batch.x, arrays[batch.index.numpy()])
                        seen += batch.index.tolist()
                    assert seen == list(range(40))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
    assert failures == []
