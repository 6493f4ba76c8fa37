"""Cut the photographs that scikit-image ships into .npy matrices. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import GpuloadError

Image = npt.NDArray[np.float32]

# Files of scikit-image's wheel, in the public domain or CC0, with room for a 200x200 matrix in both
# halves.
PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "moon": "moon.png",
    "motorcycle": "motorcycle_left.png",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
SIDE = 200  # pixels, of a matrix


@dataclass(frozen=True, slots=True)
class Matrices:
    """Two class-folder trees of .npy files: `train/NAME/*.npy` and `validation/NAME/*.npy`."""

    train: Path
    validation: Path
    names: tuple[str, ...]
    n_train: int
    n_validation: int
    nbytes: int


def cut(directory: Path, *, n_train: int, n_validation: int, seed: int) -> Matrices:
    """Write `n_train` and `n_validation` matrices of every photograph below `directory`.

    A matrix is (200, 200) float32 in [0, 1]. Training matrices come from one half of a photograph
    and validation matrices from the other, so the two never share a pixel; within a half they may
    overlap.

    Raises:
        GpuloadError: scikit-image, or one of its photographs, is missing.
    """
    rng = np.random.default_rng(seed)
    nbytes = 0
    for name, file_name in PHOTOGRAPHS.items():
        for_training, for_validation = halves(photograph(file_name))
        nbytes += _write(directory / "train" / name, for_training, n_train, rng)
        nbytes += _write(directory / "validation" / name, for_validation, n_validation, rng)
    return Matrices(
        train=directory / "train",
        validation=directory / "validation",
        names=tuple(PHOTOGRAPHS),
        n_train=n_train * len(PHOTOGRAPHS),
        n_validation=n_validation * len(PHOTOGRAPHS),
        nbytes=nbytes,
    )


def photograph(file_name: str) -> Image:
    """Return a photograph of scikit-image's wheel as its luminance, (rows, columns) in [0, 1]."""
    folder, imread = _scikit_image()
    path = folder / "data" / file_name
    if not path.is_file():
        raise GpuloadError(
            f"demo: expected {file_name} in {path.parent}, got no such file;"
            " another version of scikit-image may have it"
        )
    image = imread(path, as_gray=True)  # colour becomes float in [0, 1], grey stays uint8
    scale = 255 if image.dtype == np.uint8 else 1
    return np.asarray(image, np.float32) / np.float32(scale)


def halves(image: Image) -> tuple[Image, Image]:
    """Split the longer axis in the middle; the halves are views that share no pixel."""
    if image.shape[0] > image.shape[1]:
        middle = image.shape[0] // 2
        return image[:middle], image[middle:]
    middle = image.shape[1] // 2
    return image[:, :middle], image[:, middle:]


def _scikit_image() -> tuple[Path, Any]:
    """Return scikit-image's folder and its imread."""
    try:
        import skimage
        from skimage.io import imread
    except ModuleNotFoundError as error:
        if error.name != "skimage":
            raise
        raise GpuloadError(
            "demo: expected scikit-image, whose photographs it cuts up, got no such package;"
            " pip install gpuload[demo]"
        ) from None
    # skimage.data would fetch a file that is not there; reading the wheel's own folder cannot.
    return Path(skimage.__file__).parent, imread


def _write(folder: Path, half: Image, n: int, rng: np.random.Generator) -> int:
    """Save `n` different matrices of `half` and return their bytes."""
    folder.mkdir(parents=True)
    rows, columns = (extent - SIDE + 1 for extent in half.shape)
    nbytes = 0
    for i, place in enumerate(rng.choice(rows * columns, n, replace=False).tolist()):
        row, column = divmod(place, columns)
        matrix = np.ascontiguousarray(half[row : row + SIDE, column : column + SIDE])
        np.save(folder / f"{i:03}.npy", matrix)
        nbytes += matrix.nbytes
    return nbytes
