"""Picture file -> the bytes that a shard stores, and their hash.

Evaluation pictures are copied byte for byte, so that they are evaluated as the service would see them. Training
pictures are reduced once, instead of in every epoch; a small one is copied, never enlarged.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from PIL import Image

from models.errors import DataError, PictureError
from models.preprocess import exif_orientation, open_picture, read_picture, sniff_format

# A JPEG is decoded at 1/2, 1/4 or 1/8 if its side then is still this many times the wanted one. The mean error against
# a full decode is 0.4 of 255, while quality 90 alone costs 2 to 3, and camera files are packed 2 to 3 times as fast.
_DECODE_MARGIN: Final = 1.5


class SourcePicture(msgspec.Struct, frozen=True):
    """A picture of the manifest."""

    file: str
    """Path of its file."""
    length: int
    """Size of the file, bytes."""
    sha256: str
    """Hash of the file."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""
    keep_bytes: bool
    """Whether it is copied byte for byte."""


class StoredPicture(msgspec.Struct, frozen=True):
    """A picture as a shard stores it."""

    data: bytes
    """A picture file."""
    sha256: str
    """Hash of `data`."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""


def encode_pictures(sources: Sequence[SourcePicture], short_side_px: int, quality: int) -> list[StoredPicture]:
    """Encodes several pictures, as one task of a worker process; see `encode_picture`."""
    return [encode_picture(source, short_side_px, quality) for source in sources]


def encode_picture(source: SourcePicture, short_side_px: int, quality: int) -> StoredPicture:
    """Reads a picture and returns what the shard stores.

    Args:
        source: The picture.
        short_side_px: Larger training pictures are reduced to this short side.
        quality: JPEG quality of the reduced pictures.

    Raises:
        DataError: The file is missing, damaged, or has changed since the manifest was written.
    """
    data = _read(source)
    try:
        if source.keep_bytes or _is_small_enough(data, source, short_side_px):
            return StoredPicture(data, source.sha256, source.width, source.height)
        image = reduce(data, short_side_px)
    except PictureError as error:
        raise _unusable(source, "does not decode", error) from error
    stream = io.BytesIO()
    # EXIF is dropped, since it would turn the upright picture again; so is the comment, which Pillow would keep.
    image.save(stream, "JPEG", quality=quality, comment="")
    encoded = stream.getvalue()
    return StoredPicture(encoded, hashlib.sha256(encoded).hexdigest(), image.width, image.height)


def reduce(data: bytes, short_side_px: int) -> Image.Image:
    """Decodes to an upright RGB picture whose short side is at most `short_side_px`; never enlarges.

    Raises:
        PictureError: The bytes do not decode.
    """
    picture = read_picture(data, min_side_px=int(_DECODE_MARGIN * short_side_px))
    scale = min(short_side_px / min(picture.width, picture.height), 1.0)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    return picture.image if picture.image.size == size else picture.image.resize(size, Image.Resampling.LANCZOS)


def _read(source: SourcePicture) -> bytes:
    try:
        data = Path(source.file).read_bytes()
    except OSError as error:
        raise _unusable(source, "cannot be read", error) from error
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise _unusable(source, "changed since it was prepared", "its hash differs")
    return data


def _is_small_enough(data: bytes, source: SourcePicture, short_side_px: int) -> bool:
    is_small = min(source.width, source.height) <= short_side_px
    return is_small and sniff_format(data) == "JPEG" and not _is_turned(data)


def _is_turned(data: bytes) -> bool:
    """Whether the EXIF orientation turns or mirrors the picture."""
    with open_picture(data) as (_, opened):
        return exif_orientation(opened) != 1


def _unusable(source: SourcePicture, what: str, why: object) -> DataError:
    return DataError(
        f"a picture {what}: {source.file}",
        value=why,
        limit="the file as it was prepared",
        remedy="restore it or run training/prepare.py again",
    )
