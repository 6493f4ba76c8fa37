"""The demo's parts: what is cut, what is learned, and that wrong values are never timed."""

from __future__ import annotations

import importlib.metadata
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from gpuload.demo import compare, measure, photographs, report
from gpuload.demo.compare import Way
from gpuload.demo.train import steps_per_epoch, train
from gpuload.errors import GpuloadError


@pytest.fixture(scope="module")
def matrices(tmp_path_factory):
    return photographs.cut(tmp_path_factory.mktemp("demo"), n_train=8, n_validation=4, seed=0)


# Photographs


def test_every_photograph_lies_in_the_wheel():
    shipped = {str(path) for path in importlib.metadata.files("scikit-image")}
    assert {f"skimage/data/{name}" for name in photographs.PHOTOGRAPHS.values()} <= shipped


@pytest.mark.parametrize("name", photographs.PHOTOGRAPHS)
def test_a_photograph_is_luminance_from_0_to_1(name):
    image = photographs.photograph(photographs.PHOTOGRAPHS[name])
    assert image.dtype == np.float32
    assert image.ndim == 2
    assert 0 <= image.min() < 0.3 < image.max() <= 1


def test_a_photograph_that_is_not_shipped_is_named():
    with pytest.raises(GpuloadError, match=r"expected lion\.png in .*data, got no such file"):
        photographs.photograph("lion.png")


@pytest.mark.parametrize("shape", [(300, 451), (512, 512), (660, 550), (5, 4), (4, 5)], ids=str)
def test_the_halves_share_no_pixel_and_leave_none_out(shape):
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pixels = [set(half.ravel().tolist()) for half in photographs.halves(image)]
    assert pixels[0] | pixels[1] == set(image.ravel().tolist())
    assert not pixels[0] & pixels[1]


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("validation", 1)])
def test_every_matrix_is_cut_from_its_half(matrices, split, number):
    for name, file_name in photographs.PHOTOGRAPHS.items():
        half = photographs.halves(photographs.photograph(file_name))[number]
        path = sorted((getattr(matrices, split) / name).iterdir())[-1]
        matrix = np.load(path)
        assert (matrix.shape, matrix.dtype) == ((200, 200), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(half, (200, 200))
        candidates = windows[windows[:, :, 0, 0] == matrix[0, 0]]
        assert any(np.array_equal(window, matrix) for window in candidates)


def test_the_counts_are_those_of_the_files(matrices):
    files = list(matrices.train.rglob("*.npy")), list(matrices.validation.rglob("*.npy"))
    assert (len(files[0]), len(files[1])) == (matrices.n_train, matrices.n_validation) == (96, 48)
    assert matrices.nbytes == (96 + 48) * 200 * 200 * 4


def test_the_same_seed_cuts_the_same_files_and_another_does_not(tmp_path):
    def bytes_of(name, seed):
        photographs.cut(tmp_path / name, n_train=1, n_validation=1, seed=seed)
        root = tmp_path / name
        return {p.relative_to(root): p.read_bytes() for p in root.rglob("*.npy")}

    first = bytes_of("a", 3)
    assert bytes_of("b", 3) == first
    assert bytes_of("c", 4) != first


# Training


def test_the_network_learns_and_waits_are_a_share(matrices):
    steps = []
    results = list(
        train(
            matrices.train,
            matrices.validation,
            epochs=4,
            seed=0,
            on_step=lambda loss, accuracy: steps.append(accuracy),
        )
    )
    assert [result.number for result in results] == [1, 2, 3, 4]
    assert len(steps) == 4 * steps_per_epoch(matrices.n_train)
    assert results[-1].loss < results[0].loss
    assert results[-1].train_accuracy > max(results[0].train_accuracy, 2 / 12)
    assert results[-1].validation_accuracy > 1.5 / 12
    assert all(0 <= result.waited <= 1 for result in results)
    assert np.mean(results[-1].class_accuracy) == pytest.approx(results[-1].validation_accuracy)


def test_training_gives_torch_its_threads_back(matrices):
    before = torch.get_num_threads()
    results = train(
        matrices.train, matrices.validation, epochs=1, seed=0, on_step=lambda loss, accuracy: None
    )
    next(results)
    results.close()
    assert torch.get_num_threads() == before


# Values and measurements


def batches_of(matrices, *, offset=0, label=0):
    """Centre crops of all files as one batch, moved by `offset` pixels and `label` classes."""
    paths, labels = measure.list_files(matrices.train)
    rows = slice(90 + offset, 110 + offset)
    x = np.stack([np.load(path)[rows, 90:110] for path in paths])
    return [(torch.from_numpy(x), (torch.tensor(labels) + label) % 12)]


def test_right_values_pass(matrices):
    measure.check_fixed(batches_of(matrices), matrices.train)
    measure.check_random(batches_of(matrices, offset=17), matrices.train)


WRONG = {
    "crops one row off": ({"offset": 1}, r"expected the centre crops"),
    "labels of the next class": ({"label": 1}, r"expected the labels"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_wrong_fixed_values_are_named(matrices, change, message):
    with pytest.raises(ValueError, match=message):
        measure.check_fixed(batches_of(matrices, **change), matrices.train)


def test_a_random_crop_of_another_class_is_named(matrices):
    with pytest.raises(ValueError, match=r"expected a crop of a file of class 1, got something"):
        measure.check_random(batches_of(matrices, label=1), matrices.train)


def test_random_crops_of_another_type_are_named(matrices):
    wrong = [(x.double(), y) for x, y in batches_of(matrices)]
    with pytest.raises(ValueError, match=r"expected \(20, 20\) float32, got .*float64"):
        measure.check_random(wrong, matrices.train)


@pytest.mark.parametrize("name", measure.WAYS)
def test_every_way_delivers_the_values_of_the_files(matrices, name):
    make = measure.WAYS[name]
    measure.check_fixed(make(matrices.train, fixed=True, workers=0), matrices.train)
    measure.check_random(make(matrices.train, fixed=False, workers=0), matrices.train)


@pytest.mark.parametrize("kind", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["private", "shared"])
def test_owned_memory_counts_anonymous_pages(kind):
    nbytes = 16 << 20
    before = measure.owned_nbytes()
    with mmap.mmap(-1, nbytes, flags=kind | mmap.MAP_ANONYMOUS) as block:
        block.write(bytes([1]) * nbytes)
        grown = measure.owned_nbytes() - before
    assert grown >= nbytes


def test_owned_memory_leaves_out_mapped_files(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(16 << 20, np.uint8))
    before = measure.owned_nbytes()
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert array.max() == 1
    assert measure.owned_nbytes() - before < array.nbytes / 4


def test_the_faster_number_of_workers_is_kept(monkeypatch):
    speeds = {0: 10.0, 2: 5.0}
    monkeypatch.setattr(
        compare, "_measure", lambda way, *_: compare.Measured(way, speeds[way.workers], None)
    )
    started = []
    best = compare.compare(Path("unused"), seconds=0, on_start=started.append)
    assert [m.way for m in best] == [Way("gpuload", 0), Way("torch-best", 0), Way("torch-plain", 0)]
    assert started == list(compare.WAYS)


def test_a_measurement_that_fails_says_why(tmp_path):
    with pytest.raises(GpuloadError, match=r"^demo: measuring gpuload failed: .*\w"):
        compare.compare(tmp_path / "nothing", seconds=0.1, on_start=lambda way: None)


def test_a_measurement_that_hangs_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "TIMEOUT_S", 0.05)
    with pytest.raises(GpuloadError, match=r"expected gpuload to be measured within"):
        compare.compare(tmp_path, seconds=0.1, on_start=lambda way: None)


# Words


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (report.percent(0.0), "0.0 %"),
        (report.percent(1.0), "100.0 %"),
        (report.times(0.94), "0.9 times"),
        (report.times(9.94), "9.9 times"),
        (report.times(1234.5), "1,234 times"),
        (report.megabytes(None), "unknown"),
        (report.megabytes(12_340_000), "12.3 MB"),
    ],
)
def test_numbers_read_well(text, want):
    assert text == want
