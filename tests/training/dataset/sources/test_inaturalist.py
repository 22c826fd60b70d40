import json
from datetime import date

import pytest

from models.errors import DataError
from training.dataset.sources.json_layouts import read_inaturalist, read_negatives
from training.dataset.sources.record import LeftOut, SourceClass

WORM, DAISY, ROSE = 0, 1, 2


def category(number, kingdom, name, **more):
    folder = f"{number:05}_{kingdom}_{name.replace(' ', '_')}"
    return {"id": number, "name": name, "kingdom": kingdom, "image_dir_name": folder, "phylum": "unread"} | more


def document(split="train", first=0):
    """Two pictures each of a worm, a daisy and a rose."""
    images = [
        {"id": first + number, "width": 9, "file_name": f"{split}/{number // 2}/{number}.jpg"} for number in range(6)
    ]
    return {
        "info": {},
        "images": images,
        "annotations": [
            {"id": number, "image_id": first + number, "category_id": number // 2} for number in reversed(range(6))
        ],
        "categories": [
            category(WORM, "Animalia", "Lumbricus terrestris"),
            category(DAISY, "Plantae", "Bellis perennis", common_name="Daisy"),
            category(ROSE, "Plantae", "Rosa canina", genus="Rosa", family="Rosaceae", order="Rosales"),
        ],
        "licenses": [{"id": 0, "name": "Attribution", "url": "http://example.org/by"}, {"id": 1, "name": "CC0"}],
    }


def write(root, **files):
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        (root / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_plants_of_both_files_are_read_and_val_is_the_test_set(tmp_path):
    write(tmp_path, train=document(), val=document("val", first=100))
    records = read_inaturalist("inat", tmp_path).records
    assert [(record.path, record.split) for record in records] == [
        (f"{folder}/{number // 2}/{number}.jpg", split)
        for folder, split in (("train", "train"), ("val", "test"))
        for number in (2, 3, 4, 5)
    ]
    assert {record.group for record in records} == {""}


def test_a_class_has_its_ranks_and_all_its_pictures_share_it(tmp_path):
    write(tmp_path, train=document(), val=document("val"))
    records = read_inaturalist("inat", tmp_path).records
    daisies = [record.plant for record in records if record.plant.class_id == str(DAISY)]
    roses = [record.plant for record in records if record.plant.class_id == str(ROSE)]
    daisy = SourceClass(class_id="1", name="Bellis perennis", is_scientific=True, common_name="Daisy")
    ranks = {"genus": "Rosa", "family": "Rosaceae", "order": "Rosales"}
    assert daisies[0] == daisy
    assert roses[0] == SourceClass(class_id="2", name="Rosa canina", is_scientific=True, **ranks)
    assert (len(daisies), len(roses)) == (4, 4)
    assert len({id(plant) for plant in daisies + roses}) == 2


def test_other_kingdoms_are_left_out_and_counted_over_both_files(tmp_path):
    write(tmp_path, train=document(), val=document("val"))
    assert read_inaturalist("inat", tmp_path).left_out == [
        LeftOut(
            picture="inat:00000_Animalia_Lumbricus_terrestris",
            code="not_a_plant",
            reason="Lumbricus terrestris belongs to kingdom Animalia; only Plantae is read",
            num_pictures=4,
        )
    ]


def test_a_picture_keeps_its_author_license_day_and_place(tmp_path):
    content = document()
    about = {
        "license": 0,
        "rights_holder": "Ada",
        "date": "2014-04-10 10:19:00+00:00",
        "latitude": 5,
        "longitude": -7.5,
    }
    content["images"][2] |= about
    content["images"][3] |= {"license": 1}
    first, second, third, _ = read_inaturalist("inat", write(tmp_path, train=content), "all rights reserved").records
    assert (first.author, first.license) == ("Ada", "http://example.org/by")
    assert (first.taken_on, first.coordinates) == (date(2014, 4, 10), (5.0, -7.5))
    assert (second.license, third.license) == ("CC0", "all rights reserved")


@pytest.mark.parametrize(
    "unknown",
    [
        {"date": None, "latitude": None, "longitude": None, "rights_holder": None},
        {"date": "", "latitude": 5.0, "longitude": None},
        {"date": "last summer", "latitude": 95.0, "longitude": 3.0},
        {"date": "2014-02-30 10:19:00+00:00", "latitude": 5.0, "longitude": 181.0},
        {},
    ],
)
def test_a_day_or_place_that_is_missing_or_impossible_is_unknown(unknown, tmp_path):
    content = document()
    content["images"][2] |= unknown
    record = read_inaturalist("inat", write(tmp_path, train=content)).records[0]
    assert (record.taken_on, record.coordinates, record.author) == (None, None, "")


def test_a_plant_without_a_picture_is_told(tmp_path):
    content = document()
    content["images"] = content["images"][:4]
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] != ROSE]
    told = read_inaturalist("inat", write(tmp_path, train=content)).left_out[-1]
    assert (told.picture, told.code, told.num_pictures) == (f"inat:{ROSE}", "no_pictures", 0)


def test_the_folders_of_torchvision_are_found(tmp_path):
    write(tmp_path, train_mini=document("train_mini"), val=document("val"))
    for folder in ("2021_train_mini", "2021_valid"):
        (tmp_path / folder).mkdir()
    records = read_inaturalist("inat", tmp_path).records
    assert [record.path for record in records[::4]] == ["2021_train_mini/1/2.jpg", "2021_valid/1/2.jpg"]
    assert read_negatives("inat", tmp_path)["test"][0].path == "2021_valid/0/0.jpg"


def test_the_mini_set_is_read_only_where_the_large_one_is_missing(tmp_path):
    write(tmp_path / "mini", train_mini=document("train_mini"))
    write(tmp_path / "both", train_mini=document("train_mini"), train=document())
    for folder, read in (("mini", "train_mini"), ("both", "train")):
        reading = read_inaturalist("inat", tmp_path / folder)
        assert {record.path.split("/")[0] for record in reading.records} == {read}
        assert {record.split for record in reading.records} == {"train"}


def change(key, at, **values):
    """A fault: new values for fields of an entry; None deletes the field."""

    def apply(content):
        entry = content[key][at]
        entry |= values
        content[key][at] = {name: value for name, value in entry.items() if value is not None}

    return apply


def no_plants(content):
    for entry in content["categories"]:
        entry["kingdom"] = "Fungi"


FAULTS = {
    "image id is not a number": (
        change("images", 2, id="two"),
        r"images\[2\] .*Expected `int`, got `str` - at `\$.id`",
    ),
    "category id is not a number": (change("categories", 1, id="x"), r"Expected `int`, .*`\$.categories\[1\].id`"),
    "annotation is not a number": (change("annotations", 3, image_id="x"), r"`\$.annotations\[3\].image_id`"),
    "image without a file": (change("images", 1, file_name=None), r"images\[1\] .*missing required field `file_name`"),
    "category without a kingdom": (change("categories", 0, kingdom=None), "missing required field `kingdom`"),
    "no annotations at all": (lambda content: content.pop("annotations"), "missing required field `annotations`"),
    "annotation of an unknown image": (change("annotations", 0, image_id=77), "image 5 has no annotation"),
    "surplus annotation": (
        lambda content: content["annotations"].append({"image_id": 77, "category_id": 1}),
        "image 77 does not exist",
    ),
    "annotation of an unknown category": (change("annotations", 0, category_id=9), "category 9 does not exist"),
    "two annotations": (
        lambda content: content["annotations"].append({"image_id": 3, "category_id": 1}),
        "image 3 has two annotations",
    ),
    "image without annotation": (lambda content: content["annotations"].pop(0), "image 5 has no annotation"),
    "image twice": (lambda content: content["images"].append(content["images"][4]), "image 4 has no annotation, or"),
    "category twice": (
        lambda content: content["categories"].append(content["categories"][1]),
        "category 1 is listed twice",
    ),
    "file twice": (change("images", 2, file_name="train/1/3.jpg"), r"the same file name \(got train/1/3.jpg"),
    "path upwards": (
        change("images", 2, file_name="train/../../x.jpg"),
        r"image 2 is outside of the data set \(got train/\.\.",
    ),
    "absolute path": (change("images", 2, file_name="/etc/x.jpg"), "image 2 is outside of the data set"),
    "a path that no file can have": (change("images", 2, file_name="a\0.jpg"), "image 2 is outside of the data set"),
    "empty name": (change("categories", 1, name=""), r"length >= 1 - at `\$.categories\[1\].name`"),
    "empty path": (change("images", 2, file_name=""), "image 2 is outside of the data set"),
    "no plants": (no_plants, "holds no plants"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_error_that_names_the_file(fault, tmp_path):
    damage, expected = FAULTS[fault]
    content = document()
    damage(content)
    with pytest.raises(DataError, match=expected) as raised:
        read_inaturalist("inat", write(tmp_path, train=content))
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_truncated_json_file_is_an_error(tmp_path):
    whole = json.dumps(document())
    for length in range(0, len(whole), 97):
        write(tmp_path, train=whole[:length])
        with pytest.raises(DataError, match=r"train\.json is truncated or not JSON"):
            read_inaturalist("inat", tmp_path)


def test_bytes_that_are_not_utf8_are_an_error(tmp_path):
    (tmp_path / "train.json").write_bytes(json.dumps(document()).replace("train/2/4", "träin/2/4").encode("latin-1"))
    with pytest.raises(DataError, match=r"images\[4\] cannot be read"):
        read_inaturalist("inat", tmp_path)


def test_a_folder_without_the_files_is_an_error(tmp_path):
    write(tmp_path, val=document())
    with pytest.raises(DataError, match=r"no iNaturalist data set .*train\.json or train_mini\.json"):
        read_inaturalist("inat", tmp_path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            change("categories", ROSE, name="Rosa gallica"),
            r"val\.json has another category than .*train\.json \(got Rosa gallica",
        ),
        (change("categories", WORM, kingdom="Plantae"), r"\(got Lumbricus terrestris"),
    ],
)
def test_files_of_two_releases_are_an_error(damage, expected, tmp_path):
    test_set = document("val")
    damage(test_set)
    with pytest.raises(DataError, match=expected):
        read_inaturalist("inat", write(tmp_path, train=document(), val=test_set))
