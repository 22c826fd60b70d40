"""A generated flora: drawn plants for tests, rehearsals and every picture that this project ships.

    traits   what a species is like: leaves, flowers, habit
    names    what it is called
    geometry surfaces, light and paint
    leaves, flowers, plant, backdrop, picture   a picture, from its smallest part to the whole
    folder   pictures as files with labels

A picture is a pure function of (seed, species, picture), so a set can be drawn again instead of being kept.
"""

from training.sources.herbarium.folder import contact_sheet, write_image_folder
from training.sources.herbarium.names import SpeciesName, species_name
from training.sources.herbarium.picture import draw_plant
from training.sources.herbarium.traits import (
    FlowerTraits,
    HabitTraits,
    LeafTraits,
    PlantTraits,
    species_traits,
)

__all__ = [
    "FlowerTraits",
    "HabitTraits",
    "LeafTraits",
    "PlantTraits",
    "SpeciesName",
    "contact_sheet",
    "draw_plant",
    "species_name",
    "species_traits",
    "write_image_folder",
]
