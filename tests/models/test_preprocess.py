"""Picture bytes become upright RGB and then the network's input, and whatever cannot is refused by name."""

import contextlib
import io
import os
import random
import re
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from models.errors import PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import (
    PIXEL_LIMITS,
    InputSpec,
    center_box,
    picture_to_input,
    read_picture,
    sniff_format,
    to_network_input,
    upright_size,
)
from tests.models.pictures import (
    BLUE,
    FORMATS,
    GREEN,
    LANDSCAPE,
    PORTRAIT,
    RED,
    as_camera_file,
    as_stored,
    claiming_size,
    encode,
    exif,
    exif_with_entries,
    foliage,
    png,
    png_chunk,
    scene,
)

ROOT = Path(__file__).resolve().parents[2]
SPEC = InputSpec(height=32, width=32, train_px=32)
NOT_A_TIFF = b"Exif\0\0no directory stands here"
LEAKS = re.compile(r"0x[0-9a-fA-F]+|object at|BytesIO")


def seen(data, *points):
    """The mode and colors of the picture at (x, y) points."""
    image = read_picture(data).image
    assert image.mode == "RGB"
    return [image.getpixel(point) for point in points]


def difference(first, second):
    return float(np.abs(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)).mean())


# ---- upright


@pytest.mark.parametrize("size", [LANDSCAPE, PORTRAIT], ids=["landscape", "portrait"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", FORMATS)
def test_rotated_phone_photo_is_upright(file_format, orientation, size):
    upright = scene(size)
    data = as_camera_file(upright, file_format, orientation)
    pixels, picture = picture_to_input(data, SPEC)
    assert (picture.width, picture.height) == picture.image.size == upright_size(data) == size
    assert difference(picture.image, upright) < 3
    assert difference(pixels, to_network_input(upright, SPEC)) < 0.03


def test_drawn_scene_tells_all_orientations_apart():
    inputs = [to_network_input(as_stored(scene((64, 64)), orientation), SPEC) for orientation in range(1, 9)]
    for index, first in enumerate(inputs):
        assert all(difference(first, other) > 0.3 for other in inputs[:index])


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientation_outside_the_standard_leaves_the_picture_as_it_is(orientation):
    data = encode(scene(), "JPEG", exif=exif(orientation))
    assert difference(read_picture(data).image, scene()) < 3


def test_exif_behind_the_pixels_of_a_png_still_turns_it():
    rows = [bytes(RED + GREEN), bytes(RED + GREEN), bytes(RED + GREEN)]
    data = png((2, 3), 8, 2, rows, behind=png_chunk(b"eXIf", exif(6)[6:]))
    assert upright_size(data) == read_picture(data).image.size == (3, 2)
    assert seen(data, (0, 0), (0, 1)) == [RED, GREEN]


@pytest.mark.filterwarnings("ignore")  # Pillow warns of damaged EXIF
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "HEIF"])
def test_damaged_exif_does_not_refuse_a_sound_picture(file_format):
    data = encode(scene(), file_format, exif=NOT_A_TIFF)
    assert difference(read_picture(data).image, scene()) < 3
    assert upright_size(data) == LANDSCAPE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param((0x131, 12, 1, b"\0\0\0\x08"), id="software that is a number"),
        pytest.param((0x131, 5, 1, b"\0\0\0\x08"), id="software that is a fraction"),
        pytest.param((0x8769, 2, 2, b"ab\0\0"), id="directory pointer that is a text"),
        pytest.param((0x8825, 3, 1, b"\xff\xff\0\0"), id="directory pointer past the end"),
        pytest.param((0x8769, 9, 1, b"\xff\xff\xff\x00"), id="directory pointer below 0"),
    ],
)
def test_odd_exif_tag_keeps_no_rotated_photo_out(file_format, odd):
    tags = exif_with_entries((0x112, 3, 1, b"\0\6\0\0"), odd)
    data = encode(as_stored(scene(), 6), file_format, exif=tags)
    picture = read_picture(data)
    assert (picture.width, picture.height) == picture.image.size == upright_size(data) == LANDSCAPE
    assert difference(picture.image, scene()) < 3


# ---- colors

TRANSPARENT_PALETTE = Image.new("P", (3, 1))
TRANSPARENT_PALETTE.putpalette([*RED, *GREEN, *BLUE])
TRANSPARENT_PALETTE.putdata([0, 1, 2])
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def test_palette_becomes_its_colors():
    assert seen(encode(TRANSPARENT_PALETTE, "PNG"), (0, 0), (1, 0), (2, 0)) == [RED, GREEN, BLUE]


def test_transparent_palette_entry_lies_on_white():
    data = encode(TRANSPARENT_PALETTE, "PNG", transparency=1)
    assert seen(data, (0, 0), (1, 0), (2, 0)) == [RED, WHITE, BLUE]


def test_half_transparent_palette_entries_lie_on_white():
    data = encode(TRANSPARENT_PALETTE, "PNG", transparency=bytes([255, 0, 102]))
    *sure, mixed = seen(data, (0, 0), (1, 0), (2, 0))
    assert sure == [RED, WHITE]
    assert mixed == pytest.approx([0.4 * c + 0.6 * 255 for c in BLUE], abs=1.01)


def test_grey_becomes_three_equal_channels():
    assert seen(encode(Image.new("L", (4, 4), 77), "PNG"), (1, 1)) == [(77, 77, 77)]
    assert seen(encode(Image.new("L", (16, 16), 77), "JPEG"), (1, 1)) == [(77, 77, 77)]


def test_grey_with_alpha_lies_on_white():
    image = Image.new("LA", (3, 1))
    image.putdata([(50, 255), (50, 0), (50, 127)])
    assert seen(encode(image, "PNG"), (0, 0), (1, 0)) == [(50, 50, 50), WHITE]
    assert seen(encode(image, "PNG"), (2, 0))[0] == pytest.approx([153] * 3, abs=1.01)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "HEIF", "AVIF"])
def test_alpha_lies_on_white(file_format):
    image = Image.new("RGBA", (64, 64), (*BLUE, 255))
    image.paste((*RED, 0), (0, 0, 32, 64))
    clear, solid = seen(encode(image, file_format), (8, 8), (56, 8))
    assert clear == pytest.approx(WHITE, abs=6)
    assert solid == pytest.approx(BLUE, abs=6)


def test_cmyk_jpeg_keeps_its_colors():
    drawn = Image.new("RGB", (32, 16), RED)
    drawn.paste(BLUE, (16, 0, 32, 16))
    data = encode(drawn.convert("CMYK"), "JPEG")
    red, blue = seen(data, (4, 8), (28, 8))
    assert red == pytest.approx(RED, abs=6)
    assert blue == pytest.approx(BLUE, abs=6)


def test_one_bit_picture_is_black_and_white():
    image = Image.new("1", (2, 1))
    image.putdata([0, 255])
    assert seen(encode(image, "PNG"), (0, 0), (1, 0)) == [BLACK, WHITE]


def test_16_bit_grey_png_spans_black_to_white():
    data = png((3, 1), 16, 0, [struct.pack(">3H", 0, 128 * 257, 65535)])
    assert seen(data, (0, 0), (1, 0), (2, 0)) == [BLACK, (128, 128, 128), WHITE]


def test_transparent_16_bit_grey_lies_on_white():
    data = png((3, 1), 16, 0, [struct.pack(">3H", 0, 1000, 30 * 257)], png_chunk(b"tRNS", struct.pack(">H", 1000)))
    assert seen(data, (0, 0), (1, 0), (2, 0)) == [BLACK, WHITE, (30, 30, 30)]


def test_16_bit_colors_keep_their_high_bytes():
    samples = [200 * 257, 100 * 257, 0, 0, 65535, 7 * 257]
    assert seen(png((2, 1), 16, 2, [struct.pack(">6H", *samples)]), (0, 0), (1, 0)) == [(200, 100, 0), (0, 255, 7)]


def test_16_bit_alpha_lies_on_white():
    grey = png((2, 1), 16, 4, [struct.pack(">4H", 40 * 257, 65535, 40 * 257, 0)])
    color = png((2, 1), 16, 6, [struct.pack(">8H", 0, 65535, 0, 65535, 0, 0, 0, 0)])
    assert seen(grey, (0, 0), (1, 0)) == [(40, 40, 40), WHITE]
    assert seen(color, (0, 0), (1, 0)) == [(0, 255, 0), WHITE]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_of_grey_are_stretched_to_eight(depth):
    darkest_then_lightest = bytes([(2**depth - 1) << (8 - 2 * depth)])
    assert seen(png((2, 1), depth, 0, [darkest_then_lightest]), (0, 0), (1, 0)) == [BLACK, WHITE]


def test_wide_grey_that_pillow_wrote_keeps_its_brightness():
    image = Image.fromarray(np.array([[0, 60 * 257, 65535]], dtype=np.uint16))
    assert image.mode == "I;16"
    data = encode(image, "PNG")
    assert seen(data, (0, 0), (1, 0), (2, 0)) == [BLACK, (60, 60, 60), WHITE]


@pytest.mark.parametrize(("mode", "transparent"), [("L", 50), ("RGB", RED), ("1", 0)])
def test_transparent_color_of_a_png_lies_on_white(mode, transparent):
    image = Image.new(mode, (2, 1), transparent)
    image.putpixel((1, 0), {"L": 51, "RGB": BLUE, "1": 255}[mode])
    solid = {"L": (51, 51, 51), "RGB": BLUE, "1": WHITE}[mode]
    assert seen(encode(image, "PNG", transparency=transparent), (0, 0), (1, 0)) == [WHITE, solid]


@pytest.mark.parametrize("file_format", FORMATS)
def test_plain_colors_survive_every_format(file_format):
    drawn = Image.new("RGB", (64, 64), GREEN)
    assert seen(encode(drawn, file_format), (32, 32))[0] == pytest.approx(GREEN, abs=5)


# ---- formats

MP4 = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + b"\0" * 64


def drawn_as(file_format):
    return encode(Image.new("RGB", (8, 8), RED), file_format)


@pytest.mark.parametrize("file_format", FORMATS)
def test_bytes_tell_the_format(file_format):
    data = encode(scene(), file_format)
    assert sniff_format(data) == read_picture(data).format == file_format
    assert file_format in PIXEL_LIMITS


@pytest.mark.parametrize(("brand", "name"), [(b"mif1", "HEIF"), (b"heix", "HEIF"), (b"avis", "AVIF")])
def test_every_brand_of_a_format_counts(brand, name):
    assert sniff_format(b"\0\0\0\x10ftyp" + brand + b"\0\0\0\0") == name


def test_compatible_brands_tell_avif_from_heic():
    assert sniff_format(b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif") == "AVIF"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(drawn_as("GIF"), id="GIF"),
        pytest.param(drawn_as("BMP"), id="BMP"),
        pytest.param(drawn_as("TIFF"), id="TIFF"),
        pytest.param(drawn_as("ICO"), id="ICO"),
        pytest.param(drawn_as("JPEG2000"), id="JPEG 2000"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="SVG"),
        pytest.param(b"<!DOCTYPE html><html></html>", id="HTML"),
        pytest.param(b"%PDF-1.7\n", id="PDF"),
        pytest.param(b"RIFF\x24\0\0\0WAVEfmt ", id="WAV"),
        pytest.param(MP4, id="MP4"),
        pytest.param(b"\xff\xd8", id="two bytes of a JPEG"),
        pytest.param(b"\0" * 100, id="zeros"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("function", [read_picture, upright_size, sniff_format])
def test_other_bytes_are_an_unsupported_format(function, data):
    with pytest.raises(UnsupportedFormat, match="JPEG, PNG, WebP, HEIC or AVIF"):
        function(data)


def test_nothing_at_all_is_called_nothing():
    with pytest.raises(UnsupportedFormat, match="got nothing"):
        read_picture(b"")


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


@pytest.mark.parametrize("file_format", FORMATS)
def test_leading_bytes_alone_are_an_unreadable_image(file_format):
    start = encode(scene(), file_format)[:16] + b"\xa7" * 200
    for function in (read_picture, upright_size):
        with pytest.raises(UnreadableImage) as caught:
            function(start)
        assert not LEAKS.search(str(caught.value))


def mutations(data, generator, number):
    """Damaged copies: flipped bytes, lost, repeated and swapped stretches."""
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


@pytest.mark.filterwarnings("ignore")  # what Pillow warns of in damaged files is told by our own errors
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_random_exif_refuses_no_sound_picture(file_format):
    generator = random.Random(7)
    for _ in range(200):
        entries = [(0x112, 3, 1, b"\0\6\0\0")]
        for _ in range(generator.randrange(1, 4)):
            tag = generator.choice([0x10F, 0x131, 0x8769, 0x8825, 0x11A, 0x9286, 0x14A, 0x2BC, 0x8773])
            kind = generator.choice([1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 129])
            entries.append((tag, kind, generator.randrange(6), generator.randbytes(4)))
        data = encode(Image.new("RGB", (8, 6), RED), file_format, exif=exif_with_entries(*entries))
        picture = read_picture(data)
        assert (picture.width, picture.height) == picture.image.size == upright_size(data)


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
    started = time.perf_counter()
    with pytest.raises(TooManyPixels, match=f"at most {PIXEL_LIMITS[file_format] // 1_000_000} megapixels"):
        function(data)
    assert time.perf_counter() - started < 1


def test_pixel_limits_depend_on_the_format():
    thirty_megapixels, ninety_megapixels = (6_000, 5_000), (10_000, 9_000)
    assert upright_size(claiming_size("JPEG", ninety_megapixels)) == ninety_megapixels
    assert upright_size(claiming_size("AVIF", thirty_megapixels)) == thirty_megapixels
    for file_format, size in (("AVIF", ninety_megapixels), ("WEBP", thirty_megapixels)):
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
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert int(ended.stdout) < 20 * 1024


# ---- decoding at reduced scale

PHOTO_SIZE = (1600, 1200)


@pytest.fixture(scope="module")
def photo():
    return encode(foliage(PHOTO_SIZE), "JPEG", quality=90)


@pytest.mark.parametrize("side_px", [64, 144, 256])
def test_reduced_decode_gives_nearly_the_input_of_a_full_decode(photo, side_px):
    spec = InputSpec(height=side_px, width=side_px, train_px=side_px)
    pixels, picture = picture_to_input(photo, spec)
    assert picture.image.size < PHOTO_SIZE, "the decode must have been reduced, or this test shows nothing"
    assert min(picture.image.size) >= 2 * side_px
    assert (picture.width, picture.height) == PHOTO_SIZE
    assert difference(pixels, to_network_input(read_picture(photo).image, spec)) < 0.02


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(803, 605), (800, 600)])
def test_reduced_decode_keeps_the_wanted_pixels(size, orientation):
    data = encode(foliage(size), "JPEG", exif=exif(orientation))
    short = size[1]
    eighth, quarter, half = (-(-short // denominator) for denominator in (8, 4, 2))
    sides = {}
    for wanted in (
        *range(1, short, 29),
        *(side + more for side in (eighth, quarter, half, short) for more in (-1, 0, 1)),
    ):
        picture = read_picture(data, min_side_px=wanted)
        sides[wanted] = min(picture.image.size)
        assert sides[wanted] >= min(wanted, short)
        assert {picture.width, picture.height} == set(size)
    assert set(sides.values()) == {eighth, quarter, half, short}


def test_crop_asks_the_decoder_for_more_pixels(photo):
    whole = InputSpec(height=144, width=144, train_px=144)
    half = InputSpec(height=144, width=144, train_px=144, crop_fraction=0.5)
    assert picture_to_input(photo, whole)[1].image.size == (400, 300)
    assert picture_to_input(photo, half)[1].image.size == (800, 600)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "HEIF", "AVIF"])
def test_only_jpeg_is_decoded_at_reduced_scale(file_format):
    data = encode(scene((160, 120)), file_format)
    assert read_picture(data, min_side_px=8).image.size == (160, 120)


# ---- network input


def test_network_input_is_contiguous_float32_with_channels_first():
    pixels = to_network_input(scene(), InputSpec(height=40, width=56, train_px=40))
    assert (pixels.shape, pixels.dtype) == ((3, 40, 56), np.float32)
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("color", [(0, 0, 0), (255, 255, 255), (17, 130, 201)])
def test_constant_color_is_normalized_by_mean_and_deviation(color, interpolation):
    mean, std = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
    spec = InputSpec(height=16, width=24, train_px=16, interpolation=interpolation, mean=mean, std=std)
    pixels = to_network_input(Image.new("RGB", (101, 57), color), spec)
    for channel in range(3):
        expected = (color[channel] / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(pixels[channel], expected, rtol=1e-5, atol=1e-5)


def test_red_comes_first_and_blue_last():
    red, green, blue = to_network_input(Image.new("RGB", (8, 8), (255, 128, 0)), SPEC)
    assert red.min() > green.max() > blue.max()


def assert_one_color_inside(pixels, color):
    """All but the rim is of one color: at the rim the resampling filter rightly looks a little past the crop."""
    expected = to_network_input(Image.new("RGB", (8, 8), color), SPEC)[:, :1, :1]
    inside = pixels[:, 4:-4, 4:-4]
    np.testing.assert_allclose(inside, np.broadcast_to(expected, inside.shape), atol=1e-6)


def test_center_of_the_picture_is_kept_and_its_ends_are_not():
    image = Image.new("RGB", (300, 100), RED)
    image.paste(BLUE, (100, 0, 200, 100))
    assert_one_color_inside(to_network_input(image, SPEC), BLUE)
    assert_one_color_inside(to_network_input(image.transpose(Image.Transpose.ROTATE_90), SPEC), BLUE)


def test_crop_fraction_keeps_the_middle():
    image = Image.new("RGB", (100, 100), RED)
    image.paste(BLUE, (25, 25, 75, 75))
    half = InputSpec(height=32, width=32, train_px=32, crop_fraction=0.5)
    assert_one_color_inside(to_network_input(image, half), BLUE)
    whole = to_network_input(image, SPEC)
    assert difference(whole[:, 0, 0], to_network_input(Image.new("RGB", (8, 8), RED), SPEC)[:, 0, 0]) < 1e-6


def test_wide_input_crops_only_the_height():
    image = Image.new("RGB", (200, 200), RED)
    image.paste(BLUE, (0, 50, 200, 150))
    assert_one_color_inside(to_network_input(image, InputSpec(height=32, width=64, train_px=32)), BLUE)
    image = Image.new("RGB", (200, 200), RED)
    image.paste(BLUE, (0, 0, 100, 200))
    left, right = np.split(to_network_input(image, InputSpec(height=32, width=64, train_px=32)), 2, axis=2)
    assert_one_color_inside(left, BLUE)
    assert_one_color_inside(right, RED)


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (10_000, 1), (1, 10_000), (3, 4_999)])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_extreme_shapes_have_an_input(file_format, size):
    data = encode(Image.new("RGB", size, GREEN), file_format)
    pixels, picture = picture_to_input(data, SPEC)
    assert (picture.width, picture.height) == size
    expected = to_network_input(Image.new("RGB", (8, 8), GREEN), SPEC)
    assert difference(pixels, expected) < 0.05


def test_crop_stays_inside_whatever_the_size():
    generator = random.Random(11)
    for _ in range(20_000):
        width, height = (int(10 ** generator.uniform(0, 4)) for _ in range(2))
        spec = InputSpec(
            height=generator.randrange(8, 600),
            width=generator.randrange(8, 600),
            train_px=32,
            crop_fraction=generator.choice([1.0, 1.0, 0.875, generator.uniform(0.01, 1.0)]),
        )
        left, upper, right, lower = center_box(width, height, spec)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert (left + right, upper + lower) == pytest.approx((width, height))
        assert (right - left) / (lower - upper) == pytest.approx(spec.width / spec.height)
        used = max((right - left) / width, (lower - upper) / height)
        assert used == pytest.approx(spec.crop_fraction)


@pytest.mark.parametrize("size", [(49, 100), (59, 100), (98, 100), (100, 49)])
def test_sizes_whose_crop_rounds_past_the_edge_have_an_input(size):
    spec = InputSpec(height=380, width=380, train_px=380)
    assert to_network_input(scene(size), spec).shape == (3, 380, 380)


@pytest.mark.parametrize(
    "change",
    [
        {"height": 7}, {"width": 4097}, {"crop_fraction": 0.0}, {"crop_fraction": 1.01}, {"std": [0.2, 0.0, 0.2]},
        {"interpolation": "nearest"}, {"resize": "squash"}, {"mean": [0.5, 0.5]}, {"heigth": 380},
    ],
    ids=str,
)  # fmt: skip
def test_input_description_out_of_range_is_refused(change):
    record = {"height": 380, "width": 380, "train_px": 320}
    assert msgspec.convert(record, InputSpec) == InputSpec(height=380, width=380, train_px=320)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(record | change, InputSpec)


# ---- photographs

PHOTOS = Path(os.environ.get("BOTANIFY_PHOTOS", ROOT.parent / "shared" / "data")) / "photos"
needs_photos = pytest.mark.skipif(
    not PHOTOS.is_dir(), reason=f"no photographs in {PHOTOS}; name others in BOTANIFY_PHOTOS"
)


@pytest.mark.photos
@needs_photos
def test_every_photograph_decodes():
    spec = InputSpec(height=380, width=380, train_px=320)
    paths = sorted(path for path in PHOTOS.rglob("*") if path.suffix.lower() in {".jpg", ".heic"})
    assert paths
    for path in paths:
        data = path.read_bytes()
        with warnings.catch_warnings(action="ignore"):  # cameras write odd EXIF
            pixels, picture = picture_to_input(data, spec)
            assert upright_size(data) == (picture.width, picture.height), path
        assert np.isfinite(pixels).all(), path
        assert pixels.std() > 0.1, path


@pytest.mark.photos
@needs_photos
@pytest.mark.parametrize("name", ["landscape", "portrait"])
def test_photograph_of_every_orientation_gives_one_input(name):
    spec = InputSpec(height=128, width=128, train_px=128)
    first, *others = [
        picture_to_input((PHOTOS / "orientation" / f"{name}_{orientation}.jpg").read_bytes(), spec)
        for orientation in range(1, 9)
    ]
    for pixels, picture in others:
        assert (picture.width, picture.height) == (first[1].width, first[1].height)
        # Each bears its own number in large figures; turned wrongly, none correlates above 0.7.
        assert np.corrcoef(pixels.ravel(), first[0].ravel())[0, 1] > 0.95
