"""Loaders in a torch.distributed process group, one process for each rank."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

WORKER = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import gpuload as gl

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world,
                        timeout=timedelta(seconds=40))
source = gl.open(f"{folder}/rows.npy", sample_axis=0)
try:
    gl.DataLoader(source, 16)
except ValueError as error:
    print(error)
for even in ("pad", "drop", "exact"):
    loader = gl.DataLoader(source, 16, even=even, rank=rank, world_size=world)
    total = torch.zeros((), dtype=torch.int64)
    for x in loader:  # one collective per step: a rank with more batches would wait for ever
        step = x.sum()
        dist.all_reduce(step)
        total += step
    print(even, len(loader), total.item())
dist.destroy_process_group()
"""


def test_a_process_group_with_uneven_shards_does_not_hang(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(65))
    (tmp_path / "worker.py").write_text(WORKER)
    processes = [
        subprocess.Popen(
            [sys.executable, "worker.py", str(rank), "2", str(tmp_path)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=50) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
        auto, *epochs = out.splitlines()
        assert auto == (
            'rank: expected rank= and world_size= in a process group of 2, got "auto"; pass '
            "rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size()"
        )
        whole = sum(range(65))
        assert epochs == [f"pad 3 {whole}", f"drop 2 {whole - 64}", f"exact 3 {whole}"]
