"""Every kernel compiles for every architecture, by the compiler that users have and without a GPU;
and where compiled kernels are kept."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import registers
from host_kernels import KERNELS

from gpuload.devices import programs

GOLDEN = json.loads(registers.GOLDEN.read_text())
RENEW = "python tests/registers.py --write"


@pytest.fixture(scope="module")
def nvrtc():
    from cupy.cuda import nvrtc

    return nvrtc


@pytest.fixture(scope="module")
def pool():
    with registers.processes() as pool:
        yield pool


@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", programs.ARCHITECTURES, ids=lambda a: f"sm_{a}")
def test_every_kernel_compiles_without_spilling_registers(nvrtc, pool, architecture):
    found = registers.usages(pool, architecture)
    assert [usage for usage in found if usage.spill_nbytes] == []
    if ".".join(map(str, nvrtc.getVersion())) != GOLDEN["nvrtc"]:
        return  # another compiler counts otherwise
    for family, row in registers.table(found).items():
        used = row[f"sm_{architecture}"]["registers"]
        kept = GOLDEN["kernels"][family][f"sm_{architecture}"]["registers"]
        assert used <= kept, f"{family}: {used} registers, {kept} before; if meant so: {RENEW}"


def test_the_table_of_registers_names_every_family_and_architecture():
    names = {registers.Usage(k.name, 0, 0, 0).family for k in programs.every_kernel()}
    architectures = {f"sm_{a}" for a in programs.ARCHITECTURES}
    want = {name: architectures for name in names}  # noqa: C420
    assert {family: set(row) for family, row in GOLDEN["kernels"].items()} == want, RENEW


LOG = """\
ptxas info    : 448 bytes gmem
ptxas info    : Compiling entry function 'place_1' for 'sm_90'
ptxas info    : Function properties for place_1
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 54 registers, used 0 barriers, 632 bytes cmem[0]
ptxas info    : Compile time = 27.283 ms
ptxas info    : Compiling entry function 'place_uint8_to_float32_affine' for 'sm_90'
ptxas info    : Function properties for place_uint8_to_float32_affine
ptxas         .     384 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 60 registers, used 0 barriers, 632 bytes cmem[0]
"""


def test_spills_are_read_from_the_log():
    found = registers.parse(LOG)
    assert [(u.family, u.architecture, u.registers, u.spill_nbytes) for u in found] == [
        ("place", 90, 54, 16),
        ("place affine", 90, 60, 0),
    ]


# ---- One text


def test_the_headers_are_one_text_in_which_nothing_is_included():
    text = programs.headers()
    assert "#include" not in text
    paths = sorted(KERNELS.glob("*.h"))
    assert len(paths) > 5
    for path in paths:
        body = path.read_text().split("namespace gpuload {", 1)[1]
        assert body in text, path.name


def test_a_changed_header_gives_another_file_and_other_options(monkeypatch, cache):
    before = programs.options(90), programs.compiled(FakeNvrtc(), KERNEL, 90)
    changed = programs.headers().replace("namespace gpuload {", "namespace gpuload { ", 1)
    monkeypatch.setattr(programs, "headers", lambda: changed)
    after = programs.options(90), programs.compiled(FakeNvrtc(), KERNEL, 90)
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert len(list(cache.iterdir())) == 2


# ---- Where compiled kernels are kept

KERNEL = programs.place_raw(4)


class FakeNvrtc:
    """Takes the place of cupy.cuda.nvrtc: programs "compile" when `gate` lets them."""

    class NVRTCError(Exception):
        pass

    def __init__(self, version=(13, 5), gate=None, error=None):
        self.version, self.gate, self.error = version, gate, error
        self.compiled, self.alive = 0, 0

    def getVersion(self):  # noqa: N802
        return self.version

    def createProgram(self, text, name, headers, names):  # noqa: N802
        self.alive += 1
        return text

    def compileProgram(self, program, options):  # noqa: N802
        if self.gate is not None:
            self.gate.wait(20)
        if self.error:
            raise self.NVRTCError(self.error)
        self.compiled += 1

    def getCUBIN(self, program):  # noqa: N802
        return b"machine code" * 10_000

    def getProgramLog(self, program):  # noqa: N802
        return "the log"

    def destroyProgram(self, program):  # noqa: N802
        self.alive -= 1


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache folder, empty."""
    monkeypatch.setenv("GPULOAD_KERNEL_CACHE_DIR", str(tmp_path / "kernels"))
    programs.cache_folder.cache_clear()
    yield programs.cache_folder()
    programs.cache_folder.cache_clear()


def test_a_kernel_is_compiled_once(cache):
    nvrtc = FakeNvrtc()
    first = programs.compiled(nvrtc, KERNEL, 90)
    assert programs.compiled(nvrtc, KERNEL, 90) == first
    assert (nvrtc.compiled, nvrtc.alive) == (1, 0)
    assert first.read_bytes() == nvrtc.getCUBIN(None)
    assert list(cache.iterdir()) == [first]


OTHERS = {
    "another kernel": (FakeNvrtc(), programs.place_raw(8), 90),
    "another architecture": (FakeNvrtc(), KERNEL, 80),
    "another compiler": (FakeNvrtc(version=(12, 9)), KERNEL, 90),
}


@pytest.mark.parametrize(("nvrtc", "kernel", "architecture"), OTHERS.values(), ids=OTHERS)
def test_what_differs_has_a_file_of_its_own(cache, nvrtc, kernel, architecture):
    first = programs.compiled(FakeNvrtc(), KERNEL, 90)
    assert programs.compiled(nvrtc, kernel, architecture) != first


def test_many_that_compile_at_once_all_find_a_whole_file(cache):
    n = 8
    nvrtc = FakeNvrtc(gate=threading.Barrier(n))
    with ThreadPoolExecutor(n) as pool:
        paths = list(pool.map(lambda _: programs.compiled(nvrtc, KERNEL, 90), range(n)))
    assert nvrtc.compiled == n
    assert set(paths) == {paths[0]}
    assert list(cache.iterdir()) == [paths[0]]
    assert paths[0].read_bytes() == nvrtc.getCUBIN(None)


def test_a_file_appears_whole(cache, monkeypatch):
    seen = []
    replace = os.replace

    def watching(source, target):
        seen.append((Path(target).exists(), Path(source).read_bytes()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watching)
    programs.compiled(FakeNvrtc(), KERNEL, 90)
    assert seen == [(False, FakeNvrtc().getCUBIN(None))]


def test_an_error_of_the_compiler_is_shown_with_its_log(cache):
    nvrtc = FakeNvrtc(error="NVRTC_ERROR_COMPILATION (6)")
    with pytest.raises(RuntimeError, match=r"kernels: NVRTC_ERROR_COMPILATION \(6\): the log"):
        programs.compiled(nvrtc, KERNEL, 90)
    assert nvrtc.alive == 0
    assert list(cache.iterdir()) == []


def test_a_real_error_names_the_line(nvrtc):
    wrong = programs.Kernel("wrong", "GL_KERNEL(wrong, PlaceParams, no_such_function(p, t))")
    with pytest.raises(RuntimeError, match="no_such_function"):
        programs.compile_program(nvrtc, [wrong], 90)


def test_a_full_disk_leaves_no_part_of_a_file(cache, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        programs.compiled(FakeNvrtc(), KERNEL, 90)
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_replaced_by_one_of_the_process(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GPULOAD_KERNEL_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    programs.cache_folder.cache_clear()
    try:
        path = programs.compiled(FakeNvrtc(), KERNEL, 90)
        assert path.parent.parent == tmp_path
        assert path.parent.name.startswith("gpuload-kernels-")
        assert programs.compiled(FakeNvrtc(), KERNEL, 90) == path
    finally:
        programs.cache_folder.cache_clear()


def test_the_cache_folder_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("GPULOAD_KERNEL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs.cache_folder.cache_clear()
    try:
        assert programs.cache_folder() == tmp_path / "gpuload" / "kernels"
    finally:
        programs.cache_folder.cache_clear()
