"""Drawn pictures as training data, for runs without photographs and downloads.

The data are written into a temporary folder, which is renamed when it is complete. The manifest has only relative
paths, so the same seed gives the same data anywhere.
"""

import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from models.errors import DataError
from training.dataset.classes import build_classes
from training.dataset.manifest import MANIFEST_FILE, SourceNote, write_manifest
from training.dataset.selection import manifest_columns
from training.dataset.sources.record import ImageInfo, LabeledPicture, PictureRecord, SourceClass, Split
from training.herbarium.drawings import Drawing, draw_files
from training.herbarium.names import SpeciesName, species_name
from training.herbarium.photo_styles import PLAIN_STYLE
from training.recipe import DataRecipe

SIDE_PX: Final = 96
_SOURCE: Final = "drawn"
_PICTURES: Final = "pictures"
# Split of each picture of a species, by its number; every split has a picture of every species.
SPLIT_OF_PICTURE: Final[tuple[Split, ...]] = ("test", "validation", "validation", "calibration") + 8 * ("train",)
_PICTURES_PER_PROCESS: Final = 100  # a process starts in a second, a picture takes a tenth of a second


def ensure_training_data(data: DataRecipe, seed: int) -> None:
    """Draws the data of a recipe with `drawn_species`, unless its data folder already holds prepared data.

    Args:
        data: Its `data` folder receives twelve pictures of each of its `drawn_species`, 96 px square.
        seed: Seed of the flora.

    Raises:
        DataError: The folder holds other files.
    """
    if data.drawn_species == 0 or (data.data / MANIFEST_FILE).is_file():
        return
    _refuse_occupied(data.data)
    data.data.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(".part", f".{data.data.name}.", data.data.parent, ignore_cleanup_errors=True) as temporary:
        drawn = Path(temporary) / data.data.name
        _draw(drawn, data.drawn_species, seed)
        _move(drawn, data.data)


def _draw(folder: Path, num_species: int, seed: int) -> None:
    names = [species_name(species, seed) for species in range(num_species)]
    drawings = [
        Drawing(f"{_class_id(name)}/{picture:02}.jpg", species, picture, PLAIN_STYLE, SIDE_PX, SIDE_PX)
        for species, name in enumerate(names)
        for picture in range(len(SPLIT_OF_PICTURE))
    ]
    workers = min(os.cpu_count() or 1, max(len(drawings) // _PICTURES_PER_PROCESS, 1))
    draw_files(folder / _PICTURES, drawings, seed=seed, workers=workers)
    plants = [_source_class(name) for name in names]
    classes = build_classes({_SOURCE: plants}, "within_sources")
    pictures = [
        LabeledPicture(
            source=_SOURCE,
            record=PictureRecord(path=drawing.path, plant=plants[drawing.species]),
            label=classes.labels[_SOURCE, plants[drawing.species].class_id],
            info=_image_info(folder / _PICTURES / drawing.path, drawing),
        )
        for drawing in drawings
    ]
    splits = [SPLIT_OF_PICTURE[drawing.picture] for drawing in drawings]
    columns = manifest_columns(pictures, splits, [drawing.path for drawing in drawings])
    source = SourceNote(_PICTURES, "Drawn plants of invented species.")
    write_manifest(folder, columns, classes.taxonomy, {_SOURCE: source})


def _image_info(file: Path, drawing: Drawing) -> ImageInfo:
    data = file.read_bytes()
    return ImageInfo(
        sha256=hashlib.sha256(data).hexdigest(),
        num_bytes=len(data),
        width=drawing.width,
        height=drawing.height,
        perceptual_hash=0,  # no near copies are searched for
    )


def _class_id(name: SpeciesName) -> str:
    return f"{name.common_name} ({name.scientific_name})"


def _source_class(name: SpeciesName) -> SourceClass:
    return SourceClass(
        class_id=_class_id(name),
        name=name.scientific_name,
        common_name=name.common_name,
        genus=name.genus,
        family=name.family,
    )


def _refuse_occupied(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            "the folder for drawn pictures holds other files",
            value=folder,
            limit="prepared data, an empty folder, or no folder",
            remedy="name another one with --data, or pass --drawn-species 0",
        )


def _move(drawn: Path, folder: Path) -> None:
    """Renames the folder, unless another process has created it in the meantime."""
    try:
        drawn.replace(folder)
    except OSError:
        if not (folder / MANIFEST_FILE).is_file():
            raise
