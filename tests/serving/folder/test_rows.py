"""When and where a photograph was taken."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

import models.preprocess  # noqa: F401 - opens HEIF
from serving.capture import Capture, read_capture


def photograph(taken=None, offset=None, place=None, file_format="JPEG"):
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "a camera"  # PNG and AVIF are written without EXIF data if there is no such tag
    if taken is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    if offset is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.OffsetTimeOriginal] = offset
    if place is not None:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(place)
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, file_format, **({} if taken is None and place is None else {"exif": exif}))
    return stream.getvalue()


def at(latitude, north, longitude, east):
    tags = ExifTags.GPS
    return {
        tags.GPSLatitude: latitude,
        tags.GPSLatitudeRef: north,
        tags.GPSLongitude: longitude,
        tags.GPSLongitudeRef: east,
    }


@pytest.mark.parametrize(
    ("taken", "offset", "expected"),
    [
        ("2026:07:04 12:30:01", None, "2026-07-04T12:30:01"),
        ("2026:07:04 12:30:01", "+02:00", "2026-07-04T12:30:01+02:00"),
        ("2026:07:04 12:30:01", "soon", "2026-07-04T12:30:01"),
        ("0000:00:00 00:00:00", None, None),
        ("yesterday", None, None),
        (None, None, None),
    ],
)
def test_time(taken, offset, expected):
    assert read_capture(photograph(taken, offset)).taken_at == expected


@pytest.mark.parametrize("taken", [None, "2026:07:04 12:30:01"])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "AVIF", "HEIF"])
def test_no_pixel_is_decoded(taken, file_format, monkeypatch):
    data, loads = photograph(taken, file_format=file_format), []
    with Image.open(io.BytesIO(data)) as opened:
        for kind in type(opened).__mro__[:-1]:
            if "load" in vars(kind):
                monkeypatch.setattr(kind, "load", loads.append)
    assert read_capture(data).taken_at == (taken and "2026-07-04T12:30:01")
    assert not loads


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (at((48.0, 30.0, 36.0), "N", (2.0, 15.0, 0.0), "E"), (48.51, 2.25)),
        (at((33.0, 0.0, 0.0), "S", (70.0, 30.0, 0.0), "W"), (-33.0, -70.5)),
        (at((33.0, 0.0, 0.0), "South", (70.0, 30.0, 0.0), "west"), (-33.0, -70.5)),
        (at((33.0, 0.0, 0.0), "", (70.0, 30.0, 0.0), "W"), (None, None)),
        (at((33.0, 0.0, 0.0), "?", (70.0, 30.0, 0.0), "W"), (None, None)),
        (at((33.0, 0.0, 0.0), "W", (70.0, 30.0, 0.0), "N"), (None, None)),
        (at((48.0, 30.6), "N", (2.0, 15.0), "E"), (48.51, 2.25)),
        (at((0.0, 0.0, 0.0), "N", (0.0, 0.0, 0.0), "E"), (None, None)),
        (at((0.0, 0.0, 0.0), "N", (2.0, 15.0, 0.0), "E"), (0.0, 2.25)),
        (at((91.0, 0.0, 0.0), "N", (2.0, 15.0, 0.0), "E"), (None, None)),
        (at((48.0, 30.0, 36.0), "N", (181.0, 0.0, 0.0), "E"), (None, None)),
        ({}, (None, None)),
    ],
)
def test_place(place, expected):
    found = read_capture(photograph(place=place))
    assert (found.latitude, found.longitude) == (expected if expected[0] is None else pytest.approx(expected))


@given(st.binary(max_size=200))
def test_damaged_exif_data_say_nothing(exif):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", exif=b"Exif\0\0" + exif)
    assert isinstance(read_capture(stream.getvalue()), Capture)
