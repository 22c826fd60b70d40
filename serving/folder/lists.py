"""Lists that name the photographs to identify."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError
from serving.folder.photographs import Photograph, Store

PATH_COLUMN: Final = "path"
"""The column that names the file."""


def read_list(path: Path, store: Store) -> Iterator[Photograph]:
    """Yields the photographs of a list: a CSV file with a column `path`, or a text file with one path a line.

    Raises:
        DataError: The file cannot be read, has no such column, or a row has no path.
    """
    rows = _rows(path)
    for number, row in enumerate(rows, start=2):
        if not row.get(PATH_COLUMN):
            raise DataError(f"line {number} of {path} names no file", limit=f"a column {PATH_COLUMN}")
    for row, found in zip(rows, store.look_up_all([row[PATH_COLUMN] for row in rows]), strict=True):
        yield msgspec.structs.replace(found, columns={key: row[key] or "" for key in row if key != PATH_COLUMN})


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the list {path} cannot be read", value=error, limit="a CSV file in UTF-8", remedy="correct the path"
        ) from error
    lines = text.splitlines()
    header = next(csv.reader(lines[:1]), [])
    if PATH_COLUMN in header:
        return [{key: row[key] for key in header} for row in csv.DictReader(lines)]
    if len(header) > 1:
        raise DataError(
            f"the list {path} has no column {PATH_COLUMN}",
            value=", ".join(header)[:200],
            limit=f"a CSV file with a column {PATH_COLUMN}",
            remedy="name the column of the files so",
        )
    return [{PATH_COLUMN: line.strip()} for line in lines if line.strip()]
