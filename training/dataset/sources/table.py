"""Reads a CSV list of pictures: columns `path` and `scientific_name` or `common_name`, and optional ones."""

import csv
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import DataError
from training.dataset.sources.record import (
    SPLIT_NAMES,
    SPLITS,
    Coordinates,
    PictureRecord,
    SourceClass,
    SourceContents,
    Split,
    place_of,
)

# Our columns and other spellings of each; case, spaces and signs do not matter.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "path": ("filename", "filepath", "file", "image", "imagepath"),
    "scientific_name": ("species", "latinname"),
    "common_name": ("vernacularname",),
    "class_id": (),
    "genus": (),
    "family": (),
    "order": (),
    "gbif_id": ("taxonkey", "gbiftaxonid"),
    "split": ("subset",),
    "group": ("observationid", "obsid", "plantid", "individualid"),
    "author": ("photographer", "creator", "rightsholder", "copyrightholder", "recordedby"),
    "license": ("licence", "licensename"),
    "taken_on": ("takenat", "observedon", "eventdate", "datetaken", "date"),
    "latitude": ("lat", "decimallatitude"),
    "cultivated": ("captivecultivated", "captive"),
    "longitude": ("lon", "lng", "long", "decimallongitude"),
}
_CLASS_COLUMNS: Final = ("common_name", "genus", "family", "order")
_YES: Final = frozenset({"true", "1", "yes", "cultivated"})
_QUOTED: Final = re.compile(r"^'(?=[=+\-@])")  # written so that no spreadsheet runs the cell as a formula
_NOT_TO_THE_DAY: Final = re.compile(r"\d{4}(-\d{2})?")


def read_table(
    name: str, root: Path, default_license: str = "", columns: Mapping[str, str] | None = None
) -> SourceContents:
    """Reads a CSV list (UTF-8, with a header; separated by commas, semicolons or tabs), in its order.

    Columns: `path` (absolute, or relative to the list's folder) and `scientific_name`, or `common_name` where that is
    missing; optionally `common_name`, `genus`, `family`, `order`, `gbif_id` (from the first row of the class that has
    one), `split` (train, validation or val, calibration, test), `group`, `author`, `license`, `taken_on` (begins as
    2024-05-31), `latitude` and `longitude` (degrees), `cultivated` (true or false), and `class_id` if two classes share
    a name. `COLUMNS` has other spellings; `columns` maps ours to columns of the list. A note tells which columns are
    not read.

    Raises:
        DataError: The list is missing, not UTF-8 CSV, empty, lacks a column or has one twice, or repeats a path, or a
            row has an empty name, an impossible date or place, or an unknown split. The message gives the line.
    """
    if not root.is_file():
        raise DataError("no such list of pictures", value=root, remedy="give a CSV file with a header")
    try:
        form = _form(root, columns or {})
        plants = _plants(root, form)  # first, because any row may add to a class
        records = [_record(row, form.columns, plants, default_license) for row in _rows(root, form)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{root} is not a UTF-8 CSV file", value=error, remedy="save it as CSV in UTF-8") from error
    if not records:
        raise DataError("the list has no pictures", value=root, remedy="add one row for each picture")
    unread = ", ".join(column for column in form.header if column and column not in form.columns.values())
    note = f"{name}: columns of {root.name} that are not read: {unread}; docs/data_sets.md lists those that are."
    return SourceContents(root.parent, records, [], (note,) if unread else ())


class _Form(msgspec.Struct, frozen=True):
    """How a list is written."""

    delimiter: str
    header: list[str]
    columns: dict[str, str]
    """Our column -> column of the list."""


def _form(table: Path, given: Mapping[str, str]) -> _Form:
    with table.open(newline="", encoding="utf-8-sig") as stream:
        first = stream.readline()
    delimiter = max(",;\t", key=first.count)
    header = next(csv.reader([first], delimiter=delimiter, strict=True), [])
    if twice := {column for column in header if column and header.count(column) > 1}:
        raise DataError(
            f"{table} has a column twice", value=", ".join(sorted(twice)), remedy="delete or rename one of the two"
        )
    # GBIF's own gbifID numbers an observation, not a plant.
    spelled = {re.sub(r"[\W_]", "", column.lower()): column for column in reversed(header) if column != "gbifID"}
    columns = dict(given)
    for ours, spellings in COLUMNS.items():
        found = next((spelled[each] for each in (ours.replace("_", ""), *spellings) if each in spelled), "")
        if ours not in columns and found and found not in given.values():
            columns[ours] = ours if ours in header else found
    missing = sorted({*given.values()} - {*header})
    missing += [] if "path" in columns else ["path"]
    missing += [] if {"scientific_name", "common_name"} & {*columns} else ["scientific_name or common_name"]
    if missing:
        raise DataError(
            f"{table} lacks the column {' and '.join(missing)}",
            value=", ".join(header) or "an empty file",
            limit="path and scientific_name or common_name",
            remedy="add the column to its first line, or name it with --path-column, --name-column "
            "(in a collection: columns)",
        )
    return _Form(delimiter, header, columns)


class _Row(dict[str, str]):
    """The cells of a row by our columns, without spaces around them; empty for a column that the list lacks.

    It also has the `name` of the class and its `class_id`, and `place`, the row's place in the file.
    """

    def __missing__(self, column: str) -> str:
        return ""


def _rows(table: Path, form: _Form) -> Iterator[_Row]:
    with table.open(newline="", encoding="utf-8-sig") as stream:
        reader: csv.DictReader[str] = csv.DictReader(stream, delimiter=form.delimiter, restval="")
        for cells in reader:
            row = _Row({ours: _QUOTED.sub("", cells[theirs].strip()) for ours, theirs in form.columns.items()})
            row["place"] = f"{table}, line {reader.line_num}"
            row["name"] = row["scientific_name"] or row["common_name"]
            row["class_id"] = row["class_id"] or row["name"]
            surplus = cells.get(None)  # csv stores cells beyond the header here
            if surplus and any(map(str.strip, surplus)):
                raise DataError(
                    f"{row['place']}: more cells than the first line has columns",
                    value=", ".join(surplus),
                    remedy='put a name with a comma in quotes: "a, b"',
                )
            yield row


def _plants(table: Path, form: _Form) -> dict[str, SourceClass]:
    """Returns class id -> class, combined from its rows; checks that rows do not contradict each other."""
    facts: dict[str, dict[str, Any]] = {}
    paths: set[str] = set()
    for row in _rows(table, form):
        if not row["path"] or not row["name"]:
            raise DataError(f"{row['place']}: path or name is empty", remedy="complete or delete the line")
        if "\0" in row["path"]:
            raise DataError(
                f"{row['place']}: the path contains a NUL character", remedy="write the list as plain UTF-8"
            )
        path = posixpath.normpath(row["path"])
        if path in paths:
            raise DataError(f"{row['place']}: the path is listed twice", value=path, remedy="delete one of the lines")
        paths.add(path)
        known = facts.setdefault(row["class_id"], {"name": row["name"]})
        if known["name"] != row["name"]:
            raise DataError(
                f"{row['place']}: class {row['class_id']} has two names",
                value=row["name"],
                limit=known["name"],
                remedy="correct the name, or give it a class_id of its own",
            )
        for column in _CLASS_COLUMNS:
            # The common name that stands for a missing scientific one is no name beside it.
            if row[column] and (column != "common_name" or row["scientific_name"]):
                known.setdefault(column, row[column])
        if row["gbif_id"].isdecimal():
            known.setdefault("gbif_id", int(row["gbif_id"]))
    return {class_id: SourceClass(class_id=class_id, **known) for class_id, known in facts.items()}


def _record(row: _Row, columns: Mapping[str, str], plants: dict[str, SourceClass], default: str) -> PictureRecord:
    return PictureRecord(
        path=row["path"],
        plant=plants[row["class_id"]],
        split=_split(row),
        group=row["group"],
        author=sys.intern(row["author"]),
        license=sys.intern(row["license"] or default),
        taken_on=_day(row, columns.get("taken_on", "")),
        coordinates=_coordinates(row),
        cultivated=row["cultivated"].lower() in _YES,
    )


def _split(row: _Row) -> Split | None:
    name = row["split"].lower()
    split = "calibration" if name == "calibration" else SPLIT_NAMES.get(name)
    if name and split is None:
        remedy = "correct it, or leave it empty to have it chosen at random"
        raise DataError(f"{row['place']}: unknown split", value=row["split"], limit=", ".join(SPLITS), remedy=remedy)
    return split


def _day(row: _Row, column: str) -> date | None:
    """Returns the day of "2024-05-31", "2024-05-31T10:20" or EXIF's "2024:05:31 10:20:00"; None for a year or month."""
    written = row["taken_on"]
    try:
        known = written and not _NOT_TO_THE_DAY.fullmatch(written)
        return date.fromisoformat(written[:10].replace(":", "-")) if known else None
    except ValueError as error:
        raise DataError(
            f"{row['place']}: {column} is not a date",
            value=written,
            limit="a day such as 2024-05-31",
            remedy="correct it, or leave it empty",
        ) from error


def _coordinates(row: _Row) -> Coordinates | None:
    written = row["latitude"], row["longitude"]
    if written == ("", ""):
        return None
    try:
        place = place_of(*map(float, written))
    except ValueError:
        place = None
    if place is None:
        raise DataError(
            f"{row['place']}: latitude and longitude are not a place",
            value=", ".join(cell or "an empty cell" for cell in written),
            limit="degrees from -90 to 90 and from -180 to 180",
            remedy="correct both, or leave both empty",
        )
    return place
