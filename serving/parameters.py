"""The parameters of an identify request: query parameters, and form fields with the same names."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from serving.errors import BadParameter

MAX_IMAGES: Final = 5
"""Maximum number of pictures in a request."""
DEFAULT_K: Final = 5
"""Number of taxa, genera and families that an answer lists by default."""
MAX_K: Final = 50
"""Maximum number of taxa, genera and families that a client can ask for."""
MAX_FIELD_BYTES: Final[Mapping[str, int]] = {"k": 64}
"""Name of each parameter -> longest form field, bytes; much longer than any valid value."""

Given = Mapping[str, Sequence[str]]
"""Name of a parameter -> its values in the order of the request, unparsed."""


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for, beside its pictures."""

    top_k: int = DEFAULT_K
    """Maximum number of taxa, genera and families to list."""


def parse_parameters(given: Given) -> Asked:
    """Parses the parameters of a request; of several values for one parameter the last counts.

    Raises:
        BadParameter: A value is out of range.
    """
    return Asked(top_k=parse_whole_number("k", _last(given, "k", str(DEFAULT_K)), MAX_K))


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


def _last(given: Given, name: str, default: str) -> str:
    values = given.get(name)
    return values[-1] if values else default
