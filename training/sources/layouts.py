"""Which reader reads which layout."""

from typing import Final

from training.sources.image_folder import read_image_folder
from training.sources.inaturalist import read_inaturalist
from training.sources.plantnet import read_plantnet
from training.sources.record import ReadSource
from training.sources.table import read_table

READERS: Final[dict[str, ReadSource]] = {
    "inaturalist": read_inaturalist,
    "plantnet": read_plantnet,
    "image_folder": read_image_folder,
    "table": read_table,
}
"""Layout, as a collection names it -> its reader."""
