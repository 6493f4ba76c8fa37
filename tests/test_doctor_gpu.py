"""GPUs as doctor finds them: made-up drivers, what torch knows, which packages, GDS."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from gpuload import doctor
from gpuload.doctor import gpu
from gpuload.doctor.gpu import Card, Gds, Package
from gpuload.doctor.step import Steps
from gpuload.readers import gds


def examine(root):
    return gpu.examine(Steps(lambda step: None), root)


@pytest.mark.usefixtures("no_cuda")
def test_gpus_that_only_the_driver_sees_are_listed(kernel_files):
    root = kernel_files(
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
            "550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc version 12.2.0\n",
            "proc/driver/nvidia/gpus/0000:c1:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 1\n",
            "sys/bus/pci/devices/0000:c1:00.0/numa_node": "1\n",
            "proc/driver/nvidia-fs/version": "version: 2.17\n",
            "proc/kallsyms": "0000000000000000 T pci_p2pdma_add_resource\n",
            "run/udev/data/x": "",
            "usr/local/cuda-13.0/lib64/libcufile.so.0": "",
        }
    )
    found = examine(root)
    assert found.driver == "550.54.15"
    assert found.cards == (Card(None, "NVIDIA H200", None, None, None, "0000:c1:00.0", 1),)
    assert found.gds == Gds("CUDA cannot be used", "version: 2.17", True, True, None)


@pytest.mark.usefixtures("one_gpu")
def test_the_gpus_of_torch_come_first_and_once(kernel_files):
    root = kernel_files(
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
            "  590.48.01  Release Build",
            "proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: NVIDIA H200\n",
            "proc/driver/nvidia/gpus/0000:C1:00.0/information": "Model: NVIDIA H200\n",
            "sys/bus/pci/devices/0000:41:00.0/numa_node": "-1\n",
            "sys/bus/pci/devices/0000:c1:00.0/numa_node": "1\n",
        }
    )
    found = examine(root)
    assert found.is_usable
    assert found.driver == "590.48.01"
    assert found.cards == (
        Card(0, "NVIDIA H200", 150_000_000_000, 149_000_000_000, "9.0", "0000:c1:00.0", 1),
        Card(None, "NVIDIA H200", None, None, None, "0000:41:00.0", None),
    )


def test_a_full_gpu_has_no_free_memory_to_tell(monkeypatch, one_gpu, tmp_path):
    def full(index):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    del one_gpu.pci_bus_id  # nor does this torch know where it is
    found = examine(tmp_path)
    assert found.is_usable
    assert found.cards == (Card(0, "NVIDIA H200", 150_000_000_000, None, "9.0", None, None),)


@pytest.mark.usefixtures("one_gpu")
def test_an_error_of_the_driver_is_the_reason(monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("Unexpected error\nfrom cudaGetDeviceCount()")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    found = examine(tmp_path)
    assert found.reason == "Unexpected error from cudaGetDeviceCount()"


@pytest.mark.usefixtures("one_gpu")
def test_the_largest_file_is_read_to_try_gds(monkeypatch, save_arrays):
    folder, _ = save_arrays(3, (20, 30))
    np.save(folder / "00001.npy", np.zeros((20, 31), np.float32))
    tried = []

    def probe(path: str, device: str):
        tried.append((path, device))
        return gds.Verdict(True, "2 of 2 reads went straight to the GPU")

    monkeypatch.setattr(gds, "probe", probe)
    report = doctor.examine(str(folder))
    assert tried == [(str(folder / "00001.npy"), "cuda:0")]
    assert report.data.reading.is_gds
    assert report.data.reading.gds_reason == "2 of 2 reads went straight to the GPU"
    assert "go straight into the GPU" in report.findings[-1].text


@pytest.mark.usefixtures("one_gpu")
def test_gds_is_not_tried_where_it_cannot_be(monkeypatch, save_arrays):
    folder, _ = save_arrays(3, (20, 30))
    monkeypatch.setattr(gds, "why_not", lambda: "kvikio is not installed; pip install it")
    monkeypatch.setattr(gds, "probe", lambda path, device: pytest.fail("tried"))
    report = doctor.examine(str(folder))
    assert report.data.reading.gds_reason == "kvikio is not installed; pip install it"


def test_packages_are_known_by_their_names(monkeypatch):
    def installed(name: str, version: str):
        return types.SimpleNamespace(metadata={"Name": name}, version=version)

    there = [("CuPy_CUDA12x", "13.6.0"), ("cupy-cuda13x", "14.2.0"), ("kvikio", "25.2"), ("x", "1")]
    there += [("nvidia-cufile-cu12", "1.11"), ("cupyx-tools", "1"), ("kvikio", "24.0")]
    monkeypatch.setattr(gpu, "distributions", lambda: [installed(*pair) for pair in there])
    assert gpu._packages() == [
        Package("cupy-cuda12x", "13.6.0", 12),
        Package("cupy-cuda13x", "14.2.0", 13),
        Package("kvikio", "25.2", None),
        Package("nvidia-cufile-cu12", "1.11", 12),
    ]
