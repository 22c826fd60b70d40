"""A picture on its way from its source into the manifest: what its data set says, and what its bytes say."""

import msgspec

from training.dataset.sources.record import PictureRecord


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one look at a picture's bytes found out."""

    sha256: str
    """Of the file's bytes, in hex."""
    num_bytes: int
    """Length of the file."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""
    perceptual_hash: int
    """64-bit pHash of the upright picture (a DCT; Zauner 2010); near duplicates differ in few bits."""


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
        """Source, colon, path below the source's root: unique, and the same on every machine."""
        return f"{self.source}:{self.record.path}"
