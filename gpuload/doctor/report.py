"""The report in words: sections of rows, for people. Text only: nothing is found out here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuload.doctor import Report
from gpuload.doctor.data import Data, Ground, Reading
from gpuload.doctor.findings import size
from gpuload.doctor.gpu import Card, Gpu, Package
from gpuload.doctor.machine import Limit, Machine

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and rows of a name and what there is to say of it."""

    title: str
    rows: tuple[Row, ...]


def sections(report: Report) -> list[Section]:
    """All of the report but its findings."""
    told = [
        Section("Machine", tuple(_machine(report.machine))),
        Section("GPU", tuple(_gpu(report.gpu))),
        Section("GPUDirect Storage", tuple(_gds(report.gpu))),
    ]
    if report.data is not None:
        told.append(Section("Data", tuple(_data(report.data))))
    return told


def _machine(machine: Machine) -> Iterator[Row]:
    yield "system", machine.system
    yield (
        "versions",
        f"gpuload {machine.gpuload}, Python {machine.python}, torch {machine.torch}, "
        f"NumPy {machine.numpy}",
    )
    quota = machine.cgroup_cores
    limit = "" if quota is None else f", control group allows the time of {quota:.1f}"
    allowed = f", affinity {machine.cores_allowed}" if machine.cores_allowed else ""
    yield "cores", f"{machine.cores_granted} granted of {machine.cores_present}{allowed}{limit}"
    yield "memory", _memory(machine)
    yield (
        "NUMA",
        ", ".join(
            f"node {node.number}: cores {node.cores or 'none'}"
            + (f" and {size(node.memory_nbytes)}" if node.memory_nbytes is not None else "")
            for node in machine.numa_nodes
        )
        or "unknown",
    )
    yield "descriptors", _limit(machine.descriptors, str)
    yield "locked memory", _limit(machine.locked_nbytes, size)
    yield "maps", f"{machine.max_maps} per process (vm.max_map_count)"


def _memory(machine: Machine) -> str:
    parts = {
        "available": machine.memory_available_nbytes,
        "in all": machine.memory_nbytes,
        "allowed by the control group": machine.cgroup_memory_nbytes,
    }
    known = [f"{size(nbytes)} {name}" for name, nbytes in parts.items() if nbytes is not None]
    return ", ".join(known) or "unknown"


def _limit(limit: Limit, words: Callable[[int], str]) -> str:
    soft, hard = ("no limit" if n is None else words(n) for n in (limit.soft, limit.hard))
    return soft if soft == hard else f"{soft}, may be raised to {hard}"


def _gpu(gpu: Gpu) -> Iterator[Row]:
    yield "device cuda", "can be used" if gpu.is_usable else f"cannot be used: {gpu.reason}"
    cuda = f"runs CUDA up to {gpu.driver_cuda}" if gpu.driver_cuda else ""
    yield "driver", ", ".join(part for part in (gpu.driver, cuda) if part) or "none"
    yield "torch", f"for CUDA {gpu.torch_cuda}" if gpu.torch_cuda else "a build for the CPU alone"
    yield "CuPy", _packages(gpu.cupy)
    yield "kvikio", _packages(gpu.kvikio)
    yield "libcufile", gpu.libcufile or "not found"
    if gpu.visible_devices is not None:
        yield "visible", f"CUDA_VISIBLE_DEVICES={gpu.visible_devices!r}"
    for card in gpu.cards:
        yield ("GPU" if card.index is None else f"GPU {card.index}"), _card(card)


def _packages(packages: tuple[Package, ...]) -> str:
    return ", ".join(f"{p.name} {p.version}" for p in packages) or "not installed"


def _card(card: Card) -> str:
    parts = [card.name]
    if card.memory_nbytes is not None:
        parts.append(size(card.memory_nbytes))
    if card.memory_free_nbytes is not None:
        parts.append(f"{size(card.memory_free_nbytes)} free")
    if card.compute_capability is not None:
        parts.append(f"compute capability {card.compute_capability}")
    if card.pci_bus_id is not None:
        parts.append(f"PCI {card.pci_bus_id}")
    if card.numa_node is not None:
        parts.append(f"NUMA node {card.numa_node}")
    if card.index is None:
        parts.append("not seen by torch")
    return ", ".join(parts)


def _gds(gpu: Gpu) -> Iterator[Row]:
    there = {True: "there", False: "not there", None: "unknown"}
    yield "kvikio", "can be tried" if gpu.gds.reason is None else f"no: {gpu.gds.reason}"
    yield "nvidia-fs", gpu.gds.nvidia_fs or "not loaded"
    yield "/run/udev", there[gpu.gds.has_udev]
    yield "p2pdma", there[gpu.gds.has_p2pdma]
    if gpu.gds.compat_mode is not None:
        yield "environment", f"KVIKIO_COMPAT_MODE={gpu.gds.compat_mode!r}"


def _data(data: Data) -> Iterator[Row]:
    yield "path", data.path
    yield "file system", _ground(data.ground)
    if data.contents is None:
        yield "arrays", "none" if data.is_empty else "see below"
    else:
        for line in data.contents.summary.splitlines():
            name, colon, rest = line.partition(": ")
            yield (name, rest) if colon else ("arrays", line)
    if data.reading is not None:
        yield from _reading(data.reading)


def _ground(ground: Ground) -> str:
    kind = "network" if ground.is_network else "memory" if ground.is_memory else "local"
    parts = [f"{ground.file_system} ({kind})" if ground.mount_point else "unknown"]
    if ground.mount_point:
        parts.append(f"{ground.mount_source} at {ground.mount_point}")
    if ground.free_nbytes is not None and ground.nbytes is not None:
        parts.append(f"{size(ground.free_nbytes)} free of {size(ground.nbytes)}")
    return ", ".join(parts)


def _reading(reading: Reading) -> Iterator[Row]:
    share = "unknown" if reading.resident is None else f"{reading.resident:.0%} of sampled pages"
    yield "page cache", share
    yield "io", f"{reading.io}: {reading.reason}"
    yield "threads", str(reading.threads)
    how = "measured" if reading.is_measured else "assumed"
    yield (
        "cost of reads",
        f"{reading.request_ns / 1e3:.1f} us each and {reading.bytes_per_ns:.2g} GB/s, {how}",
    )
    yield "GDS", f"{'yes' if reading.is_gds else 'no'}: {reading.gds_reason}"
