"""When and where a photograph was taken, by its EXIF data."""

import io
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from PIL import ExifTags, Image

_MAX_EXIF_BYTES: Final = 65_536  # what a JPEG can hold; Pillow copies each value


class Capture(msgspec.Struct, frozen=True):
    """When and where a photograph was taken, as far as it says."""

    taken_at: str | None = None
    """ISO 8601; with the offset from UTC where the camera wrote one."""
    latitude: float | None = None
    """Degrees north, WGS 84."""
    longitude: float | None = None
    """Degrees east, WGS 84."""


def read_capture(data: bytes) -> Capture:
    """Reads the EXIF data of a picture that was decoded before. What is missing or wrong is None."""
    with suppress(Exception):  # Pillow raises errors of many types for damaged EXIF data
        with Image.open(io.BytesIO(data)) as opened:
            raw = opened.info.get("exif", b"")
        exif = Image.Exif()
        if len(raw) <= _MAX_EXIF_BYTES:
            exif.load(raw)  # opened.getexif() would decode the pixels of a PNG without EXIF data
        place = exif.get_ifd(ExifTags.IFD.GPSInfo)
        latitude = _degrees(place, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, {"N": 1, "S": -1}, 90)
        longitude = _degrees(place, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, {"E": 1, "W": -1}, 180)
        if latitude is None or longitude is None or latitude == longitude == 0:  # (0, 0): no position was found
            latitude = longitude = None
        return Capture(_time(exif.get_ifd(ExifTags.IFD.Exif)), latitude, longitude)
    return Capture()


def _time(tags: Mapping[int, Any]) -> str | None:
    with suppress(KeyError, ValueError):
        date, _, clock = str(tags[ExifTags.Base.DateTimeOriginal]).strip("\0 ").partition(" ")
        local = f"{date.replace(':', '-')}T{clock}"
        offset = str(tags.get(ExifTags.Base.OffsetTimeOriginal, "")).strip("\0 ")
        with suppress(ValueError):
            return datetime.fromisoformat(f"{local}{offset}").isoformat()
        return datetime.fromisoformat(local).isoformat()
    return None


def _degrees(place: Mapping[int, Any], tag: int, reference: int, signs: Mapping[str, int], most: int) -> float | None:
    """Returns an angle; None without its hemisphere, as the other one would be as likely."""
    values = place.get(tag)
    sign = signs.get(str(place.get(reference, "")).strip("\0 ")[:1].upper())
    if sign is None or not isinstance(values, tuple) or not 2 <= len(values) <= 3:
        return None
    parts = [float(value) for value in values]  # some cameras write degrees and decimal minutes
    found = sum(part / unit for part, unit in zip(parts, (1, 60, 3600), strict=False))
    if not math.isfinite(found) or min(parts) < 0 or found > most:
        return None
    return sign * found
