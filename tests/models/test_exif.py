"""Forms of EXIF data: the service, which asks for a place, and training, which learns places, read each one alike."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational

from models.exif import Capture, read_capture, read_sidecar
from models.preprocess import read_picture
from tests.make import cases, from_table
from tests.models.pictures import FORMATS, encode
from tests.serving.decoding.running_pool import RunningPool
from training.dataset.audit.examine import examine

EXIF, GPS = ExifTags.IFD.Exif, ExifTags.GPS
NOON = "2026:07:04 12:30:01"
NORTH, EAST = (48.0, 30.0, 36.0), (2.0, 15.0, 0.0)


def taken(written, offset=None):
    tags = {ExifTags.Base.DateTimeOriginal: written, ExifTags.Base.OffsetTimeOriginal: offset}
    return {EXIF: {tag: value for tag, value in tags.items() if value is not None}}


def at(latitude, north="N", longitude=EAST, east="E", **more):
    return {
        ExifTags.IFD.GPSInfo: {
            GPS.GPSLatitude: latitude,
            GPS.GPSLatitudeRef: north,
            GPS.GPSLongitude: longitude,
            GPS.GPSLongitudeRef: east,
        }
        | {GPS[name]: value for name, value in more.items()}
    }


def exif(blocks):
    found = Image.Exif()
    found[ExifTags.Base.Make] = "a camera"  # PNG and AVIF are written without EXIF data if there is no such tag
    for block, tags in blocks.items():
        if block == "DateTime":
            found[ExifTags.Base.DateTime] = tags
        else:
            found.get_ifd(block).update(tags)
    return found


def blocks_of(form):
    """The blocks of EXIF data of a case: fractions are written as text."""
    gps = form.get("gps", {})
    return {
        EXIF: {ExifTags.Base[name]: value for name, value in form.get("exif", {}).items()},
        ExifTags.IFD.GPSInfo: {GPS[n]: tuple(map(angle, v)) if isinstance(v, list) else v for n, v in gps.items()},
    } | ({"DateTime": form["changed"]} if "changed" in form else {})


def angle(part):
    return IFDRational(*map(int, part.split("/"))) if isinstance(part, str) else part


FORMS = cases(__file__, "exif")


@pytest.fixture(scope="module")
def read_by_both(tmp_path_factory):
    """Form -> what a decoder child of the service read, and what `prepare` found."""
    folder = tmp_path_factory.mktemp("forms")
    files = {}
    for number, (name, form) in enumerate(FORMS.items()):
        files[name] = folder / f"{number}.jpg"
        files[name].write_bytes(encode(Image.new("RGB", (64, 64), "green"), "JPEG", exif=exif(blocks_of(form))))
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
    taken_at, coordinates = FORMS[name].get("time"), FORMS[name].get("place")
    asked, learned = read_by_both[name]
    assert (asked.taken_at and asked.taken_at.isoformat()) == taken_at
    assert (learned.taken_at and learned.taken_at.isoformat()) == (taken_at and taken_at[:19])
    assert asked.coordinates == learned.coordinates == (coordinates and pytest.approx(coordinates))


@pytest.mark.parametrize(("latitude", "coordinates"), [(NORTH, (48.51, 2.25)), ((-48.0, 30.0, 36.0), None)])
def test_negative_parts_are_no_angle(latitude, coordinates):
    opened = Image.new("RGB", (8, 8))  # Pillow reads signed numbers and writes none
    opened.getexif().get_ifd(ExifTags.IFD.GPSInfo).update(at(latitude)[ExifTags.IFD.GPSInfo])
    assert read_capture(opened).coordinates == pytest.approx(coordinates)


@from_table
def test_the_datum_of_a_place_is_told(written, datum):
    found = read_capture(opened(at(NORTH, GPSMapDatum=written)))
    assert (found.datum, found.coordinates) == (datum, pytest.approx((48.51, 2.25)))


@from_table
def test_the_accuracy_of_a_place_is_a_radius_in_meters(tag, written, meters):
    found = read_capture(opened(at(NORTH, **{tag: angle(written)})))
    assert (found.uncertainty_m, found.coordinates) == (meters, pytest.approx((48.51, 2.25)))


def opened(blocks):
    """A picture with these EXIF data, which Pillow could write or not."""
    image = Image.new("RGB", (8, 8))
    for block, tags in blocks.items():
        image.getexif().get_ifd(block).update(tags)
    return image


def packet(attributes="", elements="", before=""):
    """An XMP packet, as programs write it."""
    names = {"exif": "exif", "photoshop": "photoshop", "xmp": "xap"}
    spaces = " ".join(f'xmlns:{name}="http://ns.adobe.com/{path}/1.0/"' for name, path in names.items())
    return f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>{before}
    <x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
    <rdf:Description rdf:about="" {spaces} {attributes}>{elements}</rdf:Description>
    </rdf:RDF></x:xmpmeta><?xpacket end="w"?>""".encode()


PLACED = 'exif:GPSLatitude="48,30.6N" exif:GPSLongitude="2,15,0E"'
DATED = "<exif:DateTimeOriginal>2026-07-04T12:30:01+02:00</exif:DateTimeOriginal>"


@from_table
def test_times_of_xmp(attributes, taken_at):
    found = read_sidecar(packet(attributes)).taken_at
    assert (found and found.isoformat()) == taken_at


@from_table
def test_places_of_xmp(attributes, place):
    assert read_sidecar(packet(attributes)).coordinates == (place and pytest.approx(place))


@from_table
def test_datum_and_accuracy_of_xmp(error, meters):
    attributes = f'{PLACED} exif:GPSMapDatum="Tokyo" exif:GPSHPositioningError="{error}"'
    found = read_sidecar(packet(attributes))
    assert (found.datum, found.uncertainty_m, found.coordinates) == ("EPSG:4301", meters, pytest.approx((48.51, 2.25)))


def test_exif_data_count_before_xmp():
    image = opened(taken("2025:01:01 00:00:01") | at(NORTH, "S"))
    image.info["xmp"] = packet(PLACED, DATED)
    found = read_capture(image)
    assert found.taken_at.isoformat() == "2025-01-01T00:00:01"
    assert found.coordinates == pytest.approx((-48.51, 2.25))
    image.getexif().get_ifd(EXIF)[ExifTags.Base.DateTimeOriginal] = ""
    image.getexif().get_ifd(ExifTags.IFD.GPSInfo)[GPS.GPSStatus] = "V"
    found = read_capture(image)
    assert found.taken_at.isoformat() == "2026-07-04T12:30:01+02:00"
    assert found.coordinates == pytest.approx((48.51, 2.25))


def test_a_time_is_completed_by_a_place_with_its_datum_and_accuracy_and_nothing_is_replaced():
    dated, placed = Capture(datetime(2026, 7, 4, tzinfo=UTC)), Capture(None, (48.51, 2.25), "EPSG:4301", 5)
    both = Capture(datetime(2026, 7, 4, tzinfo=UTC), (48.51, 2.25), "EPSG:4301", 5)
    assert dated.completed(placed) == placed.completed(dated) == both
    assert both.completed(Capture(datetime(2025, 1, 1, tzinfo=UTC), (0.0, 1.0), "EPSG:4326", 7)) == both


def test_what_stands_deeper_in_xmp_is_of_another_picture():
    of_another = f"<exif:x><rdf:Description {PLACED}>{DATED}</rdf:Description></exif:x>"
    assert read_sidecar(packet(elements=of_another)) == Capture()


@pytest.mark.parametrize(
    "written",
    [
        packet(PLACED, before='<!DOCTYPE a [<!ENTITY b "c">]>'),
        packet(PLACED).replace(b"<rdf:RDF", b"<a>" * 60 + b"<rdf:RDF"),
        packet(PLACED) + b" " * 1_000_000,
        b"\xff\xfe\0",
        b"",
    ],
    ids=["entities", "levels", "size", "no XML", "nothing"],
)
def test_hostile_xmp_says_nothing(written):
    assert read_sidecar(written) == Capture()


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("written", ["exif", "xmp"])
def test_every_format_says_when_and_where(file_format, written):
    data = encode(
        Image.new("RGB", (64, 64)),
        file_format,
        **({"exif": exif(taken(NOON) | at(NORTH)).tobytes()} if written == "exif" else in_xmp(file_format)),
    )
    if file_format == "PNG":  # either may follow the pixels
        start = data.index(b"eXIf" if written == "exif" else b"iTXt") - 4
        end = start + int.from_bytes(data[start : start + 4]) + 12
        data = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    found = read_picture(data).capture
    assert found.taken_at.replace(tzinfo=None).isoformat() == "2026-07-04T12:30:01"
    assert found.coordinates == pytest.approx((48.51, 2.25))


def in_xmp(file_format):
    """The argument with which a picture of this format gets time and place in XMP."""
    xmp = packet(PLACED, DATED)
    if file_format != "PNG":
        return {"xmp": xmp}
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", xmp.decode())
    return {"pnginfo": texts}


@given(st.binary(max_size=200))
def test_damaged_exif_data_say_nothing(damaged):
    data = encode(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\0\0" + damaged)
    assert isinstance(read_picture(data).capture, Capture)
