"""The pictures that the benchmarks send are what they say."""

import pytest

from benchmarks.serving.photographs import (
    broken,
    drawn,
    drawn_photographs,
    hostile_webp,
    others,
    oversized_png,
    photographs,
)
from models.errors import DataError, TooManyPixels, UnreadableImage
from models.preprocess import read_picture, upright_size
from tests.make import PHOTOS


def test_drawn_photographs_have_one_and_twelve_megapixels():
    found = drawn_photographs()
    assert found["1 MP"].megapixels == pytest.approx(1.0, abs=0.01)
    assert found["12 MP"].megapixels == pytest.approx(12.2, abs=0.1)
    assert upright_size(found["12 MP"].data) == (4032, 3024)


@pytest.mark.photos
def test_the_photograph_has_one_and_twelve_megapixels():
    found = photographs(PHOTOS / "photos")
    assert found["1 MP"].megapixels == pytest.approx(1.0, abs=0.01)
    assert found["12 MP"].megapixels == pytest.approx(12.2, abs=0.1)
    assert read_picture(found["1 MP"].data).format == read_picture(found["12 MP"].data).format == "JPEG"
    assert len(others(PHOTOS / "photos")) >= 3


def test_a_folder_without_the_photograph_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"phone_12mp\.heic.*--photographs"):
        photographs(tmp_path)


def test_a_truncated_picture_does_not_decode():
    picture = drawn(320, 240)
    read_picture(picture)
    with pytest.raises(UnreadableImage):
        read_picture(broken(picture))


@pytest.mark.slow
def test_malicious_pictures_are_small_files_of_many_pixels():
    for picture, most in ((oversized_png(), 10_000), (hostile_webp(), 150_000)):
        assert len(picture) < most
        with pytest.raises(TooManyPixels):
            read_picture(picture)
