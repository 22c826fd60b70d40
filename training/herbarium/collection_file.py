"""The TOML file that combines the drawn data sets into one training set."""

import json
from typing import Final

from training.herbarium import house_layout, inaturalist_layout, plantnet_layout
from training.herbarium.flora import Flora
from training.herbarium.names import species_name
from training.herbarium.taxon_file import TAXON_FILE

COLLECTION_FILE: Final = "data_herbarium.toml"
_USUAL_MIN_SIDE_PX: Final = 32
_TEMPLATE: Final = """\
# Written by training/prepare.py herbarium. Roots are relative to --root, which must be this file's folder.
name = "herbarium"
description = "Drawn plants in the layouts of iNaturalist 2021, Pl@ntNet-300K and a folder of house plants."
merge = "within_sources"
synonyms = "{synonyms}"
min_side_px = {min_side_px}
expect_outputs = {num_outputs}

[sources.{inaturalist}]
layout = "inaturalist"
root = "{inaturalist}"
note = "Drawn plants; licenses and authors are invented."

[sources.{plantnet}]
layout = "plantnet"
root = "{plantnet}"
note = "Drawn plants; licenses and authors are invented."

[sources.{house}]
layout = "image_folder"
root = "{house}"
license = "cc-by-nc-sa"
note = "Drawn plants; the license is invented."

[sources.{house}.names]
{names}"""


def collection_file(flora: Flora, *, size_px: int) -> bytes:
    """Returns the collection of the three data sets, in TOML.

    House plants with a common name of two words as their folder are mapped to the scientific name. Those with one word
    stay unmapped, because such a name could mean several species.
    """
    names = {
        plant.folder: species_name(plant.species, flora.seed).scientific_name
        for plant in flora.house
        if "(" not in plant.folder and " " in plant.folder
    }
    text = _TEMPLATE.format(
        synonyms=TAXON_FILE,
        min_side_px=min(_USUAL_MIN_SIDE_PX, size_px),
        num_outputs=flora.size.num_outputs,
        inaturalist=inaturalist_layout.FOLDER,
        plantnet=plantnet_layout.FOLDER,
        house=house_layout.FOLDER,
        # A JSON string of letters and spaces is also a TOML string.
        names="".join(f"{json.dumps(common)} = {json.dumps(name)}\n" for common, name in names.items()),
    )
    return text.encode()
