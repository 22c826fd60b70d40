"""The trace of a request, as W3C Trace Context names it: the header `traceparent`, taken up into the log and answered.

The answer is the header `traceresponse` of the draft of Level 2: the caller's trace with the id of this request's span.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

# version "-" trace id "-" parent id "-" flags; a later version may have more fields (W3C Trace Context, 3.2.2).
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?"
)


class Trace(NamedTuple):
    """The trace that a request belongs to."""

    trace_id: str
    """Id of the whole trace, which the caller chose; 32 hexadecimal digits."""
    span_id: str
    """Id of this request within the trace; 16 hexadecimal digits."""
    flags: str
    """As the caller sent them; 2 hexadecimal digits."""

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]]) -> Self | None:
        """Returns the trace of a request, or None if it has none, a malformed one or several."""
        sent = [value for name, value in headers if name.lower() == b"traceparent"]
        match = _TRACEPARENT.fullmatch(sent[0]) if len(sent) == 1 else None
        if match is None or (match[1] == b"00" and match[4] is not None):
            return None
        return cls(match[2].decode(), secrets.token_hex(8), match[3].decode())

    @property
    def log_fields(self) -> dict[str, str]:
        """Fields of every log line of the request."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the response."""
        return [(b"traceresponse", f"00-{self.trace_id}-{self.span_id}-{self.flags}".encode())]
