"""A CSV list of pictures: columns `path` and `scientific_name`, and optionally what else a record can say."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from models.errors import DataError
from training.sources.record import PictureRecord, Split

_REQUIRED = ("path", "scientific_name")
_SPLIT_NAMES = {"val": "validation", "valid": "validation"}


def read_table(table: Path, licence: str = "") -> Iterator[PictureRecord]:
    """Yields the pictures of a CSV list, in its order.

    Columns: `path` (relative to the list's folder) and `scientific_name`; optionally `common_name`, `genus`, `family`,
    `split` (train, validation or val, test), `group`, `author`, `licence`, and `class_id` where two classes share a
    name.

    Args:
        table: The CSV file, UTF-8, with a header.
        licence: Licence of pictures whose row names none.

    Raises:
        DataError: The list is missing, is no UTF-8 CSV, lacks a column, is empty, or a row has an empty name or an
            unknown split.
    """
    if not table.is_file():
        raise DataError("no such list of pictures", value=table, remedy="give a CSV file with a header")
    try:
        yield from _records(table, licence)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{table} is no UTF-8 CSV file", value=error, remedy="save it as CSV in UTF-8") from error


def _records(table: Path, licence: str) -> Iterator[PictureRecord]:
    with table.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        missing = [column for column in _REQUIRED if column not in (reader.fieldnames or [])]
        if missing:
            raise DataError(
                f"{table} lacks the column {' and '.join(missing)}",
                value=", ".join(reader.fieldnames or []) or "an empty file",
                limit=", ".join(_REQUIRED),
                remedy="add the column to its first line",
            )
        num_rows = 0
        for num_rows, row in enumerate(reader, start=1):  # noqa: B007
            yield _record(table, reader.line_num, row, licence)
    if num_rows == 0:
        raise DataError("the list holds no pictures", value=table, remedy="add a row a picture")


def _record(table: Path, line: int, row: dict[str, str | None], licence: str) -> PictureRecord:
    def column(name: str) -> str:
        return (row.get(name) or "").strip()

    if not column("path") or not column("scientific_name"):
        raise DataError(f"{table}, line {line}: path or scientific_name is empty", remedy="complete or delete the line")
    return PictureRecord(
        path=table.parent / column("path"),
        original_name=column("scientific_name"),
        original_id=column("class_id") or column("scientific_name"),
        common_name=column("common_name"),
        genus=column("genus"),
        family=column("family"),
        split=_split(table, line, column("split")),
        group=column("group"),
        author=column("author"),
        licence=column("licence") or licence,
    )


def _split(table: Path, line: int, name: str) -> Split | None:
    if not name:
        return None
    split = _SPLIT_NAMES.get(name.lower(), name.lower())
    if split not in get_args(Split):
        raise DataError(
            f"{table}, line {line}: unknown split",
            value=name,
            limit=", ".join(get_args(Split)),
            remedy="correct it, or leave it empty to have it drawn",
        )
    return cast(Split, split)
