"""Whether GDS is real here: what is missing, what counters say, what a trial read proves."""

from __future__ import annotations

import itertools
import os
import re

import numpy as np
import pytest
import torch
from kvikio_standin import Bindings, CompatMode, CuFile, StandIn

from gpuload.catalog import Paths
from gpuload.readers import counters, gds
from gpuload.readers.gds import PAGE

REMEDY = r'pip install "gpuload\[cuda13\]"'


@pytest.fixture
def kvikio(monkeypatch):
    """A machine where everything is there and the stand-in reads; nothing is counted."""
    standin = StandIn()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: standin.log.append(("wait for", device))
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gds, "_kvikio", lambda: standin)
    monkeypatch.setattr(gds, "_is_installed", lambda name: name == "kvikio-cu13")
    monkeypatch.setattr(gds, "_verdicts", {})
    monkeypatch.setattr(counters, "nvfs_reads", lambda: None)
    monkeypatch.setattr(counters, "_cufile", no_module("cuda.bindings"))
    yield standin
    standin.pool.shutdown()
    assert standin.wrong == []
    assert standin.open_files == []


def no_module(name: str):
    def missing():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return missing


# --- what is missing


def test_nothing_is_missing(kvikio):
    assert gds.why_not() is None


def raising(error: Exception):
    def fails(*_):
        raise error

    return fails


OTHER_MAJOR = r"pip uninstall kvikio-cu12 libkvikio-cu12, then " + REMEDY
MISSING = {
    "no device": (
        lambda p, k: p.setattr(torch.cuda, "is_available", lambda: False),
        re.escape(f"needs a CUDA device: torch {torch.__version__} finds none"),
    ),
    "another vendor": (
        lambda p, k: p.setattr(torch.version, "cuda", None),
        "expected a torch built for it",
    ),
    "kvikio": (
        lambda p, k: p.setattr(gds, "_kvikio", no_module("kvikio")),
        "kvikio is not installed; " + REMEDY,
    ),
    "a library of kvikio": (
        lambda p, k: p.setattr(gds, "_kvikio", raising(ImportError("libkvikio.so:\n not found"))),
        'kvikio does not import, got "libkvikio.so: not found"; ' + REMEDY,
    ),
    "a module that kvikio wants": (
        lambda p, k: p.setattr(gds, "_kvikio", no_module("rapids_logger")),
        "kvikio does not import, got \"No module named 'rapids_logger'\"; " + REMEDY,
    ),
    "the right CUDA": (
        lambda p, k: p.setattr(gds, "_is_installed", lambda name: name == "kvikio-cu12"),
        "expected one for CUDA 13 as torch is, got CUDA 12; " + OTHER_MAJOR,
    ),
    "a new kvikio": (
        lambda p, k: p.setattr(k, "__version__", "25.10.00", raising=False),
        "expected 25.12 or newer, got 25.10.00; " + REMEDY,
    ),
    "cuFile, as somebody wanted": (
        lambda p, k: p.setitem(k.settings, "compat_mode", CompatMode.ON),
        "set to read through host memory; unset KVIKIO_COMPAT_MODE",
    ),
    "cuFile": (
        lambda p, k: p.setattr(k, "is_compat", True),
        "expected libcufile, a readable /run/udev and no WSL.*" + REMEDY,
    ),
    "a low threshold": (
        lambda p, k: p.setitem(k.settings, "gds_threshold", 1 << 20),
        "read less than 1048576 bytes through host memory, expected 131072 at most",
    ),
    "settings that kvikio knows": (
        lambda p, k: p.setattr(k.defaults, "get", raising(ValueError("Unknown mode: bad"))),
        'does not accept its settings, got "Unknown mode: bad"',
    ),
}


@pytest.mark.parametrize(("take", "want"), MISSING.values(), ids=MISSING)
def test_what_is_missing_is_said_on_one_line(kvikio, monkeypatch, tmp_path, take, want):
    take(monkeypatch, kvikio)
    reason = gds.why_not()
    assert re.search(want, reason)
    assert "\n" not in reason
    assert gds.probe(str(tmp_path / "none")) == gds.Verdict(False, reason)


@pytest.mark.parametrize("version", ["25.12.00", "26.02.01", "26.10.00", "27.02.00a12"])
def test_a_kvikio_that_will_do(kvikio, monkeypatch, version):
    monkeypatch.setattr(kvikio, "__version__", version, raising=False)
    assert gds.why_not() is None


def test_a_kvikio_from_elsewhere_has_no_distribution(kvikio, monkeypatch):
    monkeypatch.setattr(gds, "_is_installed", lambda name: False)  # conda
    assert gds.why_not() is None


HERE = """
import json, os
from gpuload.readers import gds
path = os.path.abspath("data.bin")
open(path, "wb").write(bytes(1 << 20))
verdict = gds.probe(path, "cuda:0")
print(json.dumps([gds.why_not(), verdict.is_gds, verdict.reason, sorted(os.listdir("."))]))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_answer_comes_at_once_and_cufile_is_not_touched(run_python):
    program = run_python(HERE, timeout_s=20)
    assert program.returncode == 0, program.stderr
    reason = f"GDS needs a CUDA device: torch {torch.__version__} finds none"
    files = ["data.bin", "stderr", "stdout"]
    assert eval(program.stdout.replace("false", "False")) == [reason, False, reason, files]


# --- the trial read


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.bin"
    np.random.default_rng(2).integers(0, 256, 200_000, np.uint8).tofile(path)
    return str(path)


def count(monkeypatch, values) -> None:
    """Have nvidia-fs say these numbers, one each time that it is asked."""
    numbers = iter(values)
    monkeypatch.setattr(counters, "nvfs_reads", lambda: next(numbers))


NVFS_MOVES = {
    "counts": ([4, 4, 5], True, "nvidia-fs counted the trial read; kvikio threads .*: 4$"),
    "does not": ([4, 4, 4], False, "nvidia-fs did not count it"),
    "counts for others too": ([4, 5, 9], False, "otherwise idle"),
    "goes": ([4, 4, None], False, "nobody counted"),
    "is not there": ([None, None, None], False, r"pip install cuda-bindings\) or nvidia-fs"),
}


@pytest.mark.parametrize(("values", "is_gds", "match"), NVFS_MOVES.values(), ids=NVFS_MOVES)
def test_only_a_counter_that_moved_proves_it(kvikio, monkeypatch, large, values, is_gds, match):
    count(monkeypatch, values)
    verdict = gds.probe(large, "cpu")
    assert verdict.is_gds is is_gds
    assert re.search(match, verdict.reason)
    assert kvikio.reads == [(large, 0, gds.MIN_NBYTES)]
    assert kvikio.log == [("wait for", "cpu"), ("open", large), ("close", large)]


@pytest.mark.parametrize(
    ("moved", "is_gds"), [((0, 1, 0), True), ((0, 0, 1), False), ((1, 0, 0), True)]
)
def test_the_counters_of_cufile_are_believed_first(kvikio, monkeypatch, large, moved, is_gds):
    bindings = Bindings()
    bindings.gpus = [(7, 7, 7)]
    monkeypatch.setattr(counters, "_cufile", lambda: bindings)
    count(monkeypatch, [1, 1, 1] if is_gds else [1, 1, 2])

    def moving(*_):
        bindings.gpus = [tuple(7 + n for n in moved)]

    kvikio.before_read = moving
    assert gds.probe(large, "cpu").is_gds is is_gds
    assert bindings.level == 0


def test_the_verdict_holds_for_the_file_system(kvikio, monkeypatch, large, tmp_path):
    count(monkeypatch, [4, 4, 5, 5, 5, 5])
    small = tmp_path / "small.bin"
    small.write_bytes(bytes(gds.MIN_NBYTES - 1))
    verdict = gds.probe(str(small), "cpu")
    assert not verdict.is_gds
    assert re.search(r"small\.bin: expected 131072 bytes or more .*, got 131071;", verdict.reason)
    assert gds.probe(large, "cpu").is_gds
    assert gds.probe(large, "cpu").is_gds
    assert gds.probe(str(small), "cpu").is_gds
    assert len(kvikio.reads) == 1
    monkeypatch.setattr(os, "getpid", lambda: 1)  # a child has neither its parent's CUDA nor cuFile
    assert not gds.probe(large, "cpu").is_gds


def wrong_bytes(kvikio, monkeypatch):
    kvikio.before_read = lambda *_: 0
    read = CuFile._read
    monkeypatch.setattr(CuFile, "_read", lambda *a: read(*a) or a[2])


TRIALS = {
    "an error": (
        lambda k, p: setattr(k, "before_read", raising(RuntimeError("cuFile\nerror"))),
        'large.bin: the trial read failed, got "cuFile error"',
    ),
    "fewer bytes": (lambda k, p: setattr(k, "before_read", lambda *_: 4096), "other bytes than"),
    "other bytes": (wrong_bytes, "other bytes than those of a plain read"),
}


@pytest.mark.parametrize(("fail", "match"), TRIALS.values(), ids=TRIALS)
def test_a_trial_that_fails_is_told_and_tried_again(kvikio, monkeypatch, large, fail, match):
    before = kvikio.before_read
    with monkeypatch.context() as failing:
        failing.setattr(counters, "nvfs_reads", itertools.count().__next__)
        fail(kvikio, failing)
        verdict = gds.probe(large, "cpu")
    assert not verdict.is_gds
    assert match in verdict.reason
    kvikio.before_read = before
    count(monkeypatch, [4, 4, 5])
    assert gds.probe(large, "cpu").is_gds


def test_a_file_system_without_direct_io_is_told(kvikio, large):
    kvikio.has_direct = False
    verdict = gds.probe(large, "cpu")
    assert verdict == gds.Verdict(
        False, f"{large}: its file system does not open files with O_DIRECT"
    )
    assert kvikio.reads == []


def test_a_file_that_is_not_there_is_told(kvikio, tmp_path):
    verdict = gds.probe(str(tmp_path / "none"), "cpu")
    assert not verdict.is_gds
    assert verdict.reason.endswith(
        'none: looking at the file failed, got "No such file or directory"'
    )


def test_a_device_that_is_not_there_is_told(kvikio, large):
    verdict = gds.probe(large, "cuda:99")
    assert not verdict.is_gds
    assert "the trial read failed, got" in verdict.reason
    assert kvikio.log == []  # cuFile is not touched before CUDA has given memory


def test_gdsfiles_reads_by_kvikio(kvikio, large):
    memory = torch.zeros(2 * PAGE, dtype=torch.uint8)
    with gds.GdsFiles(Paths.of([large]), np.array([200_000]), max_open=2) as files:
        files.read(np.array([[0, PAGE, PAGE, PAGE]]), memory)
    want = np.fromfile(large, np.uint8)[PAGE : 2 * PAGE]
    np.testing.assert_array_equal(memory[PAGE:].numpy(), want)


# --- on a GPU

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def marked(function):
    for mark in on_gpu:
        function = mark(function)
    return function


@marked
def test_probe_on_a_gpu_answers_with_a_reason(large, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # for cufile.log
    verdict = gds.probe(large)
    print(verdict)
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert verdict.is_gds <= (gds.why_not() is None)
    assert gds.probe(large).is_gds == verdict.is_gds


@marked
@pytest.mark.parametrize("is_registered", [False, True])
def test_reading_on_a_gpu_gives_the_bytes_of_the_files(real, tmp_path, monkeypatch, is_registered):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    data = [rng.integers(0, 256, n, np.uint8) for n in (9_000_001, 4096 * 300, 1, 131_073)]
    paths = [str(tmp_path / f"{i}.bin") for i in range(len(data))]
    for path, file in zip(paths, data, strict=True):
        file.tofile(path)
    wanted = [(0, 0, 9_000_001), (0, 128, 500_000), (1, 4095, 200_000), (2, 0, 1), (3, 131_072, 1)]
    wanted += [(0, 8_999_000, 1001), (3, 0, 131_073), (1, 4096 * 17, 4096 * 32)]
    requests, end = [], 0
    for file, offset, nbytes in wanted:
        first, last = gds.align(offset, nbytes, len(data[file]))
        requests.append((file, int(first), int(last - first), end))
        end += -(-int(last - first) // PAGE) * PAGE
    memory = gds.page_aligned(torch.full((end + PAGE,), 0xDB, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    sizes = np.array([len(file) for file in data])
    with gds.GdsFiles(Paths.of(paths), sizes, max_open=2) as files:
        if is_registered:
            files.register(memory)
            print(files.notes)
        for _ in range(3):
            files.read(np.array(requests), memory)
            got = memory.cpu().numpy()
            for (file, offset, n), (_, first, _, dst) in zip(wanted, requests, strict=True):
                part = got[dst + offset - first :][:n]
                np.testing.assert_array_equal(part, data[file][offset : offset + n])
            memory.fill_(0xDB)
            torch.cuda.synchronize()
        if is_registered:
            files.deregister(memory)
