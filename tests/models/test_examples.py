import zipfile

import pytest

from models.errors import BundleError
from models.examples import Example, Examples, write_examples

ROSE = Example("rosa", "00000-0.webp", "Ann", "CC-BY-4.0", "garden")
OTHER = Example("rosa", "00000-1.webp", "", "CC0-1.0", "garden")
DAISY = Example("bellis", "00001-0.webp", "Ben", "CC-BY-SA-3.0", "wild")


def written(tmp_path):
    path = tmp_path / "examples.zip"
    assert write_examples(path, [(ROSE, b"rose"), (OTHER, b"other"), (DAISY, b"daisy")]) == 3
    return path


def test_pictures_are_read_as_they_were_written_and_in_their_order(tmp_path):
    examples = Examples(written(tmp_path))
    assert examples.of("rosa") == [ROSE, OTHER]
    assert examples.of("bellis") == [DAISY]
    assert examples.of("acer") == []
    assert [examples.picture(each) for each in (ROSE, OTHER, DAISY)] == [b"rose", b"other", b"daisy"]


def test_equal_pictures_make_equal_files(tmp_path):
    first = written(tmp_path).read_bytes()
    assert written(tmp_path).read_bytes() == first


def no_zip(path):
    path.write_bytes(b"no archive")


def without_list(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("00000-0.webp", b"rose")


def without_a_picture(path):
    with zipfile.ZipFile(path) as archive:
        index = archive.read("index.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("index.json", index)


@pytest.mark.parametrize("damage", [no_zip, without_list, without_a_picture])
def test_a_damaged_file_is_an_error_that_names_it(damage, tmp_path):
    path = written(tmp_path)
    damage(path)
    with pytest.raises(BundleError, match=r"examples\.zip"):
        Examples(path)
