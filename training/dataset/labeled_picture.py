"""A picture with its label: what its data set says of it, and what decoding found."""

from datetime import datetime

import msgspec

from training.dataset.sources.record import PictureRecord


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What decoding one picture file found."""

    sha256: str
    """SHA-256 of the file's bytes, in hex."""
    num_bytes: int
    """Length of the file."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""
    perceptual_hash: int
    """64-bit pHash of the upright picture (a DCT; Zauner 2010); near copies differ in few bits."""
    taken_at: datetime | None = None
    """When it was taken, by its EXIF, on the camera's clock."""
    coordinates: tuple[float, float] | None = None
    """Latitude and longitude by its EXIF, degrees."""


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
