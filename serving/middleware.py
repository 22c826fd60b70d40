"""The outermost layer, round everything that answers HTTP: request id, one log line, metrics, headers of every answer.

It stands outside Litestar's router because Litestar's own middleware never sees a request that no route takes.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import ClientLeft
from serving.metrics import Metrics

_SANE_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_POLICY: Final = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# The viewer of the OpenAPI document styles itself; the page does not need to.
_VIEWER_POLICY: Final = f"{_POLICY}; style-src 'self' 'unsafe-inline'"

_log = structlog.get_logger(__name__)


class Observed:
    """An ASGI application whose requests are named, logged and counted.

    HEAD is answered here, as GET without its body, for every route alike.

    Args:
        app: What answers.
        metrics: Where requests are counted.
        is_draining: Whether the service is about to end; every connection is then closed after its answer, so that the
            next request goes elsewhere.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_draining: Callable[[], bool] = lambda: False) -> None:
        self._app, self._metrics, self._is_draining = app, metrics, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one connection, as ASGI has it."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._is_draining)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                with self._metrics.in_flight.track_inprogress():
                    await self._app(exchange.scope, receive, exchange.send)
            finally:  # also when the server cancels us at its end
                self._record(exchange)

    def _record(self, exchange: "_Exchange") -> None:
        seconds = time.perf_counter() - exchange.started
        route, method, code = exchange.route, exchange.method, exchange.problem_code
        self._metrics.request(route, method, exchange.status, seconds)
        if code is not None and code != ClientLeft.code:  # nobody was refused then
            self._metrics.refusal(code)
        facts = {"route": route, "method": method, "status": exchange.status, "duration_ms": round(seconds * 1e3, 1)}
        told = {"code": code, "client": exchange.client}
        _log.info("request", **facts, **{name: value for name, value in told.items() if value})


class _Exchange:
    """One request and what becomes of it."""

    def __init__(self, scope: Any, send: Send, is_draining: Callable[[], bool]) -> None:
        self.started = time.perf_counter()
        self.request_id = _request_id(scope["headers"])
        self.method = scope["method"] if scope["method"] in _METHODS else "other"
        self.status = 0
        self._is_head = scope["method"] == "HEAD"
        self._send, self._is_draining = send, is_draining
        self.scope = scope
        if self._is_head:
            self.scope = {**scope, "method": "GET"}
        self.scope["state"] = {**scope.get("state", {}), "request_id": self.request_id}

    @property
    def route(self) -> str:
        """The route's template, never what stood in the address."""
        return str(self.scope.get("path_template") or "unmatched")

    @property
    def problem_code(self) -> str | None:
        """Code of the problem that was answered, if one was."""
        code = self.scope["state"].get("problem_code")
        return None if code is None else str(code)

    @property
    def client(self) -> str | None:
        """Name of the API key, where one let the client in. Addresses are never logged: they are personal data."""
        client = self.scope["state"].get("client")
        return None if client is None else str(client)

    async def send(self, message: Message) -> None:
        """Sends a part of the response on, with our headers and, for HEAD, without its body."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = _with_head_allowed(message.get("headers", []))
            message["headers"] = [*headers, *self._own_headers(), *self._last_headers(headers)]
        elif message["type"] == "http.response.body" and self._is_head:
            message["body"] = b""
        await self._send(message)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        policy = _VIEWER_POLICY if self.scope["path"].startswith("/schema") else _POLICY
        return [
            (b"x-request-id", self.request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"content-security-policy", policy.encode()),
        ]

    def _last_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if not self._is_draining() or any(name.lower() == b"connection" for name, _ in headers):
            return []
        return [(b"connection", b"close")]


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    sent = next((value for name, value in headers if name.lower() == b"x-request-id"), b"")
    return sent.decode() if _SANE_ID.fullmatch(sent) else uuid.uuid4().hex


def _with_head_allowed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Names HEAD in Allow wherever GET is named."""
    return [
        (name, b"HEAD, " + value if name.lower() == b"allow" and b"GET" in value and b"HEAD" not in value else value)
        for name, value in headers
    ]
