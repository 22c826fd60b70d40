"""The record that every source yields: one picture and what its data set says of it."""

from datetime import date
from pathlib import Path
from typing import Literal

import msgspec

Split = Literal["train", "validation", "test"]


class PictureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One picture as a data set describes it; nothing is interpreted yet."""

    path: Path
    """The picture's file."""
    original_name: str
    """Scientific name as the data set writes it, author and all; a common name where it gives no other."""
    original_id: str
    """The class's identifier in its data set; equal ids are one class."""
    common_name: str = ""
    """Name in everyday language, if given."""
    genus: str = ""
    """Genus, if given."""
    family: str = ""
    """Botanical family, if given."""
    split: Split | None = None
    """Split that the data set publishes, if any."""
    group: str = ""
    """Observation or plant that the picture belongs to; pictures of one group never straddle two splits."""
    author: str = ""
    """Who took the picture."""
    licence: str = ""
    """Licence of the picture; empty means unknown."""
    taken_on: date | None = None
    """Day it was taken."""
    coordinates: tuple[float, float] | None = None
    """Latitude and longitude, degrees."""
