import pytest
from PIL import Image

from benchmarks.gpu.shrink import Shrink, shrink
from models.errors import DataError
from tests.training.small import draw


def write_photographs(folder):
    (folder / "images").mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6
    draw("gold", "ellipse", 1, size=(90, 60)).save(folder / "images" / "large.jpg", exif=turned)
    draw("gold", "ellipse", 2, size=(30, 24)).save(folder / "images" / "small.jpg")
    (folder / "labels.csv").write_text("path,scientific_name\nimages/large.jpg,Iris caerulea\n")


def test_large_pictures_are_reduced_upright_and_the_list_is_copied(tmp_path):
    write_photographs(tmp_path / "photographs")
    shrink(Shrink(folder=tmp_path / "photographs", out=tmp_path / "copy", short_side_px=40))
    with Image.open(tmp_path / "copy" / "images" / "large.jpg") as large:
        assert (large.size, large.getexif().get(0x0112)) == ((40, 60), None)
    with Image.open(tmp_path / "copy" / "images" / "small.jpg") as small:
        assert small.size == (30, 24)
    names = [folder / "labels.csv" for folder in (tmp_path / "photographs", tmp_path / "copy")]
    assert names[0].read_text() == names[1].read_text()


def test_a_missing_folder_and_a_second_copy_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        shrink(Shrink(folder=tmp_path / "missing", out=tmp_path / "copy"))
    write_photographs(tmp_path / "photographs")
    (tmp_path / "copy").mkdir()
    with pytest.raises(DataError, match="a copy already"):
        shrink(Shrink(folder=tmp_path / "photographs", out=tmp_path / "copy"))
