"""Reads a CSV list of pictures: columns `path` and `scientific_name` or `common_name`, and optional ones."""

import os
import posixpath
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from models.errors import DataError
from models.names import may_be_latin
from models.text_table import TextTable
from training.dataset.sources.record import (
    COL_KEYS_LEFT_OUT,
    SPLIT_NAMES,
    SPLITS,
    Coordinates,
    PictureRecord,
    SourceClass,
    SourceContents,
    Split,
    day_of,
    is_col_key,
    place_of,
)

# Our columns and other spellings of each; case, spaces and signs do not matter.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "path": ("filename", "filepath", "file", "image", "imagepath", "imagename"),
    "scientific_name": ("species", "latinname", "specificepithet"),
    "common_name": ("vernacularname",),
    "class_id": ("speciesid",),
    "genus": ("genericname",),
    "family": (),
    "order": (),
    "gbif_id": ("taxonkey", "gbiftaxonid", "gbifspeciesid"),
    "split": ("subset", "learntag"),
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
# Where a picture may stand below the list, whose paths are then file names alone.
_FOLDERS: Final = ("", "{class_id}/", "{split}/{class_id}/")
_MOST_TRIED: Final = 100
_NOT_TO_THE_DAY: Final = re.compile(r"\d{4}(-\d{2})?")


def read_table(
    name: str, root: Path, default_license: str = "", columns: Mapping[str, str] | None = None
) -> SourceContents:
    """Reads a CSV list (UTF-8, with a header; separated by commas, semicolons, tabs or bars), in its order.

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
    table = TextTable(
        root,
        ("path", "scientific_name or common_name"),
        COLUMNS,
        given=columns,
        never="gbifID",  # GBIF's own number of an observation, not of a plant
        remedy="add the column to its first line, or name it with --path-column, --name-column "
        "(in a collection: columns); `prepare.py gbif` and `prepare.py inaturalist-export` read what these publish",
    )
    plants, has_col_keys = _plants(table)  # first, because any row may add to a class
    records = [_record(row, table, plants, default_license) for row in _rows(table)]
    if not records:
        raise DataError("the list has no pictures", value=root, remedy="add one row for each picture")
    unread = ", ".join(column for column in table.header if column and column not in table.columns.values())
    notes = [f"{name}: {COL_KEYS_LEFT_OUT}."] if has_col_keys else []
    if unread:
        notes.append(
            f"{name}: columns of {root.name} that are not read: {unread}; docs/data_sets.md lists those that are."
        )
    return SourceContents(root.parent, records, [], tuple(notes))


def _rows(table: TextTable) -> Iterator[dict[str, str]]:
    """Yields the cells of each row, the `name` of its class, and `place`, where it stands in the file.

    The first picture that exists, in the first lines, tells in which of `_FOLDERS` they all are.
    """
    root = table.path.parent
    found = None
    for line, cells in table.rows():
        row = {column: unicodedata.normalize("NFC", _QUOTED.sub("", cell)) for column, cell in cells.items()}
        row["place"] = f"{table.path}, line {line}"
        name = row["scientific_name"]
        if row["genus"] and name.islower() and " " not in name and may_be_latin(row["genus"], name):
            row["scientific_name"] = f"{row['genus']} {name}"  # the cell has the epithet alone
        row["name"] = row["scientific_name"] or row["common_name"]
        row["gbif_id"] = row["gbif_id"].removesuffix(".0")  # as pandas writes it in a column with empty cells
        row["class_id"] = row["class_id"] or row["name"]
        if row["path"]:
            path = on_disk(root, _QUOTED.sub("", cells["path"]))
            if found is None and line <= _MOST_TRIED:
                found = next(
                    (each for each in _FOLDERS if os.access(root / (each.format(**row) + path), os.F_OK)), None
                )
            row["path"] = (found or "").format(**row) + path
        yield row


def on_disk(root: Path, path: str) -> str:
    """Returns a path as the disk has it: lists of Windows have backslashes, and those of macOS decompose letters."""
    if path.isascii() and "\\" not in path:
        return path
    slashes = path.replace("\\", "/")
    spelled = (unicodedata.normalize(form, each) for each in (path, slashes) for form in ("NFC", "NFD"))
    return next((each for each in (path, *spelled) if os.access(root / each, os.F_OK)), slashes)


def _plants(table: TextTable) -> tuple[dict[str, SourceClass], bool]:
    """Returns class id -> class, combined from its rows, and whether the list has keys of the Catalogue of Life.

    Rows must not contradict each other.
    """
    facts: dict[str, dict[str, Any]] = {}
    keys: set[str] = set()
    paths: set[str] = set()
    for row in _rows(table):
        if not row["path"] or not row["name"]:
            raise DataError(f"{row['place']}: path or name is empty", remedy="complete or delete the line")
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
        keys.add(row["gbif_id"])
        if row["gbif_id"].isdecimal():
            known.setdefault("gbif_id", int(row["gbif_id"]))
    has_col_keys = any(map(is_col_key, keys))
    if has_col_keys:
        facts = {class_id: known | {"gbif_id": None} for class_id, known in facts.items()}
    return {class_id: SourceClass(class_id=class_id, **known) for class_id, known in facts.items()}, has_col_keys


def _record(row: Mapping[str, str], table: TextTable, plants: dict[str, SourceClass], default: str) -> PictureRecord:
    return PictureRecord(
        path=row["path"],
        plant=plants[row["class_id"]],
        split=_split(row),
        group=row["group"],
        author=sys.intern(row["author"]),
        license=sys.intern(row["license"] or default),
        taken_on=_day(row, table),
        coordinates=_coordinates(row),
        cultivated=row["cultivated"].lower() in _YES,
    )


def _split(row: Mapping[str, str]) -> Split | None:
    name = row["split"].lower()
    split = "calibration" if name == "calibration" else SPLIT_NAMES.get(name)
    if name and split is None:
        remedy = "correct it, or leave it empty to have it chosen at random"
        raise DataError(f"{row['place']}: unknown split", value=row["split"], limit=", ".join(SPLITS), remedy=remedy)
    return split


def _day(row: Mapping[str, str], table: TextTable) -> date | None:
    """Returns the day that begins a cell; None for a year or month."""
    written = row["taken_on"]
    day = day_of(written[:10])
    if day is None and written and not _NOT_TO_THE_DAY.fullmatch(written):
        raise DataError(
            f"{row['place']}: {table.columns['taken_on']} is not a date",
            value=written,
            limit="a day such as 2024-05-31",
            remedy="correct it, or leave it empty",
        )
    return day


def _coordinates(row: Mapping[str, str]) -> Coordinates | None:
    written = row["latitude"], row["longitude"]
    place = place_of(*written)
    if place is None and any(written):
        raise DataError(
            f"{row['place']}: latitude and longitude are not a place",
            value=", ".join(cell or "an empty cell" for cell in written),
            limit="degrees from -90 to 90 and from -180 to 180",
            remedy="correct both, or leave both empty",
        )
    return place
