"""GPUs, their driver, and the packages that reach them. Nothing here needs a GPU to be there.

libcufile is looked for and never loaded: without a driver it spins for ever.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from gpuload import system
from gpuload.doctor.step import NoAnswerError, Steps
from gpuload.readers import gds

ASK_S = 60  # a driver that starts up eight GPUs takes about ten

_LIBRARY = "libcufile.so.0"
_LIBRARY_FOLDERS = (
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
    "usr/lib*",
    "usr/lib/*",
)


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, and the CUDA that its name says it is for."""

    name: str
    version: str
    cuda: int | None


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. `index` is torch's number of it, None when only the driver sees it."""

    index: int | None
    name: str
    memory_nbytes: int | None
    memory_free_nbytes: int | None
    compute_capability: str | None
    pci_bus_id: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class Gds:
    """Signs of GPUDirect Storage; only a trial read of a file proves it.

    `reason` says why no file can be read that way, None when it may be tried.
    """

    reason: str | None
    nvidia_fs: str | None
    has_udev: bool
    has_p2pdma: bool | None  # None: not looked, or the kernel does not tell
    compat_mode: str | None  # KVIKIO_COMPAT_MODE


@dataclass(frozen=True, slots=True)
class Gpu:
    """Whether the device "cuda" can be used, with the reason if not, and what there is of it."""

    is_usable: bool
    reason: str | None
    driver: str | None
    driver_cuda: str | None  # the newest CUDA that the driver runs
    torch_cuda: str | None  # None: a CPU build
    cupy: tuple[Package, ...]
    kvikio: tuple[Package, ...]
    libcufile: str | None
    visible_devices: str | None  # CUDA_VISIBLE_DEVICES
    cards: tuple[Card, ...]
    gds: Gds


def examine(steps: Steps, root: Path = system.ROOT) -> Gpu:
    """Gather the facts; a driver that does not answer is the reason why CUDA cannot be used."""
    found = _packages()
    try:
        reason, seen = steps.run("asking the GPU driver", lambda: _ask(root), limit_s=ASK_S)
    except NoAnswerError as error:
        reason, seen = f"{error}; see dmesg for errors of the driver", []
    no_gds = "CUDA cannot be used" if reason is not None else _why_no_gds(steps)
    cards = _merge(seen, _cards_of_driver(root))
    return Gpu(
        is_usable=reason is None,
        reason=reason,
        driver=_driver(root),
        driver_cuda=_cuda_of_driver(),
        torch_cuda=torch.version.cuda,
        cupy=tuple(p for p in found if p.name.startswith("cupy")),
        kvikio=tuple(p for p in found if p.name.startswith("kvikio")),
        libcufile=_libcufile(found, root),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cards=cards,
        gds=_gds(no_gds, root, has_cards=bool(cards)),
    )


def _why_no_gds(steps: Steps) -> str | None:
    try:
        return steps.run("asking kvikio", gds.why_not, limit_s=ASK_S)
    except NoAnswerError as error:
        return str(error)


def _ask(root: Path) -> tuple[str | None, list[Card]]:
    """Why CUDA cannot be used, if so, and the GPUs that torch sees."""
    from gpuload.devices.cuda import why_not

    reason = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of a driver too old is in the reason
        try:
            reason = why_not()
            n_cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
            return reason, [_card(index, root) for index in range(n_cards)]
        except (RuntimeError, OSError, ImportError) as error:
            return reason or " ".join(str(error).split()), []


def _card(index: int, root: Path) -> Card:
    known: Any = torch.cuda.get_device_properties(index)
    bus_id = None
    if hasattr(known, "pci_bus_id"):  # not in every torch that we take
        bus_id = f"{known.pci_domain_id:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    try:
        free, _ = torch.cuda.mem_get_info(index)
    except RuntimeError:  # no memory left for a context, or another process has it for itself
        free = None
    return Card(
        index=index,
        name=known.name,
        memory_nbytes=known.total_memory,
        memory_free_nbytes=free,
        compute_capability=f"{known.major}.{known.minor}",
        pci_bus_id=bus_id,
        numa_node=None if bus_id is None else system.pci_numa_node(bus_id, root),
    )


def _cards_of_driver(root: Path) -> list[Card]:
    cards = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*:*:*.*")):
        model = re.search(r"^Model:\s*(.+?)\s*$", system.read_text(folder / "information"), re.M)
        node = system.pci_numa_node(folder.name, root)
        name = model[1] if model else "unknown"
        cards.append(Card(None, name, None, None, None, folder.name.lower(), node))
    return cards


def _merge(seen: list[Card], driven: list[Card]) -> tuple[Card, ...]:
    """The GPUs of torch, then those that only the driver sees."""
    if any(card.pci_bus_id is None for card in seen):  # nobody knows which are the same
        return tuple(seen)
    known = {card.pci_bus_id for card in seen}
    return (*seen, *(card for card in driven if card.pci_bus_id not in known))


def _driver(root: Path) -> str | None:
    """The version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ..."."""
    text = system.read_text(root / "proc/driver/nvidia/version")
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)(?!\S)", text, re.M)
    return found[1] if found else None


def _cuda_of_driver() -> str | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:  # 13020 for CUDA 13.2
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _packages() -> list[Package]:
    """What is installed of CuPy, kvikio and cuFile, by name."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if re.fullmatch(r"(cupy|kvikio|nvidia-cufile)(-cu(da)?\d+x?)?", name):
            cuda = re.search(r"-cu(?:da)?(\d+)", name)
            package = Package(name, distribution.version, int(cuda[1]) if cuda else None)
            found.setdefault(name, package)  # the first on the path is the one imported
    return [found[name] for name in sorted(found)]


def _libcufile(found: list[Package], root: Path) -> str | None:
    """The package that brings libcufile, or else its path."""
    for package in found:
        if package.name.startswith("nvidia-cufile"):
            return f"{package.name} {package.version}"
    return next((str(path) for path in _library_paths(root)), None)


def _library_paths(root: Path) -> Iterator[Path]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and (path := Path(folder, _LIBRARY)).exists():
            yield path
    for folder in _LIBRARY_FOLDERS:
        yield from sorted(root.glob(f"{folder}/{_LIBRARY}"))


def _gds(reason: str | None, root: Path, *, has_cards: bool) -> Gds:
    nvidia_fs = " ".join(system.read_text(root / "proc/driver/nvidia-fs/version").split())
    # Whether devices may reach each other's memory. The table takes a while to read, so it is read
    # only where there is a GPU.
    symbols = system.read_text(root / "proc/kallsyms") if has_cards else ""
    return Gds(
        reason=reason,
        nvidia_fs=nvidia_fs or None,
        has_udev=(root / "run/udev").is_dir(),
        has_p2pdma="p2pdma" in symbols if symbols else None,
        compat_mode=os.environ.get("KVIKIO_COMPAT_MODE"),
    )
