"""The outermost ASGI layers: refusals at the entry; request id, log line, metrics and headers of every response.

They wrap the application, because Litestar's own middleware does not see requests that match no route.
"""

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.config.cors import CORSConfig
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from serving.access.control import AccessControl
from serving.access.origins import headers_for_pages, refused_preflight
from serving.api.problems import problem_response, send_problem
from serving.errors import ClientLeft, NotReady, RateLimited, RequestError
from serving.metrics import Metrics

HeaderPairs = Iterable[tuple[bytes, bytes]]

REVALIDATE: Final = "no-cache"
"""Cache-Control of what may be kept but is asked for again: an upgrade or a reload changes it."""
_DO_NOT_KEEP: Final = b"no-store"  # Cache-Control of everything else: answers, errors, health, metrics
# Printable ASCII. A request id is a part of the address of its correction: no slash, and not . or ..
_VALID_ID: Final = re.compile(rb"(?!\.\.?$)[\x21-\x2e\x30-\x7e]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_CONTENT_POLICY: Final = (
    b"default-src 'self'; img-src 'self' blob: data:; worker-src 'self'; manifest-src 'self'; object-src 'none'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
# The viewer of the OpenAPI document uses inline styles; the page does not.
_VIEWER_POLICY: Final = _CONTENT_POLICY + b"; style-src 'self' 'unsafe-inline'"
PUBLIC: Final = {"public": True}
"""`opt` of a route that needs no key: its requests count for the rate of their address."""
PRECOMPRESSED: Final = "precompressed"
"""Name of the option of a route whose responses are not to be compressed again."""
MIN_COMPRESSED_BYTES: Final = 1_000
"""A shorter text is sent as it is: it fits into one packet anyway."""

_log = structlog.get_logger(__name__)


def refusing_preflights(app: ASGIApp, config: CORSConfig) -> ASGIApp:
    """Returns a layer that refuses what a page of another origin may not send; Litestar would answer in plain text."""

    async def layer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["method"] == "OPTIONS":
            headers = Request[Any, Any, Any](scope).headers
            reason = refused_preflight(
                config,
                headers.get("origin"),
                headers.get("access-control-request-method"),
                headers.get("access-control-request-headers", ""),
            )
            if reason is not None:
                problem = f"a page of another origin may not send {reason}"
                await send_problem(scope, receive, send, RequestError(problem, remedy="ask the operator to allow it"))
                return
        await app(scope, receive, send)

    return layer


class AddressLimit:
    """Counts requests that need no key for the rate of their address: those to public routes, and to no route."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def guard(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Guards every route.

        Raises:
            RateLimited: The address has used up its rate.
        """
        if PUBLIC.items() <= handler.opt.items() or connection.scope.get("method") == "OPTIONS":
            self._access.limit_address(connection.client.host if connection.client else None)

    def respond(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """Returns the problem document of an error, which is another one if the request without a route is too much."""
        if "path_template" not in request.scope:
            try:
                self._access.limit_address(request.client.host if request.client else None)
            except RateLimited as limited:
                error = limited
        return problem_response(request, error)


class ObservabilityMiddleware:
    """Adds a request id and headers to every response, and logs and counts every request.

    It also answers HEAD on every route, as GET without the body.

    Args:
        app: The wrapped application.
        metrics: Counts the requests.
        is_draining: Whether the service is shutting down. Each response then closes its connection, so that the
            client's next request goes to another instance.
        cors: Which pages of other origins may read responses. If they are not all, every response says that it depends
            on the header Origin: a cache could give a page of an allowed origin what it stored for a stranger.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        is_draining: Callable[[], bool] = lambda: False,
        *,
        cors: CORSConfig | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self.is_draining = is_draining
        self.cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                with self._metrics.in_flight.track_inprogress():
                    await self._app(exchange.scope, receive, exchange.send)
            except asyncio.CancelledError:  # the time for the shutdown is over
                if not exchange.status:
                    remedy = "send the request to another instance"
                    error = NotReady("the service is shutting down", retry_after_s=1, remedy=remedy)
                    await send_problem(exchange.scope, receive, exchange.send, error)
            finally:
                self._record(exchange)

    def _record(self, exchange: "_Exchange") -> None:
        seconds = time.perf_counter() - exchange.started
        state = exchange.scope["state"]
        method = exchange.method
        status = exchange.status
        route = str(exchange.scope.get("path_template") or "unmatched")  # never the path of the request
        code = state.get("problem_code")
        client = state.get("client")  # addresses are personal data and never logged
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.request_s.labels(route).observe(seconds)
        if code is not None and code != ClientLeft.code:  # a disconnect is not a refusal
            self._metrics.refusals.labels(code).inc()
        fields = {"route": route, "method": method, "status": status, "duration_ms": round(seconds * 1e3, 1)}
        optional = {"code": code, "client": client}
        _log.info("request", **fields, **{name: value for name, value in optional.items() if value})


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Any, send: Send, layer: ObservabilityMiddleware) -> None:
        self.started = time.perf_counter()
        sent_id = next((value for name, value in scope["headers"] if name.lower() == b"x-request-id"), b"")
        self.request_id = sent_id.decode() if _VALID_ID.fullmatch(sent_id) else uuid.uuid4().hex
        self.method = scope["method"] if scope["method"] in _METHODS else "other"
        self.status = 0
        self._is_read = scope["method"] in {"GET", "HEAD"}
        self._has_no_body = scope["method"] == "HEAD"
        self._send = send
        self._layer = layer
        self.scope: Any = {**scope, "method": "GET"} if self._has_no_body else scope
        coding = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
        if not accepts_gzip(coding.decode("latin-1")):  # Litestar ignores the weight in "gzip;q=0"
            headers = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
            self.scope = {**self.scope, "headers": headers}
        self.scope["state"] = {**scope.get("state", {}), "request_id": self.request_id}

    async def send(self, message: Message) -> None:
        """Sends a message of the response, with the common headers and, for HEAD and 304, without the body."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if self._is_read and message["status"] == 200 and is_unchanged(self.scope["headers"], headers):
                message["status"] = 304
                headers = [header for header in headers if not header[0].lower().startswith(b"content-")]
                self._has_no_body = True
            self.status = message["status"]
            message["headers"] = self._with_common(headers)
        elif message["type"] == "http.response.body" and self._has_no_body:
            message["body"] = b""
        await self._send(message)

    def _with_common(self, headers: HeaderPairs) -> list[tuple[bytes, bytes]]:
        completed: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            if name.lower() == b"allow" and b"GET" in value and b"HEAD" not in value:
                completed.append((name, b"HEAD, " + value))
            elif name.lower() != b"vary":  # Litestar's layers for CORS and compression overwrite each other's
                completed.append((name, value))
        present = {name.lower() for name, _ in completed}
        quota = self.scope["state"].get("quota", {})  # serving.api.identify.authorize knows it
        is_readable = self.method == "OPTIONS" or b"access-control-allow-origin" in present
        config = self._layer.cors
        cors = {} if is_readable else headers_for_pages(config, self.scope["headers"])
        is_for_all = config is None or config.is_allow_all_origins
        completed += [
            (b"vary", b"Accept-Encoding" if is_for_all else b"Accept-Encoding, Origin"),
            (b"x-request-id", self.request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (
                b"content-security-policy",
                _VIEWER_POLICY if self.scope["path"].startswith("/schema") else _CONTENT_POLICY,
            ),
            *((name.lower().encode(), value.encode()) for name, value in {**quota, **cors}.items()),
        ]
        if b"cache-control" not in present:
            completed.append((b"cache-control", _DO_NOT_KEEP))
        if self._layer.is_draining() and b"connection" not in present:
            completed.append((b"connection", b"close"))
        return completed


# ---- HTTP caching (RFC 9110, RFC 9111)


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


def is_unchanged(request: HeaderPairs, response: HeaderPairs) -> bool:
    """Returns whether a GET is answered with 304, because the client already has what the response holds.

    If-None-Match takes precedence over If-Modified-Since (RFC 9110, section 13.2.2).
    """
    known = [value for name, value in request if name.lower() == b"if-none-match"]
    since = [value for name, value in request if name.lower() == b"if-modified-since"]
    if not known and len(since) != 1:
        return False
    current = {name.lower(): value for name, value in response}
    if known:
        tag = current.get(b"etag")
        tags = {each.strip().removeprefix(b"W/") for each in b",".join(known).split(b",")}
        return tag is not None and (b"*" in tags or tag.removeprefix(b"W/") in tags)
    modified = _date(current.get(b"last-modified", b""))
    limit = _date(since[0])
    return modified is not None and limit is not None and modified <= limit


def _date(value: bytes) -> datetime | None:
    try:
        found = parsedate_to_datetime(value.decode("ascii"))
    except (ValueError, OverflowError):  # the second for an endless number
        return None
    return found if found.tzinfo is not None else None
