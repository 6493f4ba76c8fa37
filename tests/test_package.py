"""The package as it is installed: what is in it, what it says of itself, its types."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RENEW = "python -m nanobind.stubgen -m gpuload._native -o gpuload/_native.pyi"


def is_editable() -> bool:
    text = importlib.metadata.distribution("gpuload").read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory) -> set[str]:
    """Names in the wheel: those that were installed, or of one that is built where an editable
    install stands in for it."""
    if not is_editable():
        files = importlib.metadata.files("gpuload")
        assert files is not None
        return {str(path) for path in files}
    directory = tmp_path_factory.mktemp("wheel")
    program = (
        "import sys; from scikit_build_core.build import build_wheel; "
        "build_wheel(sys.argv[1], {'build-dir': 'build/test-{wheel_tag}'})"
    )
    build(program, directory)
    with zipfile.ZipFile(next(directory.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def sdist_files(tmp_path_factory) -> set[str]:
    directory = tmp_path_factory.mktemp("sdist")
    build(
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])",
        directory,
    )
    with tarfile.open(next(directory.glob("*.tar.gz"))) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def build(program: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.timeout(300)
def test_the_wheel_has_the_package_and_nothing_else(wheel_files):
    sources = {
        str(path.relative_to(ROOT))
        for suffix in ("py", "pyi", "h", "typed")
        for path in (ROOT / "gpuload").rglob(f"*.{suffix}")
    }
    package = {name for name in wheel_files if name.startswith("gpuload/")}
    native = {name for name in package if re.fullmatch(r"gpuload/_native\..*\.so", name)}
    compiled = {name for name in package if name.endswith(".pyc")}
    assert len(native) == 1
    assert package - native - compiled == sources
    assert {"gpuload/py.typed", "gpuload/_native.pyi", "gpuload/kernels/random.h"} <= sources
    others = {name.split("/")[0] for name in wheel_files - package} - {".."}
    assert others == {f"gpuload-{PROJECT['version']}.dist-info"}
    assert any(name.endswith("LICENSE") for name in wheel_files)


def test_the_sdist_has_what_a_build_and_a_test_need(sdist_files):
    wanted = ["csrc/CMakeLists.txt", "csrc/module.cpp", "gpuload/kernels/random.h", "LICENSE"]
    wanted += ["pyproject.toml", "README.md", "constraints.txt", "Makefile", "tests/conftest.py"]
    assert set(wanted) <= sdist_files
    assert not [name for name in sdist_files if name.startswith((".ci", "build/", ".venv"))]
    assert not [name for name in sdist_files if name.endswith((".so", ".pyc"))]


def test_it_works_from_another_directory(tmp_path, run_python):
    np.save(tmp_path / "a.npy", np.arange(12, dtype=">i2").reshape(3, 4))
    done = run_python(
        """
        import gpuload as gl

        assert gl._native.__file__.endswith(".so")
        loader = gl.DataLoader(gl.open("a.npy", sample_axis=0), 2)
        print([x.tolist() for x in loader], loader.describe().count("\\n") > 3)
        """
    )
    assert done.stderr == ""
    assert done.stdout == "[[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11]]] True\n"


def test_the_version_is_the_same_everywhere():
    assert gl.__version__ == importlib.metadata.version("gpuload") == PROJECT["version"]
    assert f"## {gl.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_requirements_are_those_of_the_project():
    required = importlib.metadata.requires("gpuload") or []
    base = {re.split(r"[<>=;! ]", name)[0] for name in required if "extra ==" not in name}
    assert base == {re.split(r"[<>=]", name)[0] for name in PROJECT["dependencies"]}
    assert not any(name.lower().startswith(("cupy", "kvikio", "nvidia")) for name in base)


def test_the_types_of_the_native_module_are_current(tmp_path):
    made = tmp_path / "_native.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-m", "gpuload._native", "-o", str(made)],
        cwd=tmp_path,
        check=True,
        timeout=50,
        stdout=subprocess.DEVNULL,
    )
    committed = (ROOT / "gpuload" / "_native.pyi").read_text()
    assert committed == made.read_text(), f"gpuload/_native.pyi is out of date; run {RENEW}"


def test_the_native_module_links_no_cuda():
    done = subprocess.run(
        ["ldd", gl._native.__file__], capture_output=True, text=True, check=True, timeout=20
    )
    assert "libc.so" in done.stdout
    assert not re.search("cuda|nvrtc|cufile|torch|python", done.stdout)


PUBLIC = [getattr(gl, name) for name in gl.__all__]


def test_all_lists_what_there_is():
    assert sorted(gl.__all__) == gl.__all__
    assert len(set(gl.__all__)) == len(gl.__all__)


@pytest.mark.parametrize("thing", PUBLIC, ids=gl.__all__)
def test_every_public_name_says_what_it_is(thing):
    assert inspect.getdoc(thing)
    assert thing.__doc__, "a docstring of its own, not an inherited one"
    if not inspect.isclass(thing) or not thing.__module__.startswith("gpuload"):
        return
    for name, member in vars(thing).items():
        is_code = callable(member) or isinstance(member, property | functools.cached_property)
        if name.startswith("_") or not is_code:
            continue
        assert inspect.getdoc(member), f"{thing.__name__}.{name} has no docstring"


def test_importing_takes_no_thread_and_no_file(tmp_path, run_python):
    done = run_python("import os; print(sorted(os.listdir('/proc/self/fd'), key=int))")
    assert done.stdout.startswith("['0', '1', '2', ")
    assert len(done.stdout.split(",")) == 4  # the listing itself is the fourth
    assert os.listdir(tmp_path / "..")  # nothing is written beside it
