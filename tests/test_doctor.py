"""`gpuload doctor` on this machine: what it prints, for which paths, and what does not answer."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import gpuload as gl
from gpuload import doctor, system
from gpuload.cli import main
from gpuload.doctor import data, gpu
from gpuload.doctor.gpu import Card
from gpuload.doctor.step import NoAnswerError, Steps
from gpuload.errors import MissingError
from gpuload.readers import gds
from gpuload.system import Mount, NumaNode

MANUAL = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()


@pytest.fixture
def run(monkeypatch):
    """Run the command in this process."""
    monkeypatch.setenv("COLUMNS", "300")  # no line is broken

    def run(*arguments: object):
        return CliRunner().invoke(main, ["doctor", *map(str, arguments)])

    return run


@pytest.fixture
def folder(save_arrays):
    return save_arrays(3, (20, 30))[0]


def rows_of(output: str) -> dict[str, str]:
    """The rows that were printed; of those of one name, the last."""
    return {
        found[1]: found[2].strip() for found in re.finditer(r"^  (\S.*?)  +(\S.*)$", output, re.M)
    }


# ---- the command, on this machine


def test_it_tells_what_is_here_without_a_path(run, no_cuda):
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    titles = re.findall(r"^(\S.*)$", result.output, re.M)
    assert titles == ["Machine", "GPU", "GPUDirect Storage", "Findings"]
    rows = rows_of(result.output)
    assert rows["cores"].startswith(f"{system.cores()} granted of {os.cpu_count()}")
    assert f"NumPy {np.__version__}" in rows["versions"]
    assert f"gpuload {gl.__version__}" in rows["versions"]
    assert rows["device cuda"] == f"cannot be used: {no_cuda}"
    assert "\x1b" not in result.output


def test_it_says_what_the_cuda_device_says(run):
    """Nothing is made up here: neither the device nor the reason."""
    from gpuload.devices.cuda import why_not

    reason = why_not()
    rows = rows_of(run().output)
    assert rows["device cuda"] == ("can be used" if reason is None else f"cannot be used: {reason}")


@pytest.mark.usefixtures("no_cuda")
def test_it_describes_a_folder_as_the_loader_would(run, folder):
    rows = rows_of(run(folder).output)
    described = gl.DataLoader(gl.open(folder), device="cpu").describe()
    io, threads = (re.search(rf"^{name} +(.*)$", described, re.M)[1] for name in ("io", "threads"))
    assert rows["io"] == io
    assert threads.startswith(f"{rows['threads']}, ")
    assert rows["arrays"] == "3 items in 3 files, float32, 0.0 MB"
    assert rows["file system"].startswith(system.mount_of(os.path.realpath(folder)).file_system)
    assert rows["GDS"] == "no: CUDA cannot be used"


@pytest.mark.usefixtures("no_cuda")
def test_json_holds_the_facts_of_a_folder(run, folder):
    result = run(folder, "--json")
    report = json.loads(result.stdout)
    assert result.stderr == ""
    assert report["schema"] == 1
    assert report["machine"]["cores_granted"] == system.cores()
    assert report["gpu"]["is_usable"] is False
    assert report["gpu"]["torch_cuda"] == torch.version.cuda
    contents = report["data"]["contents"]
    assert (contents["items"], contents["files"], contents["nbytes"]) == (3, 3, 3 * 20 * 30 * 4)
    space = os.statvfs(folder)
    assert report["data"]["ground"]["nbytes"] == space.f_blocks * space.f_frsize
    assert report["data"]["reading"]["io"] in ("mmap", "pread")
    assert report["data"]["error"] is None
    assert {finding["level"] for finding in report["findings"]} <= {"ok", "note", "problem"}


@pytest.mark.usefixtures("no_cuda")
def test_a_file_and_a_glob_are_taken_as_well(run, folder):
    for path, n_files in ((folder / "00000.npy", 1), (folder / "0000[12].npy", 2)):
        report = json.loads(run(path, "--json").stdout)
        assert report["data"]["contents"]["files"] == n_files


@pytest.mark.usefixtures("no_cuda")
def test_every_key_is_documented(run, folder):
    section = MANUAL.partition("## gpuload doctor")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([a-z_0-9]+)`", section))

    report = json.loads(run(folder, "--json").stdout)
    report["cards"] = [dict.fromkeys(names_of(Card))]
    report["numa_nodes"] = [dict.fromkeys(names_of(NumaNode))]
    assert keys_of(report) <= documented


def names_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def keys_of(value: object) -> set[str]:
    """All keys of a JSON value."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set()


# ---- paths that are no data sets


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("name", ["nothing.npy", "nothing/", "no*.npy", "link.npy", ""])
def test_a_path_where_nothing_is_is_one_line_and_exit_code_1(run, tmp_path, name):
    (tmp_path / "link.npy").symlink_to("gone.npy")
    result = run(f"{tmp_path}/{name}" if name else "", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.fullmatch(r"Error: .*expected .*, got .*\n", result.stderr)


@pytest.mark.usefixtures("no_cuda")
def test_a_folder_without_arrays_is_described_all_the_same(run, tmp_path):
    (tmp_path / "notes.txt").touch()
    report = json.loads(run(tmp_path, "--json").stdout)
    assert report["data"]["is_empty"]
    assert report["data"]["contents"] is None
    assert report["data"]["ground"]["free_nbytes"] > 0
    assert [f["level"] for f in report["findings"] if "got none" in f["text"]] == ["note"]
    assert rows_of(run(tmp_path).output)["arrays"] == "none"


BROKEN = {
    "not an array": lambda path: path.write_bytes(b"hello"),
    "objects": lambda path: np.save(path, np.array([{}]), allow_pickle=True),
}


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_a_file_that_does_not_open_is_a_problem_and_the_rest_still_shows(run, tmp_path, make):
    path = tmp_path / "x.npy"
    make(path)
    with pytest.raises(gl.GpuloadError, match=r"x\.npy") as error:
        gl.open(path)
    result = run(path)
    assert result.exit_code == 0
    rows = rows_of(result.output)
    assert rows["problem"] == str(error.value)
    assert rows["arrays"] == "see below"
    assert "free of" in rows["file system"]
    assert "cores" in rows


SPOILED = {"not an array": BROKEN["not an array"], "a link": lambda p: p.symlink_to("gone.npy")}


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("make", SPOILED.values(), ids=SPOILED)
def test_the_other_files_of_a_folder_are_described(run, folder, make):
    make(folder / "bad.npy")
    report = json.loads(run(folder, "--json").stdout)
    assert "bad.npy" in report["data"]["error"]
    assert report["data"]["contents"]["files"] == 3
    assert len(report["data"]["contents"]["errors"]) == 1
    assert report["data"]["reading"] is not None
    problems = [f["text"] for f in report["findings"] if f["level"] == "problem"]
    assert report["data"]["error"] in problems


@pytest.mark.usefixtures("no_cuda")
def test_a_warning_of_open_is_a_note(run, tmp_path):
    for name in ("2", "10"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.zeros(4))
    assert "class folders are numbers" in run(tmp_path).output


@pytest.mark.usefixtures("no_cuda")
def test_names_with_brackets_and_bytes_that_are_no_text_can_be_printed(run, tmp_path):
    path = tmp_path / os.fsdecode(b"[red]a\xff.npy")
    np.save(path, np.zeros(4))
    assert rows_of(run(path).output)["path"].endswith(r"[red]a\udcff.npy")
    assert json.loads(run(path, "--json").stdout)["data"]["path"] == str(path)


# ---- what does not answer


@pytest.fixture
def stuck():
    """Calls of it return when the test is over."""
    over = threading.Event()
    yield lambda *arguments: over.wait(30)
    over.set()


@pytest.mark.usefixtures("no_cuda")
def test_a_dead_mount_is_named_and_the_machine_still_shows(run, monkeypatch, folder, stuck):
    monkeypatch.setattr(os, "statvfs", stuck)
    monkeypatch.setattr(data, "REACH_S", 0.05)
    dead = Mount(str(folder), "server:/export", "nfs4")
    monkeypatch.setattr(system, "mount_of", lambda path, *, device=None: dead)
    result = run(folder)
    assert result.exit_code == 0
    rows = rows_of(result.output)
    assert rows["problem"] == (
        f"reaching {folder}: expected an answer within 0.05 s, got none; see whether the nfs4 "
        f"mount of server:/export at {folder} is alive"
    )
    assert rows["file system"] == f"nfs4 (network), server:/export at {folder}"
    assert "cores" in rows


@pytest.mark.usefixtures("no_cuda")
def test_a_dead_driver_is_the_reason(monkeypatch, stuck, tmp_path):
    sys.modules["gpuload.devices.cuda"].why_not = stuck
    monkeypatch.setattr(gpu, "ASK_S", 0.05)
    found = gpu.examine(Steps(lambda step: None), tmp_path)
    assert not found.is_usable
    assert found.reason.startswith("asking the GPU driver: expected an answer within 0.05 s")


@pytest.mark.usefixtures("one_gpu")
def test_a_trial_read_that_hangs_leaves_the_rest(monkeypatch, stuck, folder):
    monkeypatch.setattr(gds, "probe", stuck)
    monkeypatch.setattr(data, "PROBE_S", 0.05)
    report = doctor.examine(str(folder))
    assert report.data.reading.io in ("mmap", "pread")
    assert "expected an answer within 0.05 s" in report.data.reading.gds_reason


def test_a_step_returns_and_raises_what_its_work_does():
    told = []
    steps = Steps(told.append)
    assert steps.run("one", lambda: 1, limit_s=5) == 1
    with pytest.raises(MissingError, match="nothing there"):
        steps.run("two", lambda: gl.open("/nothing there.npy"), limit_s=5)
    with pytest.raises(NoAnswerError, match=r"^three: expected an answer within 0.01 s, got none$"):
        steps.run("three", lambda: threading.Event().wait(1), limit_s=0.01)
    assert told == ["one", "two", "three"]
