"""Batches are the caller's own: writable, whole, and apart from the file and from each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import gpuload as gl

IO = ["mmap", "pread"]


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_changing_a_batch_changes_neither_file_nor_later_batches(tmp_path, io, batch_size, dtype):
    np.save(tmp_path / "a.npy", np.arange(4.0, dtype=np.float32))
    before = (tmp_path / "a.npy").read_bytes()
    source = gl.open(tmp_path / "a.npy", sample_axis=0)
    with gl.DataLoader(source, batch_size, io=io, dtype=dtype) as loader:
        for _ in range(3):
            values = []
            for x in loader:
                values += x.tolist()
                x += 100
                x.fill_(float("nan"))
            assert values == [0, 1, 2, 3]
    assert (tmp_path / "a.npy").read_bytes() == before
    assert source[2].item() == 2


@pytest.mark.parametrize("io", IO)
def test_kept_batches_share_no_memory_and_keep_their_values(tmp_path, io):
    array = np.arange(40 * 6, dtype=np.int64).reshape(40, 6)
    np.save(tmp_path / "a.npy", array)
    source = gl.open(tmp_path / "a.npy", sample_axis=0, labels=np.arange(40))
    loader = gl.DataLoader(source, batch_size=4, io=io, extras=("index", "valid"))
    batches = [batch for _ in range(3) for batch in loader]
    loader.close()
    spans = []
    for k, batch in enumerate(batches):
        first = 4 * (k % 10)
        np.testing.assert_array_equal(batch.x, array[first : first + 4])
        assert batch.y.tolist() == batch.index.tolist() == list(range(first, first + 4))
        assert batch.valid.all()
        for tensor in batch:
            assert tensor.is_contiguous()
            spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("io", IO)
def test_a_batch_can_be_trained_on_pickled_and_resized(tmp_path, io):
    np.save(tmp_path / "a.npy", np.ones((4, 3), np.float32))
    (x,) = gl.DataLoader(gl.open(tmp_path / "a.npy", sample_axis=0), 4, io=io)
    x.requires_grad_().sum().backward()
    assert x.grad.tolist() == [[1.0] * 3] * 4
    assert not x.detach().numpy().flags.owndata
    assert x.detach().numpy().flags.writeable
    assert torch.equal(x.detach().clone(), torch.ones(4, 3))
