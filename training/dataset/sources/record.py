"""What every source yields: one record a picture, as its data set describes it, and what the source left out.

Nothing is interpreted here: names are as written, splits as published. A data set has a million pictures but only
thousands of classes, so what belongs to a class stands in one object that its pictures share.
"""

from datetime import date
from pathlib import Path
from typing import Literal, Protocol

import msgspec

Split = Literal["train", "validation", "calibration", "test"]


class SourceClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class as its data set describes it; one object shared by all its pictures."""

    class_id: str
    """Identifier in the data set."""
    name: str
    """Scientific name as the data set writes it, author and all; a common name where it gives no other."""
    common_name: str = ""
    """Name in everyday language, if given beside the scientific one."""
    genus: str = ""
    """Genus, if given."""
    family: str = ""
    """Botanical family, if given."""
    order: str = ""
    """Order, if given."""


class PictureRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One picture as a data set describes it."""

    path: str
    """The picture's file, relative to the source's root, with forward slashes."""
    plant: SourceClass
    """What it shows."""
    split: Split | None = None
    """Split that the data set publishes, if any."""
    group: str = ""
    """Observation or plant that the picture belongs to; pictures of one group never straddle two splits."""
    author: str = ""
    """Who took the picture."""
    license: str = ""
    """License of the picture, as written; empty means unknown."""
    taken_on: date | None = None
    """Day it was taken."""
    coordinates: tuple[float, float] | None = None
    """Latitude and longitude, degrees."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a training set does without, and why."""

    picture: str
    """Source, colon, path below its root; of a class that is left out as a whole, its folder or identifier."""
    code: str
    """Stable word for the kind of reason."""
    reason: str
    """A sentence for people."""
    num_pictures: int = 1
    """How many pictures that is."""


class SourceContents(msgspec.Struct, frozen=True):
    """All that a source holds."""

    records: list[PictureRecord]
    left_out: list[LeftOut]


class ReadSource(Protocol):
    """Reads one data set layout; there is one such function a layout."""

    def __call__(self, name: str, root: Path, default_license: str = "") -> SourceContents:
        """Reads a source without opening a picture.

        Args:
            name: What the source is called in output keys.
            root: The data set's folder (or list).
            default_license: License of pictures that name none; empty means unknown.

        Raises:
            DataError: The data set is missing, damaged, or holds no pictures; the message names the place.
        """
        ...
