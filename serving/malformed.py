"""Which requests are refused before the application sees them, and the bytes of the refusal."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from serving.problems import MEDIA_TYPE, problem_document

NOT_HTTP: Final = "The bytes are not valid HTTP/1.1: use an HTTP library."
HEAD_TOO_LARGE: Final = "The head of the request is larger than 64 kB: send fewer or shorter headers."
TOO_MANY_PIPELINED: Final = "The connection has too many pipelined requests: wait for their responses."
TINY_CHUNKS: Final = "The body arrives in thousands of tiny chunks: send chunks of a kilobyte or more."
NO_MEMORY: Final = "The service has no memory for this request now: try again in 1 second."
_CONNECT: Final = "The method CONNECT is for proxies, and this service is none: send the request without a proxy."
_NO_HOST: Final = "A request needs the header Host exactly once: use an HTTP library."
_CODING: Final = "The only transfer coding that the service reads is chunked: send the body without another one."

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""


def refusal_of_head(method: bytes, version: str, headers: Sequence[Header]) -> str | None:
    """Returns why a request with this head is refused, or None.

    The parser has already refused a head that is not well-formed. It accepts these:

    * CONNECT, after whose head the connection would no longer carry HTTP.
    * HTTP/1.1 without the header Host, or any version with two (RFC 9112, section 3.2, requires status 400).
    * Transfer codings before chunked, such as gzip. Their bytes would be taken for the picture.

    Args:
        method: The method.
        version: The version of HTTP, such as "1.1".
        headers: All headers.
    """
    if method == b"CONNECT":
        return _CONNECT
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (num_hosts == 0 and version != "1.0"):
        return _NO_HOST
    if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
        return _CODING
    return None


def refusal_code(detail: str) -> str:
    """Returns the problem code of a refusal."""
    return "overloaded" if detail == NO_MEMORY else "bad_request"


def refusal(detail: str, request_id: str, default_headers: Sequence[Header]) -> bytes:
    """Returns the response that refuses a request and closes its connection.

    Args:
        detail: What is wrong, one of the sentences above.
        request_id: Id of the request, as in the log.
        default_headers: Headers that the server adds to every response.
    """
    problem = problem_document(refusal_code(detail), detail, request_id)
    document = msgspec.json.encode(problem)
    headers = [
        *default_headers,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(document)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
        *([(b"retry-after", b"1")] if detail == NO_MEMORY else []),
    ]
    status = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"
    lines = [status.encode(), *(b"%s: %s" % header for header in headers), b"", document]
    return b"\r\n".join(lines)
