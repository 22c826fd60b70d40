"""The deadline that a client asks for with the header Prefer (RFC 7240); only `wait` is supported."""

import re
from collections.abc import Sequence
from typing import Final

# One element of a comma-separated list. Commas in a quoted string do not separate; an unclosed quote runs to the end.
_ELEMENT: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')
_SECONDS: Final = re.compile(r'([0-9]+)|"([0-9]+)"')
_MAX_LENGTH: Final = 1_000  # of all Prefer headers together; real ones are about a tenth as long


def preferred_deadline(preferences: Sequence[str], max_s: float) -> float | None:
    """Returns the seconds that `Prefer: wait=SECONDS` asks for, or None if the client did not ask.

    Malformed and unknown preferences are ignored, as the RFC requires. The first `wait` counts. `wait=0` is treated as
    malformed, because no answer could be given in time.

    Args:
        preferences: The request's Prefer headers, in order.
        max_s: The service's own deadline and the upper limit of the result.
    """
    text = ",".join(preferences)
    if len(text) > _MAX_LENGTH:
        return None
    for element in _ELEMENT.findall(text):
        name, _, value = element.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return _seconds(value.strip(), max_s)
    return None


def _seconds(text: str, max_s: float) -> float | None:
    match = _SECONDS.fullmatch(text)
    wait_s = float(match[1] or match[2]) if match else 0.0
    return min(wait_s, max_s) or None
