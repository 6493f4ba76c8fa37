"""place: strided boxes of elements, copied as NumPy copies them and nowhere else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from boxes import GUARD, layouts, view
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload import _native
from gpuload.devices import Place
from gpuload.devices.cpu import CpuDevice, run_place
from gpuload.dtypes import DTYPES

# One dtype of each width, and NumPy's form of it.
WIDTHS = {
    "uint8": np.uint8,
    "int16": np.int16,
    "float32": np.float32,
    "float64": np.float64,
    "complex128": np.complex128,
}


def native_place(
    dst, dst_offset, src, src_offset, names, shape, dst_stride, src_stride, swap=False
):
    _native.place(
        dst.ctypes.data + dst_offset,
        src.ctypes.data + src_offset,
        DTYPES[names[0]].number,
        DTYPES[names[1]].number,
        list(shape),
        list(dst_stride),
        list(src_stride),
        swap,
    )


@st.composite
def boxes(draw):
    """A copy between two dtypes of one kind, from anywhere to anywhere."""
    name = draw(st.sampled_from(sorted(WIDTHS)))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 17]), max_size=5)))
    while np.prod(shape) > 2000:
        shape = shape[1:]
    nbytes = DTYPES[name].nbytes
    src = draw(layouts(shape, nbytes, may_overlap=True))
    dst = draw(layouts(shape, nbytes, may_overlap=False))
    return name, shape, src, dst


def expected(box, swap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Random source memory, and what the destination memory must be afterwards."""
    name, shape, (src_offset, src_stride, src_nbytes), (dst_offset, dst_stride, dst_nbytes) = box
    rng = np.random.default_rng(src_nbytes)
    src = rng.integers(0, 256, src_nbytes, np.uint8)
    want = np.full(dst_nbytes, GUARD, np.uint8)
    # Bytes are copied, not values: NaNs keep theirs.
    elements = np.dtype(f"V{DTYPES[name].nbytes}")
    values = view(src, elements, src_offset, shape, src_stride).copy()
    if swap:
        width = DTYPES[name].nbytes // (2 if name.startswith("complex") else 1)
        swapped = values.reshape(-1).view(np.uint8).reshape(-1, width)[:, ::-1]
        values = np.ascontiguousarray(swapped).reshape(-1).view(elements).reshape(shape)
    view(want, elements, dst_offset, shape, dst_stride)[...] = values
    return src, want


@settings(deadline=None, max_examples=200)
@given(box=boxes(), swap=st.booleans())
def test_a_box_is_copied_as_numpy_does(box, swap):
    name, shape, (src_offset, src_stride, _), (dst_offset, dst_stride, dst_nbytes) = box
    src, want = expected(box, swap)
    before = src.copy()
    dst = np.full(dst_nbytes, GUARD, np.uint8)
    names = (name, name)
    native_place(dst, dst_offset, src, src_offset, names, shape, dst_stride, src_stride, swap)
    np.testing.assert_array_equal(dst, want)
    np.testing.assert_array_equal(src, before)


@settings(deadline=None, max_examples=100)
@given(box=boxes())
def test_the_device_protocol_copies_the_same_box(box):
    name, shape, (src_offset, src_stride, _), (dst_offset, dst_stride, dst_nbytes) = box
    src, want = expected(box, swap=False)
    dst = torch.full((dst_nbytes,), GUARD, dtype=torch.uint8)
    number = DTYPES[name].number
    place = Place(
        torch.from_numpy(src),
        dst,
        number,
        number,
        shape,
        src_stride,
        dst_stride,
        src_offset,
        dst_offset,
    )
    CpuDevice().stream().launch(place)
    np.testing.assert_array_equal(dst.numpy(), want)


# ---- Rows of every length


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", WIDTHS)
def test_rows_of_every_length_write_nothing_outside(name, swap):
    width = DTYPES[name].nbytes
    part = width // 2 if name.startswith("complex") else width
    rng = np.random.default_rng(0)
    src = rng.integers(0, 256, 3 * 340 + 64, np.uint8)
    for nbytes in range(width, 301, width):
        n, src_step, dst_step = nbytes // width, nbytes + 7, nbytes + 5
        dst = np.full(3 * dst_step + 64, GUARD, np.uint8)
        shape, src_stride, dst_stride = (3, n), (src_step, width), (dst_step, width)
        native_place(dst, 33, src, 3, (name, name), shape, dst_stride, src_stride, swap)
        want = np.full_like(dst, GUARD)
        for row in range(3):
            bytes_of_row = src[3 + row * src_step :][:nbytes]
            if swap:
                bytes_of_row = bytes_of_row.reshape(-1, part)[:, ::-1].reshape(-1)
            want[33 + row * dst_step :][:nbytes] = bytes_of_row
        np.testing.assert_array_equal(dst, want, f"rows of {nbytes} bytes")


def test_rows_of_every_length_read_nothing_outside(run_python):
    """The source lies against a page that may not be read: a byte outside ends the child."""
    code = """
        import ctypes, mmap
        import numpy as np
        from gpuload import _native

        page = mmap.PAGESIZE
        memory = mmap.mmap(-1, 3 * page)
        data = np.frombuffer(memory, np.uint8)
        data[:] = np.arange(3 * page, dtype=np.uint64) * 7 % 251
        address = data.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for outer in (0, 2 * page):
            assert libc.mprotect(ctypes.c_void_p(address + outer), page, 0) == 0
        out = np.zeros(8192, np.uint8)
        u1, u2, f4, f8, c8, c16 = (1, 1), (2, 2), (11, 4), (12, 8), (13, 8), (14, 16)
        pairs = [(t, t) for t in (u1, u2, f4, f8, c16)] + [(u1, f8), (u2, f8), (f4, f8), (c8, c16)]
        for (number, width), (to, to_width) in pairs:
            for swap in (False, True):
                for nbytes in range(width, 301, width):
                    for rows in (1, 2):
                        for at in (page, 2 * page - rows * nbytes):
                            _native.place(out.ctypes.data, address + at, number, to,
                                          [rows, nbytes // width], [4096, to_width],
                                          [nbytes, width], swap)
        print("done")
    """
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("n_axes", [6, 31, 32])
def test_as_many_axes_as_numpy_once_had(n_axes):
    shape = [1] * n_axes
    for axis in range(0, n_axes, n_axes // 5):
        shape[axis] = 2
    want = np.arange(np.prod(shape), dtype=np.int32).reshape(shape).transpose()
    dst = np.zeros(want.shape, np.int32)
    native_place(dst, 0, want.base, 0, ("int32",) * 2, want.shape, dst.strides, want.strides)
    np.testing.assert_array_equal(dst, want)


@pytest.mark.parametrize("axes", [*itertools.permutations(range(3))], ids=str)
def test_axes_in_any_order_on_both_sides(axes):
    src = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
    dst = np.zeros(np.array(src.shape)[list(axes)], np.int16)
    target = dst.transpose(np.argsort(axes))  # the same shape as src, other strides
    native_place(dst, 0, src, 0, ("int16",) * 2, src.shape, target.strides, src.strides)
    np.testing.assert_array_equal(target, src)


# ---- Boxes that do not fit

F8 = DTYPES["float64"].number
U1 = DTYPES["uint8"].number
OUTSIDE = {
    "one element behind the end": ((4,), (8,), 8, "src, got bytes [8, 40)"),
    "the last element sticks out": ((1,), (8,), 25, "src, got bytes [25, 33)"),
    "before the start": ((2,), (-8,), 0, "src, got bytes [-8, 8)"),
    "strides of both signs that meet": ((2, 2), (-8, 8), 0, "src, got bytes [-8, 16)"),
    "a stride of both signs beyond the end": ((2, 3), (-16, 8), 16, "src, got bytes [0, 40)"),
    "no axes, outside": ((), (), 32, "src, got bytes [32, 40)"),
}


@pytest.mark.parametrize(("shape", "stride", "offset", "wanted"), OUTSIDE.values(), ids=OUTSIDE)
def test_a_box_that_leaves_its_memory_is_refused(shape, stride, offset, wanted):
    small, large = torch.zeros(32, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
    dense = tuple(int(s) for s in np.zeros(shape).strides)
    with pytest.raises(ValueError, match="expected a box within 32 bytes of ") as caught:
        run_place(Place(small, large, F8, F8, shape, stride, dense, offset, 0))
    assert wanted in str(caught.value)
    with pytest.raises(ValueError, match="expected a box within 32 bytes of ") as caught:
        run_place(Place(large, small, F8, F8, shape, dense, stride, 0, offset))
    assert wanted.replace("src", "dst") in str(caught.value)


def test_each_side_is_checked_with_its_own_element_size():
    one, eight = torch.ones(1, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    run_place(Place(one, eight, U1, F8, (1,), (1,), (8,)))
    assert eight.numpy().view(np.float64).tolist() == [1.0]
    with pytest.raises(ValueError, match="expected a box within 1 bytes of dst"):
        run_place(Place(one, one, U1, F8, (1,), (1,), (8,)))


def test_an_empty_box_may_lie_anywhere():
    nothing = torch.zeros(0, dtype=torch.uint8)
    run_place(Place(nothing, nothing, F8, F8, (3, 0, 2), (1, 2, 3), (4, 5, 6), 100, 100))


def test_a_negative_axis_is_refused():
    memory = torch.zeros(32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"place: expected axes of 0 or more, got \(-1,\)"):
        run_place(Place(memory, memory, U1, U1, (-1,), (1,), (1,)))


def test_strides_of_another_number_of_axes_are_refused():
    memory = torch.zeros(32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        run_place(Place(memory, memory, U1, U1, (2, 2), (1,), (1,)))


def test_complex_values_have_no_real_form():
    memory = torch.zeros(32, dtype=torch.uint8)
    complex64 = DTYPES["complex64"].number
    with pytest.raises(ValueError, match="place: complex values have no real form"):
        run_place(Place(memory, memory, complex64, F8, (1,), (8,), (8,), 0, 8))
