"""Photographs that show one plant get one answer: how they are grouped."""

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from models.errors import DataError, InputError
from serving.folder.photographs import Photograph

_FORMS: Final = "folder, column:NAME or regex:PATTERN"


class Plant(msgspec.Struct, frozen=True, gc=False):
    """A row of the result: a plant and its photographs."""

    name: str
    """Name of the group, or the path of its only photograph."""
    photographs: tuple[Photograph, ...]


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
    name_of = _namer(rule)
    groups: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        groups.setdefault(name_of(photograph), []).append(photograph)
    return [Plant(name, tuple(members)) for name, members in groups.items()]


def _namer(rule: str | None) -> Callable[[Photograph], str]:
    if rule is None:
        return lambda photograph: photograph.path
    kind, _, argument = rule.partition(":")
    if rule == "folder":
        return lambda photograph: photograph.path.rpartition("/")[0] or "."
    if kind == "column" and argument:
        return lambda photograph: _in_column(photograph, argument)
    if kind == "regex" and argument:
        pattern = _compiled(argument)
        return lambda photograph: _matched(photograph, pattern)
    raise InputError("the flag --group-by is not understood", value=rule, limit=_FORMS, remedy="correct it")


def _in_column(photograph: Photograph, name: str) -> str:
    if not photograph.columns.get(name):
        raise DataError(
            f"a photograph has no value in the column {name}",
            value=photograph.path,
            limit=", ".join(photograph.columns) or "a list with columns, see --list",
            remedy="correct the list or --group-by",
        )
    return photograph.columns[name]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(
            "the pattern of --group-by is not a regular expression", value=error, remedy="correct it"
        ) from error


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
