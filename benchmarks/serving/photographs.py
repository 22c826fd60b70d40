"""The pictures of the benchmarks: a photograph in two sizes, others, and malicious pictures."""

import io
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from PIL import Image

from benchmarks.result import ROOT
from models.errors import DataError
from models.preprocess import read_picture, upright_size

PHOTOGRAPHS: Final = ROOT.parent / "shared" / "data" / "photos"
CAMERA_FILE: Final = "phone_12mp.heic"  # the JPEG of that name has 9.1 megapixels
PhotographName = Literal["1 MP", "12 MP"]
_QUALITY: Final = 90  # with chroma at half resolution, about what phones store


class Photograph(msgspec.Struct, frozen=True):
    """A picture file."""

    name: str
    data: bytes
    megapixels: float


def photographs(folder: Path) -> dict[PhotographName, Photograph]:
    """A phone's photograph as JPEG: at its 12 megapixels, and reduced to one.

    Raises:
        DataError: The folder lacks the file.
    """
    path = folder / CAMERA_FILE
    if not path.is_file():
        raise DataError(
            "there is no camera file to send",
            value=path,
            limit=f"a folder with a phone's photograph of 12 megapixels called {CAMERA_FILE}",
            remedy="name the folder with --photographs",
        )
    image = read_picture(path.read_bytes()).image
    factor = (1e6 / (image.width * image.height)) ** 0.5
    small = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)
    return {
        "1 MP": photograph("1 MP", _encoded(small, "JPEG", quality=_QUALITY)),
        "12 MP": photograph("12 MP", _encoded(image, "JPEG", quality=_QUALITY)),
    }


def others(folder: Path) -> list[Photograph]:
    """The JPEG files of the folder; all servers must give the same answers to them."""
    return [photograph(path.name, path.read_bytes()) for path in sorted(folder.glob("*.jpg"))]


def drawn(width: int, height: int, seed: int = 0) -> bytes:
    """A generated picture as JPEG: soft spots and some noise."""
    chance = np.random.default_rng(seed)
    spots = Image.fromarray(chance.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    soft = np.asarray(spots.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = soft + chance.integers(-12, 13, soft.shape, dtype=np.int16)
    return _encoded(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), "JPEG", quality=_QUALITY)


def broken(data: bytes) -> bytes:
    """The first half of a picture file."""
    return data[: len(data) // 2]


def oversized_png() -> bytes:
    """A PNG of 66 megapixels in a few kilobytes: more pixels than the service allows."""
    return _encoded(Image.new("1", (8200, 8000)), "PNG")


def hostile_webp() -> bytes:
    """A WebP of 50 megapixels in about 100 kB; decoding it would take several hundred megabytes."""
    return _encoded(Image.new("RGB", (10_000, 5_000), (40, 90, 30)), "WEBP", quality=1, method=0)


def _encoded(image: Image.Image, file_format: str, **options: int) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def photograph(name: str, data: bytes) -> Photograph:
    """A picture file and its size."""
    width, height = upright_size(data)
    return Photograph(name, data, width * height / 1e6)
