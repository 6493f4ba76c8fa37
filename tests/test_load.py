"""load(): a whole source as one tensor, allocated once."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import gpuload as gl
from gpuload import system

RNG = np.random.default_rng(3)
SHAPES = [(3, 4, 2), (5, 2, 2), (1, 6, 2), (4, 4, 2)]
ARRAYS = [RNG.random(shape, "f4") for shape in SHAPES]


@pytest.fixture
def folder(tmp_path):
    for i, array in enumerate(ARRAYS):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[i % 2] / f"{i}.npy", array)
    return tmp_path


def padded(array, shape, mode="constant", value=0):
    before = [(n - k) // 2 for n, k in zip(shape, array.shape, strict=True)]
    width = [(b, n - k - b) for b, n, k in zip(before, shape, array.shape, strict=True)]
    more = {"constant_values": value} if mode == "constant" else {}
    return np.pad(array, width, mode, **more)


def in_order(source):
    return [np.load(path) for path in source.paths]


@pytest.mark.parametrize("threads", [1, 3])
def test_items_lie_padded_in_one_tensor_and_labels_come_as_int64(folder, threads):
    source = gl.open(folder)
    x, y = gl.load(source, pad=gl.Pad(), threads=threads)
    np.testing.assert_array_equal(x, [padded(a, (5, 6, 2)) for a in in_order(source)])
    assert (y.dtype, y.tolist()) == (torch.int64, [0, 0, 1, 1])


@pytest.mark.parametrize("value", [0, -1.5, float("nan")])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_every_mode_and_value_fills_what_is_left(folder, mode, value):
    source = gl.open(folder)
    x, _ = gl.load(source, pad=gl.Pad((8, 7, None), mode=mode, value=value))
    want = [padded(a, (8, 7, 2), mode, value) for a in in_order(source)]
    np.testing.assert_array_equal(x, want)


def test_values_are_cast_scaled_and_laid_out(folder):
    source = gl.open(folder)
    x, _ = gl.load(source, pad=gl.Pad(), dtype="float64", scale=2, mean=1, layout="NCHW")
    want = np.stack([padded(2 * a.astype("f8") - 1, (5, 6, 2)) for a in in_order(source)])
    np.testing.assert_array_equal(x, want.transpose(0, 3, 1, 2))
    half, _ = gl.load(source, pad=gl.Pad(), dtype="float16")
    wanted = np.stack([padded(a.astype("f2"), (5, 6, 2)) for a in in_order(source)])
    np.testing.assert_array_equal(half, wanted)


def test_batch_means_all_items(folder):
    x, _ = gl.load(gl.open(folder), pad=gl.Pad(("batch", "multiple:4", None)))
    assert x.shape == (4, 5, 8, 2)


def test_a_path_is_opened_and_without_labels_y_is_none(tmp_path):
    rows = RNG.random((7, 3))
    np.save(tmp_path / "rows.npy", rows)
    x, y = gl.load(tmp_path / "rows.npy")
    np.testing.assert_array_equal(x, rows[None])
    assert y is None
    x, _ = gl.load(gl.open(tmp_path / "rows.npy", sample_axis=0))
    np.testing.assert_array_equal(x, rows)


def test_fields_come_by_name():
    image, mask = RNG.random((5, 4, 6), "f4"), RNG.integers(0, 9, (5, 4, 6))
    loaded = gl.load(gl.arrays(image=image, mask=mask), dtype={"mask": "uint8"})
    np.testing.assert_array_equal(loaded.image, image)
    np.testing.assert_array_equal(loaded.mask, mask.astype("u1"))
    assert loaded.y is None


def test_selected_items_come_in_their_order(folder):
    source = gl.open(folder).select([3, 0, 3])
    x, y = gl.load(source, pad=gl.Pad())
    arrays = in_order(gl.open(folder))
    np.testing.assert_array_equal(x, [padded(arrays[i], (4, 4, 2)) for i in (3, 0, 3)])
    assert y.tolist() == [1, 0, 1]


def test_the_result_is_the_callers(folder):
    x, _ = gl.load(gl.open(folder), pad=gl.Pad())
    x += 1
    again, _ = gl.load(gl.open(folder), pad=gl.Pad())
    np.testing.assert_array_equal(x, again + 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, r"expected windows of shape \(3, 4, 2\) as in .*; pass crop="),
        ({"pad": gl.Pad((2, 2, None))}, ValueError, "expected windows of at most"),
        ({"pad": gl.Pad(), "dtype": "text"}, TypeError, "dtype: expected one of bool, "),
    ],
)
def test_arguments_are_checked_before_anything_is_read(folder, arguments, error, message):
    with pytest.raises(error, match=message):
        gl.load(gl.open(folder), **arguments)


def test_what_does_not_fit_is_refused_with_the_numbers(folder, monkeypatch):
    monkeypatch.setattr(system, "free_nbytes", lambda: 100 << 20)
    source = gl.open(folder)
    with pytest.raises(
        ValueError,
        match=r"load: expected 64\.0 MB \(float32 \(4, 2000, 1000, 2\)\) to fit in memory, got "
        r"104\.9 MB free; go through the source with gpuload\.DataLoader, pass a smaller dtype= "
        "or pad=, or must_fit=False",
    ):
        gl.load(source, pad=gl.Pad((2000, 1000, None)))
    x, _ = gl.load(source, pad=gl.Pad((2000, 1000, None)), must_fit=False)
    assert x.shape == (4, 2000, 1000, 2)


def test_a_file_that_is_gone_is_named(folder):
    source = gl.open(folder)
    (folder / "a" / "2.npy").unlink()
    with pytest.raises(gl.ReadError, match=r"2\.npy: expected the file that was there"):
        gl.load(source, pad=gl.Pad())


@pytest.mark.parametrize("source", [None, 3, np.zeros(3)], ids=type)
def test_something_else_is_no_source(source):
    with pytest.raises(TypeError, match="source: expected a gpuload Source or a path, got "):
        gl.load(source)


def test_hardly_more_memory_is_taken_than_the_result(tmp_path):
    """Beside the result of 96 MB: what files hold is neither mapped nor kept."""
    for i in range(6):
        np.save(tmp_path / f"{i}.npy", np.full((1000, 1500 + 100 * i), i, "f8"))
    script = """
        import json, resource, sys
        import gpuload as gl
        source = gl.open(sys.argv[1])
        gl.load(source.select([0]), progress=False)
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = peak()
        x, _ = gl.load(source, pad=gl.Pad())
        print(json.dumps([x.nbytes, peak() - before]))
    """
    lines = "\n".join(line[8:] for line in script.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", lines, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    nbytes, grown = json.loads(done.stdout)
    assert nbytes == 6 * 1000 * 2000 * 8
    assert grown < nbytes + (64 << 20)
