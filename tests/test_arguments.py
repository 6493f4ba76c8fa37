"""What DataLoader says of wrong arguments, and other names of right ones."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import gpuload as gl


@pytest.fixture
def folder(save_arrays):
    """Ten 6 x 5 arrays."""
    return save_arrays(10, (6, 5))[0]


@pytest.fixture
def arrays():
    return np.arange(300, dtype=np.float32).reshape(10, 6, 5)


def test_the_source_is_also_called_dataset(folder, arrays):
    source = gl.open(folder)
    loader = gl.DataLoader(dataset=source, batch_size=10)
    assert loader.dataset is source
    assert np.array_equal(next(iter(loader)), arrays)


@pytest.mark.parametrize("device", ["auto", "cpu", torch.device("cpu")], ids=str)
def test_the_cpu_has_several_names(folder, device):
    assert "device    cpu" in gl.DataLoader(gl.open(folder), device=device).describe()


def test_shuffle_none_is_false(folder, arrays):
    (x,) = gl.DataLoader(gl.open(folder), 10, shuffle=None)
    assert np.array_equal(x, arrays)


# argument -> a value, the error, how its one line begins
WRONG = {
    "batch_size": [
        (0, ValueError, "expected 1 or more, got 0"),
        (None, TypeError, "expected a whole number, got None"),
        (2.0, TypeError, "expected a whole number, got 2.0"),
        (True, TypeError, "expected a whole number, got True"),
    ],
    "shuffle": [("blocks", ValueError, """expected True, False or "block", got 'blocks'""")],
    "seed": [(1.5, TypeError, "expected a whole number, got 1.5")],
    "prefetch": [(0, ValueError, "expected 1 or more, got 0")],
    "threads": [
        (0, ValueError, "expected 1 or more, got 0"),
        ("many", TypeError, "expected a whole number, got 'many'"),
    ],
    "io": [
        ("dgs", ValueError, """expected one of "auto", "pread", "mmap", "gds", got 'dgs'"""),
        ("gds", gl.DeviceError, 'expected reads straight into a GPU with io="gds", got none: '),
    ],
    "cache": [("host", ValueError, """expected one of "device", got 'host'""")],
    "on_error": [
        ("ignore", ValueError, """expected one of "raise", "skip", "replace", got 'ignore'""")
    ],
    "max_errors": [(-1, ValueError, "expected 0 or more, got -1")],
    "extras": [
        (
            ("label",),
            ValueError,
            r"""expected one of "index", "crop", .* "rot90", got 'label'""",
        ),
        (None, TypeError, 'expected names such as "index", got None'),
    ],
    "dtype": [("float33", TypeError, "expected one of bool, uint8, uint16, ")],
    "device": [
        ("gpu", ValueError, 'expected "auto", "cpu", "cuda" or "cuda:N", got "gpu"'),
        ("cuda:99", gl.DeviceError, "expected "),
        (3, TypeError, 'expected "auto", "cpu", "cuda" or a Device, got 3'),
    ],
    "dataset": [(3, TypeError, "expected source or dataset, got both")],
    "batchsize": [(4, TypeError, "DataLoader: expected one of its arguments, got 'batchsize'")],
}


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [(name, *case) for name, cases in WRONG.items() for case in cases],
)
def test_a_wrong_argument_is_named_in_one_line(folder, name, value, error, message):
    source = gl.open(folder)
    with pytest.raises(error, match=re.escape(message)) as raised:
        gl.DataLoader(source, **{name: value})
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith((f"{name}: ", "DataLoader: "))


@pytest.mark.parametrize("source", [None, "data/", [1, 2], torch.zeros(3)], ids=type)
def test_a_loader_wants_a_source(source):
    with pytest.raises(
        TypeError,
        match=f"^source: expected a gpuload Source, got {type(source).__name__}; make one with "
        r"gpuload\.open$",
    ):
        gl.DataLoader(source)


def test_an_empty_source_is_refused(folder):
    with pytest.raises(ValueError, match=r"^source: expected at least one item, got none"):
        gl.DataLoader(gl.open(folder).select([]), 4)
