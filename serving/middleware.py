"""The outermost ASGI layer: request id, log line, metrics and common headers of every response.

It wraps Litestar's router, because Litestar's own middleware does not see requests that match no route.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send

from serving.caching import DO_NOT_KEEP, accepts_gzip, is_unchanged
from serving.errors import ClientLeft, NotReady
from serving.metrics import Metrics
from serving.problems import send_problem
from serving.tracing import Trace

_VALID_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_CONTENT_POLICY: Final = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# The viewer of the OpenAPI document uses inline styles; the page does not.
_VIEWER_POLICY: Final = f"{_CONTENT_POLICY}; style-src 'self' 'unsafe-inline'"

_log = structlog.get_logger(__name__)


class ObservabilityMiddleware:
    """Adds a request id and headers to every response, and logs and counts every request.

    It also answers HEAD on every route, as GET without the body.

    Args:
        app: The wrapped application.
        metrics: Counts the requests.
        is_draining: Whether the service is shutting down. Each response then closes its connection, so that the
            client's next request goes to another instance.
        varies_by_origin: Whether responses depend on the header Origin. Then every one says so: a cache could give a
            page of an allowed origin what it stored for a stranger.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        is_draining: Callable[[], bool] = lambda: False,
        *,
        varies_by_origin: bool = False,
    ) -> None:
        self._app, self._metrics, self._is_draining = app, metrics, is_draining
        self._vary = b"Accept-Encoding, Origin" if varies_by_origin else b"Accept-Encoding"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._is_draining, self._vary)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id, **exchange.trace_fields):
            try:
                with self._metrics.in_flight.track_inprogress():
                    await self._app(exchange.scope, receive, exchange.send)
            except asyncio.CancelledError:  # the time for the shutdown is over
                if not exchange.status:
                    await send_problem(exchange.scope, receive, exchange.send, _cut_off())
            finally:
                self._record(exchange)

    def _record(self, exchange: "_Exchange") -> None:
        seconds = time.perf_counter() - exchange.started
        route, method, code = exchange.route, exchange.method, exchange.problem_code
        self._metrics.request(route, method, exchange.status, seconds)
        if code is not None and code != ClientLeft.code:  # a disconnect is not a refusal
            self._metrics.refusal(code)
        fields = {"route": route, "method": method, "status": exchange.status, "duration_ms": round(seconds * 1e3, 1)}
        optional = {"code": code, "client": exchange.client}
        _log.info("request", **fields, **{name: value for name, value in optional.items() if value})


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Any, send: Send, is_draining: Callable[[], bool], vary: bytes) -> None:
        self.started = time.perf_counter()
        self.request_id = _request_id(scope["headers"])
        self._trace = Trace.of(scope["headers"])
        self.method = scope["method"] if scope["method"] in _METHODS else "other"
        self.status = 0
        self._is_read = scope["method"] in {"GET", "HEAD"}
        self._has_no_body = scope["method"] == "HEAD"
        self._send, self._is_draining, self._vary = send, is_draining, vary
        self.scope: Any = {**scope, "method": "GET"} if self._has_no_body else scope
        coding = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
        if not accepts_gzip(coding.decode("latin-1")):  # Litestar ignores the weight in "gzip;q=0"
            headers = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
            self.scope = {**self.scope, "headers": headers}
        self.scope["state"] = {**scope.get("state", {}), "request_id": self.request_id}

    @property
    def trace_fields(self) -> dict[str, str]:
        """Fields of the log that name the trace, if the request belongs to one."""
        return {} if self._trace is None else self._trace.log_fields

    @property
    def route(self) -> str:
        """The route's template, never the path of the request."""
        return str(self.scope.get("path_template") or "unmatched")

    @property
    def problem_code(self) -> str | None:
        """Code of the problem document, if the response is one."""
        code = self.scope["state"].get("problem_code")
        return None if code is None else str(code)

    @property
    def client(self) -> str | None:
        """Name of the client's API key, if it has one. Addresses are personal data and never logged."""
        client = self.scope["state"].get("client")
        return None if client is None else str(client)

    async def send(self, message: Message) -> None:
        """Sends a message of the response, with the common headers and, for HEAD and 304, without the body."""
        if message["type"] == "http.response.start":
            if self._is_read and message["status"] == 200 and is_unchanged(self.scope["headers"], message["headers"]):
                _make_not_modified(message)
                self._has_no_body = True
            self.status = message["status"]
            # Litestar's layers for CORS and compression overwrite each other's Vary.
            headers = [header for header in _allow_head(message.get("headers", [])) if header[0].lower() != b"vary"]
            message["headers"] = [*headers, *self._common_headers(), *self._optional_headers(headers)]
        elif message["type"] == "http.response.body" and self._has_no_body:
            message["body"] = b""
        await self._send(message)

    def _common_headers(self) -> list[tuple[bytes, bytes]]:
        quota = self.scope["state"].get("quota", {})  # serving.routes knows it
        policy = _VIEWER_POLICY if self.scope["path"].startswith("/schema") else _CONTENT_POLICY
        return [
            (b"vary", self._vary),
            (b"x-request-id", self.request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"content-security-policy", policy.encode()),
            *((name.encode(), value.encode()) for name, value in quota.items()),
            *(self._trace.headers if self._trace is not None else ()),
        ]

    def _optional_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Returns those of the headers that the response does not have yet."""
        optional = [(b"cache-control", DO_NOT_KEEP.encode())]
        if self._is_draining():
            optional.append((b"connection", b"close"))
        present = {name.lower() for name, _ in headers}
        return [header for header in optional if header[0] not in present]


def _cut_off() -> NotReady:
    return NotReady("the service is shutting down", retry_after_s=1, remedy="send the request to another instance")


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    sent = next((value for name, value in headers if name.lower() == b"x-request-id"), b"")
    return sent.decode() if _VALID_ID.fullmatch(sent) else uuid.uuid4().hex


def _make_not_modified(message: HTTPResponseStartEvent) -> None:
    message["status"] = 304
    message["headers"] = [
        (name, value) for name, value in message["headers"] if not name.lower().startswith(b"content-")
    ]


def _allow_head(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Adds HEAD to the header Allow where it lists GET."""
    return [
        (name, b"HEAD, " + value if name.lower() == b"allow" and b"GET" in value and b"HEAD" not in value else value)
        for name, value in headers
    ]
