"""HTTP caching (RFC 9110, RFC 9111): what clients may keep, when it is still right, and whether it is compressed."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec
from litestar import Response

REVALIDATE: Final = "no-cache"
"""Cache-Control of what may be kept but is asked for again: an upgrade or a reload changes it."""
DO_NOT_KEEP: Final = "no-store"
"""Cache-Control of everything else: answers, errors, health, metrics."""

Headers = Iterable[tuple[bytes, bytes]]


def entity_tag(content: bytes) -> str:
    """Returns the ETag of a content; it is weak, because the compressed content has the same one."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'


async def revalidated(response: Response[Any]) -> Response[Any]:
    """Adds an ETag to a response of a route, as its hook `after_request`."""
    if not isinstance(response.content, bytes):
        response.content = msgspec.json.encode(response.content)
    response.headers |= {"ETag": entity_tag(response.content), "Cache-Control": REVALIDATE}
    return response


def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether a client takes compressed content (RFC 9110, section 12.5.3)."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in {"gzip", "*"}:
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def is_unchanged(request: Headers, response: Headers) -> bool:
    """Returns whether a GET is answered with 304, because the client already has what the response holds.

    If-None-Match takes precedence over If-Modified-Since (RFC 9110, section 13.2.2).

    Args:
        request: The headers of the request.
        response: The headers of the response, with names in any case.
    """
    known = [value for name, value in request if name.lower() == b"if-none-match"]
    since = [value for name, value in request if name.lower() == b"if-modified-since"]
    if known:
        tag = _first(response, b"etag")
        tags = {each.strip().removeprefix(b"W/") for each in b",".join(known).split(b",")}
        return tag is not None and (b"*" in tags or tag.removeprefix(b"W/") in tags)
    modified, limit = _date(_first(response, b"last-modified")), _date(since[0] if len(since) == 1 else None)
    return modified is not None and limit is not None and modified <= limit


def _first(headers: Headers, wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name.lower() == wanted), None)


def _date(value: bytes | None) -> datetime | None:
    try:
        found = parsedate_to_datetime((value or b"").decode("ascii"))
    except (ValueError, OverflowError):  # the second for an endless number
        return None
    return found if found.tzinfo is not None else None
