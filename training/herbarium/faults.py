"""What is wrong with real data sets, planted where a test can say whether it was found."""

import io
from collections import defaultdict
from pathlib import Path
from typing import Final, Literal

import msgspec
from PIL import Image

from training.herbarium import inaturalist_layout, plantnet_layout
from training.herbarium.drawings import Layout
from training.herbarium.flora import Flora
from training.herbarium.plantnet_layout import PlantnetPlan

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
_SHARE_LEFT: Final = 0.6  # of the bytes of a truncated picture
_QUALITY: Final = 82  # of a re-encoded copy; the original has 90
_PAGE: Final = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>\n"


class PlantedFault(msgspec.Struct, frozen=True):
    """Something that a preparation has to notice."""

    kind: FaultKind
    picture: str
    """Source, colon, path below its root; of a whole class, its folder (iNaturalist) or id (Pl@ntNet)."""
    original: str = ""
    """What it repeats, in the same form; of a synonym, the accepted name."""


def known_oddities(flora: Flora, plan: PlantnetPlan) -> list[PlantedFault]:
    """The classes that the published lists have too, faults or not: other kingdoms, repeats, genera, synonyms."""
    folders = inaturalist_layout.category_folders(flora)
    source = inaturalist_layout.FOLDER
    found = [PlantedFault("animal", f"{source}:{folders[species]}") for species in flora.animals]
    found += [PlantedFault("fungus", f"{source}:{folders[species]}") for species in flora.fungi]
    first: dict[tuple[int, ...], str] = {}
    for species_id, plant in plan.names.items():
        key = f"{plantnet_layout.FOLDER}:{species_id}"
        if plant.name.endswith(" spp."):
            found.append(PlantedFault("genus_level", key))
        elif first.setdefault(plant.species, key) != key:
            found.append(PlantedFault("double_species", key, first[plant.species]))
    for other in flora.synonyms:
        found.append(PlantedFault("synonym", first[(other.species,)], f"{source}:{folders[other.species]}"))
    return found


def split_observation(plan: PlantnetPlan) -> list[PlantedFault]:
    """Lets an observation of the largest class straddle training and test; its training pictures are the weak ones."""
    members = _by_class(plan)
    largest = max(members.values(), key=len)
    train, test = (next(name for name in largest if plan.pictures[name].split == part) for part in ("train", "test"))
    observation = plan.pictures[train].obs_id
    plan.pictures[test] = msgspec.structs.replace(plan.pictures[test], obs_id=observation)
    weak = [name for name in largest if plan.pictures[name].obs_id == observation and name != test]
    return [PlantedFault("observation_split", _plantnet_name(plan, name), _plantnet_name(plan, test)) for name in weak]


def damage_files(
    root: Path, flora: Flora, inaturalist: Layout, plan: PlantnetPlan, house: Layout
) -> list[PlantedFault]:
    """Puts files among the house plants that are no pictures or pictures that stand elsewhere already.

    A training picture of Pl@ntNet becomes a copy of a test picture of iNaturalist, too.

    Args:
        root: Where the drawn pictures of all data sets lie.
        flora: Their classes.
        inaturalist: Pictures of that data set.
        plan: Of Pl@ntNet's data set.
        house: Pictures of house plants.
    """
    first, last = (Path(house.drawings[place].path) for place in (0, -1))
    plants = set(flora.inaturalist)
    learned = next(
        drawing.path for drawing in inaturalist.drawings if drawing.species in plants and "/train/" in drawing.path
    )
    tested, repeated = _leak_into_training(flora, inaturalist, plan)
    return [
        *_spoil(root, first),
        _write(root, "near_copy", last.with_name("leak.jpg"), _encoded_again(root / learned), learned),
        _write(root, "near_copy", Path(repeated), _encoded_again(root / tested), tested),
    ]


def _spoil(root: Path, picture: Path) -> list[PlantedFault]:
    """Files beside one picture: a part of it, no pictures at all, and its copy."""
    whole = (root / picture).read_bytes()
    return [
        _write(root, "truncated", picture.with_name("truncated.jpg"), whole[: int(_SHARE_LEFT * len(whole))]),
        _write(root, "html_page", picture.with_name("actually_html.jpg"), _PAGE),
        _write(root, "text_file", picture.with_name("notes.txt"), b"not an image\n"),
        _write(root, "copy", picture.with_name(f"copy of {picture.name}"), whole, picture.as_posix()),
    ]


def _leak_into_training(flora: Flora, inaturalist: Layout, plan: PlantnetPlan) -> tuple[str, str]:
    """A test picture of iNaturalist, and a training picture of Pl@ntNet to become its copy.

    Both are of one species if the data sets share one. The last training picture of a class with many is taken, since
    the first ones of the largest class may straddle splits.
    """
    tested = {drawing.species: drawing.path for drawing in inaturalist.drawings if "/val/" in drawing.path}
    classes = sorted(_by_class(plan).values(), key=len, reverse=True)
    candidates = [[plan.drawings[name] for name in names if plan.pictures[name].split == "train"] for names in classes]
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


def _by_class(plan: PlantnetPlan) -> dict[str, list[str]]:
    """Species id -> its pictures' ids."""
    members = defaultdict(list)
    for name, picture in plan.pictures.items():
        members[picture.species_id].append(name)
    return members


def _plantnet_name(plan: PlantnetPlan, picture_id: str) -> str:
    return f"{plantnet_layout.FOLDER}:{plan.path(picture_id)}"


def _picture_id(path: str) -> str:
    """A path below the root of all layouts as source, colon, path below the source's root."""
    return path.replace("/", ":", 1)
