"""Reads tables of text: CSV, and what spreadsheets and Darwin Core separate by semicolons, tabs or bars."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final, Literal

from models.atomic_file import write_bytes
from models.errors import DataError

_SEPARATORS: Final = ",;\t|"
_IN_QUOTES: Final = re.compile(r'^"([^"]*)"$')


class TextTable:
    """A table with a header, which can be read several times."""

    def __init__(
        self,
        path: Path,
        needed: Sequence[str],
        spellings: Mapping[str, Sequence[str]] | None = None,
        *,
        given: Mapping[str, str] | None = None,
        never: str = "",
        separators: str = _SEPARATORS,
        unquoted: str = "",
        remedy: str = "add the column to its first line",
    ) -> None:
        """Reads the header of a file in UTF-8, and takes the separator with which most of what is needed is found.

        Args:
            path: The file.
            needed: Our columns that it must have; "a or b" if one of two is enough.
            spellings: Our column -> its other spellings. Case, signs and a prefix such as `dwc:` do not matter. None if
                each column is read under its own name, and cells with the spaces around them.
            given: Our column -> the column of the table that stands for it.
            never: A column that is not read.
            separators: Those that it may have.
            unquoted: Separators of tables in which quotes are signs as any other, but for two around a whole cell.
            remedy: What to do if a column is missing.

        Raises:
            DataError: The file cannot be read, lacks a column, or has one twice.
        """
        self.path = path
        self._spellings = spellings
        self._unquoted = unquoted
        given = given or {}
        headers = {
            separator: [*map(str.strip, next(self._records(separator, strict=False), (0, []))[1])]
            for separator in separators
        }
        found = {separator: _columns(header, spellings, given, never) for separator, header in headers.items()}

        def missing(separator: str) -> list[str]:
            absent = [column for column in given.values() if column not in headers[separator]]
            return absent + [each for each in needed if found[separator].keys().isdisjoint(each.split(" or "))]

        self.separator = min(separators, key=lambda separator: len(missing(separator)))
        self.header = headers[self.separator]
        self.columns = found[self.separator]
        """Our column -> that of the table."""
        if twice := [column for column, number in Counter(filter(None, self.header)).items() if number > 1]:
            raise DataError(
                f"{path} has a column twice", value=", ".join(sorted(twice)), remedy="delete or rename one of the two"
            )
        if lacking := missing(self.separator):
            raise DataError(
                f"{path} lacks the column {' and '.join(lacking)}",
                value=", ".join(self.header)[:200] or "an empty file",
                remedy=remedy,
            )

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yields line and cells, by our columns, of each row; what it lacks is empty.

        Raises:
            DataError: A line is no CSV, or has more cells than the header.
        """
        width = len(self.header)
        for line, cells in islice(self._records(self.separator, strict=True), 1, None):
            if any(map(str.strip, cells[width:])):
                raise DataError(
                    f"line {line} of {self.path} has more cells than the header",
                    value=", ".join(cells[width:]),
                    remedy='put a value with the separator in quotes: "a, b"',
                )
            if cells:
                given = dict(zip_longest(self.header, cells[:width], fillvalue=""))
                row = {ours: given[theirs] for ours, theirs in self.columns.items()}
                if self._spellings is not None:
                    row = {ours: row.get(ours, "").strip() for ours in self._spellings}
                if self.separator in self._unquoted:
                    row = {ours: _IN_QUOTES.sub(r"\1", cell) for ours, cell in row.items()}
                yield line, row

    def _records(self, separator: str, *, strict: bool) -> Iterator[tuple[int, list[str]]]:
        quoting: Literal[0, 3] = csv.QUOTE_NONE if separator in self._unquoted else csv.QUOTE_MINIMAL
        spaced = self._spellings is not None
        lines = text_lines(self.path)
        reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=strict, skipinitialspace=spaced)
        try:
            for cells in reader:
                yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(
                f"line {reader.line_num} of {self.path} is no CSV", value=error, remedy="correct the double quotes"
            ) from error


def text_lines(path: Path, newline: str = "") -> Iterator[str]:
    """Yields the lines of a text in UTF-8, with their ends.

    Args:
        path: A regular file.
        newline: As of `open`: a line feed if a carriage return alone ends no line.

    Raises:
        DataError: It cannot be read, is not UTF-8, or has a NUL character.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device may never end
            raise OSError(0, "this is no regular file")
        with path.open(encoding="utf-8-sig", newline=newline) as stream:
            for number, line in enumerate(stream, start=1):
                if "\0" in line:
                    raise DataError(f"line {number} of {path} has a NUL character", remedy="save it as text in UTF-8")
                yield line
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{path} cannot be read", value=why, limit="text in UTF-8", remedy="correct the path, or save it in UTF-8"
        ) from error


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    """Returns a table as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV; the file is whole, or as it was before."""
    write_bytes(path, as_csv(columns, rows))


def _columns(
    header: Sequence[str], spellings: Mapping[str, Sequence[str]] | None, given: Mapping[str, str], never: str
) -> dict[str, str]:
    """Returns our column -> that of the table."""
    if spellings is None:
        return {column: column for column in header if column}
    free = [column for column in header if column not in {never, *given.values()}]
    spelled = {re.sub(r"[\W_]", "", column.rpartition(":")[2].lower()): column for column in reversed(free)}
    found = {
        ours: next((spelled[each] for each in (ours.replace("_", ""), *others) if each in spelled), "")
        for ours, others in spellings.items()
    }
    found |= {ours: ours for ours in spellings if ours in free} | dict(given)
    return {ours: theirs for ours, theirs in found.items() if theirs}
