"""Forms of EXIF data: the service, which asks for a place, and training, which learns places, read each one alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational

from models.exif import Capture, read_capture
from models.preprocess import read_picture
from tests.models.pictures import FORMATS, encode
from tests.serving.decoding.running_pool import RunningPool
from training.dataset.audit.examine import examine

EXIF, GPS = ExifTags.IFD.Exif, ExifTags.GPS
NOON = "2026:07:04 12:30:01"
NORTH, EAST = (48.0, 30.0, 36.0), (2.0, 15.0, 0.0)


def taken(written, offset=None):
    tags = {ExifTags.Base.DateTimeOriginal: written, ExifTags.Base.OffsetTimeOriginal: offset}
    return {EXIF: {tag: value for tag, value in tags.items() if value is not None}}


def at(latitude, north="N", longitude=EAST, east="E"):
    return {
        ExifTags.IFD.GPSInfo: {
            GPS.GPSLatitude: latitude,
            GPS.GPSLatitudeRef: north,
            GPS.GPSLongitude: longitude,
            GPS.GPSLongitudeRef: east,
        }
    }


def exif(blocks):
    found = Image.Exif()
    found[ExifTags.Base.Make] = "a camera"  # PNG and AVIF are written without EXIF data if there is no such tag
    for block, tags in blocks.items():
        found.get_ifd(block).update(tags)
    return found


FORMS = {
    "nothing": ({}, None, None),
    "day and time": (taken(NOON), "2026-07-04T12:30:01", None),
    "offset from UTC": (taken(NOON, "+02:00"), "2026-07-04T12:30:01+02:00", None),
    "offset west of UTC at the turn of the year": (
        taken("2026:12:31 23:30:00", "-09:30"), "2026-12-31T23:30:00-09:30", None,
    ),
    "offset that is none": (taken(NOON, "soon"), "2026-07-04T12:30:01", None),
    "offset of two days": (taken(NOON, "+48:00"), "2026-07-04T12:30:01", None),
    "fraction in the place of the offset": (taken(NOON, ".12345"), "2026-07-04T12:30:01", None),
    "text after the time": (taken(f"{NOON}Z"), "2026-07-04T12:30:01", None),
    "clock that was never set": (taken("0000:00:00 00:00:00"), None, None),
    "unknown date": (taken("    :  :     :  :  "), None, None),
    "day that does not exist": (taken("2026:02:30 12:30:01"), None, None),
    "hour that does not exist": (taken("2026:07:04 24:30:01"), None, None),
    "day without a time": (taken("2026:07:04"), None, None),
    "word": (taken("yesterday"), None, None),
    "day and place": (taken(NOON) | at(NORTH), "2026-07-04T12:30:01", (48.51, 2.25)),
    "south and west": (at(NORTH, "S", EAST, "W"), None, (-48.51, -2.25)),
    "small letters": (at(NORTH, "s", EAST, "w"), None, (-48.51, -2.25)),
    "whole words": (at(NORTH, "South", EAST, "west"), None, (-48.51, -2.25)),
    "no hemisphere": (at(NORTH, ""), None, None),
    "unknown hemisphere": (at(NORTH, "?"), None, None),
    "hemispheres exchanged": (at(NORTH, "E", EAST, "N"), None, None),
    "decimal minutes": (at((48.0, 30.6, 0.0)), None, (48.51, 2.25)),
    "decimal minutes without seconds": (at((48.0, 30.6), "N", (2.0, 15.0), "E"), None, (48.51, 2.25)),
    "degrees alone": (at((48.51,)), None, None),
    "zero denominator": (at((48.0, 30.0, IFDRational(0, 0))), None, None),
    "north of the pole": (at((91.0, 0.0, 0.0)), None, None),
    "east of the date line": (at(NORTH, "N", (181.0, 0.0, 0.0)), None, None),
    "no fix": (at((0.0, 0.0, 0.0), "N", (0.0, 0.0, 0.0), "E"), None, None),
    "on the equator": (at((0.0, 0.0, 0.0)), None, (0.0, 2.25)),
    "seconds finer than a tenth of a degree": (at((48.0, 29.0, 59.0)), None, (48.0 + 29 / 60 + 59 / 3600, 2.25)),
}  # fmt: skip


@pytest.fixture(scope="module")
def read_by_both(tmp_path_factory):
    """Form -> what a decoder child of the service read, and what `prepare` found."""
    folder = tmp_path_factory.mktemp("forms")
    files = {}
    for number, (name, (blocks, *_)) in enumerate(FORMS.items()):
        files[name] = folder / f"{number}.jpg"
        files[name].write_bytes(encode(Image.new("RGB", (64, 64), "green"), "JPEG", exif=exif(blocks)))
    pictures = list(files.items())
    found = {}
    with RunningPool(1) as pool:
        for _ in range(2):  # the second time from the cache
            infos = examine(pictures, cache=folder / "audit.sqlite", workers=1, min_side_px=32)
        for (name, file), info in zip(pictures, infos, strict=True):
            found[name] = pool.decode(file.read_bytes()).capture, info
    return found


@pytest.mark.parametrize("name", FORMS)
def test_service_and_training_read_a_form_alike(name, read_by_both):
    _, taken_at, coordinates = FORMS[name]
    asked, learned = read_by_both[name]
    assert (asked.taken_at and asked.taken_at.isoformat()) == taken_at
    assert (learned.taken_at and learned.taken_at.isoformat()) == (taken_at and taken_at[:19])
    assert asked.coordinates == learned.coordinates == (coordinates and pytest.approx(coordinates))


@pytest.mark.parametrize(("latitude", "coordinates"), [(NORTH, (48.51, 2.25)), ((-48.0, 30.0, 36.0), None)])
def test_negative_parts_are_no_angle(latitude, coordinates):
    opened = Image.new("RGB", (8, 8))  # Pillow reads signed numbers and writes none
    opened.getexif().get_ifd(ExifTags.IFD.GPSInfo).update(at(latitude)[ExifTags.IFD.GPSInfo])
    assert read_capture(opened).coordinates == pytest.approx(coordinates)


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_says_when_and_where(file_format):
    data = encode(Image.new("RGB", (64, 64)), file_format, exif=exif(taken(NOON) | at(NORTH)).tobytes())
    if file_format == "PNG":  # EXIF data may follow the pixels
        start = data.index(b"eXIf") - 4
        end = start + int.from_bytes(data[start : start + 4]) + 12
        data = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    found = read_picture(data).capture
    assert found.taken_at.isoformat() == "2026-07-04T12:30:01"
    assert found.coordinates == pytest.approx((48.51, 2.25))


@given(st.binary(max_size=200))
def test_damaged_exif_data_say_nothing(damaged):
    data = encode(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\0\0" + damaged)
    assert isinstance(read_picture(data).capture, Capture)
