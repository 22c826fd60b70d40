"""The parameters of an identify request: query parameters, and form fields with the same names."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast, get_args

import msgspec

from models.calibration import CoverageKind
from serving.errors import BadParameter

MAX_IMAGES: Final = 5
"""Maximum number of pictures in a request."""
DEFAULT_K: Final = 5
"""Number of taxa, genera and families that an answer lists by default."""
MAX_K: Final = 50
"""Maximum number of taxa, genera and families that a client can ask for."""
MIN_COVERAGE: Final = 0.5
MAX_COVERAGE: Final = 0.999
"""Limits of the coverage that a client can ask for."""
MAX_TAXA: Final = 50
"""Maximum number of values of `taxa`; a longer choice is a list that the operator keeps."""
MAX_NAME_LENGTH: Final = 200
"""Maximum number of characters of a name that a client sends."""
MAX_FIELD_BYTES: Final[Mapping[str, int]] = {
    "k": 64,
    "coverage": 64,
    "coverage_kind": 64,
    "taxa": 4 * MAX_NAME_LENGTH,  # UTF-8 takes up to four bytes for a character
}
"""Name of each parameter -> longest form field, bytes."""

Given = Mapping[str, Sequence[str]]
"""Name of a parameter -> its values in the order of the request, unparsed."""


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for, beside its pictures."""

    top_k: int = DEFAULT_K
    """Maximum number of taxa, genera and families to list."""
    coverage: float | None = None
    """How often the candidate set shall include the right taxon; None for no candidate set."""
    coverage_kind: CoverageKind = "marginal"
    """Whether that holds for the mean plant ("marginal") or for the mean taxon ("macro")."""
    taxa: tuple[str, ...] = ()
    """Names of the taxa that can be the answer, and `list:NAME`; none for all taxa."""


def parse_parameters(given: Given) -> Asked:
    """Parses the parameters of a request; of several values the last counts, except for `taxa`.

    Raises:
        BadParameter: A value is out of range.
    """
    return Asked(
        top_k=parse_whole_number("k", _last(given, "k", str(DEFAULT_K)), MAX_K),
        coverage=_parse_coverage(given["coverage"][-1]) if given.get("coverage") else None,
        coverage_kind=_parse_coverage_kind(_last(given, "coverage_kind", "marginal")),
        taxa=_parse_taxa(given.get("taxa", ())),
    )


def parse_whole_number(name: str, text: str, maximum: int) -> int:
    """Parses a number from 1 to `maximum`.

    Raises:
        BadParameter: The text is not such a number.
    """
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= maximum:
        return int(text)
    raise BadParameter(
        f"the parameter `{name}` is out of range",
        value=repr(text[:40]),
        limit=f"a whole number from 1 to {maximum}",
        remedy="send a number in this range, or leave the parameter out",
    )


def _parse_coverage(text: str) -> float:
    if re.fullmatch(r"0?\.[0-9]{1,9}", text) and MIN_COVERAGE <= float(text) <= MAX_COVERAGE:
        return float(text)
    raise BadParameter(
        "the parameter `coverage` is out of range",
        value=repr(text[:40]),
        limit=f"a number from {MIN_COVERAGE} to {MAX_COVERAGE}",
        remedy="send a number in this range such as 0.9, or leave the parameter out",
    )


def _parse_coverage_kind(text: str) -> CoverageKind:
    for kind in get_args(CoverageKind):
        if text == kind:
            return cast(CoverageKind, kind)
    raise BadParameter(
        "the parameter `coverage_kind` is not known",
        value=repr(text[:40]),
        limit=" or ".join(get_args(CoverageKind)),
        remedy="send one of these, or leave the parameter out",
    )


def _parse_taxa(values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > MAX_TAXA:
        raise BadParameter(
            "the parameter `taxa` has too many values",
            value=len(values),
            limit=f"at most {MAX_TAXA}",
            remedy="send genera or families, or ask the operator for a list",
        )
    for value in values:
        check_name_length("taxa", value)
    return tuple(values)


def check_name_length(parameter: str, text: str) -> None:
    """Checks the length of a name that a client sends.

    Raises:
        BadParameter: It is too long.
    """
    if len(text) > MAX_NAME_LENGTH:
        raise BadParameter(
            f"the parameter `{parameter}` is too long",
            value=f"{len(text)} characters",
            limit=f"at most {MAX_NAME_LENGTH}",
            remedy="send one name",
        )


def _last(given: Given, name: str, default: str) -> str:
    values = given.get(name)
    return values[-1] if values else default
