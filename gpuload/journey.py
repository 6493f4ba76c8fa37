"""Decide how batches come about: what the readers deliver, what crosses to a device, what it does.

Facts of the source, the plan of its files and the device go in; layouts and a route come out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuload import _native, system
from gpuload.arrangement import Arrangement
from gpuload.catalog import Catalog
from gpuload.devices import Device
from gpuload.dtypes import Dtype
from gpuload.layout import BatchLayout, Column, Way, lay_out, route_placed, route_spans
from gpuload.options import Options
from gpuload.packed import pack
from gpuload.plan import IoPlan, Transfer, plan_transfer
from gpuload.readers import gds
from gpuload.resident import Tables
from gpuload.samples import Samples
from gpuload.stage import DirectReader

_TRIED = 32  # files whose file systems are looked at before one of each is read from

# Makes a reader that delivers elements of a type, or stored bytes.
MakeReader = Callable[[IoPlan, Dtype | None], _native.Reader]
# Makes what arranges windows, or packs them.
MakeArranger = Callable[[IoPlan, bool], _native.Arranger]


@dataclass(frozen=True, slots=True)
class Journey:
    """How batches of at most some number of samples come about.

    `layout` is of what the readers fill, `reads_as` the element type that they deliver; None:
    stored bytes. On a host device that is the batch, and there is no transfer and no route.
    `element` is what x is made of when it is filled, or else when it is delivered; `room` the bytes
    that each window has where windows are not placed.
    """

    layout: BatchLayout
    reads_as: Dtype | None
    element: Dtype
    transfer: Transfer | None = None
    route: Way | None = None
    room: int = 0
    what: str = ""

    @property
    def delivery(self) -> str:
        return "placed" if self.transfer is None else self.transfer.delivery

    @property
    def device_nbytes(self) -> int:
        """Of a slot on the device, 0 where batches are copied as they are."""
        return 0 if self.route is None or self.route.is_copy else self.route.slab.nbytes

    @property
    def constants_nbytes(self) -> int:
        """Of tables that are put on the device once."""
        constants = () if self.route is None else self.route.constants
        return sum(part.numel() * part.element_size() for part in constants)

    def describe(self) -> str:
        """What crosses to the device and why, for people; nothing where there is none."""
        if self.transfer is None or self.route is None:
            return ""
        direct = self.transfer.not_direct
        not_direct = f"; not read into it: {direct}" if direct else ""
        return f": {self.what} ({self.transfer.reason}){not_direct}"


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the journeys of one loader.

    `columns` are those of a batch, x first. `stored` is the element type in the files.
    """

    catalog: Catalog
    arrangement: Arrangement
    options: Options
    device: Device
    columns: tuple[Column, ...]
    stored: Dtype

    @property
    def samples(self) -> Samples:
        return self.arrangement.samples

    def plan(
        self, io: IoPlan, n: int, make_reader: MakeReader, make_arranger: MakeArranger
    ) -> Journey:
        """The journey of batches of at most `n` samples."""
        samples, delivered = self.samples, self.columns[0].dtype
        window = samples.largest_window
        if self.device.is_host:
            apart = not self.arrangement.is_plain
            layout = lay_out(self.columns, batch_size=n, small_apart=apart)
            return Journey(layout, delivered, delivered)
        if not self.arrangement.is_plain:
            return self._pack(io, n, make_arranger)
        # The smaller of what is stored and what is delivered crosses.
        crossing = self.stored if self.stored.nbytes <= delivered.nbytes else delivered
        reader = make_reader(io, crossing)
        split = reader.split(samples.native(), 0)
        facts = samples.window_facts(split, is_uniform=reader.is_uniform)
        direct, insists = self.why_not_direct(facts.span_nbytes), self.options.io == "gds"
        transfer = plan_transfer(facts, io, direct=direct, insists=insists)
        if transfer.delivery == "placed":
            route = route_placed(
                self.columns, crossing=crossing, batch_size=n, window_elements=window
            )
            what = f"windows cross as {crossing.name}"
            return Journey(route.slab, crossing, crossing, transfer, route, what=what)
        route = route_spans(
            self.columns,
            stored=self.stored,
            swap=samples.is_swapped,
            span_nbytes=facts.span_nbytes,
            window_stride=samples.window_stride if reader.is_uniform else None,
            ndim=samples.shapes.shape[1],
            is_listed=transfer.delivery == "listed",
            batch_size=n,
            window_elements=window,
        )
        is_listed = transfer.delivery == "listed"
        what = "files are read into it" if is_listed else "spans of stored bytes cross"
        return Journey(route.slab, None, delivered, transfer, route, route.room, what)

    def _pack(self, io: IoPlan, n: int, make_arranger: MakeArranger) -> Journey:
        """The journey of windows of several fields, or of ones that the device pads, scales or
        turns."""
        forms = self.arrangement.forms
        crossing = tuple(self.arrangement.crossing(form) for form in forms)
        tables = Tables(self.device)
        channels = [
            tables.put(np.array(form.scaling[1]).reshape(-1, 2))
            if form.scaling is not None and form.scaling[1]
            else None
            for form in forms
        ]
        room = make_arranger(io, True).room
        way = pack(
            self.columns,
            forms,
            crossing=crossing,
            channels=tuple(channels),
            room=room,
            pads=any(self.samples.fit.pads),
            batch_size=n,
        )
        names = ", ".join(dict.fromkeys(dtype.name for dtype in crossing))
        return Journey(
            way.slab,
            crossing[0],
            self.columns[0].dtype,
            Transfer("placed", "the device casts, turns and pads them", self._why_packed()),
            way,
            0 if self.options.on_error == "raise" else room,
            f"windows cross packed, as {names}",
        )

    def _why_packed(self) -> str:
        is_asked = self.options.io == "gds"
        return "windows are packed by the host where they are more than cut and cast" * is_asked

    def why_not_direct(self, span_nbytes: int) -> str | None:
        """Why windows of so many bytes are not read straight into the device; None when they
        are."""
        if self.options.io not in ("auto", "gds"):
            return f'io="{self.options.io}" is asked for'
        if not self.device.name.startswith("cuda"):
            return f"{self.device.name} is no CUDA device"
        if self.catalog.contents is not None:
            return "arrays are in memory"
        if self.options.on_error != "raise":
            return f'on_error="{self.options.on_error}" needs windows that are read one by one'
        if span_nbytes < gds.MIN_NBYTES:
            return f"windows span {span_nbytes} bytes, less than {gds.MIN_NBYTES}"
        problem = gds.why_not()
        if problem is not None:
            return problem
        for path in self._one_file_of_each_system():
            verdict = gds.probe(path, self.device.name)
            if not verdict.is_gds:
                return verdict.reason
        return None

    def _one_file_of_each_system(self) -> list[str]:
        """The largest of some files on each file system that they lie on."""
        files = np.unique(self.catalog.file[self.catalog.used_arrays])
        some = files[np.linspace(0, len(files) - 1, min(_TRIED, len(files))).astype(np.int64)]
        found: dict[int, tuple[int, str]] = {}
        for file in some.tolist():
            path, nbytes = self.catalog.paths[file], int(self.catalog.sizes[file])
            try:
                system_number = os.stat(path).st_dev
            except OSError:  # the reader will say so, when the file is wanted
                continue
            found[system_number] = max(found.get(system_number, (-1, "")), (nbytes, path))
        return [path for _, path in found.values()]

    def direct_reader(self) -> DirectReader:
        """What reads files straight into the device."""
        most = max(4, min(system.descriptor_limit() // 8, 2048))  # each takes two descriptors
        return gds.GdsFiles(self.catalog.paths, self.catalog.sizes, max_open=most)
