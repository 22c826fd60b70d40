import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from models.errors import DataError
from models.preprocess import MAX_SIDE_PX, read_picture, upright_size
from tests.models import pictures
from tests.training.loading.shards.prepared import picture_bytes
from training.loading.shards.packing import SourcePicture, encode_picture


@pytest.fixture
def encode(tmp_path):
    """Encodes bytes at short side 64 and quality 90."""

    def run(data):
        file = tmp_path / "picture"
        file.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        source = SourcePicture(str(file), len(data), sha256, *upright_size(data), keep_bytes=False)
        return encode_picture(source, 64, 90)

    return run


def opened(stored):
    return Image.open(io.BytesIO(stored.data))


def test_large_pictures_are_reduced_to_the_short_side(encode):
    stored = encode(picture_bytes(size=(300, 200)))
    assert opened(stored).size == (96, 64) == (stored.width, stored.height)
    assert opened(stored).format == "JPEG"
    assert stored.sha256 == hashlib.sha256(stored.data).hexdigest()


@pytest.mark.parametrize("size", [(300, 200), (60, 40)])
def test_turned_pictures_are_stored_upright_without_exif(encode, size):
    data = picture_bytes(size=size, orientation=6)
    stored = encode(data)
    assert stored.data != data
    assert dict(opened(stored).getexif()) == {}
    assert stored.width < stored.height
    expected = read_picture(data).image.resize((stored.width, stored.height))
    assert np.abs(np.asarray(opened(stored)).astype(int) - np.asarray(expected)).mean() < 8


def test_a_small_picture_in_another_format_becomes_a_jpeg_of_its_size(encode):
    stored = encode(picture_bytes(size=(50, 40), image_format="PNG"))
    assert (opened(stored).format, opened(stored).size) == ("JPEG", (50, 40))
    longest = pictures.encode(Image.new("RGB", (MAX_SIDE_PX, 10), "green"), "PNG")  # that is read, and fits into a JPEG
    assert encode(longest).width == MAX_SIDE_PX


def test_a_picture_in_another_color_space_is_stored_in_srgb(encode):
    image = Image.new("RGB", (300, 200), (234, 51, 35))
    stored = opened(encode(pictures.encode(image, "PNG", icc_profile=pictures.color_profile(*pictures.DISPLAY_P3))))
    assert stored.getpixel((30, 30)) == pytest.approx((255, 0, 0), abs=3)


def test_comments_and_other_metadata_are_dropped(encode):
    data = pictures.encode(pictures.scene((300, 200)), "JPEG", comment="where I live", dpi=(300, 300))
    assert b"where I live" in data
    assert b"where I live" not in encode(data).data


def test_decoding_at_a_reduced_scale_changes_little(encode):
    data = picture_bytes(size=(2000, 1500))
    full = read_picture(data).image.resize((85, 64), Image.Resampling.LANCZOS)
    assert np.abs(np.asarray(opened(encode(data))).astype(int) - np.asarray(full)).mean() < 4


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read: .*gone\.jpg"):
        encode_picture(SourcePicture(str(tmp_path / "gone.jpg"), 9, "0" * 64, 1, 1, keep_bytes=False), 64, 90)
