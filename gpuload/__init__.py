"""gpuload: batches of windows of large arrays for PyTorch, read and cut by native threads."""

from importlib.metadata import version

from gpuload.errors import (
    DeviceError,
    FormatError,
    GpuloadError,
    MissingError,
    ReadError,
    UnsupportedDtypeError,
)
from gpuload.fit import Pad, Resize
from gpuload.load import load
from gpuload.loader import DataLoader
from gpuload.prefetch import prefetch
from gpuload.randomness import item_generator
from gpuload.sources import Source, arrays, open
from gpuload.sources.dataset import dataset
from gpuload.stats import Stats
from gpuload.window import CenterCrop, GridCrop, RandomCrop

__version__ = version("gpuload")

__all__ = [
    "CenterCrop",
    "DataLoader",
    "DeviceError",
    "FormatError",
    "GpuloadError",
    "GridCrop",
    "MissingError",
    "Pad",
    "RandomCrop",
    "ReadError",
    "Resize",
    "Source",
    "Stats",
    "UnsupportedDtypeError",
    "arrays",
    "dataset",
    "item_generator",
    "load",
    "open",
    "prefetch",
]
