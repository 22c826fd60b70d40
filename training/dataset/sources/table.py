"""Reads a CSV list of pictures: columns `path` and `scientific_name` or `common_name`, and optional ones."""

import csv
import math
import posixpath
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import DataError
from training.dataset.sources.record import SPLITS, PictureRecord, SourceClass, SourceContents, Split

_CLASS_COLUMNS: Final = ("common_name", "genus", "family", "order")
COLUMNS: Final = (
    *("path", "scientific_name", *_CLASS_COLUMNS, "class_id", "split", "group", "author", "licence", "taken_on"),
    *("latitude", "longitude"),
)
_SPLIT_NAMES: Final = {"val": "validation", "valid": "validation"}


def read_table(
    name: str,  # noqa: ARG001 - all readers are called alike
    root: Path,
    default_license: str = "",
    columns: Mapping[str, str] | None = None,
) -> SourceContents:
    """Reads a CSV list, in its order.

    Columns: `path` (absolute, or relative to the list's folder) and `scientific_name`, or `common_name` where that is
    missing; optionally `common_name`, `genus`, `family`, `order` (from the first row of the class that has one),
    `split` (train, validation or val, calibration, test), `group`, `author`, `licence`, `taken_on` (as 2024-05-31),
    `latitude` and `longitude` (degrees), and `class_id` if two classes share a name. Other columns are ignored.

    Args:
        name: Name of the source in output keys.
        root: The CSV file, UTF-8, with a header.
        default_license: License of pictures whose row gives none.
        columns: Our column -> the column of the list that stands for it.

    Raises:
        DataError: The list is missing, not UTF-8 CSV, empty, lacks a column, or repeats a path, or a row has an empty
            name, an impossible date or place, or an unknown split. The message gives the line.
    """
    if not root.is_file():
        raise DataError("no such list of pictures", value=root, remedy="give a CSV file with a header")
    try:
        plants = _plants(root, columns or {})  # first, because any row may add to a class
        records = [_record(row, plants, default_license) for row in _rows(root, columns or {})]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{root} is not a UTF-8 CSV file", value=error, remedy="save it as CSV in UTF-8") from error
    if not records:
        raise DataError("the list has no pictures", value=root, remedy="add one row for each picture")
    return SourceContents(root.parent, records, [])


class _Row(msgspec.Struct, frozen=True):
    """One row and its place in the file."""

    place: str
    cells: dict[str | Any, str | Any]
    """Column -> cell; `csv` stores surplus cells under None."""
    columns: Mapping[str, str]
    """Our column -> column of the list, where they differ."""

    def __getitem__(self, column: str) -> str:
        return (self.cells.get(self.columns.get(column, column)) or "").strip()

    @property
    def name(self) -> str:
        return self["scientific_name"] or self["common_name"]

    @property
    def class_id(self) -> str:
        return self["class_id"] or self.name


def _rows(table: Path, columns: Mapping[str, str]) -> Iterator[_Row]:
    with table.open(newline="", encoding="utf-8-sig") as stream:
        reader: csv.DictReader[str] = csv.DictReader(stream)
        header = reader.fieldnames or []
        required = {columns.get("path", "path"), *columns.values()}
        missing = sorted(required - {*header})
        names = [columns.get(name, name) for name in ("scientific_name", "common_name")]
        if not {*names} & {*header}:
            missing.append(" or ".join(names))
        if missing:
            raise DataError(
                f"{table} lacks the column {' and '.join(missing)}",
                value=", ".join(header) or "an empty file",
                limit="path and scientific_name or common_name",
                remedy="add the column to its first line, or name it with --path-column, --name-column "
                "(in a collection: columns)",
            )
        for cells in reader:
            yield _Row(f"{table}, line {reader.line_num}", cells, columns)


def _plants(table: Path, columns: Mapping[str, str]) -> dict[str, SourceClass]:
    """Returns class id -> class, combined from its rows; checks that rows do not contradict each other."""
    facts: dict[str, dict[str, Any]] = {}
    paths: set[str] = set()
    for row in _rows(table, columns):
        _check_cells(row)
        path = posixpath.normpath(row["path"])
        if path in paths:
            raise DataError(f"{row.place}: the path is listed twice", value=path, remedy="delete one of the lines")
        paths.add(path)
        known = facts.setdefault(row.class_id, {"name": row.name})
        if known["name"] != row.name:
            raise DataError(
                f"{row.place}: class {row.class_id} has two names",
                value=row.name,
                limit=known["name"],
                remedy="correct the name, or give it a class_id of its own",
            )
        for column in _CLASS_COLUMNS:
            # The common name that stands for a missing scientific one is no name beside it.
            if row[column] and (column != "common_name" or row["scientific_name"]):
                known.setdefault(column, row[column])
    return {class_id: SourceClass(class_id=class_id, **known) for class_id, known in facts.items()}


def _check_cells(row: _Row) -> None:
    if not row["path"] or not row.name:
        raise DataError(f"{row.place}: path or name is empty", remedy="complete or delete the line")
    if "\0" in row["path"]:
        raise DataError(f"{row.place}: the path contains a NUL character", remedy="write the list as plain UTF-8")
    surplus = row.cells.get(None)  # csv stores cells beyond the header here
    if surplus and any(cell.strip() for cell in surplus):
        raise DataError(
            f"{row.place}: more cells than the first line has columns",
            value=", ".join(surplus),
            remedy='put a name with a comma in quotes: "a, b"',
        )


def _record(row: _Row, plants: dict[str, SourceClass], default_license: str) -> PictureRecord:
    return PictureRecord(
        path=row["path"],
        plant=plants[row.class_id],
        split=_split(row),
        group=row["group"],
        author=sys.intern(row["author"]),
        license=sys.intern(row["licence"] or default_license),
        taken_on=_day(row),
        coordinates=_coordinates(row),
    )


def _split(row: _Row) -> Split | None:
    name = row["split"]
    if not name:
        return None
    split = _SPLIT_NAMES.get(name.lower(), name.lower())
    if split not in SPLITS:
        raise DataError(
            f"{row.place}: unknown split",
            value=name,
            limit=", ".join(SPLITS),
            remedy="correct it, or leave it empty to have it chosen at random",
        )
    return split


def _day(row: _Row) -> date | None:
    try:
        return date.fromisoformat(row["taken_on"]) if row["taken_on"] else None
    except ValueError as error:
        raise DataError(
            f"{row.place}: taken_on is not a date",
            value=row["taken_on"],
            limit="a day such as 2024-05-31",
            remedy="correct it, or leave it empty",
        ) from error


def _coordinates(row: _Row) -> tuple[float, float] | None:
    written = row["latitude"], row["longitude"]
    if written == ("", ""):
        return None
    try:
        latitude, longitude = map(float, written)
    except ValueError:
        latitude = longitude = math.nan
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):
        raise DataError(
            f"{row.place}: latitude and longitude are not a place",
            value=", ".join(cell or "an empty cell" for cell in written),
            limit="degrees from -90 to 90 and from -180 to 180",
            remedy="correct both, or leave both empty",
        )
    return latitude, longitude
