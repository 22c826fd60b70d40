"""Records: what a reader returns of a picture, what it leaves out, and what decoding finds.

Names are as written and splits as published. A data set has a million pictures but only thousands of classes, so the
pictures of a class share one `SourceClass`.
"""

import re
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

Split = Literal["train", "validation", "calibration", "test"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)
SPLIT_NAMES: Final[dict[str, Split]] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""How data sets call their splits."""
Coordinates = tuple[float, float]
"""Latitude and longitude, degrees."""


COL_KEYS_LEFT_OUT: Final = (
    "Keys of the Catalogue of Life, by which GBIF names taxa since July 2026, are left out; numbers of GBIF's backbone "
    "come with its Taxon.tsv and --synonyms"
)
# 2 to 9 and the consonants (https://docs.ropensci.org/rgbif/articles/col_migration_guide.html has examples).
_COL_KEY: Final = re.compile(r"COL:.*|(?=.*[B-Z])[2-9B-DF-HJ-NP-TV-Z]+")


def may_be_plant(kingdom: str) -> bool:
    """Returns whether a kingdom is that of plants, as data sets call it, or is not given."""
    return kingdom.lower() in {"", "plantae", "viridiplantae"}


def is_col_key(key: str) -> bool:
    """Returns whether a key can only be one of the Catalogue of Life; one of digits may be of GBIF's backbone too."""
    return _COL_KEY.fullmatch(key) is not None


def place_of(*written: float | str | None) -> Coordinates | None:
    """Returns the place of a latitude and a longitude; None if one is no number, or there is no such place."""
    try:
        latitude, longitude = (float("" if degrees is None else degrees) for degrees in written)
    except ValueError:
        return None
    return (latitude, longitude) if abs(latitude) <= 90 and abs(longitude) <= 180 else None  # nor of NaN


@lru_cache(maxsize=1 << 14)  # the days of 44 years; equal days share one object
def day_of(written: str) -> date | None:
    """Returns the day of "2024-05-31", or of EXIF's "2024:05:31"; None if there is no such day."""
    try:
        return date.fromisoformat(written.replace(":", "-"))
    except ValueError:
        return None


class SourceClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class as its data set describes it."""

    class_id: str
    """In the data set."""
    name: str
    """Scientific name as written, with its author; a common name if the data set gives no other."""
    is_scientific: bool = False
    """Whether the data set has scientific names alone; otherwise the words of a name decide."""
    common_name: str = ""
    """If given beside the scientific one."""
    genus: str = ""
    family: str = ""
    order: str = ""
    gbif_id: int | None = None
    """Key in the GBIF backbone taxonomy."""


class PictureRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One picture as a data set describes it."""

    path: str
    """The picture's file, relative to the source's root, with forward slashes."""
    plant: SourceClass
    """What it shows."""
    split: Split | None = None
    """Split that the data set publishes, if any."""
    group: str = ""
    """Observation or plant that the picture belongs to; pictures of one group go to one split."""
    author: str = ""
    license: str = ""
    """As written; empty means unknown."""
    taken_on: date | None = None
    coordinates: Coordinates | None = None
    cultivated: bool = False
    """Whether somebody planted it, so that the place says nothing about where it grows; the manifest has no place."""


class Other(msgspec.Struct, frozen=True, gc=False):
    """A picture of no class."""

    source: str
    path: str
    """Below the root of its source."""
    scientific_name: str
    split: str = ""
    """Of a picture without a plant: fit, if the data set trains on it, or test."""
    kingdom: str = ""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A picture or class that the training set leaves out, and why."""

    picture: str
    """Source, colon, path below its root; for a whole class its folder or identifier."""
    code: str
    """Kind of reason: a key of `training.dataset.report.findings.MEANINGS`."""
    reason: str
    num_pictures: int = 1

    @property
    def source(self) -> str:
        """Name of its data set."""
        return self.picture.partition(":")[0]


class SourceContents(msgspec.Struct, frozen=True):
    """What a reader found in a data set."""

    root: Path
    """Folder that the records' paths are relative to."""
    records: list[PictureRecord]
    left_out: list[LeftOut]
    notes: tuple[str, ...] = ()
    """What a user must know about how it was read."""
    archives: tuple[Path, ...] = ()
    """Where the pictures are that do not lie below `root`."""


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What decoding one picture file found."""

    sha256: str
    """Of the file's bytes, in hex."""
    num_bytes: int
    width: int
    """Of the upright picture, px."""
    height: int
    perceptual_hash: int
    """64-bit pHash of the upright picture (a DCT; Zauner 2010); near copies differ in few bits."""
    taken_at: datetime | None = None
    """When it was taken, by its EXIF, on the camera's clock."""
    coordinates: Coordinates | None = None
    """By its EXIF."""


class LabeledPicture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One picture that decodes and has a class."""

    source: str
    """Name of its data set."""
    record: PictureRecord
    label: str
    """Key of its network output."""
    info: ImageInfo

    @property
    def picture_id(self) -> str:
        """Source, colon, path below the source's root: unique, and equal on every machine."""
        return f"{self.source}:{self.record.path}"
