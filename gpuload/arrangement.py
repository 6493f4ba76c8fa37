"""Samples that are more than cut and cast: what they look like, and the native code that makes
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuload import _native
from gpuload.dtypes import BOOL, INT64, Dtype
from gpuload.fit import Pad, Resize
from gpuload.layout import MASK, Column
from gpuload.samples import Samples
from gpuload.sources.source import Source
from gpuload.transform import Form, Scaling, make_forms, mode_numbers
from gpuload.window import Crop

TOLD = ("mask", "lengths", "flip", "rot90")  # extras that say how a window fills its sample

# Makes a reader of a field that delivers elements of a type, scaled.
MakeReader = Callable[[int, Dtype, Scaling | None], _native.Reader]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the fields of a loader are delivered, and how their windows fill samples.

    `tells` says that batches have one of the extras of told().
    """

    samples: Samples
    forms: tuple[Form, ...]
    tells: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether windows of one field are only cut and cast."""
        return (
            len(self.forms) == 1
            and not self.tells
            and self.forms[0].name == "x"
            and self.forms[0].is_plain
            and self.samples.fit.is_plain
            and not self.samples.geometry.may_stick_out
        )

    def columns(self) -> list[Column]:
        """Columns of the windows of each field."""
        if self.is_plain:
            most = self.samples.largest_window
            return [Column("x", self.forms[0].delivered, most=most)]
        largest = self.samples.fit.largest
        return [
            Column(form.name, form.delivered, most=math.prod(form.shape(largest)), field=k)
            for k, form in enumerate(self.forms)
        ]

    def told(self) -> dict[str, Column]:
        """Columns of what can be told about samples, beside their windows."""
        fit, form = self.samples.fit, self.forms[0]
        ndim = len(form.order)
        masked = [
            n if fit.pads[axis] else 1
            for n, axis in zip(form.shape(fit.largest), form.order, strict=True)
        ]
        return {
            "mask": Column("mask", BOOL, most=math.prod(masked), field=MASK),
            "lengths": Column("lengths", INT64, () if ndim == 1 else (ndim,)),
            "flip": Column("flip", BOOL, (ndim,)),
            "rot90": Column("rot90", INT64, ()),
        }

    @property
    def scratch_nbytes(self) -> int:
        """Of a thread, for the largest window on its way to another size."""
        samples = self.samples
        before, after = (
            int(extents.prod(axis=1).max(initial=0))
            for extents in (samples.geometry.extents, samples.fit.contents)
        )
        resized = [form for form in self.forms if form.resize_mode is not None]
        return sum(before * f.stored.nbytes + after * f.resized.nbytes for f in resized)

    def crossing(self, form: Form) -> Dtype:
        """The element type that is packed: the smaller of what is stored and what is delivered."""
        if form.resize_mode is not None:
            return form.resized
        is_smaller = form.stored.nbytes <= form.delivered.nbytes
        return form.stored if form.scaling is not None or is_smaller else form.delivered

    def native(
        self, make_reader: MakeReader, *, is_packed: bool, is_zeroed: bool = False
    ) -> _native.Arranger:
        """What fills batches, or slabs of packed windows. Memory that `is_zeroed` need not be
        padded with zeros."""
        fit = self.samples.fit
        masked = [fit.pads[axis] for axis in self.forms[0].order]
        return _native.Arranger(
            [
                self._form(k, make_reader, is_packed=is_packed, is_zeroed=is_zeroed)
                for k in range(len(self.forms))
            ],
            self.samples.native(),
            fit.native(),
            [int(is_masked) for is_masked in masked],
            is_packed,
        )

    def _form(
        self, k: int, make_reader: MakeReader, *, is_packed: bool, is_zeroed: bool
    ) -> _native.Form:
        form = self.forms[k]
        if is_packed:
            reader = make_reader(k, self.crossing(form), None)
        else:
            reader = make_reader(k, form.delivered, form.scaling)
        pad_mode, resize_mode = mode_numbers(form)
        if is_zeroed and form.pad_mode == "constant" and not any(form.pad_value):
            pad_mode = -1
        stored = None if form.resize_mode is None else make_reader(k, form.stored, None)
        return _native.Form(
            reader,
            stored,
            list(form.field.axes),
            list(form.order),
            form.delivered.number,
            form.resized.number,
            resize_mode,
            pad_mode,
            form.pad_value,
            form.channel_axis,
            form.scaling,
        )


def arrange(
    source: Source,
    *,
    pad: Pad | None,
    resize: Resize | None,
    is_batched: bool,
    crop: Crop | None = None,
    flip: object = (),
    rot90: object = None,
    tells: bool = False,
    **delivery: object,
) -> Arrangement:
    """Check what is asked of a source, and say how its samples are made.

    Args:
        source: at least one item.
        is_batched: samples are stacked, so windows have one shape where nothing pads them.
        delivery: dtype, scale, mean, std and layout, as of make_forms.

    Raises:
        TypeError, ValueError: an argument is not as DataLoader says.
    """
    samples = Samples(source, crop, pad=pad, resize=resize, flip=flip, rot90=rot90)
    if is_batched:
        samples.expect_uniform()
    forms = make_forms(source, samples.fit, pad=pad, resize=resize, **delivery)
    return Arrangement(samples, forms, tells)
