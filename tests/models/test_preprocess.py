"""Pictures become the network's input: decoded at a reduced scale, cropped, resized, normalized."""

import random
import warnings

import msgspec
import numpy as np
import pytest
from PIL import Image

from models.preprocess import (
    InputSpec,
    center_box,
    picture_to_input,
    read_picture,
    to_network_input,
    upright_size,
)
from tests.make import PHOTOS, from_table
from tests.models.pictures import (
    BLUE,
    GREEN,
    RED,
    SPEC,
    difference,
    encode,
    exif,
    foliage,
    scene,
)

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


@from_table
def test_jpeg_is_decoded_with_at_least_1_85_times_the_side_of_the_network(side, decoded):
    # On errors of 6 % more against 1.5 times as many phone pictures a second: benchmarks/LOG.md.
    spec = InputSpec(height=380, width=400, train_px=380)
    data = encode(Image.new("RGB", (side, side)), "JPEG")
    assert picture_to_input(data, spec)[1].image.size == (decoded, decoded)


# ---- network input


def test_network_input_is_contiguous_float32_with_channels_first():
    pixels = to_network_input(scene(), InputSpec(height=40, width=56, train_px=40))
    assert (pixels.shape, pixels.dtype) == ((3, 40, 56), np.float32)
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@from_table
def test_constant_color_is_normalized_by_mean_and_deviation(color, interpolation):
    mean, std = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
    spec = InputSpec(height=16, width=24, train_px=16, interpolation=interpolation, mean=mean, std=std)
    pixels = to_network_input(Image.new("RGB", (101, 57), color), spec)
    for channel in range(3):
        expected = (color[channel] / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(pixels[channel], expected, rtol=1e-5, atol=1e-5)


def assert_one_color_inside(pixels, color):
    """Only the border may have other colors, since the resampling filter reads a little beyond the crop."""
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


@from_table
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


@from_table
def test_input_description_out_of_range_is_refused(change):
    record = {"height": 380, "width": 380, "train_px": 320}
    assert msgspec.convert(record, InputSpec) == InputSpec(height=380, width=380, train_px=320)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(record | change, InputSpec)


# ---- photographs


@pytest.mark.photos
def test_every_photograph_decodes():
    spec = InputSpec(height=380, width=380, train_px=320)
    paths = sorted(path for path in (PHOTOS / "photos").rglob("*") if path.suffix.lower() in {".jpg", ".heic"})
    assert paths
    for path in paths:
        data = path.read_bytes()
        with warnings.catch_warnings(action="ignore"):  # cameras write invalid EXIF
            pixels, picture = picture_to_input(data, spec)
            assert upright_size(data) == (picture.width, picture.height), path
        assert np.isfinite(pixels).all(), path
        assert pixels.std() > 0.1, path


@pytest.mark.photos
@pytest.mark.parametrize("name", ["landscape", "portrait"])
def test_photograph_of_every_orientation_gives_one_input(name):
    spec = InputSpec(height=128, width=128, train_px=128)
    first, *others = [
        picture_to_input((PHOTOS / "photos" / "orientation" / f"{name}_{orientation}.jpg").read_bytes(), spec)
        for orientation in range(1, 9)
    ]
    for pixels, picture in others:
        assert (picture.width, picture.height) == (first[1].width, first[1].height)
        # Each shows its number in large digits; with a wrong orientation none correlates above 0.7.
        assert np.corrcoef(pixels.ravel(), first[0].ravel())[0, 1] > 0.95
