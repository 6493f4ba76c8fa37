"""From what the user names to a Device."""

from __future__ import annotations

import re

import torch

from gpuload.devices import Device
from gpuload.devices.cpu import CpuDevice
from gpuload.devices.cuda import CudaDevice, why_not


def choose(device: object) -> tuple[Device, str]:
    """The device that "auto", "cpu", "cuda", "cuda:1" or a torch.device names, and why where that
    was left open. What follows the protocol of gpuload.devices is taken as it is.

    Raises:
        ValueError, TypeError: nothing of the kind is named.
        DeviceError: the device cannot be used.
    """
    if isinstance(device, torch.device):
        device = str(device)
    if not isinstance(device, str):
        if hasattr(device, "is_host") and hasattr(device, "stream"):
            return device, ""  # type: ignore[return-value]
        raise TypeError(f'device: expected "auto", "cpu", "cuda" or a Device, got {device!r}')
    if device == "auto":
        problem = why_not(_current())
        return (CudaDevice(_current()), "") if problem is None else (CpuDevice(), problem)
    if device in ("cpu", "cpu:0"):
        return CpuDevice(), ""
    named = re.fullmatch(r"cuda(?::(\d+))?", device)
    if named is None:
        raise ValueError(f'device: expected "auto", "cpu", "cuda" or "cuda:N", got "{device}"')
    return CudaDevice(_current() if named[1] is None else int(named[1])), ""


def _current() -> int:
    """The device that torch's own "cuda" stands for; 0 where there is none."""
    try:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0
    except RuntimeError:  # CUDA does not start in this process: why_not() says why
        return 0
