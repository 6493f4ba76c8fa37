"""The unshuffle kernel: chunks that HDF5 shuffled, as HDF5 reads them.

Every (block, thread) of a launch runs on the host; the CPU executor must write the same bytes.
"""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import pytest
import torch
from boxes import GUARD
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.devices import Unshuffle, cpu
from gpuload.devices.arguments import pack_unshuffle

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 33]  # bytes of an element


def shuffled(data: bytes, item_nbytes: int) -> bytes:
    """As H5Zshuffle.c: a plane for each byte of the elements, then what is no whole element."""
    n = len(data) // item_nbytes
    planes = np.frombuffer(data[: n * item_nbytes], np.uint8).reshape(n, item_nbytes).T
    return planes.tobytes() + data[n * item_nbytes :]


def run(host_kernels, op: Unshuffle, grid=None) -> np.ndarray:
    """Launch, and compare with the CPU executor."""
    launch = pack_unshuffle(op)
    native = op.dst.clone()
    host_kernels.run(launch if grid is None else dataclasses.replace(launch, grid=grid))
    cpu.run(dataclasses.replace(op, dst=native))
    assert torch.equal(op.dst, native), "not as the CPU executor"
    return op.dst.numpy()


def written(path, array: np.ndarray, chunks: tuple[int, ...]):
    """(bytes of each stored chunk, the chunk as it is read back) of a shuffled dataset."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=array, chunks=chunks, shuffle=True)
        stored = []
        for where in range(dataset.id.get_num_chunks()):
            info = dataset.id.get_chunk_info(where)
            mask, data = dataset.id.read_direct_chunk(info.chunk_offset)
            assert mask == 0
            whole = np.zeros(chunks, array.dtype)
            at = tuple(slice(o, o + c) for o, c in zip(info.chunk_offset, chunks, strict=True))
            part = dataset[at]
            whole[tuple(slice(0, n) for n in part.shape)] = part
            stored.append((data, whole))
    return stored


DTYPES = ["i1", "<u2", ">i4", "<f4", "<f8", ">f8", "<c8", "<c16", "S3", "V5", "V17"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64,), (100, 7), (5, 3, 33)], ids=str)
def test_chunks_of_a_file_are_read_as_hdf5_does(host_kernels, tmp_path, dtype, shape):
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    array = np.random.default_rng(0).integers(1, 256, nbytes, np.uint8).view(dtype).reshape(shape)
    chunks = tuple(min(n, 9) for n in shape)
    stored = written(tmp_path / "a.h5", array, chunks)
    assert any(data != whole.tobytes() for data, whole in stored) or dtype.itemsize == 1
    src = np.frombuffer(b"".join(data for data, _ in stored), np.uint8).copy()
    size = len(stored[0][0])
    table = [[i * size, i * size, size] for i in range(len(stored))]
    op = Unshuffle(
        torch.from_numpy(src),
        torch.full((len(src),), GUARD, dtype=torch.uint8),
        dtype.itemsize,
        size,
        n_pieces=len(stored),
        table=torch.tensor(table),
    )
    got = run(host_kernels, op).reshape(len(stored), size)
    for row, (_, whole) in zip(got, stored, strict=True):
        if whole.tobytes() != row.tobytes():  # beyond the edge of the dataset a chunk holds zeros
            raise AssertionError(f"expected {whole.tobytes()[:40]!r}, got {row.tobytes()[:40]!r}")


@st.composite
def chunks(draw):
    """(operation, what its destination must hold) of chunks that lie anywhere."""
    item_nbytes = draw(st.sampled_from(SIZES))
    sizes = draw(st.lists(st.integers(0, 700), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    src, want, table = b"", b"", []
    for nbytes in sizes:
        chunk = rng.bytes(nbytes)
        src += bytes(draw(st.integers(0, 17)))
        want += bytes([GUARD] * draw(st.integers(0, 17)))
        table.append([len(src) - 4, len(want) - 9, nbytes])
        src += shuffled(chunk, item_nbytes)
        want += chunk
    want += bytes([GUARD] * 3)
    op = Unshuffle(
        torch.tensor(list(src), dtype=torch.uint8),
        torch.full((len(want),), GUARD, dtype=torch.uint8),
        item_nbytes,
        max(sizes),
        4,
        9,
        n_pieces=len(sizes),
        table=torch.tensor(table),
    )
    return op, want


@settings(deadline=None, max_examples=200)
@given(case=chunks())
def test_chunks_of_any_size_anywhere(host_kernels, case):
    """Elements of any size, bytes left over, sides that are not aligned, bytes around untouched."""
    check(host_kernels, *case)


def check(host_kernels, op, want: bytes) -> None:
    assert run(host_kernels, op).tobytes() == want


@pytest.mark.parametrize("item_nbytes", [2, 4, 8, 16, 6])
@pytest.mark.parametrize("grid", [None, (1, 1), (3, 2), (200, 3)], ids=str)
def test_alike_chunks_in_several_blocks(host_kernels, item_nbytes, grid):
    nbytes, n = 48_000 + 5, 3
    data = [np.random.default_rng(i).bytes(nbytes) for i in range(n)]
    src = np.zeros((n, 48_016), np.uint8)
    for row, chunk in zip(src, data, strict=True):
        row[:nbytes] = np.frombuffer(shuffled(chunk, item_nbytes), np.uint8)
    op = Unshuffle(
        torch.from_numpy(src.reshape(-1)),
        torch.full((n * 48_032,), GUARD, dtype=torch.uint8),
        item_nbytes,
        nbytes,
        n_pieces=n,
        src_step=48_016,
        dst_step=48_032,
    )
    assert pack_unshuffle(op).grid[0] > 2
    got = run(host_kernels, op, grid).reshape(n, 48_032)
    for row, chunk in zip(got, data, strict=True):
        assert row[:nbytes].tobytes() == chunk
        assert set(row[nbytes:]) == {GUARD}


def test_an_element_of_no_bytes_is_refused():
    nothing = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="unshuffle: expected elements of 1 byte or more, got 0"):
        pack_unshuffle(Unshuffle(nothing, nothing, 0, 1))
