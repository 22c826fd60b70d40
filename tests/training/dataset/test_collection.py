from pathlib import Path

import pytest

from models.errors import DataError, RecipeError
from tests.make import from_table
from tests.training.small import write_pictures
from training.dataset.collection import collection_files, read_collection
from training.prepare import Sources, prepare

HOUSE = """
[sources.house]
layout = "image_folder"
root = "house_plants"
"""


def write(folder, text):
    path = folder / "data_own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", collection_files(), ids=lambda path: path.stem)
def test_every_collection_of_the_project_is_valid(path):
    collection = read_collection(Path(path.stem))
    assert collection.name == path.stem
    assert collection.description
    assert collection.names is None or collection.names.exists()


def test_the_reference_collection_is_the_reference():
    collection = read_collection(Path("data_5337"))
    assert (collection.merge, collection.expect_outputs) == ("within_sources", 4271 + 1019 + 47)
    layouts = {name: entry.layout for name, entry in collection.sources.items()}
    assert layouts == {"inat2021": "inaturalist", "plantnet300k": "plantnet", "house_plants": "image_folder"}


@from_table
def test_the_error_of_a_mistake_names_its_place(text, expected, tmp_path):
    with pytest.raises(RecipeError, match=expected):
        read_collection(write(tmp_path, text))


def test_a_checksum_may_have_capitals_and_be_sha256(tmp_path):
    files = f'files = ["https://h/a.zip#MD5={"AB" * 16}", "https://h/b.zip#sha256={"0C" * 32}"]'
    (house,) = read_collection(write(tmp_path, f'name = "own"{HOUSE}{files}')).sources.values()
    assert len(house.files) == 2


def test_an_unknown_name_lists_the_collections_and_no_recipe(tmp_path):
    with pytest.raises(RecipeError, match="data_5337") as raised:
        read_collection(Path("data_5336"))
    assert "b4_5337" not in str(raised.value)


def test_pictures_are_left_out_by_name(tmp_path):
    raw = write_pictures(tmp_path / "raw", 5)
    wrong = min(path.relative_to(raw).as_posix() for path in raw.glob("*/*"))
    text = (
        f'name = "own"\n[sources.raw]\nlayout = "image_folder"\nroot = "raw"\n[leave_out]\n"raw:{wrong}" = "a rose"\n'
    )
    command = Sources(collection=write(tmp_path, text), root=tmp_path, out=tmp_path / "data", workers=1)
    assert [(entry.picture, entry.reason) for entry in prepare(command).left_out] == [(f"raw:{wrong}", "a rose")]
    write(tmp_path, text.replace(wrong, "x/no.jpg"))
    with pytest.raises(DataError, match="no data set has"):
        prepare(command)
