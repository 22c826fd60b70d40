"""Turns exceptions into problem documents (RFC 9457), and maps each problem code to its status and title."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import Receive, Scope, Send

from serving.errors import (
    BadPicture,
    ClientLeft,
    EncodedBody,
    Overloaded,
    RateLimited,
    RequestError,
    SlowBody,
    Unauthorized,
    Unavailable,
)
from serving.schemas import Problem

MEDIA_TYPE: Final = "application/problem+json"
CLIENT_LEFT_STATUS: Final = 499  # nginx's status for a disconnected client; appears in logs and metrics only

_STATUS_AND_TITLE: Final[dict[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is not valid"),
    "no_image": (400, "No picture was sent"),
    "malformed_body": (400, "The body is malformed"),
    "unauthorized": (401, "An API key is needed"),
    "not_found": (404, "Not found"),
    "unknown_taxon": (404, "The model does not know the taxon"),
    "unknown_answer": (404, "The answer is not known"),
    "method_not_allowed": (405, "The method is not allowed"),
    "slow_body": (408, "The upload took too long"),
    "reload_refused": (409, "The bundle cannot be used"),
    "too_large": (413, "Too many bytes"),
    "unsupported_format": (415, "The format is not supported"),
    "unreadable_image": (422, "The picture cannot be decoded"),
    "too_many_pixels": (422, "The picture has too many pixels"),
    "too_many_images": (422, "Too many pictures"),
    "bad_parameter": (422, "A parameter is out of range"),
    "rate_limited": (429, "Too many requests"),
    "internal": (500, "Internal error"),
    "overloaded": (503, "The service is overloaded"),
    "store_unavailable": (503, "The correction could not be stored"),
    "not_ready": (503, "The service is not ready"),
    "timed_out": (504, "The answer took too long"),
    "store_full": (507, "There is no room for more pictures"),
}
_FRAMEWORK_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_FRAMEWORK_DETAILS: Final = {
    "not_found": "There is nothing at this address: see /schema for the addresses of the service.",
    "method_not_allowed": "This address does not support the method: use one that the header Allow lists.",
    "too_large": "The request is too large: send fewer or smaller pictures.",
    "bad_request": "The request is not valid: see /schema for valid requests.",
    "internal": "The service failed and has logged the error: report the request id to its operator.",
}

_log = structlog.get_logger(__name__)


def problem_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Returns the problem document of an error; an unexpected one is logged and becomes `internal`.

    A lack of memory passes when other requests end, so it is refused as overload.
    """
    state = request.scope["state"]
    index = None
    headers: dict[str, str] = {}
    if isinstance(error, MemoryError):
        _log.warning("out_of_memory")
        error = Overloaded.with_retry("the service has no memory for this request now", 1)
    if isinstance(error, ClientLeft):
        state["problem_code"] = error.code  # for the log line and the metrics
        return Response(None, status_code=CLIENT_LEFT_STATUS, media_type=MEDIA_TYPE)
    if isinstance(error, RequestError):
        code = error.reason.code if isinstance(error, BadPicture) else error.code
        sentence = str(error)
        detail = sentence[:1].upper() + sentence[1:]
        index = error.index
        headers = _headers(error)
    elif isinstance(error, HTTPException) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        code = _FRAMEWORK_CODES.get(error.status_code, "bad_request")
        detail = _FRAMEWORK_DETAILS[code]
        headers = {name.title(): value for name, value in (error.headers or {}).items()}
    else:
        _log.error("internal", exc_info=error)
        code = "internal"
        detail = _FRAMEWORK_DETAILS[code]
    state["problem_code"] = code
    problem = problem_document(code, detail, state.get("request_id", ""), index)
    return Response(problem, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _headers(error: RequestError) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, EncodedBody):
        return {"Accept-Encoding": "identity"}  # RFC 9110, 12.5.3
    if isinstance(error, SlowBody):
        return {"Connection": "close"}  # otherwise the server would wait for the rest of the upload
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        quota = error.quota if isinstance(error, RateLimited) else {}
        return {"Retry-After": str(error.retry_after_s), **quota}
    return {}


async def send_problem(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """Answers a request with the problem document of an error, without a route."""
    request = Request[Any, Any, Any](scope, receive, send)
    response = problem_response(request, error).to_asgi_response(app=None, request=request)
    await response(scope, receive, send)


def problem_document(code: str, detail: str, request_id: str, index: int | None = None) -> Problem:
    """Returns the document of a problem; `detail` says as a sentence what is wrong with this request."""
    status, title = _STATUS_AND_TITLE[code]
    return Problem(f"urn:botanify:problem:{code}", title, status, detail, code, request_id, index)


def codes_by_status() -> dict[int, list[str]]:
    """Returns the problem codes of each status, for the OpenAPI document."""
    found: dict[int, list[str]] = {}
    for code, (status, _) in _STATUS_AND_TITLE.items():
        found.setdefault(status, []).append(code)
    return found


# ---- requests that the protocol refuses before the application sees them

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
    """Returns the response that refuses a request, for a reason above, and closes its connection."""
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
