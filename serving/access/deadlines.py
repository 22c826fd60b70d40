"""What a client prefers (RFC 7240): of all preferences only `wait`, how long it waits for its answer."""

import re
from collections.abc import Sequence
from typing import Final

# Elements of a list: commas inside of a quoted string part nothing, and a string without its end swallows the rest.
_ELEMENT: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')
_SECONDS: Final = re.compile(r'([0-9]+)|"([0-9]+)"')
_MAX_LENGTH: Final = 1_000  # of all Prefer headers together; real ones have a tenth of it


def wanted_deadline(preferences: Sequence[str], most_s: float) -> float | None:
    """Gives the seconds in which the client wants its answer, by `Prefer: wait=SECONDS`, or nothing if it did not say.

    A preference is a wish: what is malformed or unknown is ignored, of several `wait` the first counts, and no time at
    all, in which nothing could be answered, counts as malformed.

    Args:
        preferences: The headers Prefer of the request, in order.
        most_s: The service's own deadline, which is never exceeded.
    """
    text = ",".join(preferences)
    if len(text) > _MAX_LENGTH:
        return None
    for element in _ELEMENT.findall(text):
        name, _, value = element.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return _seconds(value.strip(), most_s)
    return None


def _seconds(text: str, most_s: float) -> float | None:
    found = _SECONDS.fullmatch(text)
    wanted_s = float(found[1] or found[2]) if found else 0.0
    return min(wanted_s, most_s) or None
