"""Refused preflight requests (CORS) get a problem document; Litestar would answer them in plain text."""

from typing import Any

from litestar import Request
from litestar.config.cors import CORSConfig
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from serving.access.cors import refused_preflight
from serving.errors import RequestError
from serving.problems import send_problem


def with_preflight_problems(app: ASGIApp, config: CORSConfig | None) -> ASGIApp:
    """Returns the application with this layer around it, or the application itself if no origin is configured."""
    if config is None:
        return app

    async def layer(scope: Scope, receive: Receive, send: Send) -> None:
        reason = _refused(scope, config) if scope["type"] == ScopeType.HTTP else None
        if reason is None:
            await app(scope, receive, send)
        else:
            error = RequestError(
                f"a page of another origin may not send {reason}", remedy="ask the operator to allow it"
            )
            await send_problem(scope, receive, send, error)

    return layer


def _refused(scope: HTTPScope, config: CORSConfig) -> str | None:
    if scope["method"] != "OPTIONS":
        return None
    headers = Request[Any, Any, Any](scope).headers
    return refused_preflight(
        config,
        headers.get("origin"),
        headers.get("access-control-request-method"),
        headers.get("access-control-request-headers", ""),
    )
