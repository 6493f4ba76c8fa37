"""The installed kvikio has what is used of it, as it is used. It imports without a GPU."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import os
from pathlib import Path

import pytest
from kvikio_standin import PAGE, CompatMode, CuFile, IOFuture, StandIn

from gpuload.readers import device_files, gds, holdings

KVIKIO_MODULES = (gds, device_files, holdings)
USED = {
    "CuFile",
    "CompatMode.ON",
    "__version__",
    "buffer.memory_deregister",
    "buffer.memory_register",
    "defaults.get",
    "defaults.is_compat_mode_preferred",
}
OF_A_FILE = {"close", "fileno", "is_direct_io_supported", "pread"}


def chain(node: ast.Attribute) -> list[str]:
    """["kvikio", "defaults", "get"] of `kvikio.defaults.get` and of `self._kvikio.defaults.get`."""
    names = [node.attr]
    while isinstance(node.value, ast.Attribute):
        node = node.value
        names.append(node.attr)
    if isinstance(node.value, ast.Name):
        names.append(node.value.id)
    names = [name.lstrip("_") for name in reversed(names)]
    return names[names.index("kvikio") :] if "kvikio" in names else []


def test_everything_that_is_used_of_kvikio_is_listed():
    used, of_a_file = set(), set()
    for module in KVIKIO_MODULES:
        tree = ast.parse(Path(module.__file__).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                used.add(".".join(chain(node)[1:]))
                if isinstance(node.value, ast.Name) and node.value.id in ("file", "handle"):
                    of_a_file.add(node.attr)
    used = {name for name in used if name and not any(u.startswith(f"{name}.") for u in used)}
    assert {name.replace("version__", "__version__") for name in used} == USED
    assert of_a_file == OF_A_FILE


@pytest.fixture
def real():
    if importlib.util.find_spec("kvikio") is None:
        pytest.skip("kvikio is not installed")
    return gds._kvikio()


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_real_kvikio_has_what_is_used(real):
    for name in USED:
        thing = real
        for part in name.split("."):
            thing = getattr(thing, part)
    assert set(dir(real.CuFile)) >= OF_A_FILE
    assert parameters(real.CuFile.__init__) == ["self", "file", "flags"]
    assert parameters(real.CuFile.pread) == ["self", "buf", "size", "file_offset", "task_size"]
    for method in ("close", "fileno", "is_direct_io_supported"):
        assert parameters(getattr(real.CuFile, method)) == ["self"]
    assert parameters(real.cufile.IOFuture.get) == ["self"]
    assert inspect.signature(real.CuFile.pread).return_annotation is real.cufile.IOFuture
    assert parameters(real.buffer.memory_register) == ["buf"]
    assert parameters(real.buffer.memory_deregister) == ["buf"]
    assert parameters(real.defaults.is_compat_mode_preferred) == []


def test_the_settings_of_the_real_kvikio(real):
    for name in ("gds_threshold", "num_threads", "task_size"):
        assert int(real.defaults.get(name)) > 0
    assert real.defaults.get("compat_mode") in list(real.CompatMode)
    assert real.CompatMode.ON == CompatMode.ON
    version = importlib.metadata.version(
        "kvikio-cu13" if gds._is_installed("kvikio-cu13") else "kvikio-cu12"
    )
    assert version.split(".")[0] == real.__version__.split(".")[0]


def test_the_real_kvikio_opens_files_as_is_assumed(real, tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(PAGE))
    file = real.CuFile(str(path))
    assert os.fstat(file.fileno()).st_size == PAGE
    file.close()
    file.close()
    with pytest.raises(RuntimeError, match="No such file"):
        real.CuFile(str(tmp_path / "none"))


def test_the_stand_in_is_called_like_the_real_one(real):
    for method in ("pread", *sorted(OF_A_FILE - {"pread"})):
        assert parameters(getattr(CuFile, method)) == parameters(getattr(real.CuFile, method))
    standin = StandIn()
    assert ["self", *parameters(standin.CuFile)] == parameters(real.CuFile.__init__)
    assert parameters(standin.defaults.get) == parameters(real.defaults.get)
    assert parameters(standin.buffer.memory_register) == parameters(real.buffer.memory_register)
    assert parameters(IOFuture.get) == parameters(real.cufile.IOFuture.get)
    standin.pool.shutdown()
