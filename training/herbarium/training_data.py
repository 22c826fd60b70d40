"""Drawn pictures as training data, made on the spot: for trials that need no photographs and no downloads.

The folder is made under another name beside its place and moved there when all of it is written, so whoever finds it
finds it whole. Its manifest names no place outside the folder: the same seed gives the same data anywhere.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from models.errors import DataError
from training.dataset.classes import build_classes
from training.dataset.manifest import MANIFEST_FILE, SourceNote, write_manifest
from training.dataset.sources.record import SourceClass, Split
from training.herbarium import PLAIN_STYLE, SpeciesName, species_name
from training.herbarium.drawings import Drawing, draw_files
from training.recipe import DataRecipe

SIDE_PX: Final = 96
_SOURCE: Final = "drawn"
_PICTURES: Final = "pictures"
# Split of each picture of a species, by its number: every split has a picture of every species.
SPLIT_OF_PICTURE: Final[tuple[Split, ...]] = ("test", "validation", "validation", "calibration") + 8 * ("train",)
_PICTURES_PER_PROCESS: Final = 100  # a process takes a second to start, a picture a tenth to draw


def ensure_training_data(data: DataRecipe, seed: int) -> None:
    """Draws the data of a recipe that asks for drawn species, unless its data folder holds prepared data.

    Args:
        data: Twelve pictures of each of its `drawn_species` are drawn into its `data` folder, 96 px square.
        seed: Another seed is another flora.

    Raises:
        DataError: The folder holds something else.
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
    classes = build_classes({_SOURCE: [_source_class(name) for name in names]}, "within_sources")
    labels = [classes.labels[_SOURCE, _class_id(names[drawing.species])] for drawing in drawings]
    source = SourceNote(_PICTURES, "Drawn plants of invented species.")
    write_manifest(folder, _columns(folder / _PICTURES, drawings, labels), classes.taxonomy, {_SOURCE: source})


def _columns(root: Path, drawings: Sequence[Drawing], labels: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The manifest's columns; a drawn picture has no author, no day and no place."""
    size, paths = len(drawings), [drawing.path for drawing in drawings]
    contents = [(root / path).read_bytes() for path in paths]
    return {
        "picture_id": [f"{_SOURCE}:{path}" for path in paths],
        "source": [_SOURCE] * size,
        "path": paths,
        "shard": [""] * size,
        "offset": [0] * size,
        "length": [len(content) for content in contents],
        "label": labels,
        "split": [SPLIT_OF_PICTURE[drawing.picture] for drawing in drawings],
        "group": paths,
        "licence": ["unknown"] * size,
        "author": [""] * size,
        "taken_on": [None] * size,
        "latitude": [None] * size,
        "longitude": [None] * size,
        "sha256": [hashlib.sha256(content).hexdigest() for content in contents],
        "width": [drawing.width for drawing in drawings],
        "height": [drawing.height for drawing in drawings],
    }


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
            "the folder for drawn pictures holds something else",
            value=folder,
            limit="prepared data, an empty folder or none",
            remedy="name another one with --data, or pass --drawn-species 0",
        )


def _move(drawn: Path, folder: Path) -> None:
    """Puts the data into its place, unless another process was faster."""
    try:
        drawn.replace(folder)
    except OSError:
        if not (folder / MANIFEST_FILE).is_file():
            raise
