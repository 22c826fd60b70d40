"""Files with too many parts are refused before a decoder sees them; ordinary files are not."""

import struct
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import TooManyPixels, UnreadableImage, UnsupportedFormat
from models.file_structure import MAX_FILLER_BYTES, MAX_PARTS, MAX_SCANS, check_structure, jpeg_scans
from models.preprocess import read_picture, upright_size
from tests.make import cases
from tests.models.hostile import (
    jpeg_with_comments,
    jpeg_with_filler,
    jpeg_with_scans,
    long_png,
    png_with_chunks,
    webp_with_frames,
    with_box_entries,
)
from tests.models.pictures import FORMATS, encode, foliage, scene


@pytest.mark.parametrize("file_format", FORMATS)
def test_ordinary_file_passes(file_format):
    check_structure(file_format, encode(foliage((240, 160)), file_format))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jpeg_with_comments(MAX_PARTS), "the JPEG picture has too many markers (expected at most 20,000 markers)"),
        (jpeg_with_scans(MAX_SCANS + 1), "the JPEG picture has too many scans (expected at most 60 scans)"),
        (jpeg_with_filler(MAX_FILLER_BYTES + 1), "the JPEG picture has too many bytes between markers (expected at"),
        (jpeg_with_filler(MAX_FILLER_BYTES + 1, ends=True), "the JPEG picture has too many bytes between markers"),
        (png_with_chunks(MAX_PARTS), "the PNG picture has too many chunks (expected at most 20,000 chunks)"),
        (webp_with_frames(MAX_PARTS), "the WEBP picture has too many chunks (expected at most 20,000 chunks)"),
        (with_box_entries("AVIF", 62_500), "the AVIF picture has too many bytes of description"),
        (with_box_entries("HEIF", 62_500), "the HEIF picture has too many bytes of description"),
    ],
    ids=["markers", "scans", "filler", "filler to the end", "chunks", "frames", "AVIF boxes", "HEIC boxes"],
)
@pytest.mark.parametrize("function", [read_picture, upright_size])
def test_file_with_too_many_parts_is_refused(function, data, message):
    with pytest.raises(UnreadableImage) as refused:
        function(data)
    assert str(refused.value).startswith(message)
    assert str(refused.value).endswith(": open it in a picture editor and save it again.")


@pytest.mark.parametrize("file_format", ["HEIF", "AVIF"])
@pytest.mark.parametrize("function", [read_picture, upright_size])
def test_a_file_whose_last_byte_is_missing_is_refused(function, file_format):
    data = encode(scene(), file_format)
    for kept in (len(data) - 1, len(data) // 2):
        with pytest.raises(
            UnreadableImage, match=rf"picture does not decode \(got {kept:,} of at least {len(data):,} bytes"
        ):
            function(data[:kept])
    assert function(data + b"more")


def described(version, iloc):
    """A file of 100 bytes whose description has the iloc box, and then an idat box with 8 bytes."""
    boxes = [struct.pack(">I4sI", 12 + len(iloc), b"iloc", version << 24) + iloc, struct.pack(">I4s8x", 16, b"idat")]
    meta = struct.pack(">I4s4x", 12 + sum(map(len, boxes)), b"meta") + b"".join(boxes)
    return meta + struct.pack(">I4s", 100 - len(meta), b"mdat").ljust(100 - len(meta), b"\0")


@pytest.mark.parametrize(("name", "version", "fields", "values", "missing"), cases(__file__, "extents"))
def test_every_extent_ends_inside_the_file(name, version, fields, values, missing):
    data = described(version, struct.pack(f">{fields}", *values))
    refused = pytest.raises(UnreadableImage, match=f"got {len(data)} of at least {len(data) + missing} bytes")
    with refused if missing else nullcontext():
        check_structure("HEIF", data)


def test_extents_of_no_bytes_are_limited():
    with pytest.raises(UnreadableImage, match="too many extents"):
        check_structure("HEIF", described(0, struct.pack(">HHHHH", 0, 1, 7, 0, 65_535)))


@pytest.mark.parametrize(
    "data",
    [
        jpeg_with_comments(1_000),
        jpeg_with_filler(1_000),
        jpeg_with_scans(MAX_SCANS),
        png_with_chunks(1_000),
        webp_with_frames(1_000),
    ],
)
def test_unusual_file_within_the_limits_is_decoded(data):
    assert read_picture(data).width >= 8


def test_long_side_is_refused():
    assert read_picture(long_png(1, 65_500)).height == 65_500
    with pytest.raises(TooManyPixels) as refused:
        read_picture(long_png(1, 65_501))
    assert str(refused.value) == (
        "the PNG picture is too long (got 1 x 65501 pixels; expected sides of at most 65,500 pixels): "
        "send a smaller version."
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, False, False)),
        ({"restart_marker_blocks": 1}, (1, False, False)),
        ({"progressive": True}, (10, True, True)),
        ({"progressive": True, "restart_marker_blocks": 1}, (10, True, True)),
        ({"progressive": True, "comment": b"\xff\xda" * 20}, (10, True, True)),
        ({"progressive": True, "exif": b"Exif\0\0" + encode(scene(), "JPEG", progressive=True)}, (10, True, True)),
    ],
    ids=str,
)
def test_scans_of_a_jpeg_are_counted(options, expected):
    data = encode(foliage((240, 160)), "JPEG", **options)
    assert jpeg_scans(data) == expected
    assert jpeg_scans(data + jpeg_with_scans(50)) == expected, "what follows the picture does not count"


@given(st.sampled_from(FORMATS), st.binary(max_size=300))
def test_any_bytes_are_checked_without_another_error(file_format, data):
    try:
        check_structure(file_format, data)
        upright_size(data)
    except (UnreadableImage, UnsupportedFormat, TooManyPixels):
        pass
