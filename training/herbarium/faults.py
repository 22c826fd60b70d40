"""Faults of real data sets, added to the drawn ones, so that a test can check that each is reported."""

import io
from collections import defaultdict
from pathlib import Path
from typing import Final, Literal

import msgspec
from PIL import Image

from training.herbarium import inaturalist_layout, plantnet_layout
from training.herbarium.drawings import SourceFiles
from training.herbarium.flora import Flora
from training.herbarium.plantnet_layout import PlantnetSource

FaultKind = Literal[
    "animal",
    "fungus",
    "double_species",
    "genus_level",
    "synonym",
    "truncated",
    "html_page",
    "text_file",
    "copy",
    "near_copy",
    "observation_split",
]
_TRUNCATED_SHARE: Final = 0.6  # of the bytes that a truncated picture keeps
_QUALITY: Final = 82  # JPEG quality of a re-encoded copy; the original has 90
_PAGE: Final = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>\n"


class PlantedFault(msgspec.Struct, frozen=True):
    """A fault that a preparation must report."""

    kind: FaultKind
    picture: str
    """Source, colon, path below its root; for a class its folder (iNaturalist) or id (Pl@ntNet)."""
    original: str = ""
    """The original of a copy, in the same form; for a synonym the class with the accepted name."""


def list_faults(flora: Flora, plantnet: PlantnetSource) -> list[PlantedFault]:
    """Returns the faults of the published lists, which are always added: other kingdoms, repeats, genera, synonyms."""
    folders = inaturalist_layout.category_folders(flora)
    source = inaturalist_layout.FOLDER
    found = [PlantedFault("animal", f"{source}:{folders[species]}") for species in flora.animals]
    found += [PlantedFault("fungus", f"{source}:{folders[species]}") for species in flora.fungi]
    first: dict[tuple[int, ...], str] = {}
    for species_id, plant in plantnet.names.items():
        key = f"{plantnet_layout.FOLDER}:{species_id}"
        if plant.name.endswith(" spp."):
            found.append(PlantedFault("genus_level", key))
        elif first.setdefault(plant.species, key) != key:
            found.append(PlantedFault("double_species", key, first[plant.species]))
    for other in flora.synonyms:
        found.append(PlantedFault("synonym", first[(other.species,)], f"{source}:{folders[other.species]}"))
    return found


def split_observation(plantnet: PlantnetSource) -> list[PlantedFault]:
    """Lets an observation of the largest class straddle train and test; returns its training pictures."""
    members = _by_class(plantnet)
    largest = max(members.values(), key=len)
    train, test = (
        next(name for name in largest if plantnet.pictures[name].split == part) for part in ("train", "test")
    )
    observation = plantnet.pictures[train].obs_id
    plantnet.pictures[test] = msgspec.structs.replace(plantnet.pictures[test], obs_id=observation)
    leaking = [name for name in largest if plantnet.pictures[name].obs_id == observation and name != test]
    return [
        PlantedFault("observation_split", _plantnet_name(plantnet, name), _plantnet_name(plantnet, test))
        for name in leaking
    ]


def damage_files(
    root: Path, flora: Flora, inaturalist: SourceFiles, plantnet: PlantnetSource, house: SourceFiles
) -> list[PlantedFault]:
    """Adds damaged files, other files and copies to the house plants.

    A training picture of Pl@ntNet becomes a copy of a test picture of iNaturalist.

    Args:
        root: Folder of all data sets.
        flora: Their classes.
        inaturalist: The iNaturalist data set.
        plantnet: The Pl@ntNet data set.
        house: The house plants.
    """
    first, last = (Path(house.drawings[place].path) for place in (0, -1))
    plants = set(flora.inaturalist)
    learned = next(
        drawing.path for drawing in inaturalist.drawings if drawing.species in plants and "/train/" in drawing.path
    )
    tested, repeated = _leaking_pair(flora, inaturalist, plantnet)
    return [
        *_add_faults(root, first),
        _write(root, "near_copy", last.with_name("leak.jpg"), _encoded_again(root / learned), learned),
        _write(root, "near_copy", Path(repeated), _encoded_again(root / tested), tested),
    ]


def _add_faults(root: Path, picture: Path) -> list[PlantedFault]:
    """Adds files beside a picture: a truncated copy, two files that are not pictures, and an exact copy."""
    whole = (root / picture).read_bytes()
    return [
        _write(root, "truncated", picture.with_name("truncated.jpg"), whole[: int(_TRUNCATED_SHARE * len(whole))]),
        _write(root, "html_page", picture.with_name("actually_html.jpg"), _PAGE),
        _write(root, "text_file", picture.with_name("notes.txt"), b"not an image\n"),
        _write(root, "copy", picture.with_name(f"copy of {picture.name}"), whole, picture.as_posix()),
    ]


def _leaking_pair(flora: Flora, inaturalist: SourceFiles, plantnet: PlantnetSource) -> tuple[str, str]:
    """Returns a test picture of iNaturalist, and the training picture of Pl@ntNet that becomes its copy.

    Both show the same species if the data sets share one. The last training picture of a class is chosen, because the
    first ones of the largest class may straddle splits.
    """
    tested = {drawing.species: drawing.path for drawing in inaturalist.drawings if "/val/" in drawing.path}
    classes = sorted(_by_class(plantnet).values(), key=len, reverse=True)
    candidates = [
        [plantnet.drawings[name] for name in names if plantnet.pictures[name].split == "train"] for names in classes
    ]
    shared = [drawings for drawings in candidates[1:] if drawings[0].species in tested]
    target = (shared or candidates)[0][-1]
    plants = (path for species, path in tested.items() if species in flora.inaturalist)
    return tested.get(target.species) or next(plants), target.path


def _write(root: Path, kind: FaultKind, path: Path, content: bytes, original: str = "") -> PlantedFault:
    (root / path).write_bytes(content)
    return PlantedFault(kind, _picture_id(path.as_posix()), _picture_id(original))


def _encoded_again(file: Path) -> bytes:
    again = io.BytesIO()
    with Image.open(file) as picture:
        picture.save(again, format="JPEG", quality=_QUALITY)
    return again.getvalue()


def _by_class(plantnet: PlantnetSource) -> dict[str, list[str]]:
    """Returns species id -> ids of its pictures."""
    members = defaultdict(list)
    for name, picture in plantnet.pictures.items():
        members[picture.species_id].append(name)
    return members


def _plantnet_name(plantnet: PlantnetSource, picture_id: str) -> str:
    return f"{plantnet_layout.FOLDER}:{plantnet.path(picture_id)}"


def _picture_id(path: str) -> str:
    """Converts a path below the folder of all data sets to source, colon, path below the source's root."""
    return path.replace("/", ":", 1)
