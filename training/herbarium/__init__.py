"""A generated flora: drawn plants for tests, rehearsals and every picture that this project ships.

    traits   what a species is like: leaves, flowers, habit
    names, spelling   what it is called, and how lists write it
    geometry surfaces, light and paint
    leaves, flowers, plant, backdrop, looks, picture   a picture, from its smallest part to the whole
    folder   pictures as files with labels
    flora    which species stand in which data set
    observations, drawings   where and when a picture is taken; pictures as files, by many processes
    inaturalist_layout, plantnet_layout, house_layout, taxon_file, collection_file, faults   what is written
    layouts, command   all of it

A picture is a pure function of (seed, species, picture, look), so a set can be drawn again instead of being kept.
"""

from training.herbarium.command import Herbarium, write_herbarium
from training.herbarium.faults import PlantedFault
from training.herbarium.flora import FULL_WIDTH, NARROW, Flora, FloraSize, make_flora
from training.herbarium.folder import contact_sheet, write_image_folder
from training.herbarium.layouts import WrittenLayouts, write_layouts
from training.herbarium.names import SpeciesName, species_name
from training.herbarium.photo_styles import HOUSE_STYLE, INATURALIST_STYLE, PLAIN_STYLE, PLANTNET_STYLE, PhotoStyle
from training.herbarium.picture import draw_plant
from training.herbarium.traits import (
    FlowerTraits,
    HabitTraits,
    LeafTraits,
    PlantTraits,
    species_traits,
)

__all__ = [
    "FULL_WIDTH",
    "HOUSE_STYLE",
    "INATURALIST_STYLE",
    "NARROW",
    "PLAIN_STYLE",
    "PLANTNET_STYLE",
    "Flora",
    "FloraSize",
    "FlowerTraits",
    "HabitTraits",
    "Herbarium",
    "LeafTraits",
    "PhotoStyle",
    "PlantTraits",
    "PlantedFault",
    "SpeciesName",
    "WrittenLayouts",
    "contact_sheet",
    "draw_plant",
    "make_flora",
    "species_name",
    "species_traits",
    "write_herbarium",
    "write_image_folder",
    "write_layouts",
]
