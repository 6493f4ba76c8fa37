"""What follows from the facts: what is well, what to know, what to repair and how. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuload.doctor.data import Contents, Data, Reading
from gpuload.doctor.gpu import Gpu, Package
from gpuload.doctor.machine import Machine
from gpuload.system import cores_listed

LOW_DESCRIPTORS = 1024  # what most systems grant; fewer are somebody's doing
ENOUGH_DESCRIPTORS = 65536


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is "ok", "note" or "problem"; `text` names the remedy where there is one."""

    level: str
    text: str


def judge(machine: Machine, gpu: Gpu, data: Data | None) -> tuple[Finding, ...]:
    """All findings: of the GPU, the machine and the data set."""
    found = [*_of_gpu(gpu), *_of_cards(machine, gpu), *_of_machine(machine)]
    if data is not None:
        found += _of_data(machine, data)
    return tuple(found)


def _of_gpu(gpu: Gpu) -> Iterator[Finding]:
    has_driver = bool(gpu.driver or gpu.driver_cuda or gpu.cards)
    if gpu.is_usable:
        yield Finding("ok", "the device cuda can be used")
    elif has_driver:
        yield Finding("problem", f"the device cuda cannot be used: {gpu.reason}")
    else:
        yield Finding("note", "no NVIDIA driver here: batches are made on the CPU")
    if has_driver and gpu.visible_devices is not None and gpu.visible_devices.strip() in ("", "-1"):
        hidden = f"CUDA_VISIBLE_DEVICES={gpu.visible_devices!r} hides all GPUs; unset it"
        yield Finding("problem", hidden)
    yield from _of_packages(gpu)
    if gpu.is_usable and gpu.gds.reason is not None:
        yield Finding("note", f"no GPUDirect Storage: {gpu.gds.reason}")


def _of_packages(gpu: Gpu) -> Iterator[Finding]:
    """Versions of CUDA that do not go together."""
    wanted, runs = _major(gpu.torch_cuda), _major(gpu.driver_cuda)
    if wanted and runs and wanted > runs:
        yield Finding(
            "problem",
            f"torch is for CUDA {gpu.torch_cuda} and the driver runs up to {gpu.driver_cuda}; "
            f"update the driver, or install torch for CUDA {runs}",
        )
    for title, packages in (("CuPy", gpu.cupy), ("kvikio", gpu.kvikio)):
        if len(packages) > 1:
            names = " ".join(package.name for package in packages)
            yield Finding(
                "problem",
                f"{title} is installed {len(packages)} times, over each other ({names}); pip "
                f"uninstall all of them, then install {_fitting(packages, wanted)}",
            )
        elif packages and wanted and packages[0].cuda not in (None, wanted):
            yield Finding(
                "problem",
                f"{title} is for CUDA {packages[0].cuda} and torch for CUDA {wanted}; pip "
                f"uninstall {packages[0].name}, then pip install gpuload[cuda{wanted}]",
            )


def _fitting(packages: tuple[Package, ...], wanted: int | None) -> str:
    return next((p.name for p in packages if wanted and p.cuda == wanted), "the one for your CUDA")


def _major(cuda: str | None) -> int | None:
    return int(cuda.split(".")[0]) if cuda else None


def _of_cards(machine: Machine, gpu: Gpu) -> Iterator[Finding]:
    """GPUs next to cores that this process may not use."""
    allowed = cores_listed(machine.cores_allowed)
    near = {node.number: node.cores for node in machine.numa_nodes}
    for card in gpu.cards:
        cores = near.get(card.numa_node, "") if card.numa_node is not None else ""
        if card.index is None or not cores or not allowed:
            continue
        if not allowed & cores_listed(cores):
            yield Finding(
                "note",
                f"GPU {card.index} is next to NUMA node {card.numa_node} (cores {cores}), this "
                f"process may use cores {machine.cores_allowed}: copies cross the sockets; "
                f"start it with numactl --cpunodebind={card.numa_node} "
                f"--preferred={card.numa_node}, or ask the scheduler for cores near the GPU",
            )


def _of_machine(machine: Machine) -> Iterator[Finding]:
    granted, present = machine.cores_granted, machine.cores_present
    if granted < present:
        yield Finding(
            "problem" if granted == 1 else "note",
            f"{granted} of {present} cores are granted; for more, --cpus-per-task in Slurm, --cpus "
            "in Docker, or a wider taskset",
        )
    quota = machine.cgroup_cores
    if quota is not None and quota < granted - 0.5:
        yield Finding(
            "note",
            f"the control group grants the time of {quota:.1f} cores, and loaders start a thread "
            f"for each of {granted}; pass threads={max(1, round(quota))} to DataLoader",
        )
    soft, hard = machine.descriptors.soft, machine.descriptors.hard
    if soft is not None and soft < LOW_DESCRIPTORS:
        yield Finding("note", f"soft descriptor limit {soft} is low; {_raise(hard, soft)}")


def _raise(hard: int | None, soft: int) -> str:
    most = ENOUGH_DESCRIPTORS if hard is None else min(hard, ENOUGH_DESCRIPTORS)
    if most > soft:
        return f"ulimit -n {most}"
    return "so is the hard limit: LimitNOFILE= in systemd, --ulimit nofile= in Docker"


def _of_data(machine: Machine, data: Data) -> Iterator[Finding]:
    if data.error is not None:
        yield Finding("note" if data.is_empty else "problem", data.error)
    if data.contents is None:
        return
    for warning in data.contents.warnings:
        yield Finding("note", warning)
    if data.reading is not None:
        yield from _of_reading(machine, data, data.contents, data.reading)


def _of_reading(
    machine: Machine, data: Data, contents: Contents, reading: Reading
) -> Iterator[Finding]:
    ground = data.ground
    limits = (machine.memory_nbytes, machine.cgroup_memory_nbytes)
    memory = min((n for n in limits if n is not None), default=None)
    if ground.is_network:
        yield Finding(
            "note",
            f"{ground.file_system} is a network file system: reads wait for the network; copy the "
            "files to a local disk to read them epoch after epoch",
        )
    elif memory is not None and not ground.is_memory and contents.nbytes > memory:
        yield Finding(
            "note",
            f"{size(contents.nbytes)} of arrays do not fit in {size(memory)} of memory: every "
            "epoch reads from the disk",
        )
    elif (
        reading.io == "pread"
        and reading.resident is not None
        and contents.files <= reading.max_maps
    ):
        yield Finding(
            "note",
            f"{reading.resident:.0%} of the files is in the page cache: the first epoch reads from "
            "the disk, later ones find in memory what it brought there",
        )
    if contents.files > reading.max_maps and not ground.is_network:
        yield Finding(
            "note",
            f"{contents.files} files are more than the {reading.max_maps} maps that loaders keep: "
            f"they are read; sysctl -w vm.max_map_count={4 * contents.files}",
        )
    soft = machine.descriptors.soft
    if reading.io == "pread" and soft is not None and contents.files > soft:
        yield Finding(
            "note",
            f"{contents.files} files and {soft} descriptors: files are opened again and again; "
            f"{_raise(machine.descriptors.hard, soft)}",
        )
    if reading.io == "mmap":
        yield Finding("ok", "the files are in memory: windows are copied from kept maps")
    if reading.is_gds:
        yield Finding("ok", "reads can go straight into the GPU's memory (GDS)")


def size(nbytes: int) -> str:
    """Bytes for people: "24.5 GB"."""
    if nbytes < 1e9:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e9:.1f} GB" if nbytes < 1e12 else f"{nbytes / 1e12:.1f} TB"
