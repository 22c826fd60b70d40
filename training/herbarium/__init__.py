"""Drawn plants of invented species, for tests and rehearsals without photographs.

    traits                 what a species looks like: leaves, flowers, habit
    names, spelling        its names, and the ways in which lists write them
    geometry               surfaces, light and paint
    leaves, flowers, plant, backdrop, photo_styles, picture   one picture, from its parts to the whole
    flora                  which species are in which data set
    observations           where, when and by whom a picture is taken
    drawings               pictures as files, drawn by many processes
    inaturalist_layout, plantnet_layout, house_layout, taxon_file, collection_file   the files of each data set
    faults                 the faults that real data sets have
    layouts, command       all data sets, and the command that writes them
    training_data          a small prepared training set, for the recipe `debug`

A picture is a pure function of (seed, species, picture, style), so a data set can be drawn again instead of being kept.
"""

from training.herbarium.command import Herbarium, write_herbarium
from training.herbarium.names import species_name
from training.herbarium.picture import draw_plant

__all__ = ["Herbarium", "draw_plant", "species_name", "write_herbarium"]
