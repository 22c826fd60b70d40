"""Every picture is converted to upright RGB, whatever its orientation, colors and transparency."""

import struct

import numpy as np
import pytest
from PIL import Image

from models.preprocess import (
    in_srgb,
    picture_to_input,
    read_picture,
    to_network_input,
    to_rgb,
    upright_size,
)
from tests.make import from_table
from tests.models.pictures import (
    BLUE,
    DISPLAY_P3,
    FORMATS,
    GREEN,
    LANDSCAPE,
    PORTRAIT,
    RED,
    SPEC,
    as_camera_file,
    as_stored,
    color_profile,
    difference,
    encode,
    exif,
    exif_with_entries,
    foliage,
    png,
    png_chunk,
    scene,
    seen,
)

NOT_A_TIFF = b"Exif\0\0no directory stands here"


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


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientation_outside_the_standard_leaves_the_picture_as_it_is(orientation):
    data = encode(scene(), "JPEG", exif=exif(orientation))
    found = read_picture(data)
    assert difference(found.image, scene()) < 3
    assert (found.width, found.height) == upright_size(data) == LANDSCAPE


def test_exif_after_the_pixels_of_a_png_is_applied():
    rows = [bytes(RED + GREEN), bytes(RED + GREEN), bytes(RED + GREEN)]
    data = png((2, 3), 8, 2, rows, behind=png_chunk(b"eXIf", exif(6)[6:]))
    assert upright_size(data) == read_picture(data).image.size == (3, 2)
    assert seen(data, (0, 0), (0, 1)) == [RED, GREEN]


@pytest.mark.filterwarnings("ignore")  # Pillow warns of damaged EXIF
@pytest.mark.parametrize("file_format", FORMATS)
def test_damaged_exif_does_not_refuse_an_intact_picture(file_format):
    if file_format == "AVIF":  # Pillow writes no damaged EXIF into it
        whole = encode(scene(), "AVIF", exif=exif_with_entries((0x131, 2, 4, b"abc\0")))
        data = whole.replace(b"MM\0*", b"nope").replace(b"II*\0", b"nope")
        assert data != whole
    else:
        data = encode(scene(), file_format, exif=NOT_A_TIFF)
    assert difference(read_picture(data).image, scene()) < 3
    assert upright_size(data) == LANDSCAPE


ODD_TAGS = {
    "software that is a number": (0x131, 12, 1, b"\0\0\0\x08"),
    "software that is a fraction": (0x131, 5, 1, b"\0\0\0\x08"),
    "directory pointer that is a text": (0x8769, 2, 2, b"ab\0\0"),
    "directory pointer past the end": (0x8825, 3, 1, b"\xff\xff\0\0"),
    "directory pointer below 0": (0x8769, 9, 1, b"\xff\xff\xff\x00"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("odd", ODD_TAGS.values(), ids=ODD_TAGS)
def test_invalid_exif_tag_does_not_refuse_a_rotated_photo(file_format, odd):
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


def test_transparent_palette_entry_is_blended_with_white():
    data = encode(TRANSPARENT_PALETTE, "PNG", transparency=1)
    assert seen(data, (0, 0), (1, 0), (2, 0)) == [RED, WHITE, BLUE]


def test_half_transparent_palette_entries_are_blended_with_white():
    data = encode(TRANSPARENT_PALETTE, "PNG", transparency=bytes([255, 0, 102]))
    *sure, mixed = seen(data, (0, 0), (1, 0), (2, 0))
    assert sure == [RED, WHITE]
    assert mixed == pytest.approx([0.4 * c + 0.6 * 255 for c in BLUE], abs=1.01)


def test_gray_with_alpha_is_blended_with_white():
    image = Image.new("LA", (3, 1))
    image.putdata([(50, 255), (50, 0), (50, 127)])
    assert seen(encode(image, "PNG"), (0, 0), (1, 0)) == [(50, 50, 50), WHITE]
    assert seen(encode(image, "PNG"), (2, 0))[0] == pytest.approx([153] * 3, abs=1.01)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "HEIF", "AVIF"])
def test_alpha_is_blended_with_white(file_format):
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


@from_table
def test_16_bits_keep_their_high_bytes_and_are_blended_with_white(color_type, samples, colors, transparent):
    data = png(
        (len(colors), 1),
        16,
        color_type,
        [struct.pack(f">{len(samples)}H", *samples)],
        *(png_chunk(b"tRNS", struct.pack(">H", gray)) for gray in transparent),
    )
    assert seen(data, *((x, 0) for x in range(len(colors)))) == [*map(tuple, colors)]


@pytest.mark.parametrize(("mode", "transparent"), [("L", 50), ("RGB", RED), ("1", 0)])
def test_transparent_color_of_a_png_becomes_white(mode, transparent):
    image = Image.new(mode, (2, 1), transparent)
    image.putpixel((1, 0), {"L": 51, "RGB": BLUE, "1": 255}[mode])
    solid = {"L": (51, 51, 51), "RGB": BLUE, "1": WHITE}[mode]
    assert seen(encode(image, "PNG", transparency=transparent), (0, 0), (1, 0)) == [WHITE, solid]


# Red, green and white of sRGB, written in Display P3.
IN_P3 = {(234, 51, 35): (255, 0, 0), (117, 251, 76): (0, 255, 0), WHITE: WHITE}


def two_colors(pair, mode="RGB"):
    image = Image.new("RGB", (64, 64), pair[0])
    image.paste(pair[1], (32, 0, 64, 64))
    return image.quantize(2) if mode == "P" else image.convert(mode)


@pytest.mark.parametrize(
    ("file_format", "mode"), [*((each, "RGB") for each in FORMATS), ("PNG", "RGBA"), ("HEIF", "RGBA"), ("PNG", "P")]
)
def test_colors_with_a_profile_become_those_of_srgb(file_format, mode):
    wide, usual = (two_colors(list(side)[:2], mode) for side in (IN_P3, IN_P3.values()))
    data = encode(wide, file_format, icc_profile=color_profile(*DISPLAY_P3))
    pixels, picture = picture_to_input(data, SPEC)
    assert difference(pixels, to_network_input(usual.convert("RGB"), SPEC)) < 0.04
    assert difference(in_srgb(picture.image.rotate(90)), usual.convert("RGB").rotate(90)) < 3
    assert np.abs(np.subtract(in_srgb(picture.image).getpixel((60, 60)), list(IN_P3.values())[1])).max() <= 9


KEPT = {
    "sRGB": ("RGB", color_profile()),
    "rounded sRGB": ("RGB", color_profile((0.436, 0.222, 0.014), (0.385, 0.717, 0.097), (0.143, 0.061, 0.714))),
    "damaged": ("RGB", color_profile(*DISPLAY_P3)[:300]),
    "nonsense": ("RGB", b"no profile"),
    "of gray": ("RGB", color_profile(*DISPLAY_P3).replace(b"RGB XYZ", b"GRAYXYZ")),
    "with damaged tables": ("RGB", color_profile(*DISPLAY_P3).replace(b"chrm", b"A2B0")),
    "very long": ("RGB", color_profile(*DISPLAY_P3) + bytes(70_000)),
    "of a gray picture": ("L", color_profile(*DISPLAY_P3)),
    "of CMYK": ("CMYK", color_profile(*DISPLAY_P3)),
}


@pytest.mark.parametrize(("mode", "profile"), KEPT.values(), ids=KEPT)
def test_every_bit_is_kept_with_srgb_and_with_what_is_no_matrix_of_rgb(mode, profile):
    image = foliage((200, 150)).convert(mode)
    with_profile, without = (encode(image, "JPEG", icc_profile=each, subsampling=-1) for each in (profile, None))
    assert profile[:40] in with_profile
    np.testing.assert_array_equal(picture_to_input(with_profile, SPEC)[0], picture_to_input(without, SPEC)[0])


LARGE = (1_300, 700)  # several tiles, the last ones smaller


def on_white(image):
    """The whole picture at once, by the formula of alpha compositing."""
    *colors, alpha = np.moveaxis(np.asarray(image.convert("RGBA"), dtype=np.float64), 2, 0)
    share = alpha / 255
    return np.stack([color * share + 255 * (1 - share) for color in colors], axis=2)


@pytest.mark.parametrize("size", [LARGE, (600_000, 3), (3, 300_000), (1, 1)], ids=str)
@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "CMYK"])
def test_every_pixel_is_converted_whatever_the_proportions(mode, size):
    image = foliage(LARGE).resize(size).convert("RGBA")
    image.putalpha(foliage(LARGE, seed=2).convert("L").resize(size))
    image = image.convert("RGB").convert("CMYK") if mode == "CMYK" else image.convert(mode)
    rgb = to_rgb(image)
    assert (rgb.mode, rgb.size) == ("RGB", size)
    if mode in {"RGBA", "LA"}:
        assert np.abs(np.asarray(rgb) - on_white(image)).max() <= 1
    else:
        np.testing.assert_array_equal(np.asarray(rgb), np.asarray(image.convert("RGB")))


def test_transparent_entries_of_a_palette_are_white_in_every_tile():
    image = Image.new("P", LARGE, 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(0, (0, 0, LARGE[0] // 2, LARGE[1]))
    image.info["transparency"] = 0
    colors = np.asarray(to_rgb(image))
    assert (colors[:, : LARGE[0] // 2] == 255).all()
    assert (colors[:, LARGE[0] // 2 :] == (200, 100, 50)).all()


def test_sixteen_bits_are_scaled_in_every_tile():
    grey = np.linspace(0, 65_535, LARGE[0] * LARGE[1]).astype(np.uint16).reshape(LARGE[::-1])
    assert difference(np.asarray(to_rgb(Image.fromarray(grey)))[..., 1], grey // 257) == 0
