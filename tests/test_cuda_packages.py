"""The installed CuPy and torch have what devices/cuda.py uses of them, as it uses it.

Both import without a GPU. Uses are found in the source, so that a new one is checked by itself.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_standin import CudaStandIn
from cupy_standin import CUDARuntimeError

from gpuload.devices import choose, cuda, params, programs

MODULES = (cuda, choose, programs)
# What a name in these modules stands for: a class of a real package, or a part of it.
CLASSES = {"CudaEvent": "Event", "CudaStream": "Stream", "_Handle": "Stream"}
TENSORS = {"dst", "memory", "src"}


@dataclass(frozen=True)
class Use:
    """`name` of `package`, as "cuda.runtime.hostRegister"; `call` where it is called."""

    package: str
    name: str
    call: ast.Call | None

    def __str__(self) -> str:
        return f"{self.package}.{self.name}{'()' if self.call else ''}"


def names_of(node: ast.expr) -> list[str]:
    """["self", "cupy", "cuda"] of `self.cupy.cuda`; nothing of what is no such chain."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def use_of(names: list[str], call: ast.Call | None, inside: str) -> Use | None:
    """What a chain of names uses. `inside` is the class that it stands in."""
    if "cupy" in names[:-1]:
        return Use("cupy", ".".join(names[names.index("cupy") + 1 :]), call)
    if names[0] == "nvrtc" and len(names) > 1:
        return Use("cupy", f"cuda.nvrtc.{names[1]}", call)
    if names[0] == "torch" and len(names) > 1:
        return Use("torch", ".".join(names[1:]), call)
    for owner in (["self", "torch"], ["self", "_stream"]):
        if names[:2] == owner and len(names) == 3 and inside in CLASSES:
            return Use("torch", f"cuda.{CLASSES[inside]}.{names[2]}", call)
    if names[0] == "stream" and len(names) == 2 and names[1] == "torch":
        return None
    if names[0] in TENSORS and len(names) == 2 and call is not None:
        return Use("torch", f"Tensor.{names[1]}", call)
    if names[0] == "module":
        return Use("cupy", f"RawModule.{names[1]}", call)
    return None


def walk(node: ast.AST, inside: str = "") -> Iterator[Use]:
    called = node.func if isinstance(node, ast.Call) else None
    for candidate, call in ((called, node), (node, None)):
        if isinstance(candidate, ast.Attribute):
            names = names_of(candidate)
            found = use_of(names, call, inside) if names else None
            if found is not None:
                yield found
    inside = node.name if isinstance(node, ast.ClassDef) else inside
    for child in ast.iter_child_nodes(node):
        if not (called is child and isinstance(child, ast.Attribute)):
            yield from walk(child, inside)


def find_uses() -> list[Use]:
    found = {}
    for module in MODULES:
        for use in walk(ast.parse(Path(module.__file__).read_text())):
            shape = (str(use), use.call and (len(use.call.args), str(keywords(use.call))))
            found[shape] = use
    return sorted(found.values(), key=str)


def keywords(call: ast.Call) -> list[str]:
    return [str(keyword.arg) for keyword in call.keywords]


USES = find_uses()
each_use = pytest.mark.parametrize("use", USES, ids=str)


@pytest.fixture(scope="module")
def packages() -> dict[str, Any]:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    return {"cupy": cupy, "torch": torch}


def look_up(packages, use: Use) -> Any:
    thing = packages[use.package]
    for name in use.name.split("."):
        thing = getattr(thing, name)
        if use.name.startswith("version.cuda.") and name == "cuda":
            thing = thing or "13.0"  # as a CUDA build says
    return thing


def test_the_uses_are_found():
    names = {str(use) for use in USES}
    assert {
        "cupy.RawModule()",
        "cupy.RawModule.get_function()",
        "cupy.cuda.Stream.from_external()",
        "cupy.cuda.nvrtc.compileProgram()",
        "cupy.cuda.runtime.CUDARuntimeError",
        "cupy.cuda.runtime.hostRegister()",
        "torch.Tensor.copy_()",
        "torch.Tensor.record_stream()",
        "torch.cuda.Event()",
        "torch.cuda.Event.record()",
        "torch.cuda.Event.synchronize()",
        "torch.cuda.Stream()",
        "torch.cuda.Stream.cuda_stream",
        "torch.cuda.Stream.wait_event()",
        "torch.cuda.mem_get_info()",
        "torch.cuda.stream()",
        "torch.empty()",
        "torch.version.cuda",
    } <= names
    assert len(names) > 35


@each_use
def test_what_is_used_is_there_and_is_called_as_it_can_be(packages, use):
    check(packages, use)


def check(packages, use: Use) -> None:
    if use.name == "cuda.Stream.cuda_stream":  # of the native class, which a CPU build lacks
        stub = Path(torch.__file__).with_name("_C") / "__init__.pyi"
        native = re.search(r"class _CudaStreamBase\(.*?\n\n\n?(?=class )", stub.read_text(), re.S)
        assert "cuda_stream: _int" in native[0]
        return
    thing = look_up(packages, use)
    if use.call is None:
        return
    assert callable(thing)
    is_method = re.search(r"\b(Tensor|Event|Stream|RawModule)\.", use.name) is not None
    is_method &= not isinstance(thing, types.MethodType)
    try:
        signature = inspect.signature(thing.__new__ if use.name == "cuda.Event" else thing)
    except ValueError:
        signature = documented(thing)
        is_method &= "self" in signature.parameters
    owner = [None] * (is_method or use.name in ("cuda.Event", "cuda.Stream"))
    signature.bind(*owner, *[None] * len(use.call.args), **dict.fromkeys(keywords(use.call)))


def documented(function: Any) -> inspect.Signature:
    """What the first line of a docstring tells, as Cython and torch write it:
    `hostRegister(intptr_t ptr, size_t size, unsigned int flags)`."""
    if function is torch.device:
        return inspect.signature(lambda type, index=None: None)
    text = re.sub(r"\s+", " ", function.__doc__ or "")
    listed = re.match(r"\s*\w[\w.]*\((.*?)\)(?= |$)", text)
    assert listed is not None, f"{function}: nothing tells its parameters"
    text = re.sub(r"=\([^)]*\)", "=0", listed[1]).replace("*size, *,", "*size,")
    parts = [part.strip() for part in text.split(",")]
    names = [re.sub(r"=.*", "=None", part.split(" ")[-1]) for part in parts if part]
    return inspect.signature(eval(f"lambda {', '.join(names)}: None"))


WRONG_USES = {
    "torch.cuda.current_streams()": (AttributeError, "current_streams"),
    "torch.cuda.Event(blocks=True)": (TypeError, "unexpected keyword argument 'blocks'"),
    "torch.cuda.mem_get_info(1, 2)": (TypeError, "too many positional arguments"),
    "dst.copy_(src, nonblocking=True)": (TypeError, "unexpected keyword argument 'nonblocking'"),
    "self.cupy.cuda.runtime.hostRegister(address, nbytes)": (TypeError, "missing .* 'flags'"),
    "self.cupy.cuda.runtime.hostRegister(1, 2, 3, 4)": (TypeError, "too many positional"),
    "cupy.RawModule(file=path)": (TypeError, "unexpected keyword argument 'file'"),
    "cupy.cuda.Stream.from_external()": (TypeError, "missing .* 'obj'"),
    "nvrtc.getCUBIN()": (TypeError, "missing .* 'prog'"),
}


@pytest.mark.parametrize("text", WRONG_USES)
def test_a_use_that_would_fail_is_noticed(packages, text):
    error, match = WRONG_USES[text]
    use = next(walk(ast.parse(text)))
    with pytest.raises(error, match=match):
        check(packages, use)


# ---- What no signature tells


def test_cupy_takes_a_stream_of_others_and_does_not_end_it(packages):
    class Other:
        def __cuda_stream__(self):
            return 0, 0x1234

    stream = packages["cupy"].cuda.Stream.from_external(Other())
    assert stream.ptr == 0x1234
    assert stream.device_id == -1  # entered on whichever device is current
    del stream  # without a driver, ending it would be an error


def test_a_kernel_is_called_with_grid_block_and_arguments(packages):
    kernel = packages["cupy"].RawKernel
    known = documented(kernel.__call__).parameters
    assert list(known)[:4] == ["self", "grid", "block", "args"]
    assert isinstance(kernel.num_regs, types.GetSetDescriptorType)


def test_a_module_takes_a_path_as_text(packages):
    module = packages["cupy"].RawModule(path="/nowhere/a.cubin")  # loaded when it is first needed
    assert "str path" in packages["cupy"].RawModule.__doc__
    assert module.file_path == "/nowhere/a.cubin"
    with pytest.raises(TypeError, match="path"):
        packages["cupy"].RawModule(path=Path("/nowhere/a.cubin"))


def test_errors_of_cupy_are_what_is_caught(packages):
    runtime, nvrtc = packages["cupy"].cuda.runtime, packages["cupy"].cuda.nvrtc
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(nvrtc.NVRTCError, RuntimeError)
    assert issubclass(CUDARuntimeError, RuntimeError)
    if torch.cuda.is_available():
        return
    memory = np.empty(8192, np.uint8)
    with pytest.raises(runtime.CUDARuntimeError, match=r"^cudaError\w+: "):
        runtime.hostRegister(memory.ctypes.data, 4096, cuda._HOST_REGISTER_PORTABLE)


def test_versions_count_in_thousands(packages):
    cupy = packages["cupy"]
    built = cupy.cuda.runtime.runtimeGetVersion()
    assert 12 <= built // 1000 < 30
    assert cupy.cuda.nvrtc.getVersion()[0] == built // 1000
    assert torch.device("cuda", 1).index == 1


def test_torch_has_errors_of_its_own_for_full_devices():
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_parameters_fit_into_what_cuda_passes_by_value():
    """4096 bytes on every architecture and by every compiler (CUDA programming guide)."""
    kinds = [kind for kind in vars(params).values() if inspect.isclass(kind)]
    sizes = [cuda.ctypes.sizeof(kind) for kind in kinds if issubclass(kind, cuda.ctypes.Structure)]
    assert len(sizes) > 5
    assert max(sizes) <= 4096


# ---- The stand-in is used as the real ones are


def is_of_a_module(use: Use) -> bool:
    return use.name.startswith("cuda.") and not re.search(r"\b(Stream|Event)\.", use.name)


@pytest.mark.parametrize("use", [use for use in USES if is_of_a_module(use)], ids=str)
def test_the_stand_in_has_what_is_used(use):
    thing: Any = CudaStandIn()
    for name in (use.package, *use.name.split(".")):
        thing = getattr(thing, name)


def test_the_stand_in_has_nothing_that_is_not_there(packages):
    standin = CudaStandIn()
    for name in vars(standin.cupy.cuda):
        for part in vars(getattr(standin.cupy.cuda, name)):
            if not part.startswith("_"):
                assert hasattr(getattr(packages["cupy"].cuda, name), part)
    for name in dir(standin.torch.cuda):
        assert name.startswith("_") or hasattr(torch.cuda, name)
