"""Who counted a read into device memory: nvidia-fs, cuFile, and what their counts prove."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvikio_standin import LEVEL3, Bindings

from gpuload.readers import counters
from gpuload.readers.counters import Reads

# --- what nvidia-fs says

OLD = """GDS Version: 0.9.0.1
NVFS statistics(ver: 2.0)
NVFS Driver(version: 2:3:1)

Active Shadow-Buffer (MiB): 128
Active Process: 1
Reads				: n=41 ok=40 err=1 readMiB=12 io_state_err=0
Reads				: Bandwidth(MiB/s)=7 Avg-Latency(usec)=99
Sparse Reads		        : n=3 io=2 holes=1 pages=8
Writes				: n=5 ok=5 err=0 writeMiB=0 io_state_err=0 pg-cache=0 pg-cache-fail=0
Writes				: Bandwidth(MiB/s)=0 Avg-Latency(usec)=0
Mmap				: n=7 ok=7 err=0 munmap=7
Ops				: Read=0 Write=0
"""
ENABLED = """GDS Version: 1.16.1.26
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.28.4)
Mellanox PeerDirect Supported: True
IO stats: Enabled, peer IO stats: Disabled
Logging level: info

Active Shadow-Buffer (MiB): 0
Active Process: 0
Batches				: n=9 ok=9 err=0 Avg-Submit-Latency(usec)=0
Reads				: n=17 ok=17 err=0 readMiB=4 io_state_err=0
Reads				: Bandwidth(MiB/s)=0 Avg-Latency(usec)=0
Sparse Reads		        : n=0 io=0 holes=0 pages=0
Writes				: n=0 ok=0 err=0 writeMiB=0 io_state_err=0 pg-cache=0
Ops				: Read=0 Write=0 BatchIO=0
GPU 0000:34:00.0  uuid:4964db7b-bd9e : Registered_MiB=1 Cache_MiB=0 max_pinned_MiB=1
"""
DISABLED = re.sub(r"(?m)^Reads\b.*\n", "", ENABLED).replace(
    "Sparse", "Reads				: err=2 io_state_err=0\nSparse"
)
NVFS = {
    "2.3": (OLD, 40),
    "2.28, counting": (ENABLED, 17),
    "2.28, not counting": (DISABLED, None),
    "without ok=": ("Reads : n=5\n", 5),
    "spaces": ("  Reads:  n = 5   ok = 4\n", 4),
    "no reads": ("Writes : n=5 ok=5\nSparse Reads : n=1\n", None),
    "words": ("Reads : n=many ok=all\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "want"), NVFS.values(), ids=NVFS)
def test_the_reads_of_nvidia_fs(tmp_path, monkeypatch, text, want):
    assert counters.parse_nvfs_reads(text) == want
    monkeypatch.setattr(counters, "NVFS_STATS", tmp_path / "stats")
    assert counters.nvfs_reads() is None
    (tmp_path / "stats").write_bytes(b"\xff\n" + text.encode())
    assert counters.nvfs_reads() == want


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="Reads :=nok19\n\t", max_size=60))
def test_any_text_of_nvidia_fs_is_a_number_or_none(text):
    found = counters.parse_nvfs_reads(text)
    assert found is None or found >= 0


# --- what cuFile says

CUFILE = {
    "no GPU seen yet": ([], Reads(0, 0, 0)),
    "one": ([(1, 2, 3)], Reads(1, 2, 3)),
    "several": ([(1, 2, 3), (10, 20, 30), (0, 0, 1 << 40)], Reads(11, 22, (1 << 40) + 33)),
    "fields that lie elsewhere": ([(1, 2, 3)] * 5, None),
}


@pytest.mark.parametrize("room", [LEVEL3.itemsize, 40_000], ids=["as known", "larger"])
@pytest.mark.parametrize(("gpus", "want"), CUFILE.values(), ids=CUFILE)
def test_the_reads_of_cufile(gpus, want, room):
    bindings = Bindings(level=3, room=room)
    bindings.gpus = gpus
    assert counters.read_cufile(bindings) == want


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_cufile_counts_as_before_afterwards(monkeypatch, level):
    bindings = Bindings(level)
    monkeypatch.setattr(counters, "_cufile", lambda: bindings)

    def read() -> None:
        with counters.cufile_counters() as reads:
            assert reads() == Reads(0, 0, 0)
            raise KeyError("the read failed")

    with pytest.raises(KeyError, match="the read failed"):
        read()
    assert (bindings.level, bindings.is_started) == (level, level > 0)


CALLS = ["get_stats_level", "set_stats_level", "stats_start", "get_stats_l3", "stats_level3_dtype"]


@pytest.mark.parametrize("call", [*CALLS, "stats_stop"])
def test_a_cufile_that_does_not_count_is_no_error(monkeypatch, call):
    bindings = Bindings()
    bindings.failing = call
    monkeypatch.setattr(counters, "_cufile", lambda: bindings)
    with counters.cufile_counters() as reads:
        assert reads() == (Reads(0, 0, 0) if call == "stats_stop" else None)
    assert bindings.level == 0


@pytest.mark.skipif(
    importlib.util.find_spec("cuda.bindings") is None, reason="cuda-bindings is not installed"
)
def test_the_bindings_have_what_is_read():
    from cuda.bindings import cufile

    for name in [*CALLS, "stats_stop"]:
        assert hasattr(cufile, name)
    layout = np.dtype(cufile.stats_level3_dtype)
    assert layout.itemsize < 1 << 16
    assert layout["num_gpus"].shape == ()
    (per_gpu, shape) = layout["per_gpu_stats"].subdtype
    assert shape == (16,)
    assert {"n_p2p_reads", "n_nvfs_reads", "n_posix_reads"} <= set(per_gpu.names)


# --- what counts prove

HOST = "through host memory"
VERDICTS = {
    "P2PDMA": (Reads(1, 0, 0), None, True, "over P2PDMA"),
    "nvidia-fs": (Reads(0, 1, 0), 0, True, "over nvidia-fs"),
    "both ways of GDS": (Reads(1, 1, 0), None, True, "over P2PDMA"),
    "posix": (Reads(0, 0, 1), None, False, HOST),
    "posix, though nvidia-fs counted": (Reads(0, 0, 1), 3, False, HOST),
    "some posix": (Reads(1, 0, 1), None, False, "1 posix, 1 P2PDMA and 0 nvidia-fs reads"),
    "cuFile counted none, nvidia-fs did": (Reads(0, 0, 0), 1, True, "nvidia-fs counted"),
    "cuFile counted none, nor did nvidia-fs": (Reads(0, 0, 0), 0, False, HOST),
    "nobody there": (None, None, False, "nobody counted"),
    "cuFile counted none, nobody else there": (Reads(0, 0, 0), None, False, "nobody counted"),
    "nvidia-fs alone": (None, 1, True, "nvidia-fs counted"),
    "nvidia-fs alone did not": (None, 0, False, HOST),
    "counters were reset": (Reads(-5, -1, -2), -4, False, HOST),
}


@pytest.mark.parametrize(("ours", "nvfs", "is_gds", "match"), VERDICTS.values(), ids=VERDICTS)
def test_judge(ours, nvfs, is_gds, match):
    verdict = counters.judge(ours, nvfs)
    assert verdict.is_gds is is_gds
    assert match in verdict.reason
    assert "\n" not in verdict.reason
