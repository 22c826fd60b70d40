import re
import unicodedata
from datetime import date
from pathlib import Path

import pytest

from models.errors import DataError
from training.dataset.sources.record import SourceClass
from training.dataset.sources.table import COLUMNS, read_table

DOCS = Path(__file__).parents[4] / "docs" / "data_sets.md"
HEADER = "path,scientific_name"


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def read(path, text, default="", columns=None):
    return read_table("mine", write(path / "list.csv", text), default, columns).records


@pytest.mark.parametrize(
    ("written", "split"),
    [
        ("train", "train"),
        ("Val", "validation"),
        ("valid", "validation"),
        ("calibration", "calibration"),
        ("TEST", "test"),
        ("", None),
    ],
)
def test_splits_are_read_under_their_usual_names(written, split, tmp_path):
    (record,) = read(tmp_path, f"{HEADER},split\na.jpg,Rosa canina,{written}\n")
    assert record.split == split


def test_a_list_saved_by_a_spreadsheet_is_read(tmp_path):
    table = write(tmp_path / "list.csv", f"{HEADER}\r\na.jpg,  Rosa canina ,, \r\n", encoding="utf-8-sig")
    (record,) = read_table("mine", table).records
    assert (record.path, record.plant.name) == ("a.jpg", "Rosa canina")


def test_a_row_can_fill_every_field_of_a_record(tmp_path):
    columns = f"{HEADER},common_name,genus,family,order,group,author,licence,taken_on,latitude,longitude,class_id"
    row = "a.jpg,Rosa canina,Dog rose,Rosa,Rosaceae,Rosales,bush 1,Ada,CC0,2024-05-31,-12.5,180,17"
    (record,) = read(tmp_path, f"{columns}\n{row}\n", default="CC BY 4.0")
    assert record.plant == SourceClass(
        class_id="17", name="Rosa canina", common_name="Dog rose", genus="Rosa", family="Rosaceae", order="Rosales"
    )
    assert (record.group, record.author, record.license) == ("bush 1", "Ada", "CC0")
    assert (record.taken_on, record.coordinates) == (date(2024, 5, 31), (-12.5, 180.0))


def test_a_class_is_shared_and_combined_from_all_of_its_rows(tmp_path):
    rows = "a.jpg,Rosa canina,,\nb.jpg,Rosa canina,Rosaceae,\nc.jpg,Rosa canina,,Dog rose\nd.jpg,Iris,,\n"
    *roses, iris = read(tmp_path, f"{HEADER},family,common_name\n{rows}")
    assert {id(rose.plant) for rose in roses} == {id(roses[0].plant)}
    assert roses[0].plant == SourceClass(
        class_id="Rosa canina", name="Rosa canina", family="Rosaceae", common_name="Dog rose"
    )
    assert iris.plant == SourceClass(class_id="Iris", name="Iris")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_named_columns_are_found_with_every_separator(separator, tmp_path):
    text = "nr, bild ,art,group\n7,a.jpg,Rosa canina,x\n".replace(",", separator)
    columns = {"path": "bild", "scientific_name": "art", "group": "nr"}
    (record,) = read(tmp_path, text, columns=columns)
    assert (record.path, record.plant.name, record.group) == ("a.jpg", "Rosa canina", "7")
    with pytest.raises(DataError, match=r"lacks the column kunst \(got nr, bild, art, group"):
        read(tmp_path, text, columns=columns | {"scientific_name": "kunst"})


def test_a_cell_may_be_quoted_after_a_space(tmp_path):
    (record,) = read(tmp_path, f'{HEADER}, author\na.jpg, "Rosa canina", "Lovelace, Ada"\n')
    assert (record.plant.name, record.author) == ("Rosa canina", "Lovelace, Ada")


@pytest.mark.parametrize(
    ("header", "cells", "field", "value"),
    [
        ("license", "CC-BY-NC", "license", "CC-BY-NC"),
        ("Photographer", "Ada", "author", "Ada"),
        ("observation_id", "7", "group", "7"),
        ("taken_at", "2024-05-31T10:20:30Z", "taken_on", date(2024, 5, 31)),
        ("observed_on", "2024-05-31", "taken_on", date(2024, 5, 31)),
        ("eventDate", "2024-05", "taken_on", None),
        ("date taken", "2024:05:31 10:20:30", "taken_on", date(2024, 5, 31)),
        ("decimalLatitude,decimalLongitude", "-12.5,180", "coordinates", (-12.5, 180.0)),
        ("lat,lng", "-12.5,180", "coordinates", (-12.5, 180.0)),
    ],
)
def test_the_usual_spellings_of_columns_are_read(header, cells, field, value, tmp_path):
    contents = read_table("mine", write(tmp_path / "list.csv", f"{HEADER},{header}\na.jpg,Rosa canina,{cells}\n"))
    assert getattr(contents.records[0], field) == value
    assert contents.notes == ()


def test_generic_name_is_the_genus(tmp_path):
    (record,) = read(tmp_path, "path,genericName,specificEpithet\na.jpg,Quercus,robur\n")
    assert (record.plant.name, record.plant.genus) == ("Quercus robur", "Quercus")


def test_columns_of_path_and_name_have_usual_spellings_and_ours_come_first(tmp_path):
    (record,) = read(
        tmp_path, "species,image,ScientificName,scientific_name,dwc:taxonKey,gbifID\nx,a.jpg,y,Rosa canina,8395064,4\n"
    )
    assert (record.path, record.plant.name, record.plant.gbif_id) == ("a.jpg", "Rosa canina", 8395064)


@pytest.mark.parametrize(("second", "first_id", "noted"), [("6SQ7R", None, 1), ("COL:4", None, 1), ("n/a", 72394, 0)])
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


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_semicolons_tabs_and_bars_separate_too(separator, tmp_path):
    text = f"{HEADER},author\na.jpg,Rosa canina,Ada\n".replace(",", separator)
    (record,) = read(tmp_path, text)
    assert (record.path, record.plant.name, record.author) == ("a.jpg", "Rosa canina", "Ada")


def test_a_list_may_have_common_names_alone_or_in_some_rows(tmp_path):
    wheat, oat = read(tmp_path, "path,common_name\na.jpg,Common wheat\nb.jpg,Wild oat\n")
    assert (wheat.plant, oat.plant.name) == (SourceClass(class_id="Common wheat", name="Common wheat"), "Wild oat")
    rose, oat = read(tmp_path, f"{HEADER},common_name\na.jpg,Rosa canina,Dog rose\nb.jpg,,Wild oat\n")
    assert (rose.plant.common_name, oat.plant) == ("Dog rose", SourceClass(class_id="Wild oat", name="Wild oat"))


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


@pytest.mark.parametrize(
    ("column", "cell", "genus", "name"),
    [
        ("species", "robur", "Quercus", "Quercus robur"),
        ("specificEpithet", "alba-maritima", "Salix", "Salix alba-maritima"),
        ("species", "Quercus robur", "Quercus", "Quercus robur"),
        ("species", "red", "Rosa", "red"),
        ("species", "quercus robur", "Quercus", "quercus robur"),
        ("species", "robur", "", "robur"),
    ],
)
def test_an_epithet_alone_is_a_species_of_its_genus(column, cell, genus, name, tmp_path):
    (record,) = read(tmp_path, f"path,{column},genus\na.jpg,{cell},{genus}\n")
    assert record.plant.name == name


def test_names_that_differ_in_how_their_letters_are_composed_are_one(tmp_path):
    text = f"{HEADER},class_id\na.jpg,Isoëtes lacustris,1\nb.jpg,Isoe\u0308tes lacustris,1\n"
    assert [record.plant.name for record in read(tmp_path, text)] == ["Isoëtes lacustris"] * 2


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


# Columns beyond the first two, the cells of line 3, and part of the expected message.
MISTAKES = {
    "no path": ("", ",Rosa", "line 3: path or name is empty"),
    "no name": ("", "b.jpg, ", "line 3: path or name is empty"),
    "a path twice": ("", "./a.jpg,Rosa", r"line 3: the path is listed twice \(got a.jpg"),
    "unknown split": (",split", "b.jpg,Rosa,dev", r"line 3: unknown split \(got dev; .*calibration"),
    "no date": (",taken_on", "b.jpg,Rosa,31.05.2024", r"line 3: taken_on is not a date \(got 31.05.2024"),
    "no such day": (",taken_on", "b.jpg,Rosa,2023-02-29", "line 3: taken_on is not a date"),
    "half a place": (",latitude,longitude", "b.jpg,Rosa,12,", r"line 3: .*not a place \(got 12, an empty cell"),
    "beyond the pole": (",latitude,longitude", "b.jpg,Rosa,90.1,0", "line 3: .*not a place"),
    "beyond the date line": (",latitude,longitude", "b.jpg,Rosa,0,-181", "line 3: .*not a place"),
    "no number": (",latitude,longitude", "b.jpg,Rosa,48° N,11° E", "line 3: .*not a place"),
    "not a number": (",latitude,longitude", "b.jpg,Rosa,nan,nan", "line 3: .*not a place"),
    "an id of two names": (",class_id", "b.jpg,Iris,1", r"line 3: class 1 has two names \(got Iris"),
    "comma in a name": ("", "b.jpg,Rosa canina, L.", r"line 3 of .* more cells .*\(got L\."),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_names_its_line(kind, tmp_path):
    columns, line, expected = MISTAKES[kind]
    good = "a.jpg,Rosa,1" if "class_id" in columns else "a.jpg,Rosa"
    with pytest.raises(DataError, match=expected):
        read(tmp_path, f"{HEADER}{columns}\n{good}\n{line}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path,name\na.jpg,Rosa\n", r"lacks the column scientific_name or common_name \(got path, name.*--name-column"),
        ("gbifID\tspecies\n1\tRosa\n", r"lacks the column path \(got gbifID, species.*`prepare.py gbif`"),
        ("img,scientific_name\na.jpg,Rosa\n", r"lacks the column path \(got img, .*--path-column"),
        (f"{HEADER},group,group\na.jpg,Rosa,1,2\n", r"has a column twice \(got group"),
        ("", "an empty file"),
        (f"{HEADER}\n", "the list has no pictures"),
    ],
)
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
