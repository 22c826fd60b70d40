import os
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DataError
from training.dataset.sources.image_folder import read_image_folder
from training.dataset.sources.record import LeftOut, SourceClass


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    return root


def test_pictures_come_sorted_from_any_depth_without_hidden_files(tmp_path):
    make(tmp_path, "B b/2.jpg", "B b/deep/1.jpg", "A a/9.PNG", "A a/.hidden.jpg", ".git/x.jpg", "A a/.thumbs/9.jpg")
    make(tmp_path, "top.jpg", "labels.csv")
    reading = read_image_folder("plants", tmp_path)
    assert [record.path for record in reading.records] == ["A a/9.PNG", "B b/2.jpg", "B b/deep/1.jpg"]
    assert reading.left_out == []


def test_pictures_of_a_class_share_it_and_the_license_of_the_source(tmp_path):
    make(tmp_path, "Sunflower (Helianthus annuus)/1.jpg", "Sunflower (Helianthus annuus)/2.webp", "Iris/1.jpg")
    iris, first, second = read_image_folder("plants", tmp_path, "CC0").records
    assert first.plant is second.plant
    assert first.plant == SourceClass(
        class_id="Sunflower (Helianthus annuus)", name="Helianthus annuus", common_name="Sunflower"
    )
    assert iris.plant == SourceClass(class_id="Iris", name="Iris")
    assert {record.license for record in (iris, first, second)} == {"CC0"}
    assert (iris.split, iris.group) == (None, "")


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


def test_pictures_of_a_split_without_a_class_are_counted(tmp_path):
    make(tmp_path, "train/Rosa/1.jpg", "test/1.jpg", "test/2.jpg", "test/list.csv", "val/Rosa/")
    reading = read_image_folder("plants", tmp_path)
    assert [record.path for record in reading.records] == ["train/Rosa/1.jpg"]
    assert [(left.picture, left.code, left.num_pictures) for left in reading.left_out] == [
        ("plants:test", "no_class", 2),
        ("plants:val/Rosa", "no_pictures", 0),
    ]


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (["flowers/Rosa/1.jpg", "flowers/Iris/1.jpg", "Iris/1.jpg"], "flowers"),
        (["Rosa/1.jpg", "train/Rosa/1.jpg", "test/Rosa/1.jpg"], "test"),
        (["train/flowers/Rosa/1.jpg", "test/flowers/Rosa/1.jpg"], "test/flowers"),
        (["Rosa/notes.txt", "Rosa/2019/1.jpg"], "Rosa"),
    ],
)
def test_a_class_folder_that_holds_only_folders_is_refused_with_the_remedy(names, folder, tmp_path):
    with pytest.raises(DataError, match=rf"only in further folders.*prepare {tmp_path / folder};"):
        read_image_folder("plants", make(tmp_path, *names))


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("1. Quercus suber", ("Quercus suber", "")),
        ("12.Quercus suber", ("Quercus suber", "")),
        ("001_quercus_suber", ("quercus suber", "")),
        ("1) Cork oak (Quercus suber)", ("Quercus suber", "Cork oak")),
        ("7 Quercus suber", ("Quercus suber", "")),
        ("7 - Quercus suber", ("Quercus suber", "")),
        ("4 o'clock", ("4 o'clock", "")),
        ("3-leaved ivy", ("3-leaved ivy", "")),
        ("1355868", ("1355868", "")),
        ("1.2", ("1.2", "")),
    ],
)
def test_the_number_in_front_of_a_name_is_dropped(folder, names, tmp_path):
    (record,) = read_image_folder("plants", make(tmp_path, f"{folder}/1.jpg")).records
    assert (record.plant.name, record.plant.common_name) == names
    assert record.plant.class_id == folder


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


def test_a_number_that_alone_tells_two_classes_apart_stays(tmp_path):
    records = read_image_folder("plants", make(tmp_path, "1. Rosa/1.jpg", "2. Rosa/1.jpg", "3. Iris/1.jpg")).records
    assert [record.plant.name for record in records] == ["1. Rosa", "2. Rosa", "Iris"]


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


@pytest.mark.parametrize("inside", ["Iris/", "Iris/deep/", "Iris/notes.txt"])
def test_a_class_folder_without_pictures_is_listed(inside, tmp_path):
    left_out = read_image_folder("plants", make(tmp_path, "Rosa/1.jpg", inside)).left_out
    assert left_out[-1] == LeftOut(
        picture="plants:Iris", code="no_pictures", reason="the class folder holds no pictures", num_pictures=0
    )


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


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["Rosa/1.jpg", "Rosa/1.jpg/x.jpg"], r"plants\.zip holds a member .*Rosa/1.jpg/x.jpg: File exists"),
        (["Rosa/1.jpg/x.jpg", "Rosa/1.jpg"], r"plants\.zip holds a member .*Rosa/1.jpg: Is a directory"),
        ([f"Rosa/{'x' * 256}"], r"plants\.zip holds a member .*got Rosa/xxx.*: File name too long"),
        (
            ["Rosa/2019/1.jpg"],
            r"plants\.zip, once it is unpacked: .*got {folder}/plants/Rosa;.*prepare {folder}/plants/Rosa;",
        ),
        (["1.jpg", "2.jpg"], r"plants\.zip, once it is unpacked: .*holds 2 pictures .*got {folder}/plants"),
    ],
)
def test_an_error_names_the_archive_and_the_member(names, problem, tmp_path):
    with zipfile.ZipFile(tmp_path / "plants.zip", "w") as packed:
        for name in names:
            packed.writestr(name, b"")
    with pytest.raises(DataError, match=problem.replace("{folder}", str(tmp_path))):
        read_image_folder("plants", tmp_path / "plants.zip")
