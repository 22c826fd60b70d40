"""Drawn plants as files: a folder a species, a table of labels, and sheets to look at."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image

from models.errors import InputError
from training.herbarium.names import SpeciesName, species_name
from training.herbarium.photo_styles import PLAIN_STYLE, PhotoStyle
from training.herbarium.picture import draw_plant

LABEL_COLUMNS: Final = ("path", "scientific_name", "common_name", "genus", "family", "split")
_TEST_EVERY: Final = 5


def write_image_folder(
    root: Path, *, num_species: int, pictures_per_species: int, seed: int = 0, size_px: int = 256, quality: int = 92
) -> None:
    """Writes JPEG files into folders named `Common (Scientific)`, and `labels.csv` beside the folders.

    Every fifth picture of a species belongs to the split `test`, the others to `train`.

    Args:
        root: An empty folder, or one that does not exist yet.
        num_species: Species 0 up to this number are drawn.
        pictures_per_species: How many pictures each gets.
        seed: Another seed is another flora.
        size_px: Width and height of each picture.
        quality: Of the JPEG files, from 1 to 95.

    Raises:
        InputError: `root` is a file or has something in it, or a number cannot be used.
    """
    refuse_occupied(root)
    root.mkdir(parents=True, exist_ok=True)
    with (root / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(LABEL_COLUMNS)
        for species in range(num_species):
            name = species_name(species, seed)
            folder = f"{name.common_name} ({name.scientific_name})"
            (root / folder).mkdir()
            for picture in range(pictures_per_species):
                path = f"{folder}/{picture:05d}.jpg"
                drawn = draw_plant(species, picture, seed=seed, size_px=size_px)
                drawn.save(root / path, quality=quality)
                table.writerow(_label(path, name, picture))


def contact_sheet(
    species: Sequence[int], pictures: int, *, seed: int = 0, size_px: int = 128, style: PhotoStyle = PLAIN_STYLE
) -> Image.Image:
    """One RGB picture with a row for each of `species` and a column for each of its first `pictures` pictures.

    Raises:
        InputError: There is nothing to show.
    """
    if not species or pictures < 1:
        raise InputError("a contact sheet needs at least one species and one picture", remedy="ask for more")
    sheet = Image.new("RGB", (pictures * size_px, len(species) * size_px))
    for row, number in enumerate(species):
        for column in range(pictures):
            tile = draw_plant(number, column, seed=seed, size_px=size_px, style=style)
            sheet.paste(tile, (column * size_px, row * size_px))
    return sheet


def _label(path: str, name: SpeciesName, picture: int) -> tuple[str, ...]:
    split = "test" if picture % _TEST_EVERY == _TEST_EVERY - 1 else "train"
    return path, name.scientific_name, name.common_name, name.genus, name.family, split


def refuse_occupied(root: Path) -> None:
    """Raises InputError unless `root` is empty or does not exist: drawn pictures never mix with others."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            "the folder for the drawn pictures is not empty",
            value=str(root),
            limit="an empty or a new folder",
            remedy="choose another folder or empty this one",
        )
