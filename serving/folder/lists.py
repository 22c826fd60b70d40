"""Lists that name the photographs to identify."""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError
from serving.folder.photographs import LocalFolder, Photograph, Store, has_photograph_name

PATH_COLUMN: Final = "path"
"""The column that names the file."""
_MAX_HEADER: Final = 100_000  # characters; the module csv accepts 131,072 in a cell
_SURPLUS: Final = "\0"  # no header has it


def read_list(path: Path, store: Store) -> Iterator[Photograph]:
    """Yields the photographs of a list: a CSV file with a column `path`, or a text file with one path a line.

    Raises:
        DataError: The file cannot be read, is neither, names a column twice, or a row names no file, one outside the
            folder, or one that was named before.
    """
    root = os.path.normpath(store.root.absolute()) if isinstance(store, LocalFolder) else "/bucket"
    rows = list(_rows(path, root))
    for row, found in zip(rows, store.look_up_all([row[PATH_COLUMN] for row in rows]), strict=True):
        yield msgspec.structs.replace(found, columns={key: row[key] for key in row if key not in (PATH_COLUMN, "")})


def _rows(path: Path, root: str) -> Iterator[Mapping[str, str]]:
    seen: set[str] = set()
    for number, row in _numbered_rows(path, _text(path)):
        name = row[PATH_COLUMN]
        if not name:
            raise DataError(f"line {number} of {path} names no file", limit=f"a column {PATH_COLUMN}")
        place = os.path.normpath(name if name.startswith("/") else f"{root}/{name}")
        if not place.startswith(f"{root.rstrip('/')}/"):
            raise DataError(
                f"line {number} of {path} names a file outside the folder of photographs",
                value=name,
                limit=f"a path that stays in {root}",
                remedy="correct it, or identify a folder that holds all files of the list",
            )
        if place in seen:
            raise DataError(f"line {number} of {path} names a file again", value=name, remedy="remove one of the lines")
        seen.add(place)
        yield row


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the list {path} cannot be read", value=error, limit="a CSV file in UTF-8", remedy="correct the path"
        ) from error
    if "\0" in text:
        raise DataError(
            f"the list {path} has zero bytes", limit="a CSV file in UTF-8", remedy="save it in UTF-8, or correct it"
        )
    return text


def _numbered_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    first = io.StringIO(text, newline="").readline().strip()[:_MAX_HEADER]
    header = [] if has_photograph_name(first) else next(csv.reader([first]), [])
    if PATH_COLUMN in header:
        return _table_rows(path, text)
    separators = [separator for separator in (";", "\t") if PATH_COLUMN in first.split(separator)]
    if len(header) > 1 or separators:
        raise DataError(
            f"the list {path} has no column {PATH_COLUMN}",
            value=first[:200],
            limit=f"a CSV file with a column {PATH_COLUMN} and commas between its columns",
            remedy="separate the columns by commas" if separators else "name the column of the files so",
        )
    return _lines(text)


def _lines(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines() would split names at rarer signs too
        if line.strip():
            yield number, {PATH_COLUMN: line.strip()}


def _table_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    table = csv.DictReader(io.StringIO(text, newline=""), restkey=_SURPLUS, restval="", strict=True)
    try:
        _require_once(path, [name for name in table.fieldnames or () if name])
        for row in table:
            if _SURPLUS in row:
                raise DataError(
                    f"line {table.line_num} of {path} has more cells than the header",
                    remedy='put a value with a comma between double quotes: "IMG 1, rose.jpg"',
                )
            yield table.line_num, row
    except csv.Error as error:
        raise DataError(
            f"line {table.reader.line_num} of {path} is no CSV", value=error, remedy="correct the double quotes"
        ) from error


def _require_once(path: Path, header: Sequence[str]) -> None:
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(f"the header of {path} names a column twice", value=twice[0], remedy="rename one of them")
