import numpy as np
import pytest
import simplejpeg
from PIL import Image

from models.errors import TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import read_picture
from tests.make import PHOTOS, cases
from tests.models.pictures import (
    DISPLAY_P3,
    as_camera_file,
    as_stored,
    claiming_size,
    color_profile,
    encode,
    exif,
    foliage,
    scene,
)
from training.loading.decode import Crop, CropReader

# Most mean error of one picture against the full decode with Pillow, in 8-bit levels, by scale of the decode. Measured
# at 380 px (1/8: 126 px) on real photographs: 0.5 on average and 1.1 at worst at scale 1, 1.1 and 2.3 at 1/2, 1.5 and
# 2.4 at 1/4, 1.0 and 1.5 at 1/8. At reduced scales Pillow's own decode differs from its full one by the same.
MOST_ERROR = {1: 1.5, 2: 2.6, 4: 2.6, 8: 2.0}


def reference(data, crop, side_px):
    """The straightforward way: everything decoded, cropped and resized, by Pillow."""
    left, top, width, height = crop
    image = read_picture(data).image
    box = (left, top, left + width, top + height)
    return np.asarray(image.resize((side_px, side_px), Image.Resampling.BICUBIC, box=box)).astype(int)


def read(data, crop, side_px):
    return CropReader(data).read(crop, side_px).numpy().astype(int)


def error(data, crop, side_px):
    return np.abs(read(data, crop, side_px) - reference(data, crop, side_px)).mean()


@pytest.fixture
def decoded_sizes(monkeypatch):
    """Height and width of everything that simplejpeg decodes."""
    sizes = []
    decode = simplejpeg.decode_jpeg

    def spy(*args, **options):
        pixels = decode(*args, **options)
        sizes.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    return sizes


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (203, 301)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_crop_of_a_turned_photo_is_upright(size, orientation):
    data = as_camera_file(scene(size), "JPEG", orientation)
    reader = CropReader(data)
    assert (reader.width, reader.height) == size
    for crop in (Crop(0, 0, *size), Crop(20, 30, 170, 120), Crop(size[0] - 90, size[1] - 81, 90, 81)):
        assert error(data, crop, side_px=64) < 0.5


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_crop_of_a_turned_photo_at_a_reduced_scale_is_upright(orientation, scale, decoded_sizes):
    data = as_camera_file(scene((720, 560)), "JPEG", orientation)
    side_px = 400 // scale
    assert error(data, Crop(240, 80, 440, 400), side_px) < 1.0
    assert sorted(decoded_sizes[0]) == [560 // scale, 720 // scale]


@pytest.mark.parametrize(("crop_px", "expected"), cases(__file__, "scales"))
def test_a_photo_is_decoded_at_the_smallest_scale_that_covers_the_crop(crop_px, expected, decoded_sizes):
    data = encode(scene((1201, 1003)), "JPEG")
    CropReader(data).read(Crop(0, 0, crop_px + 1, crop_px), side_px=100)
    assert decoded_sizes == [(-(-1003 // expected), -(-1201 // expected))]


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_crops_are_close_to_those_of_a_full_decode(scale, subsampling):
    picture = foliage((1280, 960))
    if scale > 1:  # the grain of a large photograph is not that of its single pixels
        picture = picture.resize((320, 240)).resize((1280, 960), Image.Resampling.BICUBIC)
    data = encode(picture, "JPEG", quality=90, subsampling=subsampling)
    assert error(data, Crop(16, 32, 1040, 880), side_px=800 // scale) < MOST_ERROR[scale]


@pytest.mark.photos
@pytest.mark.parametrize(("scale", "side_px"), [(1, 340), (2, 340), (4, 340), (8, 120)])
def test_crops_of_camera_files_are_close_to_those_of_a_full_decode(scale, side_px, decoded_sizes):
    paths = sorted((PHOTOS / "photos").glob("*.jpg"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        edge = -(-side_px * scale // 8) * 8  # whole blocks, so that rounding moves nothing
        assert error(data, Crop(80, 160, edge, edge), side_px) < MOST_ERROR[scale]
        picture = CropReader(data)
        assert min(decoded_sizes.pop()) == -(-min(picture.width, picture.height) // scale)


def test_a_reduced_decode_moves_the_crop_by_half_a_pixel_at_most(decoded_sizes):
    ramp = np.broadcast_to(np.arange(512) // 2, (512, 512)).astype(np.uint8)  # two levels are a pixel at 1/4
    data = encode(Image.fromarray(ramp).convert("RGB"), "JPEG")
    for left in range(48, 64):
        crop = Crop(left, 0, 400, 400)
        difference = read(data, crop, 100)[:, 5:-5] - reference(data, crop, 100)[:, 5:-5]
        assert abs(difference.mean()) < 1.75  # half a pixel, and half a level of rounding
    assert set(decoded_sizes) == {(128, 128)}


@pytest.mark.parametrize(
    "data",
    [
        encode(scene((300, 200)), "PNG"),
        encode(scene((300, 200)), "WEBP"),
        encode(scene((300, 200)).convert("L"), "JPEG", subsampling=-1),
        encode(scene((300, 200)).convert("CMYK"), "JPEG"),
        encode(scene((300, 200)), "JPEG", progressive=True),
        encode(scene((300, 200)), "JPEG", keep_rgb=True),
        encode(scene((300, 200)).convert("CMYK"), "JPEG", exif=exif(6)),
        encode(scene((300, 200)).convert("RGBA"), "PNG"),
    ],
    ids=["png", "webp", "gray", "cmyk", "progressive", "stored as RGB", "turned cmyk", "alpha"],
)
def test_every_kind_of_picture_becomes_rgb(data):
    assert error(data, Crop(20, 30, 170, 120), side_px=64) < 0.5


def test_a_photo_with_stray_bytes_is_read_as_pillow_reads_it():
    whole = encode(scene((300, 200)), "JPEG")
    at = whole.index(b"\xff\xdb")
    stray = whole[:at] + b"\x00\x12" + whole[at:]
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(stray)
    assert error(stray, Crop(20, 30, 170, 120), side_px=64) < 0.5


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_photo_is_refused(share):
    whole = encode(foliage((300, 200)), "JPEG")
    with pytest.raises(UnreadableImage):
        read(whole[: int(len(whole) * share)], Crop(0, 0, 300, 200), side_px=64)


@pytest.mark.parametrize("data", [b"", b"<html>", b"GIF89a"])
def test_bytes_that_are_not_a_picture_are_refused(data):
    with pytest.raises(UnsupportedFormat):
        CropReader(data)


def test_a_photo_with_too_many_pixels_is_refused_before_it_is_decoded(decoded_sizes):
    with pytest.raises(TooManyPixels):
        CropReader(claiming_size("JPEG", (20_000, 20_000)))
    assert not decoded_sizes


def test_a_photo_with_damaged_exif_is_read_as_it_is_stored():
    data = as_camera_file(scene((300, 200)), "JPEG", 6)
    at = data.index(b"Exif\0\0")
    damaged = data[: at + 6] + b"\xff" * 8 + data[at + 14 :]
    assert (CropReader(damaged).width, CropReader(damaged).height) == (200, 300)
    assert error(damaged, Crop(20, 30, 120, 170), side_px=64) < 0.5


@pytest.mark.parametrize("options", [{"exif": exif(6)}, {"exif": exif(6), "progressive": True}, {}], ids=str)
def test_a_crop_of_a_photo_in_another_color_space_is_in_srgb(options):
    data = encode(
        Image.new("RGB", (300, 200), (234, 51, 35)), "JPEG", icc_profile=color_profile(*DISPLAY_P3), **options
    )
    for each in (data, data[:-2]):  # the second is decoded by Pillow
        assert np.abs(read(each, Crop(10, 10, 150, 150), side_px=32) - (255, 0, 0)).max() <= 3


def test_the_orientation_in_xmp_counts_as_in_evaluation():
    packet = (
        b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'><a tiff:Orientation=\"6\"/></x:xmpmeta>"
    )
    plain = encode(as_stored(scene((300, 200)), 6), "JPEG")
    data = plain[:2] + b"\xff\xe1" + (len(packet) + 2).to_bytes(2, "big") + packet + plain[2:]
    picture = read_picture(data)
    assert (CropReader(data).width, CropReader(data).height) == (picture.width, picture.height)
    assert error(data, Crop(0, 0, picture.width, picture.height), side_px=64) < 0.5


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (7, 9)])
def test_the_smallest_pictures_are_enlarged(size):
    data = encode(scene(size), "JPEG")
    assert read(data, Crop(0, 0, *size), side_px=32).shape == (32, 32, 3)
