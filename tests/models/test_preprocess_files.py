"""The format is read from the bytes, and a file that does not decode gives an error, never a crash."""

import contextlib
import io
import random
import re
import sys
import time
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.errors import PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.file_structure import sniff_format
from models.preprocess import (
    PIXEL_LIMITS,
    open_picture,
    picture_to_input,
    read_picture,
    upright_size,
)
from tests.make import cases, ran
from tests.models.pictures import (
    BLUE,
    FORMATS,
    GREEN,
    RED,
    SPEC,
    as_camera_file,
    claiming_size,
    difference,
    encode,
    exif,
    foliage,
    png,
    png_chunk,
    scene,
    seen,
)

LEAKS = re.compile(r"0x[0-9a-fA-F]+|object at|BytesIO|\\x|\bb['\"]")  # how Python writes objects and bytes


# ---- formats


def drawn_as(file_format):
    return encode(Image.new("RGB", (8, 8), RED), file_format)


@pytest.mark.parametrize("file_format", FORMATS)
def test_format_follows_from_the_bytes(file_format):
    data = encode(scene(), file_format)
    assert sniff_format(data) == read_picture(data).format == file_format
    assert file_format in PIXEL_LIMITS


@pytest.mark.parametrize(("brand", "name"), [(b"mif1", "HEIF"), (b"heix", "HEIF"), (b"avis", "AVIF")])
def test_every_brand_of_a_format_counts(brand, name):
    assert sniff_format(b"\0\0\0\x10ftyp" + brand + b"\0\0\0\0") == name


RAW = "a TIFF or camera raw file"
SEQUENCE = "a HEIF sequence, as of bursts and Live Photos"
DRAWN = {"TIFF": RAW, "JPEG2000": "a JPEG 2000 picture", "BMP": "a BMP picture", "GIF": "a GIF picture"}
OTHERS, UNKNOWN = (
    [(text.encode("latin-1"), got) for text, got in cases(__file__, name)] for name in ("other_files", "unknown_files")
)
OTHERS += [(drawn_as(file_format), got) for file_format, got in DRAWN.items()]
UNKNOWN += [(drawn_as("ICO"), "bytes starting 00 00 01 00 01 00 08 08")]


@pytest.mark.parametrize("function", [read_picture, upright_size, sniff_format])
def test_other_bytes_are_named_with_what_to_do(function):
    for data, got in OTHERS + UNKNOWN:
        remedy = "save it as JPEG and send that" if (data, got) in OTHERS else "send a photograph in one of these"
        with pytest.raises(UnsupportedFormat) as refused:
            function(data)
        assert str(refused.value) == (
            f"the file is not a picture in an accepted format (got {got}; expected JPEG, PNG, WebP, HEIC or AVIF): "
            f"{remedy}."
        )


def test_sequence_of_pictures_without_one_by_itself_is_named():
    data = encode(scene(), "HEIF").replace(b"ftypheic", b"ftypmsf1").replace(b"meta", b"moov")
    with pytest.raises(UnreadableImage, match=rf"does not decode \(got {SEQUENCE}\): save a picture of it as JPEG"):
        read_picture(data)


STARTS = [
    b"",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"RIFF\0\0\0\0WEBPVP8 ",
    b"\0\0\0\x10ftypheic",
    b"\0\0\0\x10ftypavif",
]


@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=40))
def test_no_message_about_a_file_has_bytes_as_python_writes_them(start, rest):
    with pytest.raises(PictureError) as caught:
        read_picture(start + rest)
    assert not LEAKS.search(str(caught.value))


def test_first_frame_of_an_animation_is_read():
    frames = [Image.new("RGB", (32, 32), color) for color in (RED, BLUE, GREEN)]
    for file_format in ("WEBP", "PNG", "AVIF", "HEIF"):
        data = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
        assert seen(data, (16, 16))[0] == pytest.approx(RED, abs=6), file_format


def test_phone_file_of_several_pictures_opens_as_the_first_jpeg():
    second = Image.new("RGB", (40, 40), BLUE)
    data = encode(scene((200, 160)), "MPO", save_all=True, append_images=[second], quality=95)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.format == "MPO", "the drawn file must be one that Pillow takes for several pictures"
    picture = read_picture(data, min_side_px=40)
    assert (picture.format, picture.width, picture.height) == ("JPEG", 200, 160)
    assert picture.image.size == (50, 40)
    assert difference(read_picture(data).image, scene((200, 160))) < 3


# ---- damaged files


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("file_format", FORMATS)
def test_truncated_file_is_an_unreadable_image(file_format, kept):
    data = encode(foliage((96, 64)), file_format)
    assert read_picture(data).image.size == (96, 64)
    with pytest.raises(UnreadableImage, match=f"the {file_format} picture does not decode") as caught:
        read_picture(data[: int(kept * len(data))])
    assert not LEAKS.search(str(caught.value))
    assert str(caught.value).endswith(": send the original photograph again.")


def test_lack_of_memory_in_a_decoder_is_no_damage():
    with pytest.raises(MemoryError), open_picture(encode(scene(), "HEIF")):
        raise RuntimeError("Memory allocation error: Unspecified: Allocating 48771087 bytes failed")


@pytest.mark.parametrize("options", [{}, {"subsampling": "4:2:0"}, {"progressive": True}], ids=str)
def test_jpeg_without_its_last_bytes_is_read_and_says_so(options):
    whole = encode(foliage((600, 400)), "JPEG", exif=exif(6), **options)
    expected = read_picture(whole, 100)
    assert not expected.is_cut_off
    for num_missing in (1, 2, 20):
        picture = read_picture(whole[:-num_missing], 100)
        assert picture.is_cut_off
        assert (picture.width, picture.height) == (400, 600)
        assert difference(picture.image, expected.image) < 0.5
    assert not read_picture(whole + bytes(100)).is_cut_off
    thumbnail = whole[:2] + b"\xff\xe2\0\4\xff\xd9" + whole[2:]
    assert read_picture(thumbnail[:-2] + bytes(20), 100).is_cut_off


def test_jpeg_that_lacks_two_rows_of_blocks_is_refused():
    data = encode(foliage((640, 480)), "JPEG", restart_marker_rows=1, subsampling="4:2:0")
    rows = [found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data)]
    assert read_picture(data[: rows[-1] + 9]).is_cut_off
    with pytest.raises(UnreadableImage):
        read_picture(data[: rows[-2] + 9])


def test_progressive_jpeg_without_its_last_scan_is_refused():
    data = encode(foliage((640, 480)), "JPEG", progressive=True)
    with pytest.raises(UnreadableImage):
        read_picture(data[: data.rindex(b"\xff\xda")])


def wrong_checksum(chunk):
    return chunk[:-1] + bytes([chunk[-1] ^ 1])


ANCILLARY = {
    "long text": png_chunk(b"zTXt", b"history\0\0" + zlib.compress(bytes(1_100_000))),
    "long XMP": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(bytes(5_000_000))),
    "many texts": png_chunk(b"tEXt", b"history\0" + bytes(900_000)) * 6,
    "text with a wrong checksum": wrong_checksum(png_chunk(b"tEXt", b"Comment\0hello")),
    "gamma with a wrong checksum": wrong_checksum(png_chunk(b"gAMA", bytes(4))),
    "gamma without its value": png_chunk(b"gAMA", b""),
    "text of an unknown compression": png_chunk(b"zTXt", b"history\0\7text"),
    "long profile": png_chunk(b"iCCP", b"sRGB\0\0" + zlib.compress(bytes(1_100_000))),
}


@pytest.mark.parametrize("chunk", ANCILLARY.values(), ids=ANCILLARY)
def test_png_is_read_whatever_its_ancillary_chunks(chunk):
    rows = [bytes(RED + GREEN)]
    for data in (png((2, 1), 8, 2, rows, chunk), png((2, 1), 8, 2, rows, behind=chunk)):
        assert upright_size(data) == (2, 1)
        assert seen(data, (0, 0), (1, 0)) == [RED, GREEN]


@pytest.mark.parametrize("kind", [b"IHDR", b"PLTE"])
def test_png_with_a_wrong_checksum_of_what_pixels_need_is_refused(kind):
    data = encode(Image.new("P", (2, 1)), "PNG")
    at = data.index(kind) + 4 + int.from_bytes(data[data.index(kind) - 4 :][:4])
    with pytest.raises(UnreadableImage):
        read_picture(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_png_with_damaged_pixels_is_refused_though_its_exif_is_looked_for_after_them():
    data = bytearray(encode(foliage((96, 64)), "PNG"))
    data[len(data) // 2] ^= 255
    with pytest.raises(UnreadableImage, match="the PNG picture does not decode"):
        read_picture(bytes(data))


def mutations(data, generator, number):
    """Damaged copies: flipped bytes; missing, repeated and swapped parts."""
    for _ in range(number):
        copy = bytearray(data)
        kind = generator.randrange(5)
        at = generator.randrange(len(copy))
        length = generator.randrange(1, 1 + max(1, len(copy) // 8))
        if kind <= 1:
            for _ in range(generator.randrange(1, 9)):
                copy[generator.randrange(len(copy))] = generator.randrange(256)
        elif kind == 2:
            del copy[at : at + length]
        elif kind == 3:
            copy[at:at] = copy[at : at + length]
        else:
            copy[at : at + length] = bytes(length)
        yield bytes(copy)


@pytest.mark.filterwarnings("ignore")  # our own errors cover what Pillow warns of
@pytest.mark.parametrize("file_format", FORMATS)
def test_damaged_bytes_raise_nothing_but_picture_errors(file_format):
    data = as_camera_file(foliage((40, 24)), file_format, 6)
    generator = random.Random(f"{file_format} 2026")
    messages = []
    for damaged in mutations(data, generator, 300):
        try:
            pixels, picture = picture_to_input(damaged, SPEC)
        except PictureError as error:
            messages.append(str(error))
        else:
            assert picture.image.mode == "RGB"
            assert pixels.shape == (3, 32, 32)
            assert np.isfinite(pixels).all()
        with contextlib.suppress(PictureError):
            upright_size(damaged)
    assert 30 < len(messages) < 300
    assert not [message for message in messages if LEAKS.search(message)]


# ---- too many pixels

BOMBS = {
    "JPEG": (65_000, 65_000),
    "PNG": (50_000, 50_000),
    "WEBP": (16_384, 16_384),
    "HEIF": (8_192, 8_192),
    "AVIF": (16_000, 16_000),
}


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("function", [read_picture, upright_size])
def test_huge_picture_is_refused_at_its_header(function, file_format):
    data = claiming_size(file_format, BOMBS[file_format])
    assert len(data) < 3_000
    started = time.process_time()
    with pytest.raises(TooManyPixels, match=f"at most {PIXEL_LIMITS[file_format] // 1_000_000} megapixels"):
        function(data)
    assert time.process_time() - started < 1


PHONES_AND_CAMERAS = {"JPEG": [(16_320, 12_240)], "HEIF": [(8_064, 6_048), (9_504, 6_336)], "AVIF": [(8_160, 6_144)]}


def test_pictures_of_large_sensors_are_within_the_limits():
    for file_format, sizes in PHONES_AND_CAMERAS.items():
        for size in sizes:
            assert upright_size(claiming_size(file_format, size)) == size
    for file_format, size in (("AVIF", (10_000, 9_000)), ("WEBP", (6_000, 5_000))):
        with pytest.raises(TooManyPixels):
            upright_size(claiming_size(file_format, size))


def test_huge_pictures_take_no_memory(tmp_path):
    for file_format in FORMATS:
        (tmp_path / f"{file_format}.small").write_bytes(encode(scene(), file_format))
        (tmp_path / f"{file_format}.huge").write_bytes(claiming_size(file_format, BOMBS[file_format]))
    program = """
import resource, sys
from pathlib import Path
from models.errors import TooManyPixels
from models.preprocess import read_picture
peak_kib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in Path(sys.argv[1]).glob("*.small"):
    read_picture(path.read_bytes())
before = peak_kib()
for path in Path(sys.argv[1]).glob("*.huge"):
    try:
        read_picture(path.read_bytes())
    except TooManyPixels:
        continue
    raise AssertionError(path)
print(peak_kib() - before)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = ran(*command, check=True, timeout=300)
    assert int(ended.stdout) < 20 * 1024
