"""What the EXIF and XMP data of a photograph say: when and where it was taken, and which side is up.

Training learns from it where plants grow, and the service asks with it, so both read every form alike. The forms are
those of CIPA DC-008 (Exif 2.32) and ISO 16684-1 (XMP). What cameras write beside it is read if it has one meaning only;
otherwise it is unknown.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final
from xml.parsers import expat

import msgspec
from PIL import ExifTags, Image

Latitude = Annotated[float, msgspec.Meta(ge=-90.0, le=90.0)]
Longitude = Annotated[float, msgspec.Meta(ge=-180.0, le=180.0)]
WGS_84: Final = "EPSG:4326"
MAX_XMP_BYTES: Final = 1_000_000  # a packet in a JPEG has at most 65,502
_XMP_LEVELS: Final = 50
# Tags of the time and of its offset from UTC. A camera digitizes when it takes the photograph. DateTime is never read:
# editors change it.
_TIMES: Final = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.OffsetTimeOriginal),
    (ExifTags.Base.DateTimeDigitized, ExifTags.Base.OffsetTimeDigitized),
)
# "2026:07:04 12:30:01", with or without leading zeros, or of ISO 8601, where the offset may follow
_TIME: Final = re.compile(
    r"(\d{4})([:./-])(\d\d?)\2(\d\d?)([ T]) ?(\d\d?):(\d\d)(?::(\d\d))?(?:[.,]\d+)?(Z|[+-]\d\d:\d\d)?"
)
_OFFSET: Final = re.compile(r"Z|[+-]\d\d:\d\d")
# Name without signs -> code of its geographic coordinates (epsg.org)
_DATUMS: Final = {
    "": WGS_84, "WGS84": WGS_84, "WGS1984": WGS_84, "TOKYO": "EPSG:4301", "NAD27": "EPSG:4267", "NAD83": "EPSG:4269",
    "ED50": "EPSG:4230", "ETRS89": "EPSG:4258",
}  # fmt: skip
_LONGEST_TEXT: Final = 100
_MOST_UNCERTAIN_M: Final = 5_000_000  # GBIF takes more for a mistake
_RDF: Final = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_DESCRIPTION: Final = [f"{_RDF} RDF", f"{_RDF} Description"]
_XMP_EXIF: Final = "http://ns.adobe.com/exif/1.0/"
# Namespace and name of a property -> the tag that means the same; of two properties the first one counts.
_XMP_TAGS: Final[Mapping[str, int]] = {
    f"{_XMP_EXIF} DateTimeOriginal": ExifTags.Base.DateTimeOriginal,
    "http://ns.adobe.com/photoshop/1.0/ DateCreated": ExifTags.Base.DateTimeOriginal,
    f"{_XMP_EXIF} DateTimeDigitized": ExifTags.Base.DateTimeDigitized,
    "http://ns.adobe.com/xap/1.0/ CreateDate": ExifTags.Base.DateTimeDigitized,
    f"{_XMP_EXIF} GPSLatitude": ExifTags.GPS.GPSLatitude,
    f"{_XMP_EXIF} GPSLongitude": ExifTags.GPS.GPSLongitude,
    f"{_XMP_EXIF} GPSStatus": ExifTags.GPS.GPSStatus,
    f"{_XMP_EXIF} GPSMapDatum": ExifTags.GPS.GPSMapDatum,
    f"{_XMP_EXIF} GPSHPositioningError": ExifTags.GPS.GPSHPositioningError,
}

_Tags = Mapping[int, Any]
"""Tag -> value, of the blocks Exif and GPS, which share no number."""


class Capture(msgspec.Struct, frozen=True):
    """When and where a photograph was taken, as far as it says."""

    taken_at: datetime | None = None
    """On the clock of the camera; with the offset from UTC where the camera wrote one."""
    coordinates: tuple[Latitude, Longitude] | None = None
    """Degrees north and degrees east."""
    datum: str = WGS_84
    """What the coordinates refer to: an EPSG code if the camera names a known datum, otherwise that name."""
    uncertainty_m: int | None = None
    """Radius around the coordinates in which the camera was, rounded up to a meter."""

    def completed(self, other: "Capture") -> "Capture":
        """Returns the time and the place; if one is unknown, that of `other`."""
        placed = self if self.coordinates is not None else other
        return msgspec.structs.replace(placed, taken_at=self.taken_at or other.taken_at)


def exif_orientation(opened: Image.Image) -> int:
    """Returns the orientation (tag 274), 1 to 8; 1 if the EXIF is damaged, since the pixels may still be intact."""
    with _damage_ignored():
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation in range(1, 9):
            return int(orientation)
    return 1


def read_capture(decoded: Image.Image) -> Capture:
    """Reads when and where a picture was taken; what is missing or damaged is None. EXIF data count before XMP.

    The pixels must be decoded before, since both may follow them in a PNG.
    """
    tags: dict[int, Any] = {}
    for block in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        with _damage_ignored():
            tags |= decoded.getexif().get_ifd(block)
    packet = decoded.info.get("xmp") or decoded.info.get("XML:com.adobe.xmp") or b""
    return _capture(tags, _xmp_tags(packet))


def read_sidecar(packet: bytes) -> Capture:
    """Reads what an XMP file beside a photograph says; see `read_capture`."""
    return _capture(_xmp_tags(packet))


@contextmanager
def _damage_ignored() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception:
        pass


def _capture(*sources: _Tags) -> Capture:
    """Returns the first time and the first place of all sources."""
    placed = Capture()
    for tags in reversed(sources):
        with _damage_ignored():
            placed = _place(tags) or placed
    return msgspec.structs.replace(placed, taken_at=_taken_at(sources))


def _taken_at(sources: Iterable[_Tags]) -> datetime | None:
    for time, offset in _TIMES:
        written = [(text, _text(tags.get(offset))) for tags in sources if (text := _text(tags.get(time)))]
        for each in written:
            with _damage_ignored():
                return _time(*each)
        if written:  # spaces or zeros say that the day is unknown: the next tag was set by the same clock
            return None
    return None


def _text(value: Any) -> str:
    return str(value or "").strip("\0 ")


def _time(written: str, offset: str) -> datetime:
    """Reads a time and its offset; a time with "T" may have its own.

    Phones have written 24 for the hour after midnight, of the day that begins. A leap second counts as the one before.

    Raises:
        ValueError: There is no such day or time.
    """
    found = _TIME.match(written)
    if found is None:
        raise ValueError(written)
    year, _, month, day, between, hour, minute, second, own = found.groups()
    time = f"{hour.replace('24', '00'):0>2}:{minute}:{(second or '00').replace('60', '59')}"
    taken_at = datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}T{time}")
    if between == "T" and own:
        offset = own
    with _damage_ignored():
        if _OFFSET.fullmatch(offset):
            return datetime.fromisoformat(f"{taken_at.isoformat()}{offset}")
    return taken_at


def _place(tags: _Tags) -> Capture | None:
    if _text(tags.get(ExifTags.GPS.GPSStatus))[:1].upper() == "V":  # the receiver has not measured it
        return None
    latitude = _degrees(tags.get(ExifTags.GPS.GPSLatitude), tags.get(ExifTags.GPS.GPSLatitudeRef), "NS", 90)
    longitude = _degrees(tags.get(ExifTags.GPS.GPSLongitude), tags.get(ExifTags.GPS.GPSLongitudeRef), "EW", 180)
    if latitude is None or longitude is None or latitude == longitude == 0:  # cameras without a fix write zeros
        return None
    datum = _text(tags.get(ExifTags.GPS.GPSMapDatum))[:_LONGEST_TEXT]
    meters = 0.0
    with _damage_ignored():
        meters = float(tags.get(ExifTags.GPS.GPSHPositioningError, 0))
    return Capture(
        coordinates=(latitude, longitude),
        datum=_DATUMS.get(re.sub(r"[\W_]", "", datum).upper(), datum),
        uncertainty_m=math.ceil(meters) if 0 < meters < _MOST_UNCERTAIN_M else None,
    )


def _degrees(values: Any, reference: Any, hemispheres: str, most: int) -> float | None:
    """Returns an angle from degrees, minutes and seconds, each of which may have a fraction.

    It is None without its hemisphere, as the other one would be as likely. "n" and "North" are read as "N". Seconds may
    be left out, or 0/0, which means the same: degrees and minutes are complete. Any other denominator of zero makes a
    NaN, which is no angle.
    """
    hemisphere = _text(reference)[:1].upper()
    if not isinstance(values, tuple) or not 2 <= len(values) <= 3 or hemisphere not in {*hemispheres}:
        return None
    parts = [float(value) for value in values]
    if math.isnan(parts[-1]) and len(parts) == 3 and values[-1].numerator == 0:
        parts.pop()
    degrees = sum(part / unit for part, unit in zip(parts, (1, 60, 3600), strict=False))
    if min(parts) < 0 or not degrees <= most:
        return None
    return degrees if hemisphere == hemispheres[0] else -degrees


def _xmp_tags(packet: str | bytes) -> _Tags:
    """Returns what an XMP packet says, as the EXIF tags that mean the same."""
    texts = _xmp_texts(packet) if len(packet) <= MAX_XMP_BYTES else {}
    tags: dict[int, Any] = {}
    for name, tag in _XMP_TAGS.items():
        if name in texts:
            tags.setdefault(tag, texts[name].strip())
    for angle in (ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLongitude):  # "52,31.2N"
        with _damage_ignored():
            written = tags.pop(angle)
            tags[angle - 1] = written[-1]  # the tag of the hemisphere
            tags[angle] = tuple(map(float, written[:-1].split(",")))
    with _damage_ignored():  # "1414/1"
        meters, _, divisor = tags.pop(ExifTags.GPS.GPSHPositioningError).partition("/")
        tags[ExifTags.GPS.GPSHPositioningError] = float(meters) / float(divisor or 1)
    return tags


def _xmp_texts(packet: str | bytes) -> dict[str, str]:
    """Returns the properties of a packet that `_XMP_TAGS` has: attributes or elements of an rdf:Description.

    Nothing is read after damage, after too many levels, or after a document type: its entities can grow without limit.
    """
    texts: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        path.append(name)
        if len(path) > _XMP_LEVELS:
            raise ValueError("too many levels")
        if path[-2:] == _DESCRIPTION:
            texts.update(attributes)

    def text(content: str) -> None:
        if path[-3:-1] == _DESCRIPTION and path[-1] in _XMP_TAGS:
            texts[path[-1]] = (texts.get(path[-1], "") + content)[:_LONGEST_TEXT]

    def refuse(*_: object) -> None:
        raise ValueError("a document type")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True  # otherwise each line is a call
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    with _damage_ignored():
        parser.Parse(packet, True)
    return texts
