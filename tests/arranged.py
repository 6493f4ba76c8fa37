"""A NumPy twin of what a loader makes of windows: cut, resized, scaled, flipped, turned, laid out,
padded. And every way that a loader can make batches.

Written for reading, not for speed. A batch tells by its extras which windows it shows; the twin
makes the same batch of the arrays.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import casts
import numpy as np
import torch
from interpolation import NEAREST, interpolate
from late import EagerDevice, LateDevice
from placed import scaled

import gpuload as gl
from gpuload.devices import Affine

TOLD = ("index", "crop", "start", "mask", "lengths", "flip", "rot90")
FLOATING = casts.FLOATS


# ---- Every way


def devices(host_kernels):
    """By name: the CPU, and devices to which windows cross packed. The last one runs the kernels
    of a GPU, built for the host."""
    return {
        "cpu": "cpu",
        "at once": EagerDevice(),
        "late": LateDevice(),
        "kernels": LateDevice(kernels=host_kernels),
    }


WAYS = [
    *itertools.product(("cpu", "at once"), ("mmap", "pread")),
    ("late", "mmap"),
    ("kernels", "pread"),
]


def run(loader, device):
    """The batches of an epoch, when the device has made them."""
    batches = list(loader)
    if device != "cpu":
        device.synchronize()
    return batches


def on_every_way(host_kernels, source, batch_size=3, *, epochs=1, **options):
    """The batches of each epoch, the same on every device and way to read."""
    first = None
    on = devices(host_kernels)
    for name, io in WAYS:
        device = on[name]
        with gl.DataLoader(source, batch_size, device=device, io=io, **options) as loader:
            made = [run(loader, device) for _ in range(epochs)]
        if first is None:
            first = made
        assert [len(batches) for batches in made] == [len(batches) for batches in first]
        for batch, want in zip(itertools.chain(*made), itertools.chain(*first), strict=True):
            assert_same(batch, want, f"{name}, {io}")
    return first if epochs > 1 else first[0]


def assert_same(batch, want, message=""):
    """Batches are equal to the bit."""
    assert type(batch) is type(want)
    names = getattr(batch, "_fields", ("x",))
    fields = [[b] if isinstance(b, torch.Tensor) else b for b in (batch, want)]
    for name, a, b in zip(names, *fields, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b, message
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{name}: {message}"
        np.testing.assert_array_equal(bits(a), bits(b), f"{name}: {message}")


def bits(x):
    """The values of a tensor as unsigned integers."""
    flat = x.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)


def raw(x):
    """A tensor as an array; bfloat16 as its bits."""
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


# ---- The twin


@dataclass(frozen=True)
class Twin:
    """Makes the batches of a loader with these arguments. `arrays` are the items of its source;
    `stored` names their type where that is not NumPy's."""

    arrays: list
    stored: str | None = None
    crop: object = None
    resize: gl.Resize | None = None
    pad: gl.Pad | None = None
    flip: object = ()
    rot90: tuple | None = None
    dtype: str | None = None
    scale: float | None = None
    mean: object = None
    std: object = None
    layout: str | None = None

    # -- Shapes, along the axes of an item

    @property
    def ndim(self):
        return np.ndim(self.arrays[0])

    @property
    def plane(self):
        return None if self.rot90 is None else tuple(axis % self.ndim for axis in self.rot90)

    def per_axis(self, size):
        return size if isinstance(size, tuple) else (size,) * self.ndim

    @cached_property
    def cropped(self):
        """Elements that the crop has along each axis, None for all."""
        return (None,) * self.ndim if self.crop is None else self.per_axis(self.crop.size)

    @cached_property
    def resized(self):
        return (None,) * self.ndim if self.resize is None else self.per_axis(self.resize.size)

    def window(self, i):
        """The shape of a window of item i; a crop larger than that is cut where the item ends."""
        shape = np.shape(self.arrays[i])
        return tuple(
            n if c is None else min(c, n) for n, c in zip(shape, self.cropped, strict=True)
        )

    def fitted(self, i):
        """The shape of a window once it is resized, were nothing too large."""
        return tuple(
            n if size is None else size
            for n, size in zip(self.window(i), self.resized, strict=True)
        )

    def content(self, i):
        """The shape of what is seen of a window in its sample, before it is turned."""
        return tuple(
            min(n, to) if isinstance(to, int) else n
            for n, to in zip(self.fitted(i), self.to, strict=True)
        )

    @cached_property
    def to(self):
        """Elements of samples along each axis; ("batch", n) for as many as the largest of the
        batch has, rounded up to n; None where the axis is left alone."""
        if self.pad is None:
            return (None,) * self.ndim
        return tuple(self._to(axis) for axis in range(self.ndim))

    def _to(self, axis):
        to = self.pad.to
        if isinstance(to, tuple):
            to = to[axis]
        elif isinstance(to, str) and self.counts_channels(axis):
            to = None
        if to is None or isinstance(to, int):
            return to
        if to == "batch" or to.startswith("multiple:"):
            return "batch", int(to.partition(":")[2] or 1)
        along = self.plane if self.plane and axis in self.plane else (axis,)
        lengths = [[self.fitted(i)[a] for i in range(len(self.arrays))] for a in along]
        if to == "max":
            crops = [self.cropped[a] if self.resized[a] is None else None for a in along]
            return max(
                max(of_axis) if crop is None else crop
                for of_axis, crop in zip(lengths, crops, strict=True)
            )
        percent = float(to[1:])
        return max(1, *(int(np.percentile(n, percent, method="higher")) for n in lengths))

    def counts_channels(self, axis):
        lengths = {self.fitted(i)[axis] for i in range(len(self.arrays))}
        is_end = axis in (0, self.ndim - 1)
        return self.ndim >= 3 and is_end and len(lengths) == 1 and max(lengths) <= 16

    def turned(self, shape, turns):
        shape = list(shape)
        if self.plane is not None and turns % 2:
            a, b = self.plane
            shape[a], shape[b] = shape[b], shape[a]
        return tuple(shape)

    def target(self, shapes):
        """The shape of the samples of a batch, of the shapes of all it holds."""
        target = []
        for axis, to in enumerate(self.to):
            largest = max(shape[axis] for shape in shapes)
            multiple = to[1] if isinstance(to, tuple) else 1
            target.append(to if isinstance(to, int) else -(-largest // multiple) * multiple)
        return tuple(target)

    @cached_property
    def pads(self):
        """Along which axes any sample of the source may be padded."""
        contents = [self.content(i) for i in range(len(self.arrays))]
        turns = (0, 1) if self.plane else (0,)
        whole = self.target([self.turned(c, t) for c in contents for t in turns])
        pads = [
            to is not None and any(c[axis] != whole[axis] for c in contents)
            for axis, to in enumerate(self.to)
        ]
        for axis in self.plane or ():
            pads[axis] = any(pads[a] for a in self.plane)
        return pads

    # -- Values

    @cached_property
    def source_type(self):
        return self.stored or np.asarray(self.arrays[0]).dtype.newbyteorder("=").name

    @cached_property
    def delivered(self):
        is_scaled = not (self.scale is None and self.mean is None and self.std is None)
        default = self.source_type
        if is_scaled and default not in FLOATING:
            default = "float32"
        return self.dtype or default

    @cached_property
    def mode(self):
        modes = [self.resize and self.resize.mode, self.pad and self.pad.resize_mode]
        return next((mode for mode in modes if mode), "antialias")

    @property
    def blends(self):
        return self.mode not in NEAREST

    def cut(self, i, start):
        """The window as it is stored, in the byte order of this machine."""
        extent = [
            min(n, to) if isinstance(to, int) and size is None and not self.shrinks else n
            for n, to, size in zip(self.window(i), self.to, self.resized, strict=True)
        ]
        array = np.asarray(self.arrays[i])
        window = array[tuple(slice(b, b + n) for b, n in zip(start, extent, strict=True))]
        assert window.shape == tuple(extent)
        return window.astype(window.dtype.newbyteorder("="))

    @property
    def shrinks(self):
        return self.pad is not None and self.pad.oversize == "resize"

    def resize_to(self, window, shape):
        """The window at another size: exact, in float64, where values are blended."""
        axes = tuple(a for a in range(self.ndim) if window.shape[a] != shape[a])
        if not axes:
            return window, self.source_type
        if not self.blends:
            for axis in axes:
                numbers = np.arange(window.shape[axis], dtype=np.float32)
                which = interpolate(numbers[None], (1,), (shape[axis],), self.mode)[0]
                window = window.take(which.astype(int), axis)
            return window, self.source_type
        wide = casts.from_bfloat16(window) if self.source_type == "bfloat16" else window
        exact = interpolate(wide.astype(np.float64), axes, tuple(shape[a] for a in axes), self.mode)
        return exact, "float64"

    def scaled(self, values, name):
        """(x * scale - mean) / std, then cast."""
        if self.scale is None and self.mean is None and self.std is None:
            return casts.reference(values, name, self.delivered)
        channels, axis = None, None
        if self.mean is not None or self.std is not None:
            mean = np.asarray(0.0 if self.mean is None else self.mean, np.float64).reshape(-1)
            std = np.asarray(1.0 if self.std is None else self.std, np.float64).reshape(-1)
            channels = torch.from_numpy(np.stack(np.broadcast_arrays(mean, std), axis=1))
            axis = self.channel_axis(len(channels))
        affine = Affine(1.0 if self.scale is None else self.scale, channels, axis)
        return scaled(values, (name, self.delivered), affine)

    def channel_axis(self, n):
        if n == 1:
            return None
        if self.layout is not None:
            return self.ndim - 1 if self.is_channels_first else 0
        return next(a for a in (0, self.ndim - 1) if np.shape(self.arrays[0])[a] == n)

    @property
    def is_channels_first(self):
        return self.layout == "channels_first" or self.layout[:2] == "NC"

    def laid_out(self, x):
        if self.layout is None or x.ndim == 0:
            return x
        return np.moveaxis(x, -1, 0) if self.is_channels_first else np.moveaxis(x, 0, -1)

    def width(self, shape, target):
        """What is padded, as numpy.pad counts it."""
        width = []
        for n, to in zip(shape, target, strict=True):
            free = to - n
            before = {"center": free // 2, "begin": 0, "end": free}[self.pad.align] if free else 0
            width.append((before, free - before))
        return width

    def padded(self, x, target):
        width = self.width(x.shape, target)
        if not any(map(sum, width)):
            return x
        if self.pad.mode == "constant" or x.size == 0:
            return np.pad(x, width, constant_values=self.value.astype(x.dtype))
        return np.pad(x, width, mode=self.pad.mode)

    @property
    def value(self):
        """What samples are padded with, as it is delivered."""
        value = np.float64(0) if self.pad.value is None else np.asarray(self.pad.value)
        if self.delivered == "bfloat16" or self.delivered not in casts.INTEGERS:
            name = "complex128" if np.iscomplexobj(value) else "float64"
            return casts.reference(value.astype(name)[None], name, self.delivered)[0]
        return value

    def sample(self, i, start, flips, turns, target):
        """One sample, and what is True on its data."""
        window, name = self.resize_to(self.cut(i, start), self.content(i))
        x = np.asarray(self.scaled(window, name))
        x = np.flip(x, [axis for axis in range(self.ndim) if flips[axis]])
        if self.plane is not None:
            x = np.rot90(x, turns, self.plane)
        mask = np.ones(x.shape, bool)
        if self.pad is not None:
            mask = np.pad(mask, self.width(x.shape, target)) if self.ndim else mask
            x = self.padded(x, target)
        mask = mask[tuple(slice(None) if pads else slice(1) for pads in self.pads)]
        return self.laid_out(x), self.laid_out(mask)

    def batch(self, told):
        """x, mask and lengths of a batch, of what it tells about its samples."""
        items, turns = told.index.tolist(), told.rot90.tolist()
        shapes = [self.turned(self.content(i), t) for i, t in zip(items, turns, strict=True)]
        target = self.target(shapes)
        rows = zip(items, told.start.tolist(), told.flip.tolist(), turns, strict=True)
        samples = [self.sample(*row, target) for row in rows]
        x, mask = (np.stack(column) for column in zip(*samples, strict=True))
        lengths = np.array(shapes, np.int64).reshape(len(items), self.ndim)
        if self.layout is not None and self.ndim:
            lengths = np.roll(lengths, 1 if self.is_channels_first else -1, axis=1)
        return x, mask, lengths[:, 0] if self.ndim == 1 else lengths

    def check(self, batch, x=None):
        """A batch is that of the twin: to the bit, but for values that were blended."""
        want, mask, lengths = self.batch(batch)
        got = raw(batch.x if x is None else x)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_array_equal(batch.lengths, lengths)
        if x is None:
            np.testing.assert_array_equal(batch.mask, mask)
        is_resized = any(
            self.content(i) != self.cut(i, s).shape
            for i, s in zip(batch.index.tolist(), batch.start.tolist(), strict=True)
        )
        if not (is_resized and self.blends):
            casts.assert_same(got.reshape(-1), want.reshape(-1), self.delivered)
            return
        if self.delivered == "bfloat16":
            got, want = casts.from_bfloat16(got), casts.from_bfloat16(want)
        got, want = got.astype(np.float64), want.astype(np.float64)
        reach = max(1.0, float(np.abs(want).max(initial=0)))
        off = np.abs(got - want).max(initial=0)
        if self.delivered in casts.INTEGERS:
            assert off <= 1  # where it is cast or rounded at all but a whole number
        else:
            assert off <= {"float16": 1e-3, "bfloat16": 1e-2}.get(self.delivered, 1e-5) * reach


def check_every_way(
    host_kernels, source, arrays, batch_size=3, *, epochs=1, stored=None, **options
):
    """The batches of a loader are those of the twin, on every device and way to read."""
    of_loader = {name: options.pop(name) for name in list(options) if name not in _OF_TWIN}
    twin = Twin(arrays, stored=stored, **options)
    made = on_every_way(
        host_kernels, source, batch_size, epochs=epochs, extras=TOLD, **options, **of_loader
    )
    for batch in itertools.chain(*made) if epochs > 1 else made:
        twin.check(batch)
    return made


_OF_TWIN = set(Twin.__dataclass_fields__)


# ---- Files


def save(folder, arrays, **how):
    """A source of files that NumPy wrote, opened so."""
    folder.mkdir(exist_ok=True)
    for i, array in enumerate(arrays):
        np.save(folder / f"{i:03}.npy", array)
    return gl.open(folder, **how)


def numbered(shape, dtype="float32", start=1):
    """An array of which neighbours differ: 1, 2, ..."""
    return np.arange(start, start + math.prod(shape)).astype(dtype).reshape(shape)


def some(shape, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return (rng.normal(0, 50, shape) + 1j * rng.normal(0, 50, shape)).astype(dtype)
    if dtype.kind == "f":
        return rng.normal(0, 50, shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 120, shape).astype(dtype)
