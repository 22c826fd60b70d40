"""Photographs -> plants: a list names them, and a rule says which of them show one plant and get one answer."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final
from unicodedata import normalize

import msgspec

from models.errors import DataError, InputError
from models.text_table import TextTable, text_lines
from serving.folder.photographs import LocalFolder, Photograph, Store, has_photograph_name

PATH_COLUMN: Final = "path"
"""The column that names the file."""
_SEPARATED: Final = re.compile(r"[,;\t|]")
_FORMS: Final = "folder, column:NAME or regex:PATTERN"


class Plant(msgspec.Struct, frozen=True, gc=False):
    """A row of the result: a plant and its photographs."""

    group: str
    """Name of the group; "" for a photograph that shows a plant of its own."""
    photographs: tuple[Photograph, ...]

    @property
    def name(self) -> str:
        """Name of the group, or the path of its only photograph."""
        return self.group or self.photographs[0].path


def group_photographs(photographs: Iterable[Photograph], rule: str | None) -> list[Plant]:
    """Groups photographs into plants, in the order of their first photograph.

    Args:
        photographs: What was found.
        rule: "folder" (photographs of one folder show one plant), "column:NAME" (those with one value in a column of
            the list), "regex:PATTERN" (those for which the first group of a pattern, or all of it, matches one part of
            the path); None if each photograph shows a plant of its own.

    Raises:
        InputError: The rule has another form.
        DataError: A photograph lacks the column, or the pattern does not match its path.
    """
    if rule is None:
        return [Plant("", (photograph,)) for photograph in photographs]
    name_of = _namer(rule)
    groups: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        groups.setdefault(name_of(photograph), []).append(photograph)
    return [Plant(name, tuple(members)) for name, members in groups.items()]


def _namer(rule: str) -> Callable[[Photograph], str]:
    kind, _, argument = rule.partition(":")
    if rule == "folder":
        return lambda photograph: photograph.path.rpartition("/")[0] or "."
    if kind == "column" and argument:
        return lambda photograph: _in_column(photograph, argument)
    if kind == "regex" and argument:
        try:
            pattern = re.compile(argument)
        except re.error as error:
            raise InputError(
                "the pattern of --group-by is not a regular expression", value=error, remedy="correct it"
            ) from error
        return lambda photograph: _matched(photograph, pattern)
    raise InputError("the flag --group-by is not understood", value=rule, limit=_FORMS, remedy="correct it")


def _in_column(photograph: Photograph, name: str) -> str:
    if cell := photograph.columns.get(name):
        return cell
    raise DataError(
        f"a photograph has no value in the column {name}",
        value=photograph.path,
        limit=", ".join(photograph.columns) or "a list with columns, see --list",
        remedy="correct the list or --group-by",
    )


def _matched(photograph: Photograph, pattern: re.Pattern[str]) -> str:
    found = pattern.search(photograph.path)
    name = "" if found is None else found[1] if pattern.groups and found[1] is not None else found[0]
    if not name:
        raise DataError(
            "the pattern of --group-by matches no text of a path",
            value=photograph.path,
            limit=pattern.pattern,
            remedy="correct the pattern, so that it matches a part of every path",
        )
    return name


def read_list(path: Path, store: Store) -> Iterator[Photograph]:
    """Yields the photographs of a list: a CSV file with a column `path`, or a text file with one path a line.

    Raises:
        DataError: The file cannot be read, is neither, names a column twice, or a row names no file, one outside the
            folder, or one that was named before.
    """
    if isinstance(store, LocalFolder):
        place_of = partial(_place, os.path.realpath(store.root), cache(os.path.realpath))
    else:
        place_of = partial(_place, "/bucket", os.path.normpath)
    rows = [(number, row, _inside(number, row[PATH_COLUMN], path, place_of)) for number, row in _numbered_rows(path)]
    written = [names[0] for _, _, names in rows]
    found = dict(zip(written, store.look_up_all(written), strict=True))
    others = [name for _, _, names in rows if found[names[0]].num_bytes < 0 for name in names[1:]]
    found |= {each.path: each for each in store.look_up_all(others) if each.num_bytes >= 0}
    seen: set[str] = set()
    for number, row, names in rows:
        name = next((name for name in names if name in found and found[name].num_bytes >= 0), names[0])
        place = place_of(name)
        if place in seen:
            raise DataError(f"line {number} of {path} names a file again", value=name, remedy="remove one of the lines")
        seen.add(place)
        cells = {key: row[key] for key in row if key not in (PATH_COLUMN, "")}
        yield msgspec.structs.replace(found[name], cells=cells or None)


def _place(root: str, real: Callable[[str], str], name: str) -> str:
    """Returns where a file is; "" outside of the root. A link to a file may lead anywhere, as in a search."""
    folder, file = os.path.split(name if name.startswith("/") else f"{root}/{name}")
    place = os.path.normpath(f"{real(folder)}/{file}")
    return place if place.startswith(f"{root.rstrip('/')}/") else ""


def _inside(number: int, name: str, path: Path, place_of: Callable[[str], str]) -> list[str]:
    """Returns the spellings of a path that lead to a place in the folder: as it is written, then as systems differ.

    macOS writes a letter and its mark as two characters, others as one; Windows separates folders by backslashes.
    """
    if not name:
        raise DataError(f"line {number} of {path} names no file", limit=f"a column {PATH_COLUMN}")
    forms = [normalize(form, text) for text in (name, name.replace("\\", "/")) for form in ("NFC", "NFD")]
    names = [each for each in dict.fromkeys([name, *forms]) if place_of(each)]
    if not names:
        raise DataError(
            f"line {number} of {path} names a file outside the folder of photographs",
            value=name,
            limit="a path that stays in it",
            remedy="correct it, or identify a folder that holds all files of the list",
        )
    return names


def _numbered_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    first = next(text_lines(path), "").strip()
    if first == PATH_COLUMN or (_SEPARATED.search(first) and not has_photograph_name(first)):
        yield from TextTable(path, (PATH_COLUMN,)).rows()
    else:
        lines = enumerate(map(str.strip, text_lines(path)), start=1)
        yield from ((number, {PATH_COLUMN: line}) for number, line in lines if line)
