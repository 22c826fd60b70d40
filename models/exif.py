"""What the EXIF data of a photograph say: when and where it was taken, and which side is up.

Training learns from it where plants grow, and the service asks with it, so both read every form alike. The forms are
those of CIPA DC-008 (Exif 2.32). What cameras write beside it is read if it has one meaning only; otherwise it is
unknown.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from PIL import ExifTags, Image

Latitude = Annotated[float, msgspec.Meta(ge=-90.0, le=90.0)]
Longitude = Annotated[float, msgspec.Meta(ge=-180.0, le=180.0)]
_OFFSET: Final = re.compile(r"[+-]\d\d:\d\d")


class Capture(msgspec.Struct, frozen=True):
    """When and where a photograph was taken, as far as it says."""

    taken_at: datetime | None = None
    """On the clock of the camera; with the offset from UTC where the camera wrote one."""
    coordinates: tuple[Latitude, Longitude] | None = None
    """Degrees north and degrees east, WGS 84."""


def exif_orientation(opened: Image.Image) -> int:
    """Returns the orientation (tag 274), 1 to 8; 1 if the EXIF is damaged, since the pixels may still be intact."""
    with _damage_ignored():
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation in range(1, 9):
            return int(orientation)
    return 1


def read_capture(decoded: Image.Image) -> Capture:
    """Reads when and where a picture was taken; what is missing or damaged is None.

    The pixels must be decoded before, since the EXIF of a PNG may follow them.
    """
    taken_at = coordinates = None
    with _damage_ignored():
        taken_at = _time(decoded.getexif().get_ifd(ExifTags.IFD.Exif))
    with _damage_ignored():
        coordinates = _coordinates(decoded.getexif().get_ifd(ExifTags.IFD.GPSInfo))
    return Capture(taken_at, coordinates)


@contextmanager
def _damage_ignored() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception:
        pass


def _time(tags: dict[int, Any]) -> datetime | None:
    """Reads "2026:07:04 12:30:01" (tag 36867) and "+02:00" (tag 36881); spaces or zeros are an unknown date.

    Raises:
        ValueError: There is no such day or time.
    """
    written = str(tags.get(ExifTags.Base.DateTimeOriginal, ""))[:19]
    taken_at = datetime.strptime(written, "%Y:%m:%d %H:%M:%S")  # noqa: DTZ007 - the offset is another tag
    offset = str(tags.get(ExifTags.Base.OffsetTimeOriginal, "")).strip("\0 ")
    with _damage_ignored():
        if _OFFSET.fullmatch(offset):
            return datetime.fromisoformat(f"{taken_at.isoformat()}{offset}")
    return taken_at


def _coordinates(tags: dict[int, Any]) -> tuple[float, float] | None:
    latitude = _degrees(tags.get(ExifTags.GPS.GPSLatitude), tags.get(ExifTags.GPS.GPSLatitudeRef), "NS", 90)
    longitude = _degrees(tags.get(ExifTags.GPS.GPSLongitude), tags.get(ExifTags.GPS.GPSLongitudeRef), "EW", 180)
    if latitude is None or longitude is None:
        return None
    return None if latitude == longitude == 0 else (latitude, longitude)  # cameras without a fix write zeros


def _degrees(values: Any, reference: Any, hemispheres: str, most: int) -> float | None:
    """Returns an angle from degrees, minutes and seconds, each of which may have a fraction.

    It is None without its hemisphere, as the other one would be as likely. "n" and "North" are read as "N", and seconds
    may be left out: both have one meaning. A denominator of zero makes a NaN, which is no angle.
    """
    hemisphere = str(reference or "").strip("\0 ")[:1].upper()
    if not isinstance(values, tuple) or not 2 <= len(values) <= 3 or hemisphere not in {*hemispheres}:
        return None
    parts = [float(value) for value in values]
    degrees = sum(part / unit for part, unit in zip(parts, (1, 60, 3600), strict=False))
    if min(parts) < 0 or not degrees <= most:
        return None
    return degrees if hemisphere == hemispheres[0] else -degrees
