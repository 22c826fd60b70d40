"""The one translator of exceptions to problem documents (RFC 9457): which code has which status and title."""

from http import HTTPStatus
from typing import Any, Final

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from models.errors import InputError
from serving.errors import BadPicture, ClientLeft, RequestError, SlowBody, Unavailable
from serving.schemas import Problem

MEDIA_TYPE: Final = "application/problem+json"
CLIENT_LEFT_STATUS: Final = 499  # nginx's number for it; only logs and metrics ever see it

_KINDS: Final[dict[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is not understood"),
    "no_image": (400, "No picture was sent"),
    "malformed_body": (400, "The body is malformed"),
    "not_found": (404, "Nothing stands there"),
    "method_not_allowed": (405, "The method is not allowed here"),
    "slow_body": (408, "The upload took too long"),
    "too_large": (413, "Too many bytes"),
    "unsupported_format": (415, "The format is not supported"),
    "unreadable_image": (422, "The picture does not decode"),
    "too_many_pixels": (422, "The picture has too many pixels"),
    "too_many_images": (422, "Too many pictures"),
    "bad_parameter": (422, "A parameter is out of its range"),
    "internal": (500, "An error of the service"),
    "overloaded": (503, "Too much to do"),
    "not_ready": (503, "Not ready yet"),
    "timed_out": (504, "The answer took too long"),
}
_FRAMEWORK_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_FRAMEWORK_DETAILS: Final = {
    "not_found": "Nothing stands at this address: see /schema for what does.",
    "method_not_allowed": "This address does not answer that method: see the header Allow.",
    "too_large": "The request is too large: send fewer or smaller pictures.",
    "bad_request": "The request is not understood: see /schema for what is.",
    "internal": "The service made a mistake and has noted it: report the request id to whoever runs it.",
}

_log = structlog.get_logger(__name__)


def problem_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Writes an error as a problem document; anything that is not ours becomes `internal` and is logged."""
    if isinstance(error, ClientLeft):
        return _response(request, error.code, CLIENT_LEFT_STATUS, None)
    if isinstance(error, RequestError):
        return _refusal(request, error)
    if isinstance(error, HTTPException) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        code = _FRAMEWORK_CODES.get(error.status_code, "bad_request")
        return _document(request, code, _FRAMEWORK_DETAILS[code], headers=_kept_headers(error))
    _log.error("internal", exc_info=error)
    return _document(request, "internal", _FRAMEWORK_DETAILS["internal"])


def status_of(code: str) -> int:
    """The HTTP status of a problem code."""
    return _KINDS[code][0]


def codes_by_status() -> dict[int, list[str]]:
    """Every status with its codes, in order; the OpenAPI document lists them."""
    found: dict[int, list[str]] = {}
    for code, (status, _) in _KINDS.items():
        found.setdefault(status, []).append(code)
    return found


def _refusal(request: Request[Any, Any, Any], error: RequestError) -> Response[Any]:
    shown: InputError = error.reason if isinstance(error, BadPicture) else error
    retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else None
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if isinstance(error, SlowBody):
        headers["Connection"] = "close"  # or the rest of the upload would still be waited for
    sentence = str(error)
    return _document(request, shown.code, sentence[:1].upper() + sentence[1:], index=error.index, headers=headers)


def _document(
    request: Request[Any, Any, Any],
    code: str,
    detail: str,
    *,
    index: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response[Any]:
    status, title = _KINDS[code]
    request_id = request.scope["state"].get("request_id", "")
    problem = Problem(f"urn:botanify:problem:{code}", title, status, detail, code, request_id, index)
    return _response(request, code, status, problem, headers)


def _response(
    request: Request[Any, Any, Any],
    code: str,
    status: int,
    problem: Problem | None,
    headers: dict[str, str] | None = None,
) -> Response[Any]:
    request.scope["state"]["problem_code"] = code  # the log line and the metrics tell it
    return Response(problem, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def _kept_headers(error: HTTPException) -> dict[str, str]:
    return {name.title(): value for name, value in (error.headers or {}).items()}
