import json

import msgspec
import pytest

from models.errors import DataError
from tests.make import from_table
from training.dataset.sources.json_layouts import read_inaturalist, read_negatives

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


def damaged(content, damages):
    """Changes entries: list, place, fields (None goes); without a place it adds, without fields it removes."""
    for key, at, fields in damages:
        if at is None and fields is None:
            del content[key]
        elif fields is None:
            del content[key][at]
        elif at is None:
            content[key].append(fields)
        else:
            changed = content[key][at] | fields
            content[key][at] = {name: value for name, value in changed.items() if value is not None}
    return content


@from_table
def test_plants_of_both_files_are_read_and_val_is_the_test_set(damages, records, left_out, tmp_path):
    write(tmp_path, train=damaged(document(), damages), val=document("val", first=100))
    found = read_inaturalist("inat", tmp_path, "all rights reserved")
    assert msgspec.json.decode(msgspec.json.encode(found.records)) == [*records]
    assert msgspec.json.decode(msgspec.json.encode(found.left_out)) == [*left_out]
    plants = {id(record.plant): record.plant.class_id for record in found.records}
    assert sorted(plants.values()) == sorted({*plants.values()})


@from_table
def test_a_day_or_place_that_is_missing_or_impossible_is_unknown(unknown, tmp_path):
    content = document()
    content["images"][2] |= unknown
    record = read_inaturalist("inat", write(tmp_path, train=content)).records[0]
    assert (record.taken_on, record.coordinates, record.author) == (None, None, "")


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


@from_table
def test_a_fault_is_one_error_that_names_the_file(damages, expected, tmp_path):
    content = damaged(document(), damages)
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


@from_table
def test_files_of_two_releases_are_an_error(damages, expected, tmp_path):
    test_set = damaged(document("val"), damages)
    with pytest.raises(DataError, match=expected):
        read_inaturalist("inat", write(tmp_path, train=document(), val=test_set))
