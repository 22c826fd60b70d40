"""The layouts that a data set may have, each with its reader."""

from typing import Final

from training.dataset.sources.image_folder import read_image_folder
from training.dataset.sources.inaturalist import read_inaturalist
from training.dataset.sources.plantnet import read_plantnet
from training.dataset.sources.record import ReadSource
from training.dataset.sources.table import read_table

READERS: Final[dict[str, ReadSource]] = {
    "inaturalist": read_inaturalist,
    "plantnet": read_plantnet,
    "image_folder": read_image_folder,
    "table": read_table,
}
"""`layout` in a collection -> reader."""
