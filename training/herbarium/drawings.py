"""Pictures to draw, and the processes that draw them into files."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from PIL import Image
from rich.progress import track

from training.herbarium.photo_styles import PhotoStyle
from training.herbarium.picture import draw_plant
from training.processes import clean_context, clear_error_if_killed, end_with_parent

_QUALITY: Final = {".jpg": 90, ".jpeg": 90, ".webp": 85}
_FORMATS: Final = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
_CHUNK: Final = 16  # pictures that a process takes at once


class Drawing(msgspec.Struct, frozen=True, gc=False):
    """One picture to draw."""

    path: str
    """Its file, relative to the folder of all data sets; the suffix determines the format."""
    species: int
    picture: int
    """Number of the picture within its species."""
    style: PhotoStyle
    width: int
    """px"""
    height: int
    """px"""


class SourceFiles(msgspec.Struct, frozen=True):
    """The files of one data set, before they are written."""

    files: dict[str, bytes]
    """Path, relative to the folder of all data sets -> content of a list."""
    drawings: list[Drawing]


class PictureNumbers:
    """Numbers the pictures of each species over all data sets, so that no two are equal."""

    def __init__(self) -> None:
        self._taken: Counter[int] = Counter()

    def next_picture(self, species: int) -> int:
        """Returns an unused number for a picture of the species."""
        self._taken[species] += 1
        return self._taken[species] - 1


def draw_files(root: Path, drawings: Sequence[Drawing], *, seed: int, workers: int) -> None:
    """Draws pictures into files below `root`, and creates their folders; shows progress.

    Args:
        root: Folder that paths are relative to.
        drawings: What to draw.
        seed: Seed of the flora.
        workers: Processes; 1 draws in this one.
    """
    draw = partial(_draw_file, root, seed)
    if workers == 1:
        for drawing in track(drawings, "Drawing"):
            draw(drawing)
        return
    context = clean_context("training.herbarium.drawings")
    with clear_error_if_killed(), ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        try:
            for _ in track(pool.map(draw, drawings, chunksize=_CHUNK), "Drawing", len(drawings)):
                pass
        except BaseException:  # otherwise the pool would draw all remaining pictures first
            pool.shutdown(cancel_futures=True)
            raise


def _draw_file(root: Path, seed: int, drawing: Drawing) -> None:
    path = root / drawing.path
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    options = {"quality": _QUALITY[suffix]} if suffix in _QUALITY else {}
    _draw(drawing, seed).save(path, format=_FORMATS[suffix], **options)


def _draw(drawing: Drawing, seed: int) -> Image.Image:
    """Draws a square picture and crops its center to the width and height."""
    side = max(drawing.width, drawing.height)
    square = draw_plant(drawing.species, drawing.picture, seed=seed, size_px=side, style=drawing.style)
    left, top = (side - drawing.width) // 2, (side - drawing.height) // 2
    return square.crop((left, top, left + drawing.width, top + drawing.height))
