"""The command line: what it documents, prints, returns and leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import gpuload
from gpuload.cli import main

DOCS = Path(__file__).parents[1] / "docs" / "cli.md"
COMMANDS = sorted(main.commands)


def section(command: str) -> str:
    """Return what docs/cli.md says about `command`."""
    found = re.search(rf"^## gpuload {command}$(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
    assert found, f"docs/cli.md has no section '## gpuload {command}'"
    return found[1]


@pytest.fixture
def temporary():
    """A folder with a short name: sockets in it may have paths of 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        yield Path(name)


@pytest.fixture
def start(tmp_path, temporary):
    """Start `python -m gpuload ...`, its temporary files below `temporary`; end it if need be."""
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "torch")  # torch's own, never removed
    running = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuload", *arguments],
            cwd=tmp_path,  # not the source folder, which has no built extension
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        with process:
            process.kill()


def test_every_documented_command_exists():
    assert re.findall(r"^## gpuload (\S+)$", DOCS.read_text(), re.M) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented_and_no_other(command):
    parameters = main.commands[command].params
    options = {o for p in parameters if isinstance(p, click.Option) for o in p.opts}
    assert set(re.findall(r"^\| `(--[a-z-]+)", section(command), re.M)) == options


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert f"Usage: gpuload {command}" in result.output


def test_the_version_is_the_package_version():
    result = CliRunner().invoke(main, ["--version"])
    assert result.output == f"gpuload, version {gpuload.__version__}\n"


def test_python_dash_m_is_the_same_command(start):
    output, _ = start("--help").communicate(timeout=60)
    assert output.startswith("Usage: gpuload [OPTIONS] COMMAND")


def test_a_wrong_option_ends_with_exit_code_2():
    result = CliRunner().invoke(main, ["demo", "--epochs", "0"])
    assert result.exit_code == 2
    assert "--epochs" in result.output


def test_a_missing_scikit_image_is_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: demo: expected scikit-image, whose photographs it cuts up, got no such package;"
        " pip install gpuload[demo]\n"
    )


def test_a_folder_in_use_is_not_written_to(tmp_path):
    (tmp_path / "mine.txt").touch()
    result = CliRunner().invoke(main, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert "'--keep': expected a new or an empty folder, got " + str(tmp_path) in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.timeout(300)
def test_the_demo_runs_and_leaves_only_what_it_was_told_to_keep(start, tmp_path, temporary):
    process = start("demo", "--quick", "--keep", "kept")
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert errors == ""
    percents = r" +\d+\.\d %" * 3
    assert re.search(rf"^ +2/2 +\d\.\d{{3}}{percents} +\d+\.\d s$", output, re.M)
    for loader in ("gpuload", "torch, best", "torch, plain"):
        assert re.search(rf"^{loader} +[\d,]+ +[\d.,]+ MB ", output, re.M)
    assert "\x1b" not in output  # no colours and no bar in a log
    assert len(gpuload.open(tmp_path / "kept" / "train")) == 12 * 8
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_an_interrupted_demo_leaves_nothing_behind(start, temporary, number):
    process = start("demo", "--quick", "--epochs", "1000")
    for line in process.stdout:
        if line.strip().startswith("2/1000"):
            break
    assert list(temporary.iterdir()) != []
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (1 if number == signal.SIGINT else 128 + number)
    assert list(temporary.iterdir()) == []
