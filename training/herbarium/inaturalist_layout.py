"""Drawn plants in the layout of iNaturalist 2021: COCO-style JSON files, and a folder for each category."""

from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from training.herbarium.drawings import Drawing, PictureNumbers, SourceFiles
from training.herbarium.flora import Flora
from training.herbarium.names import species_name
from training.herbarium.observations import photographers, sightings
from training.herbarium.photo_styles import INATURALIST_STYLE
from training.herbarium.traits import SPECIES_PER_FAMILY

FOLDER: Final = "inat2021"
_STREAM: Final = 24
_VAL_SHARE: Final = 0.1
_FAMILIES_PER_ORDER: Final = 4
_SHAPES: Final = ((3, 3), (4, 3), (3, 4))  # width to height; the shorter side is 3
_UNCERTAINTIES: Final = (12, 77, 1200, None)  # of coordinates, meters
_LICENSES: Final = (
    {
        "id": 0,
        "name": "Attribution-NonCommercial License",
        "url": "http://creativecommons.org/licenses/by-nc/4.0/",
    },
    {"id": 1, "name": "Attribution License", "url": "http://creativecommons.org/licenses/by/4.0/"},
    {"id": 2, "name": "Public Domain Dedication", "url": "http://creativecommons.org/publicdomain/zero/1.0/"},
)


class _Lineage(NamedTuple):
    """The ranks above the family."""

    supercategory: str
    kingdom: str
    phylum: str
    class_: str
    order: str


class _Category(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    common_name: str
    supercategory: str
    kingdom: str
    phylum: str
    class_: str = msgspec.field(name="class")
    order: str
    family: str
    genus: str
    specific_epithet: str
    image_dir_name: str


class _Image(msgspec.Struct, frozen=True, gc=False):
    id: int
    width: int
    height: int
    file_name: str
    license: int
    rights_holder: str
    date: str | None
    latitude: float | None
    longitude: float | None
    location_uncertainty: int | None


class _Annotation(msgspec.Struct, frozen=True, gc=False):
    id: int
    image_id: int
    category_id: int


class _Part:
    """One of the two JSON files under construction."""

    def __init__(self, name: str, first_id: int) -> None:
        self.name, self._first_id = name, first_id
        self.images: list[_Image] = []
        self.annotations: list[_Annotation] = []

    def next_id(self) -> int:
        return self._first_id + len(self.images)

    def to_json(self, categories: list[_Category]) -> bytes:
        info = {"description": "Drawn plants in the layout of iNaturalist 2021", "version": "2021"}
        document = {
            "info": info,
            "images": self.images,
            "categories": categories,
            "annotations": self.annotations,
            "licenses": _LICENSES,
        }
        return msgspec.json.encode(document)


def plan_inaturalist(
    flora: Flora, picture_numbers: PictureNumbers, *, pictures_per_class: int, size_px: int
) -> SourceFiles:
    """Returns the data set. Categories have equally many pictures, a tenth of them (at least one) in `val.json`."""
    numbered = _categories(flora)
    num_val = max(1, round(_VAL_SHARE * pictures_per_class))
    train = _Part("train", 0)
    val = _Part("val", len(numbered) * (pictures_per_class - num_val))
    drawings: list[Drawing] = []
    for species, category in numbered:
        for number, image in enumerate(_images(flora, species, pictures_per_class, size_px)):
            part = val if number < num_val else train
            drawings.append(_add(part, image, category, species, picture_numbers.next_picture(species)))
    categories = [category for _, category in numbered]
    return SourceFiles({f"{FOLDER}/{part.name}.json": part.to_json(categories) for part in (train, val)}, drawings)


def category_folders(flora: Flora) -> dict[int, str]:
    """Returns species -> folder of its category, which identifies the category."""
    return {species: category.image_dir_name for species, category in _categories(flora)}


def _add(part: _Part, image: _Image, category: _Category, species: int, picture: int) -> Drawing:
    """Adds an image to one part of the data set."""
    number = part.next_id()
    file = f"{part.name}/{category.image_dir_name}/{image.file_name}"
    part.images.append(msgspec.structs.replace(image, id=number, file_name=file))
    part.annotations.append(_Annotation(number, number, category.id))
    return Drawing(f"{FOLDER}/{file}", species, picture, INATURALIST_STYLE, image.width, image.height)


def _categories(flora: Flora) -> list[tuple[int, _Category]]:
    """Returns every species with its category, numbered in the order of the names of all ranks."""
    lineages = [(species, _plant_lineage(species, flora.seed)) for species in flora.inaturalist]
    lineages += [
        (species, _Lineage("Insects", "Animalia", "Arthropoda", "Insecta", "Lepidoptera")) for species in flora.animals
    ]
    fungi = _Lineage("Fungi", "Fungi", "Basidiomycota", "Agaricomycetes", "Agaricales")
    lineages += [(species, fungi) for species in flora.fungi]
    ranked = sorted((_ranks(species, lineage, flora.seed), species, lineage) for species, lineage in lineages)
    return [
        (species, _category(number, species, lineage, ranks, flora.seed))
        for number, (ranks, species, lineage) in enumerate(ranked)
    ]


def _plant_lineage(species: int, seed: int) -> _Lineage:
    order = species // (SPECIES_PER_FAMILY * _FAMILIES_PER_ORDER)
    first_family = species_name(order * SPECIES_PER_FAMILY * _FAMILIES_PER_ORDER, seed).family
    class_ = "Liliopsida" if order % 4 == 3 else "Magnoliopsida"
    return _Lineage("Plants", "Plantae", "Tracheophyta", class_, f"{first_family.removesuffix('aceae')}ales")


def _ranks(species: int, lineage: _Lineage, seed: int) -> tuple[str, ...]:
    """Returns the names of all ranks from kingdom to epithet."""
    name = species_name(species, seed)
    family = f"{name.family.removesuffix('aceae')}idae" if lineage.kingdom == "Animalia" else name.family
    return (*lineage[1:], family, *name.scientific_name.split())


def _category(number: int, species: int, lineage: _Lineage, ranks: tuple[str, ...], seed: int) -> _Category:
    family, genus, epithet = ranks[-3:]
    return _Category(
        id=number,
        name=f"{genus} {epithet}",
        common_name=species_name(species, seed).common_name,
        supercategory=lineage.supercategory,
        kingdom=lineage.kingdom,
        phylum=lineage.phylum,
        class_=lineage.class_,
        order=lineage.order,
        family=family,
        genus=genus,
        specific_epithet=epithet,
        image_dir_name="_".join((f"{number:05}", *ranks)),
    )


def _images(flora: Flora, species: int, count: int, size_px: int) -> Iterator[_Image]:
    """Yields images of one category, without a number, and with a file name without its folder."""
    rng = np.random.default_rng([flora.seed, _STREAM, species])
    noise = rng.bytes(16 * count)
    names = [str(UUID(bytes=noise[start : start + 16])) for start in range(0, len(noise), 16)]
    shapes = rng.integers(len(_SHAPES), size=count).tolist()
    licenses = rng.integers(len(_LICENSES), size=count).tolist()
    uncertainties = rng.integers(len(_UNCERTAINTIES), size=count).tolist()
    people = photographers(count, rng)
    seen = sightings(species, count, rng, flora.seed)
    for name, shape, license_number, uncertainty, person, sighting in zip(
        names, shapes, licenses, uncertainties, people, seen, strict=True
    ):
        width, height = (size_px * part // 3 for part in _SHAPES[shape])
        yield _Image(
            id=0,
            width=width,
            height=height,
            file_name=f"{name}.jpg",
            license=license_number,
            rights_holder=person,
            date=sighting.taken_at,
            latitude=sighting.latitude,
            longitude=sighting.longitude,
            location_uncertainty=_UNCERTAINTIES[uncertainty] if sighting.latitude is not None else None,
        )
