"""The benchmark of a GPU, without one: what it makes of made-up timings, and that its checks of
values hold for the kernels as they are built for the host."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from gpuload.devices.arguments import pack

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
    from bench import gpu, gpu_clock, gpu_kernels, gpu_loading, gpu_report

    return types.SimpleNamespace(
        gpu=gpu, clock=gpu_clock, kernels=gpu_kernels, loading=gpu_loading, report=gpu_report
    )


# ---- Rows, verdicts, tables


def groups(report):
    least, most = report.Target(0.85), report.Target(0.02, at_most=True)
    rows = [
        report.Row("a", "GB/s", [90.0, 80.0, 85.0], 100.0, "copy", least),
        report.Row("b", "GB/s", [84.0], 100.0, "copy", least, "tuned"),
        report.Row("c", "share", [0.01, 0.03, 0.015], target=most),
        report.Row("d", "share", [0.021], target=most),
        report.Row("e", "us", [1234.5, 1300.0, 1234.5]),
    ]
    return [
        report.Group("Copies", "A caption.", rows),
        report.Group("Volumes", skipped="the time is used up"),
    ]


def test_a_row_is_judged_by_its_median(bench):
    found = {row.name: (row.share, row.verdict) for row in groups(bench.report)[0].rows}
    assert found == {
        "a": (0.85, "met"),
        "b": (0.84, "missed"),
        "c": (0.015, "met"),
        "d": (0.021, "missed"),
        "e": (None, ""),
    }


def test_tables_show_what_was_measured(bench):
    (table,) = bench.report.tables(groups(bench.report))
    assert (table.title, table.caption) == ("Copies", "A caption.")
    assert table.rows == [
        ["a", "copy", "85 GB/s", "80-90", "85%", ">= 85%", "met", ""],
        ["b", "copy", "84 GB/s", "84", "84%", ">= 85%", "missed", "tuned"],
        ["c", "", "1.5%", "1.0%-3.0%", "", "<= 2.0%", "met", ""],
        ["d", "", "2.1%", "2.1%", "", "<= 2.0%", "missed", ""],
        ["e", "", "1,230 us", "1,230-1,300", "", "", "", ""],
    ]
    assert "| a | copy |" in table.to_markdown()


def test_the_summary_names_what_is_missed_and_what_is_missing(bench):
    assert bench.report.summary(groups(bench.report)) == (
        "2 of 4 targets are met. missed: Copies: b; Copies: d. not measured: Volumes (the time is "
        "used up)"
    )
    assert bench.report.summary([]) == "0 of 0 targets are met"


def test_results_survive_json(bench):
    made = groups(bench.report)
    results = json.loads(json.dumps(bench.report.to_results(made)))
    assert bench.report.from_results(results) == made
    assert [row["verdict"] for row in results[0]["rows"]] == ["met", "missed", "met", "missed", ""]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123456, "GB/s", "0.0123 GB/s"),
        (2612.4, "GB/s", "2,610 GB/s"),
        (100.0, "us", "100 us"),
        (0.0, "errors", "0 errors"),
        (1234567.0, "samples/s", "1,230,000 samples/s"),
        (0.0994, "share", "9.9%"),
        (0.0996, "share", "10%"),
        (12.34, "share", "1234%"),
    ],
)
def test_numbers_have_three_digits(bench, value, unit, text):
    assert bench.report.quantity(value, unit) == text


def test_a_results_file_becomes_markdown(bench, tmp_path, capsys):
    told = ["GPU", "cpu", "memory", "kernel", "file system", "python", "torch", "numpy", "CuPy"]
    machine = {name: f"<{name}>" for name in [*told, "CUDA", "driver", "git"]}
    results = {
        "command": "python -m bench.gpu",
        "started": "2027-01-02T03:04:05+00:00",
        "machine": machine,
        "groups": bench.report.to_results(groups(bench.report)),
    }
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(results))
    bench.report.main(path)
    shown = capsys.readouterr().out
    assert shown.startswith("<GPU>, <cpu>, memory <memory>, kernel <kernel>")
    assert "driver <driver>; 2027-01-02, git <git>; `python -m bench.gpu`\n" in shown
    assert "### Copies" in shown
    assert shown.endswith("(the time is used up)\n")


# ---- The run


def test_the_arguments(bench):
    options = bench.gpu.parser().parse_args([])
    assert (options.json, options.quick, options.no_sanitizer) == (None, False, False)
    assert options.seconds <= 360
    options = bench.gpu.parser().parse_args(["--json", "a.json", "--quick", "--seconds", "60"])
    assert (options.json, options.quick, options.seconds) == (Path("a.json"), True, 60.0)


def test_groups_are_measured_while_time_is_left(bench):
    saved = []
    run = bench.gpu.Run(100.0, lambda made: saved.append(len(made)))
    report = bench.report
    run.add("first", lambda: report.Group("first"), needs_s=10)
    run.add("long", lambda: report.Group("long"), needs_s=1000)
    run.add("last", lambda: report.Group("last"), needs_s=0)
    assert [(group.title, group.skipped) for group in run.groups] == [
        ("first", ""),
        ("long", "the time is used up"),
        ("last", ""),
    ]
    assert saved == [1, 2, 3]
    assert not run.has_failed


def test_a_group_that_fails_does_not_end_the_run(bench, capsys):
    def fail():
        raise ValueError("expected other values\nand more")

    run = bench.gpu.Run(100.0, lambda made: None)
    run.add("wrong", fail, needs_s=0)
    run.add("right", lambda: bench.report.Group("right"), needs_s=0)
    assert [group.skipped for group in run.groups] == [
        "failed: ValueError: expected other values",
        "",
    ]
    assert run.has_failed
    assert "Traceback" in capsys.readouterr().err


def test_crops_are_divided_by_the_fastest_of_torch(bench):
    rows = [
        {"name": "torch, a", "setting": "2 workers", "values": [10.0, 12.0, 11.0]},
        {"name": "torch, b", "setting": "0 workers", "values": [5.0]},
        {"name": "gpuload", "setting": "", "values": [110.0]},
    ]
    group = bench.gpu.crop2d_group({"batch_size": 256, "rows": rows})
    assert [(row.name, row.share, row.note) for row in group.rows] == [
        ("gpuload", 10.0, ""),
        ("torch, a", None, "2 workers"),
        ("torch, b", None, "0 workers"),
    ]


@pytest.mark.parametrize(
    ("returncode", "output", "n_errors", "note"),
    [
        (0, "done\n========= ERROR SUMMARY: 0 errors\n", 0, "ERROR SUMMARY: 0 errors"),
        (9, "========= ERROR SUMMARY: 3 errors\n", 3, "ERROR SUMMARY: 3 errors"),
        (
            0,
            "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
            0,
            "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
        ),
        (1, "Traceback\n========= ERROR SUMMARY: 0 errors\n", 1, "ERROR SUMMARY: 0 errors"),
        (1, "no such device\n", 1, "exit code 1"),
    ],
)
def test_what_the_sanitizer_says(bench, returncode, output, n_errors, note):
    row = bench.gpu.sanitizer_row("memcheck", returncode, output)
    assert (row.values, row.note) == ([n_errors], note)
    assert bench.gpu.has_errors([bench.report.Group("", rows=[row])]) == (n_errors > 0)


def test_versions_and_sizes(bench):
    assert bench.gpu.version_text(13020) == "13.2"
    assert bench.gpu.version_text(12090) == "12.9"
    assert bench.gpu.said("/nowhere/nvidia-smi") == ""
    assert bench.gpu.said("echo", "one") == "one"
    gpu = types.SimpleNamespace(free_nbytes=lambda: 150 << 30)
    assert bench.gpu.samples_that_fit(gpu, 64) == 64
    gpu = types.SimpleNamespace(free_nbytes=lambda: 8 << 30)
    assert 16 < bench.gpu.samples_that_fit(gpu, 64) < 64


def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--json", str(tmp_path / "gpu.json")],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("bench.gpu: device: expected ")
    assert not (tmp_path / "gpu.json").exists()


# ---- What is timed


class MadeUpEvent:
    """Each recorded event comes 6 ms after the one before."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        MadeUpEvent.now_ms += 6.0
        self.ms = MadeUpEvent.now_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end) -> float:
        return end.ms - self.ms


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", MadeUpEvent)


def test_the_gpu_is_kept_busy_before_it_is_timed(bench, events):
    done = []
    seconds = bench.clock.gpu_seconds(
        lambda: done.append("run"), repeats=2, launches=3, ahead=lambda: done.append("ahead")
    )
    assert seconds == pytest.approx([0.002, 0.002])
    assert done == ["ahead", "run", "run", "run"] * (2 + bench.clock.WARM_UPS)


class HostDevice:
    """A GPU whose kernels run on the host, at once."""

    torch = torch.device("cpu")
    index = 0

    def __init__(self, kernels) -> None:
        self._kernels = kernels
        self.is_wrong = False

    def current_stream(self):
        return self

    def host_memory(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, dst, src):
        dst.copy_(src)

    def launch(self, operation):
        self._kernels.run(pack(operation))
        if self.is_wrong:
            operation.dst[operation.dst_offset + 3] ^= 0x40


@pytest.fixture
def host(bench, host_kernels, events, monkeypatch):
    monkeypatch.setattr(bench.kernels, "WEATHER", (48, 72, 17))
    monkeypatch.setattr(bench.kernels, "LAUNCHES", 1)
    monkeypatch.setattr(bench.clock, "WARM_UPS", 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    return HostDevice(host_kernels)


def test_kernels_are_checked_before_they_are_timed(bench, host):
    made = bench.kernels.Bench(host, samples=80, repeats=1)
    rooflines, copies = made.copies()
    assert rooflines.device_copy == pytest.approx(2 * made.nbytes / 0.006 / 1e9)
    place, others = made.place(rooflines), made.others(rooflines)
    assert [len(group.rows) for group in (copies, place, others)] == [3, 4, 7]
    assert copies.rows[2].share == pytest.approx(1)
    # All takes 6 ms here: what moves fewer bytes than a copy has the smaller share.
    shares = [row.share for row in place.rows]
    assert shares == pytest.approx([1, 1, 0.625, 0.625])
    assert [row.verdict for row in place.rows] == ["met", "met", "missed", ""]


@pytest.mark.parametrize("what", ["place", "_pad", "_resize", "_unshuffle"])
def test_wrong_values_are_never_timed(bench, host, what):
    made = bench.kernels.Bench(host, samples=80, repeats=1)
    host.is_wrong = True
    arguments = {
        "place": (bench.kernels.Rooflines(1.0, 1.0),),
        "_pad": ("constant",),
        "_resize": ((512, 512), (1024, 1024), "linear"),
        "_unshuffle": (4,),
    }
    with pytest.raises(AssertionError, match="expected other values"):
        getattr(made, what)(*arguments[what])


def test_the_rate_of_reads_counts_every_byte(bench, save_bytes):
    paths, files = save_bytes(3 << 20, 1 << 20)
    assert sum(map(len, files)) == 4 << 20
    assert bench.loading.read_gbs(paths, 2) > 0.01
