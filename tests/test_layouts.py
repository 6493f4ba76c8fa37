"""Parameter structures: Python and the compiler agree on every byte."""

from __future__ import annotations

import ctypes
import re

import pytest
from host_kernels import KERNELS, STRUCTS

each_struct = pytest.mark.parametrize("name", STRUCTS)


@each_struct
def test_python_and_the_compiler_agree_on_every_offset(host_kernels, name):
    struct = STRUCTS[name]
    fields = [(field, getattr(struct, field)) for field, _ in struct._fields_]
    ours = {field: (place.offset, place.size) for field, place in fields}
    assert host_kernels.layout(name) == {"": (0, ctypes.sizeof(struct)), **ours}


@each_struct
def test_no_byte_is_left_to_the_compiler(host_kernels, name):
    """Padding differs between compilers, and its bytes would be sent uninitialised."""
    layout = host_kernels.layout(name)
    end = 0
    for offset, nbytes in sorted(layout[field] for field in layout if field):
        assert offset == end
        end += nbytes
    assert end == layout[""][1]


def declared_fields(struct: str) -> list[str]:
    """The names of a structure's fields in gpuload/kernels, in order."""
    texts = [re.sub(r"//.*", "", path.read_text()) for path in KERNELS.glob("*.h")]
    (body,) = (
        m[1] for t in texts for m in re.finditer(rf"struct {struct} {{\n(.*?)\n}};", t, re.S)
    )
    while (outer := re.sub(r"{[^{}]*}", ";", body)) != body:  # bodies of methods
        body = outer
    statements = [" ".join(statement.split()) for statement in body.split(";")]
    aside = ("static ", "enum ", "template ", "GL_FN ")
    fields = [s for s in statements if s and not s.startswith(aside)]
    names = [name for field in fields for name in field.split(",")]
    return [re.sub(r"\[\w+\]", "", name).split()[-1].lstrip("*") for name in names]


@each_struct
def test_fields_have_the_same_names_in_the_same_order(name):
    """The compiler is asked for fields by name: one that Python lacks would be missed."""
    assert declared_fields(name) == [field for field, _ in STRUCTS[name]._fields_]
