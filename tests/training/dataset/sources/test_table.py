import re
import unicodedata
from pathlib import Path

import msgspec
import pytest

from models.errors import DataError
from tests.make import from_table
from training.dataset.sources.record import SourceClass
from training.dataset.sources.table import COLUMNS, read_table

DOCS = Path(__file__).parents[4] / "docs" / "data_sets.md"
HEADER = "path,scientific_name"


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def read(path, text, default="", columns=None):
    return read_table("mine", write(path / "list.csv", text), default, columns).records


@from_table
def test_a_list_is_read_as_its_records(text, expected, tmp_path):
    contents = read_table("mine", write(tmp_path / "list.csv", text), "CC BY 4.0")
    found = [each["plant"] | each for each in msgspec.json.decode(msgspec.json.encode(contents.records))]
    assert [facts | cells for facts, cells in zip(found, expected, strict=True)] == found
    assert len({id(record.plant) for record in contents.records}) == len({each["class_id"] for each in found})


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_named_columns_are_found_with_every_separator(separator, tmp_path):
    text = "nr, bild ,art,group\n7,a.jpg,Rosa canina,x\n".replace(",", separator)
    columns = {"path": "bild", "scientific_name": "art", "group": "nr"}
    (record,) = read(tmp_path, text, columns=columns)
    assert (record.path, record.plant.name, record.group) == ("a.jpg", "Rosa canina", "7")
    with pytest.raises(DataError, match=r"lacks the column kunst \(got nr, bild, art, group"):
        read(tmp_path, text, columns=columns | {"scientific_name": "kunst"})


@from_table
def test_digits_are_no_key_of_the_backbone_in_a_list_with_a_key_of_the_catalogue_of_life(
    second, first_id, noted, tmp_path
):
    text = f"{HEADER},taxonKey\na.jpg,Betula pendula,72394\nb.jpg,Rosa canina,{second}\n"
    contents = read_table("mine", write(tmp_path / "list.csv", text))
    assert [record.plant.gbif_id for record in contents.records] == [first_id, None]
    assert " ".join(contents.notes).count("Catalogue of Life") == noted


def test_the_documentation_names_every_column_and_spelling():
    columns = DOCS.read_text(encoding="utf-8").partition("| column | other spellings")[2]
    words = set(re.findall(r"\w+", columns.replace("_", "")))
    assert {each for ours, others in COLUMNS.items() for each in (ours.replace("_", ""), *others)} <= words


def test_columns_that_nobody_reads_are_told(tmp_path):
    text = f"{HEADER},mood,licence,Place\na.jpg,Rosa,gay,CC0,Ulm\n"
    (note,) = read_table("mine", write(tmp_path / "list.csv", text)).notes
    assert note.startswith("mine: columns of list.csv that are not read: mood, Place; docs/data_sets.md ")


@pytest.mark.parametrize("written", [r"Wiesen\Löwenzahn\1.jpg", "Wiesen/Lo\u0308wenzahn/1.jpg"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_path_of_another_system_is_found(written, form, tmp_path):
    path = unicodedata.normalize(form, "Wiesen/Löwenzahn/1.jpg")
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    (record,) = read(tmp_path, f"{HEADER}\n{written},Taraxacum\n")
    assert record.path == path


def test_a_path_that_is_on_the_disk_stays_and_one_that_is_nowhere_has_slashes(tmp_path):
    (tmp_path / r"a\1.jpg").touch()
    first, second = read(tmp_path, f"{HEADER}\na\\1.jpg,Rosa\na\\2.jpg,Rosa\n")
    assert (first.path, second.path) == (r"a\1.jpg", "a/2.jpg")


@pytest.mark.parametrize("folder", ["", "train/1355868/", "1355868/"])
def test_the_list_of_plantclef_2024_is_read(folder, tmp_path):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "b.jpg").touch()
    columns = (
        "image_name;organ;species_id;obs_id;license;partner;author;altitude;latitude;longitude;gbif_species_id;species;"
        "genus;family;dataset;publisher;references;url;learn_tag;image_backup_url"
    )
    row = "flower;1355868;1001;cc-by-sa;;Ada;12.5;48.1;11.5;9206251.0;Lactuca virosa L.;Lactuca;Asteraceae;;;;;train;"
    text = f"{columns}\n" + "".join(f'"{name}";{row}\n' for name in ("a.jpg", "b.jpg"))
    _, record = read(tmp_path, text)
    assert record.plant == SourceClass(
        class_id="1355868", name="Lactuca virosa L.", genus="Lactuca", family="Asteraceae", gbif_id=9206251
    )
    assert (record.path, record.split, record.group) == (f"{folder}b.jpg", "train", "1001")
    assert (record.author, record.license, record.coordinates) == ("Ada", "cc-by-sa", (48.1, 11.5))


@from_table
def test_a_mistake_names_its_line(columns, line, expected, tmp_path):
    good = "a.jpg,Rosa,1" if "class_id" in columns else "a.jpg,Rosa"
    with pytest.raises(DataError, match=expected):
        read(tmp_path, f"{HEADER}{columns}\n{good}\n{line}\n")


@from_table
def test_a_list_without_rows_or_required_columns_is_an_error(text, expected, tmp_path):
    with pytest.raises(DataError, match=expected):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"\xff\xfe\x00p", "cannot be read"), (b'path,scientific_name\n"' + b"x" * 200_000, "line 2 of .* is no CSV")],
)
def test_bytes_that_are_not_csv_are_an_error(content, what, tmp_path):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match=what):
        read_table("mine", tmp_path / "list.csv")
