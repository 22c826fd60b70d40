import json

import pytest

from models.errors import DataError
from models.names import parse_name
from tests.make import from_table
from training.dataset.sources.json_layouts import METADATA_FILE, NAMES_FILE, NAMES_FILE_1_0, read_plantnet
from training.dataset.sources.record import LeftOut, PictureRecord, SourceClass

CROCUS = "Crocus vernus (L.) Hill"


def picture(**changed):
    about = {"species_id": "1356022", "obs_id": "7", "organ": "leaf", "author": "Ada", "license": "cc-by-sa"}
    return {key: value for key, value in (about | {"split": "train"} | changed).items() if value is not None}


def write(root, pictures, names):
    for file, content in ((METADATA_FILE, pictures), (NAMES_FILE, names)):
        (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_a_picture_keeps_all_that_is_published_about_it(tmp_path):
    reading = read_plantnet("plantnet", write(tmp_path, {"ab12": picture(split="val")}, {"1356022": CROCUS}))
    assert reading.left_out == []
    assert reading.records == [
        PictureRecord(
            path="images/val/1356022/ab12.jpg",
            plant=SourceClass(class_id="1356022", name=CROCUS, is_scientific=True),
            split="validation",
            group="7",
            author="Ada",
            license="cc-by-sa",
        )
    ]


def test_version_1_0_has_other_folders_and_names_without_authors(tmp_path):
    write(tmp_path, {"ab12": picture(split="val")}, {"1356022": "Crocus_vernus"})
    (tmp_path / NAMES_FILE).rename(tmp_path / NAMES_FILE_1_0)
    (tmp_path / "images_train").mkdir()
    (record,) = read_plantnet("plantnet", tmp_path).records
    assert (record.path, record.split) == ("images_val/1356022/ab12.jpg", "validation")
    assert parse_name(record.plant.name).scientific_name == "Crocus vernus"


def test_pictures_of_version_1_0_can_be_used_with_the_lists_of_1_1(tmp_path):
    (tmp_path / "images_train").mkdir()
    (tmp_path / NAMES_FILE_1_0).write_text("{}")
    (record,) = read_plantnet("plantnet", write(tmp_path, {"ab12": picture()}, {"1356022": CROCUS})).records
    assert (record.path, record.plant.name) == ("images_train/1356022/ab12.jpg", CROCUS)


def test_ids_are_strings_whatever_their_order_as_numbers(tmp_path):
    """The number 99 is less than 1000, but the string "99" is not. Code that confuses them mislabels every class."""
    pictures = {"a": picture(species_id="1000"), "b": picture(species_id="99"), "c": picture(species_id="099")}
    names = {"99": "Rosa canina L.", "1000": CROCUS, "099": "Iris"}
    records = read_plantnet("plantnet", write(tmp_path, pictures, names)).records
    assert [(record.plant.class_id, record.plant.name) for record in records] == [
        ("1000", CROCUS),
        ("99", "Rosa canina L."),
        ("099", "Iris"),
    ]


def test_a_species_without_pictures_is_listed(tmp_path):
    root = write(tmp_path, {"a": picture()}, {"1356022": CROCUS, "5": "Rosa canina L."})
    assert read_plantnet("plantnet", root).left_out == [
        LeftOut(
            picture="plantnet:5",
            code="no_pictures",
            reason="the data set names Rosa canina L. but has no picture of it",
            num_pictures=0,
        )
    ]


@from_table
def test_a_fault_is_one_error_that_names_the_file(pictures, names, expected, tmp_path):
    if isinstance(pictures, dict):
        pictures = {picture_id: picture(**changed) for picture_id, changed in pictures.items()}
    with pytest.raises(DataError, match=expected) as raised:
        read_plantnet("plantnet", write(tmp_path, pictures, names))
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("missing", [METADATA_FILE, NAMES_FILE])
def test_a_missing_file_is_an_error(missing, tmp_path):
    (write(tmp_path, {"ab": picture()}, {"1356022": CROCUS}) / missing).unlink()
    with pytest.raises(DataError, match=rf"is missing \(got .*{missing}"):
        read_plantnet("plantnet", tmp_path)
