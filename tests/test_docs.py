"""What README and docs say: programs run, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import click
import numpy as np
import pytest

from gpuload.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"(?<![\w./-])(?:tests|docs|csrc|gpuload|bench)/[\w./-]*[a-z0-9](?![\w/])")
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text()


def code_in(page: Path) -> list[str]:
    """Lines of code that are no Python: fences, indented blocks, words in backticks."""
    text = text_of(page)
    lines = [
        line
        for language, block in FENCE.findall(text)
        if language != "python"
        for line in block.splitlines()
    ]
    prose = FENCE.sub("", text)
    lines += re.findall(r"^ {4,}(\S.*)$", prose, re.M)
    return lines + re.findall(r"`([^`\n]+)`", prose)


def programs(page: Path) -> list[str]:
    return [block for language, block in FENCE.findall(text_of(page)) if language == "python"]


@pytest.fixture
def small_files(tmp_path, monkeypatch):
    """What the programs read: scans/ with three classes of float32 matrices, images/ and
    segmentations/ of several sizes."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog", "horse"):
        folder = tmp_path / "scans" / name
        folder.mkdir(parents=True)
        for i in range(4):
            np.save(folder / f"{i:03}.npy", random.random((40, 50), np.float32))
    for i in range(4):
        height, width = random.integers(20, 40, 2)
        for name, shape in (("images", (height, width, 6)), ("segmentations", (height, width))):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{i:03}.npy", random.integers(0, 9, shape, np.uint8))
    monkeypatch.chdir(tmp_path)


def test_the_readme_and_the_docs_have_programs():
    assert sum(len(programs(page)) for page in PAGES) >= 5


@each_page
def test_every_program_runs_as_it_stands(page, small_files):
    """The programs of one page follow each other."""
    variables = {"__name__": "__main__"}
    for program in programs(page):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(program, str(page), "exec"), variables)


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"\w+:", target):
            continue  # another site
        name, _, heading = target.partition("#")
        path = page if not name else (page.parent / name)
        assert path.exists(), f"{page.name} links to {target}"
        if heading:
            assert heading in anchors(path), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.M)
    return {anchor(heading) for heading in headings}


def anchor(heading: str) -> str:
    kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


@each_page
def test_every_file_named_is_there(page):
    for code in code_in(page):
        for name in NAMED.findall(code):
            assert (ROOT / name).exists() or is_made(name), f"{page.name} names {name}"


def is_made(name: str) -> bool:
    """Whether git leaves it out: it is there only after a build or a run."""
    done = subprocess.run(
        ["git", "check-ignore", "-q", name], cwd=ROOT, check=False, capture_output=True
    )
    return done.returncode == 0


@each_page
def test_every_command_exists(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for code in code_in(page):
        command = re.sub(r"^\$ ", "", code)
        if found := re.match(r"make ([a-z-]+)\b", command):
            assert found[1] in targets, f"{page.name}: {command}"
        elif found := re.match(r"(?:python -m )?gpuload ([a-z][a-z-]+)(.*)", command):
            check_command(found[1], found[2], f"{page.name}: {command}")
        elif found := re.match(r"python -m ([\w.]+)", command):
            assert is_module(found[1]), f"{page.name}: {command}"


def check_command(name: str, rest: str, where: str) -> None:
    assert name in main.commands, where
    known = {o for p in main.commands[name].params if isinstance(p, click.Option) for o in p.opts}
    for option in re.findall(r"(?<!\S)--[\w-]+", rest.partition("#")[0]):
        assert option in known | {"--help"}, where


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
        return True
    found = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
    return subprocess.run([sys.executable, "-c", found], check=False).returncode == 0
