"""Drawn plants in class folders: house plants in several formats, and plants that are in no data set."""

from typing import Final

from training.herbarium.drawings import Drawing, PictureNumbers, SourceFiles
from training.herbarium.flora import Flora
from training.herbarium.names import species_name
from training.herbarium.photo_styles import HOUSE_STYLE, INATURALIST_STYLE

FOLDER: Final = "house_plants"
OUTSIDE_FOLDER: Final = "outside"
_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp")


def plan_house_plants(
    flora: Flora, picture_numbers: PictureNumbers, *, pictures_per_class: int, size_px: int
) -> SourceFiles:
    """Returns the house plants: folders named `Common (Scientific)` or by the common name, without splits or lists."""
    drawings = [
        Drawing(
            f"{FOLDER}/{plant.folder}/{number}.{_SUFFIXES[number % len(_SUFFIXES)]}",
            plant.species,
            picture_numbers.next_picture(plant.species),
            HOUSE_STYLE,
            size_px,
            size_px,
        )
        for plant in flora.house
        for number in range(pictures_per_class)
    ]
    return SourceFiles({}, drawings)


def plan_outside(
    flora: Flora, picture_numbers: PictureNumbers, *, pictures_per_class: int, size_px: int
) -> SourceFiles:
    """Returns plants that are in no data set, in the photo style of iNaturalist, so that only the species are new."""
    drawings = []
    for species in flora.outside:
        name = species_name(species, flora.seed)
        folder = f"{OUTSIDE_FOLDER}/{name.common_name} ({name.scientific_name})"
        drawings += [
            Drawing(
                f"{folder}/{number:05}.jpg",
                species,
                picture_numbers.next_picture(species),
                INATURALIST_STYLE,
                size_px,
                size_px,
            )
            for number in range(pictures_per_class)
        ]
    return SourceFiles({}, drawings)
