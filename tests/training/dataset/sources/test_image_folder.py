import os
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DataError
from tests.make import from_table
from training.dataset.sources.image_folder import read_image_folder
from training.dataset.sources.record import SourceClass


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    return root


@from_table
def test_a_folder_is_read_as_its_classes(names, expected, left_out, tmp_path):
    reading = read_image_folder("plants", make(tmp_path, *names), "CC0")
    found = [[each.path, each.plant.name, each.plant.common_name, each.split] for each in reading.records]
    assert found == [*expected]
    assert len({id(each.plant) for each in reading.records}) == len({each.plant.class_id for each in reading.records})
    assert {(each.license, each.group) for each in reading.records} == {("CC0", "")}
    assert [[each.picture, each.code, each.num_pictures] for each in reading.left_out] == [*left_out]


SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


@given(st.sets(st.sampled_from(sorted(SPLIT_NAMES)), min_size=1), st.sampled_from([str.lower, str.upper, str.title]))
def test_folders_named_as_splits_are_splits_whose_classes_are_shared(tmp_path_factory, names, write):
    root = make(
        tmp_path_factory.mktemp("root"), *(f"{write(name)}/1. Rosa canina/1.jpg" for name in names), "labels.csv"
    )
    reading = read_image_folder("plants", root)
    expected = SPLIT_NAMES if "test" in names else SPLIT_NAMES | {"train": None}
    assert {record.path: record.split for record in reading.records} == {
        f"{write(name)}/1. Rosa canina/1.jpg": expected[name] for name in names
    }
    assert len({id(record.plant) for record in reading.records}) == 1
    assert reading.left_out == []


@from_table
def test_a_class_folder_that_holds_only_folders_is_refused_with_the_remedy(names, folder, tmp_path):
    with pytest.raises(DataError, match=rf"only in further folders.*prepare {tmp_path / folder};"):
        read_image_folder("plants", make(tmp_path, *names))


def test_an_archive_of_gbif_is_told_from_class_folders(tmp_path):
    with pytest.raises(DataError, match=r"Darwin Core archive has no class folders.*prepare\.py gbif"):
        read_image_folder("plants", make(tmp_path, "meta.xml", "occurrence.txt", "dataset/1.xml"))


SUNFLOWER = "07150_Plantae_Tracheophyta_Magnoliopsida_Asterales_Asteraceae_Helianthus_annuus"
SPIDER = "00012_Animalia_Arthropoda_Arachnida_Araneae_Agelenidae_Agelenopsis_naevia"
AGARIC = "05683_Fungi_Basidiomycota_Agaricomycetes_Agaricales_Agaricaceae_Agaricus_campestris"


@pytest.mark.parametrize("sign", "_ ")
def test_folders_of_inaturalist_2021_are_read_as_with_its_json_files(sign, tmp_path):
    sunflower, spider, agaric = (name.replace("_", sign) for name in (SUNFLOWER, SPIDER, AGARIC))
    pictures = [f"2021_train_mini/{sunflower}/1.jpg", f"2021_valid/{sunflower}/2.jpg"]
    make(tmp_path, *pictures, f"2021_train_mini/{spider}/1.jpg", f"2021_train_mini/{spider}/2.jpg")
    make(tmp_path, f"2021_valid/{agaric}/1.jpg", f"2021_valid/{agaric}/notes.txt")
    reading = read_image_folder("inat", tmp_path)
    assert [(record.path, record.split) for record in reading.records] == [
        (pictures[0], None),
        (pictures[1], "validation"),
    ]
    ranks = {"genus": "Helianthus", "family": "Asteraceae", "order": "Asterales"}
    plant = SourceClass(class_id=sunflower, name="Helianthus annuus", is_scientific=True, **ranks)
    assert {record.plant for record in reading.records} == {plant}
    assert [(left.picture, left.code, left.num_pictures) for left in reading.left_out] == [
        (f"inat:2021_train_mini/{spider}", "not_a_plant", 2), (f"inat:2021_valid/{agaric}", "not_a_plant", 1)
    ]  # fmt: skip


def test_files_that_are_not_pictures_are_listed_by_name(tmp_path):
    make(tmp_path, "Iris/1.jpg", "Iris/notes.TXT", "Iris/deep/list.csv", "Iris/no suffix")
    (tmp_path / "Iris/broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    reading = read_image_folder("plants", tmp_path)
    assert [record.path for record in reading.records] == ["Iris/1.jpg", "Iris/no suffix"]
    assert [left.picture for left in reading.left_out] == [
        "plants:Iris/broken.jpg",
        "plants:Iris/deep/list.csv",
        "plants:Iris/notes.TXT",
    ]
    assert {(left.code, left.num_pictures) for left in reading.left_out} == {("not_a_picture", 1)}
    assert ".txt" in reading.left_out[2].reason


def test_a_class_folder_may_be_a_link_but_links_below_it_are_not_followed(tmp_path):
    make(tmp_path, "elsewhere/1.jpg", "plants/Rosa/1.jpg")
    (tmp_path / "plants/Iris").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/round").symlink_to(tmp_path / "plants")
    reading = read_image_folder("plants", tmp_path / "plants")
    assert [record.path for record in reading.records] == ["Iris/1.jpg", "Rosa/1.jpg"]
    assert [left.picture for left in reading.left_out] == ["plants:Iris/round"]


@pytest.mark.parametrize("inside", [["Rosa/1.jpg", "Iris/1.jpg"], ["train/Rosa/1.jpg"]])
def test_the_folders_of_an_archive_are_walked_through_and_told(inside, tmp_path):
    make(tmp_path, "archive/README.txt", *(f"archive/dataset/{name}" for name in inside))
    reading = read_image_folder("plants", tmp_path)
    assert sorted(record.path for record in reading.records) == sorted(inside)
    assert reading.root == tmp_path / "archive/dataset"
    assert reading.notes[0].startswith("plants: the classes are the folders in archive/dataset,")


def test_a_flat_folder_is_told_from_an_empty_one(tmp_path):
    with pytest.raises(DataError, match=r"holds 2 pictures but no class folders .*prepare.py table"):
        read_image_folder("plants", make(tmp_path, "a.jpg", "b.jpg", "list.csv"))


@pytest.mark.parametrize("name", [b"G\xe4nsebl\xfcmchen/1.jpg", b"Bellis/G\xe4nse.jpg"])
def test_a_name_that_is_not_utf8_is_an_error(name, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - a Path takes no bytes
    try:
        os.mkdir(os.path.dirname(path))  # noqa: PTH102, PTH120
        open(path, "wb").close()  # noqa: PTH123
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(DataError, match=r"not UTF-8 .*G\\xe4nse"):
        read_image_folder("plants", tmp_path)


@from_table
def test_an_error_names_the_archive_and_the_member(names, problem, tmp_path):
    with zipfile.ZipFile(tmp_path / "plants.zip", "w") as packed:
        for name in names:
            packed.writestr(name, b"")
    with pytest.raises(DataError, match=problem.replace("{folder}", str(tmp_path))):
        read_image_folder("plants", tmp_path / "plants.zip")
