"""The GPUs that are made up notice what a real one would punish, or hide."""

from __future__ import annotations

import gc

import pytest
import torch
from cuda_standin import CudaStandIn

import gpuload as gl
from gpuload.devices import Place
from gpuload.devices import cuda as module
from gpuload.devices.cuda import CudaDevice
from gpuload.dtypes import DTYPES


@pytest.fixture
def unchecked(monkeypatch, tmp_path, host_kernels):
    made = CudaStandIn(host_kernels, n_gpus=2)
    made.install(monkeypatch, tmp_path / "kernels")
    return made


def test_a_thread_that_would_end_a_capture_shows(unchecked, monkeypatch):
    def enter_thread(device):
        unchecked.torch.cuda.set_device(device.torch)

    monkeypatch.setattr(CudaDevice, "enter_thread", enter_thread)
    list(gl.prefetch([torch.ones(3)], "cuda"))
    with pytest.raises(AssertionError, match="they would end the capture"):
        unchecked.check()


def copy_by_itself(device, stream, memory):
    memory.copy_(device.host_memory(len(memory)), non_blocking=True)


def copy_and_wait(device, stream, memory):
    with unchecked_stream(stream):
        memory.copy_(device.host_memory(len(memory)))


def copy_what_is_not_pinned(device, stream, memory):
    stream.copy(memory, torch.zeros(len(memory), dtype=torch.uint8))


def unpin_too_soon(device, stream, memory):
    stream.copy(memory, device.host_memory(len(memory)))


def launch_by_itself(device, stream, memory):
    launch = module.pack(place(memory))
    device.load(launch.kernel)(launch.grid, (256,), (module.by_value(launch),))


def use_another_gpu(device, stream, memory):
    stream.torch.index = 1
    stream.launch(place(memory))


def unchecked_stream(stream):
    return stream.device.cupy_standin.on(stream.torch)


def place(memory):
    number = DTYPES["uint8"].number
    return Place(memory, memory, number, number, (8,), (1,), (1,))


WRONG = {
    copy_by_itself: "a copy outside of an entered stream",
    copy_and_wait: "a copy that blocks",
    copy_what_is_not_pinned: "a copy from memory that is not pinned",
    unpin_too_soon: "memory is unpinned that a copy still reads",
    launch_by_itself: "a launch outside of an entered stream",
    use_another_gpu: "a stream of another GPU is entered",
}


@pytest.mark.parametrize("act", WRONG)
def test_what_is_wrong_is_noticed(unchecked, act):
    device = CudaDevice(0)
    device.cupy_standin = unchecked
    stream = device.stream()
    act(device, stream, device.memory(64, stream=stream))
    gc.collect()
    assert WRONG[act] in unchecked.wrong
