"""The module list of the README is the order of the modules: each imports what stands above it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpuload"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
README = (ROOT / "README.md").read_text()
# What is not in every installation, or not fast to import -> where alone it may be imported.
HOME = {
    "click": {"cli.py"},
    "rich": {"progress.py", "cli.py", "doctor/report.py", "demo/report.py", "demo/run.py"},
    "skimage": {"demo/photographs.py"},
    "h5py": set(),
    "cupy": {"devices/cuda.py"},
    "kvikio": {"readers/gds.py"},
    "cuda": {"readers/counters.py"},
}
EVERYWHERE = {"numpy", "torch"}


def layers() -> list[str]:
    """Names of the first column of the table, in order: "errors", "sources", ..."""
    rows = re.findall(r"^\| (`.+?) \|", README, re.M)
    names = [name for row in rows for name in re.findall(r"`([\w./*]+)`", row)]
    return [re.sub(r"(\.py|/)$", "", name) for name in names]


LAYERS = layers()


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


def test_the_readme_lists_every_module():
    modules = {layer_of(path) for path in FILES} - {"__main__"}
    assert modules <= set(LAYERS)
    listed = {name for name in LAYERS if "*" not in name and name != "csrc"}
    assert listed == modules, "the README lists a module that is not there"


def test_the_readme_names_every_file_of_a_package():
    for path in FILES:
        package, *inner = path.relative_to(PACKAGE).parts
        if inner and inner != ["__init__.py"] and package != "demo":
            assert f"`{'/'.join(inner)}`" in README


@each_file
def test_imports_point_up(path):
    if layer_of(path) == "__main__":
        return
    mine = LAYERS.index(layer_of(path))
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package != "gpuload":
            continue
        layer = rest.split(".")[0]
        if layer == "_native":
            continue
        if layer not in LAYERS:  # the package as a whole, or a name of it
            assert layer_of(path) in ("cli", "demo"), f"{name_of(path)} imports the whole package"
        else:
            assert LAYERS.index(layer) <= mine, f"{name_of(path)}: {name} stands below it"


@each_file
def test_what_is_not_everywhere_is_imported_in_its_place(path):
    for name in imports(path):
        package = name.split(".")[0]
        if package in sys.stdlib_module_names or package in EVERYWHERE | {"gpuload"}:
            continue
        assert name_of(path) in HOME.get(package, set()), f"{name_of(path)} imports {package}"


def test_no_module_imports_itself_through_others():
    dotted = {path: module_name(path) for path in [*FILES, PACKAGE / "__init__.py"]}
    known = {*dotted.values(), "gpuload._native"}
    edges = {
        name: {target for i in imports(path) for target in targets(i, known)} - {name}
        for path, name in dotted.items()
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done and name in edges:
            for target in edges[name]:
                visit(target, (*above, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def targets(imported: str, known: set[str]) -> set[str]:
    """The module that an import names: the longest part of it that is one."""
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return {imported} if imported else set()


def test_only_one_native_file_knows_python():
    knowing = {
        path.name
        for path in (ROOT / "csrc").iterdir()
        if re.search(r"#include [<\"](nanobind|Python\.h)", path.read_text())
    }
    assert knowing == {"module.cpp"}


def test_kernels_know_neither_python_nor_the_host_code():
    for path in (PACKAGE / "kernels").iterdir():
        for name in re.findall(r'#include "(.+?)"', path.read_text()):
            assert (PACKAGE / "kernels" / name).exists(), f"{path.name} includes {name}"
