"""What is no Pad: an error of one line, before anything is read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from arranged import numbered, save

import gpuload as gl

NAN = float("nan")


@pytest.fixture
def ragged(tmp_path):
    """A source of two arrays of different shapes."""
    return save(tmp_path / "ragged", [numbered((5, 3)), numbered((2, 7))])


BAD = {
    "no Pad": ("max", TypeError, "pad: expected gpuload.Pad or None, got str"),
    "an unknown text": (
        gl.Pad("largest"),
        ValueError,
        'pad: expected "max", "p95", "batch", "multiple:16" or a whole number, got "largest"',
    ),
    "no percentile": (gl.Pad("p"), ValueError, 'pad: .* got "p"'),
    "above all": (gl.Pad("p101"), ValueError, 'pad: .* got "p101"'),
    "below all": (gl.Pad("p-1"), ValueError, 'pad: .* got "p-1"'),
    "no number": (gl.Pad("pnan"), ValueError, 'pad: .* got "pnan"'),
    "a multiple of nothing": (gl.Pad("multiple:0"), ValueError, 'pad: .* got "multiple:0"'),
    "a multiple of less": (gl.Pad("multiple:-4"), ValueError, 'pad: .* got "multiple:-4"'),
    "a multiple of what": (gl.Pad("multiple:"), ValueError, 'pad: .* got "multiple:"'),
    "nothing": (
        gl.Pad(0),
        ValueError,
        r"pad: expected 1 to 2\*\*31 - 1 elements along axis 0, got 0$",
    ),
    "less than nothing": (gl.Pad((4, -2)), ValueError, "pad: expected 1 .* axis 1, got -2"),
    "more than there is": (
        gl.Pad(1 << 62),
        ValueError,
        f"pad: expected 1 .* axis 0, got {1 << 62}",
    ),
    "more than counts": (gl.Pad(1 << 70), ValueError, f"pad: expected 1 .* axis 0, got {1 << 70}"),
    "a fraction": (
        gl.Pad(2.5),
        TypeError,
        'pad: expected "max", "p95", "batch", "multiple:16", a whole number or a tuple of those, '
        "got 2.5",
    ),
    "true": (gl.Pad(True), TypeError, "pad: .* tuple of those, got True"),
    "tuples in a tuple": (gl.Pad(((4,), 4)), TypeError, r"pad: .* tuple of those, got \(4,\)"),
    "one axis of two": (
        gl.Pad((4,)),
        ValueError,
        r"pad: expected one entry for each of 2 axes as in .*000\.npy, got \(4,\); write None for "
        "an axis that is left as it is",
    ),
    "align": (
        gl.Pad(align="left"),
        ValueError,
        'pad: expected one of "center", "begin", "end" as align, got \'left\'',
    ),
    "mode": (
        gl.Pad(mode="mirror"),
        ValueError,
        'pad: expected one of "constant", "edge", "reflect", "symmetric", "wrap" as mode, got '
        "'mirror'",
    ),
    "oversize": (
        gl.Pad(oversize="cut"),
        ValueError,
        'pad: expected one of "error", "crop", "resize" as oversize, got \'cut\'',
    ),
    "bucket": (
        gl.Pad(bucket=1),
        TypeError,
        "pad: expected True or False as bucket, got 1",
    ),
    "no number as value": (
        gl.Pad(value="0"),
        TypeError,
        "pad: expected a number as value, got '0'",
    ),
    "numbers as value": (gl.Pad(value=np.zeros(2)), TypeError, "pad: expected a number as value"),
    "a huge value": (
        gl.Pad(value=10**400),
        ValueError,
        "pad: expected a value that float32 holds, got one of 1329 bits",
    ),
    "a complex value": (
        gl.Pad(value=1j),
        ValueError,
        "pad: expected a real value for float32, got 1j",
    ),
    "a value of no field": (
        gl.Pad(value={"mask": 1}),
        ValueError,
        r"pad: expected names of fields \(x\), got 'mask'",
    ),
    "how to resize": (
        gl.Pad(4, oversize="resize", resize_mode="cubic"),
        ValueError,
        'resize: expected one of "nearest", "nearest-exact", "linear", "antialias", "area" as '
        "mode, got 'cubic'",
    ),
}


@pytest.mark.parametrize(("pad", "error", "rule"), BAD.values(), ids=BAD)
def test_what_is_no_pad_is_an_error_of_one_line(ragged, pad, error, rule):
    with pytest.raises(error, match=f"^{rule}") as caught:
        gl.DataLoader(ragged, 2, pad=pad)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


BAD_VALUES = [
    ("uint8", NAN, r"[0, 255]"),
    ("uint8", 256, r"[0, 255]"),
    ("uint8", -1, r"[0, 255]"),
    ("uint8", 0.5, r"[0, 255]"),
    ("int8", 128, r"[-128, 127]"),
    ("int16", float("inf"), r"[-32768, 32767]"),
    ("int64", 2**63, f"[{-(2**63)}, {2**63 - 1}]"),
    ("uint64", 2**64, f"[0, {2**64 - 1}]"),
    ("bool", 2, "[0, 1]"),
]


@pytest.mark.parametrize(("dtype", "value", "range_"), BAD_VALUES)
def test_a_value_that_the_type_does_not_hold_is_an_error(ragged, dtype, value, range_):
    rule = f"pad: expected a whole number of {range_} as value for {dtype}, got {value}"
    with pytest.raises(ValueError, match=f"^{re.escape(rule)}$"):
        gl.DataLoader(ragged, 2, dtype=dtype, pad=gl.Pad(value=value))
