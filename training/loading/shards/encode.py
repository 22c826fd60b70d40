"""A picture's file -> the bytes that a shard stores, and what they hash to.

Pictures that are judged keep their bytes, so that they are judged as they are served. Training pictures are reduced
once, instead of in every epoch; one that is already small is copied, never enlarged.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from PIL import ExifTags, Image

from models.errors import DataError, PictureError
from models.preprocess import read_picture, sniff_format

# A JPEG is decoded at 1/2, 1/4 or 1/8 as long as that leaves so many times the wanted pixels. The mean error against
# a full decode is then 0.4 of 255, where quality 90 alone costs 2 to 3, and a camera's file packs 2 to 3 times as fast.
_DECODE_MARGIN: Final = 1.5
_MOST_SIDE_PX: Final = 65_500  # libjpeg's limit


class SourcePicture(msgspec.Struct, frozen=True):
    """A picture as the manifest describes it."""

    file: str
    """Where its bytes lie."""
    length: int
    """How many there are."""
    sha256: str
    """What they hash to."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""
    judged: bool
    """Whether it keeps its bytes."""


class StoredPicture(msgspec.Struct, frozen=True):
    """What a shard stores."""

    data: bytes
    """A picture file."""
    sha256: str
    """Of `data`."""
    width: int
    """Width of the upright picture, px."""
    height: int
    """Height of the upright picture, px."""


def encode_pictures(sources: Sequence[SourcePicture], short_side_px: int, quality: int) -> list[StoredPicture]:
    """Several pictures as one task of a helper process; see `encode_picture`."""
    return [encode_picture(source, short_side_px, quality) for source in sources]


def encode_picture(source: SourcePicture, short_side_px: int, quality: int) -> StoredPicture:
    """Reads a picture and makes the bytes to store.

    Args:
        source: The picture.
        short_side_px: Short side that a larger training picture is reduced to.
        quality: JPEG quality of a training picture that is encoded anew.

    Raises:
        DataError: The file is missing, damaged, or no longer what the manifest says.
    """
    data = _read(source)
    if source.judged or _is_small_enough(data, source, short_side_px):
        return StoredPicture(data, source.sha256, source.width, source.height)
    try:
        image = reduce(data, short_side_px)
    except PictureError as error:
        raise _unusable(source, "does not decode", error) from error
    stream = io.BytesIO()
    # Without EXIF, which would turn the upright picture again, and without the comment that Pillow would keep.
    image.save(stream, "JPEG", quality=quality, comment="")
    encoded = stream.getvalue()
    return StoredPicture(encoded, hashlib.sha256(encoded).hexdigest(), image.width, image.height)


def reduce(data: bytes, short_side_px: int) -> Image.Image:
    """The upright RGB picture, its short side at most `short_side_px`; never enlarged.

    Raises:
        PictureError: The bytes do not decode.
    """
    picture = read_picture(data, min_side_px=int(_DECODE_MARGIN * short_side_px))
    scale = min(
        short_side_px / min(picture.width, picture.height), _MOST_SIDE_PX / max(picture.width, picture.height), 1.0
    )
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    return picture.image if picture.image.size == size else picture.image.resize(size, Image.Resampling.LANCZOS)


def _read(source: SourcePicture) -> bytes:
    try:
        data = Path(source.file).read_bytes()
    except OSError as error:
        raise _unusable(source, "cannot be read", error) from error
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise _unusable(source, "changed since it was prepared", "bytes of another hash")
    return data


def _is_small_enough(data: bytes, source: SourcePicture, short_side_px: int) -> bool:
    is_small = min(source.width, source.height) <= short_side_px
    return is_small and sniff_format(data) == "JPEG" and not _is_turned(data)


def _is_turned(data: bytes) -> bool:
    """Whether EXIF asks a viewer to turn or mirror the picture; damaged EXIF asks for nothing."""
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as opened:
            return opened.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except MemoryError:
        raise
    except Exception:  # Pillow raises SyntaxError, ValueError, struct.error, ... here
        return False


def _unusable(source: SourcePicture, what: str, why: object) -> DataError:
    return DataError(
        f"a picture {what}: {source.file}",
        value=why,
        limit="the file that was prepared",
        remedy="restore it or run training/prepare.py again",
    )
