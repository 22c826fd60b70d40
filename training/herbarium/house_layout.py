"""Drawn plants as a folder a class: house plants in several formats, and plants that no list has."""

from typing import Final

from training.herbarium.drawings import Drawing, Layout, PictureNumbers
from training.herbarium.flora import Flora
from training.herbarium.names import species_name
from training.herbarium.photo_styles import HOUSE_STYLE, INATURALIST_STYLE

FOLDER: Final = "house_plants"
OUTSIDE_FOLDER: Final = "outside"
_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp")


def plan_house_plants(flora: Flora, album: PictureNumbers, *, pictures_per_class: int, size_px: int) -> Layout:
    """The house plants: folders named `Common (Scientific)` or with a common name alone, without splits or lists."""
    drawings = [
        Drawing(
            f"{FOLDER}/{plant.folder}/{number}.{_SUFFIXES[number % len(_SUFFIXES)]}",
            plant.species,
            album.next_picture(plant.species),
            HOUSE_STYLE,
            size_px,
            size_px,
        )
        for plant in flora.house
        for number in range(pictures_per_class)
    ]
    return Layout({}, drawings)


def plan_outside(flora: Flora, album: PictureNumbers, *, pictures_per_class: int, size_px: int) -> Layout:
    """Plants outside the lists, photographed as iNaturalist's are, so that only the species is new."""
    drawings = []
    for species in flora.outside:
        name = species_name(species, flora.seed)
        folder = f"{OUTSIDE_FOLDER}/{name.common_name} ({name.scientific_name})"
        drawings += [
            Drawing(
                f"{folder}/{number:05}.jpg", species, album.next_picture(species), INATURALIST_STYLE, size_px, size_px
            )
            for number in range(pictures_per_class)
        ]
    return Layout({}, drawings)
