"""Reads the Pl@ntNet-300K layout: a JSON file of pictures, one of species names, and a folder for each split.

Version 1.0 differs from 1.1 in the file of names, which have no authors, and in the folders of the splits. Both are
recognized by what lies in the folder, so that the pictures of one can be used with the lists of the other.
"""

import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from models.errors import DataError
from training.dataset.sources.json_file import decode_entries, read_json
from training.dataset.sources.record import LeftOut, PictureRecord, SourceClass, SourceContents, Split

METADATA_FILE: Final = "plantnet300K_metadata.json"
NAMES_FILE: Final = "plantnet300K_species_id_2_name.json"
NAMES_FILE_1_0: Final = "plantnet300K_species_names.json"
_SPLITS: Final[dict[str, Split]] = {"train": "train", "val": "validation", "test": "test"}


class _Picture(msgspec.Struct, frozen=True, gc=False):
    species_id: str
    split: Literal["train", "val", "test"]
    obs_id: str | int | None = None
    author: str | None = None
    license: str | None = None


def read_plantnet(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads a Pl@ntNet-300K folder.

    Species ids stay strings, as the data set writes them. Pictures of one observation are one group.

    Args:
        name: Name of the source in output keys.
        root: Folder with both JSON files and `images/{train,val,test}/<species id>/<picture id>.jpg`; in version 1.0
            `images_{train,val,test}/...`.
        default_license: License of pictures for which the data set gives none.

    Raises:
        DataError: A file is missing or damaged, an id is not a number, a species has no name, or there are no pictures.
    """
    is_1_0 = (root / NAMES_FILE_1_0).is_file() and not (root / NAMES_FILE).is_file()
    plants = _read_names(root / (NAMES_FILE_1_0 if is_1_0 else NAMES_FILE))
    file = root / METADATA_FILE
    entries = read_json(file, dict[str, msgspec.Raw])
    images = "images_" if (root / "images_train").is_dir() else "images/"
    records = [
        _record(file, picture_id, picture, plants, images=images, default_license=default_license)
        for picture_id, picture in decode_entries(f"{file}: ", entries.items(), _Picture)
    ]
    if not records:
        raise DataError(f"{file} lists no pictures", limit="one entry for each picture", remedy="download it again")
    pictured = {record.plant.class_id for record in records}
    missing = [_without_pictures(name, plant) for plant in plants.values() if plant.class_id not in pictured]
    return SourceContents(root, records, missing)


def _read_names(file: Path) -> dict[str, SourceClass]:
    plants = {}
    for species_id, name in read_json(file, dict[str, str]).items():
        if not species_id.isascii() or not species_id.isdecimal():
            raise DataError(f"{file}: a species id is not a number", value=species_id, remedy="correct it")
        if not name.strip():
            raise DataError(f"{file}: species {species_id} has an empty name", remedy="add its scientific name")
        plants[species_id] = SourceClass(class_id=species_id, name=name, is_scientific=True)
    return plants


def _record(
    file: Path,
    picture_id: str,
    picture: _Picture,
    plants: dict[str, SourceClass],
    *,
    images: str,
    default_license: str,
) -> PictureRecord:
    species_id = picture.species_id
    if not species_id.isascii() or not species_id.isdecimal():
        raise DataError(
            f"{file}: the species id of {picture_id} is not a number", value=species_id, remedy="correct it"
        )
    if species_id not in plants:
        raise DataError(
            f"{file}: a species without a name",
            value=f"{species_id}, of picture {picture_id}",
            remedy="add its name to the file of names",
        )
    if not picture_id or "/" in picture_id or "\0" in picture_id:
        raise DataError(f"{file}: a picture id is not a file name", value=picture_id, remedy="correct it")
    return PictureRecord(
        path=f"{images}{picture.split}/{species_id}/{picture_id}.jpg",
        plant=plants[species_id],
        split=_SPLITS[picture.split],
        group="" if picture.obs_id is None else sys.intern(str(picture.obs_id)),
        author=sys.intern(picture.author or ""),
        license=sys.intern(picture.license or default_license),
    )


def _without_pictures(name: str, plant: SourceClass) -> LeftOut:
    return LeftOut(
        picture=f"{name}:{plant.class_id}",
        code="no_pictures",
        reason=f"the data set names {plant.name} but has no picture of it",
        num_pictures=0,
    )
