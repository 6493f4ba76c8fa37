"""The benchmarks on the CPU: that their checks tell right samples from wrong ones, and what they
make of made-up timings."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bench():
    """The package of the checkout, without its folder on sys.path: gpuload lies there as well."""
    if "bench" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "bench",
            ROOT / "bench" / "__init__.py",
            submodule_search_locations=[str(ROOT / "bench")],
        )
        sys.modules["bench"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["bench"])
    from bench import check, check_whole, data, report

    return types.SimpleNamespace(
        wrong=check.WrongValuesError, whole=check_whole, data=data, report=report
    )


# ---- Padded arrays


@pytest.fixture(scope="module")
def padclass(bench, tmp_path_factory):
    """The files of the workload, which need not be there, and one batch of two of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.data, "_made", lambda name, make: tmp_path_factory.mktemp(name))
        files = bench.data.padclass()
    x = np.zeros((2, *bench.data.PAD_SHAPE), np.float32)
    for padded, array in zip(x, (7, 201), strict=True):
        height, width, channels = files.shapes[array]
        values = bench.data.numbered(int(files.firsts[array]), (height, width, channels))
        top, left = (400 - height) // 2, (400 - width) // 2
        padded[top : top + height, left : left + width] = values
    return files, x


def test_padded_arrays_are_told_by_their_values(bench, padclass):
    files, x = padclass
    assert bench.whole.padded_arrays(x, files).tolist() == [7, 201]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: np.roll(x, 1, axis=2),
        lambda x: np.where(x == 0, np.float32(1), x),
        lambda x: np.nextafter(x, np.float32(0)),
        lambda x: x[:, :, :399],
        lambda x: x[:, :, :, ::-1].copy(),
    ],
    ids=["one pixel off", "not zeros", "one unit off", "too narrow", "channels swapped"],
)
def test_padded_arrays_that_are_wrong_are_found(bench, padclass, spoil):
    files, x = padclass
    with pytest.raises(bench.wrong, match="expected"):
        bench.whole.padded_arrays(spoil(x), files)


# ---- The stack, and arrays in memory


@pytest.fixture(scope="module")
def samples():
    stored = np.random.default_rng(0).integers(256, size=(600, 3, 4, 4), dtype=np.uint8)
    stored.reshape(600, -1)[:, :2] = np.arange(600, dtype="<u2")[:, None].view(np.uint8)
    return stored


def epoch(stored, make):
    """Batches of 64 of an epoch in random order; `make` takes the stored samples of each."""
    order = np.random.default_rng(1).permutation(len(stored))
    for begin in range(0, len(order), 64):
        yield (torch.from_numpy(make(stored[order[begin : begin + 64]])),)


def times_float(stored):
    return stored * np.float32(1 / 255)


def divided(stored):
    return stored.astype(np.float32) / np.float32(255)


def test_scaled_samples_are_compared_to_the_bit(bench, samples):
    bench.whole.Stack(samples, exact=True).check_epochs(epoch(samples, times_float), 1)
    bench.whole.Stack(samples, exact=False).check_epochs(epoch(samples, times_float), 1)


def test_a_division_may_differ_by_a_unit_in_the_last_place(bench, samples):
    bench.whole.Stack(samples, exact=False).check_epochs(epoch(samples, divided), 1)
    with pytest.raises(bench.wrong, match="values"):
        bench.whole.Stack(samples, exact=True).check_epochs(epoch(samples, divided), 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda stored: times_float(stored) * np.float32(1 + 1e-6), "values"),
        (lambda stored: stored / 255, "dtype"),
        (lambda stored: times_float(stored[:, :, :3]), "shape"),
        (lambda stored: times_float(np.repeat(stored[:1], len(stored), 0)), "every sample once"),
    ],
    ids=["eight units off", "float64", "a row short", "one again and again"],
)
def test_scaled_samples_that_are_wrong_are_found(bench, samples, make, match):
    with pytest.raises(bench.wrong, match=match):
        bench.whole.Stack(samples, exact=False).check_epochs(epoch(samples, make), 1)


def test_samples_in_the_order_of_the_file_are_no_shuffle(bench, samples):
    with pytest.raises(bench.wrong, match="a global shuffle"):
        bench.whole.Stack(samples, exact=True).check_epochs(
            iter([(torch.from_numpy(times_float(samples)),)]), 1
        )


def test_features_of_different_rows_are_found(bench, monkeypatch):
    monkeypatch.setattr(bench.data, "IN_MEMORY", 500)
    features = [torch.from_numpy(feature) for feature in bench.data.in_memory()]
    order = torch.from_numpy(np.random.default_rng(0).permutation(500))
    right = [feature[order] for feature in features]
    bench.whole.in_memory_epochs(iter([tuple(right)]), 1)
    with pytest.raises(bench.wrong, match="rows"):
        bench.whole.in_memory_epochs(iter([(right[0], right[1], right[2].flip(0))]), 1)


# ---- Tables


def row(name, family, rate, layout="files"):
    rates = {"samples_per_s": [rate], "others_cores": [0.0]}
    return {"name": name, "family": family, "layout": layout, "setting": "", **rates}


def table(workload, batch_size, rows, resident=1.0):
    more = {"seconds": 1.0, "missing": [], "resident": resident}
    return {"workload": workload, "batch_size": batch_size, "rows": rows, **more}


@pytest.fixture
def tables(bench):
    padded = [
        row("gpuload", "gpuload", 3000.0),
        row("torch (a), 0 workers", "torch", 400.0),
        row("torch (c), 0 workers", "torch", 600.0),
        row("SPDL", "spdl", 800.0),
        row("DALI", "dali", 1200.0),
        row("NumPy loop", "numpy", 1500.0),
        row("C++ limit: kept maps, 2 threads", "limit", 4000.0, ""),
        row("C++ limit: kept descriptors, pread, 2 threads", "limit", 2000.0, ""),
    ]
    tensors = [
        row("gpuload", "gpuload", 4e6, "memory"),
        row("torch", "torch", 2e5, "memory"),
        row("by hand", "numpy", 5e6, "memory"),
    ]
    loaded = [
        {"name": "gpuload", "seconds": [0.2, 0.3, 0.1], "extra": [40.4, 41.0, 40.0]},
        {"name": "C++ limit: first", "seconds": [0.1, 0.2, 0.2], "extra": [None] * 3},
        {"name": "C++ limit: second", "seconds": [0.1], "extra": [None]},
    ]
    measured = {
        "padclass-16": table("padclass", 16, padded),
        "inmemory-128": table("inmemory", 128, tensors, resident=None),
        "load": {"result_nbytes": 921_600_000, "rows": loaded},
    }
    return {made.title: made for made in bench.report.tables({"tables": measured})}


def test_whole_samples_are_in_the_summary(tables):
    summary = tables["gpuload against the best row of each kind"]
    assert summary.rows == [
        ["padclass, batch 16, files", "3,000", "5", "2.5", "3.8", "2", "75%"],
        ["inmemory, batch 128, memory", "4,000,000", "20", "", "", "0.8", ""],
    ]
    assert "tensors by hand" in summary.caption


def test_data_in_memory_have_no_page_cache(tables):
    assert "100.0% resident" in tables["padclass, batch 16"].caption
    assert tables["inmemory, batch 128"].caption.startswith("No files, values checked first")


def test_a_load_is_divided_by_the_first_limit(tables):
    assert tables["One array of all files"].rows == [
        ["gpuload", "0.20 (0.10-0.30)", "1.00", "40 (40-41)"],
        ["C++ limit: first", "0.20 (0.10-0.20)", "1.00", ""],
        ["C++ limit: second", "0.10", "0.50", ""],
    ]
