"""Reduces a picture before it is sent: upright, without EXIF data, as JPEG."""

import io
from typing import Final

from models.errors import PictureError
from models.preprocess import read_picture

_QUALITY: Final = 90


def shrunk(data: bytes, max_side_px: int) -> bytes:
    """Returns a picture whose longer side is at most so long; one that is not longer, or no picture, is unchanged.

    Args:
        data: The bytes of a picture file.
        max_side_px: Longest side of the result, px.
    """
    try:
        picture = read_picture(data, max_side_px)
    except PictureError:  # the service says what is wrong with it
        return data
    if max(picture.width, picture.height) <= max_side_px:
        return data
    picture.image.thumbnail((max_side_px, max_side_px))
    stream = io.BytesIO()
    picture.image.save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()
