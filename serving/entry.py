"""Refuses requests before the application sees them: preflights (CORS), and what exceeds the rate of an address."""

import re
from typing import Any, Final

from litestar import Request
from litestar.config.cors import CORSConfig
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from serving.access.control import AccessControl
from serving.access.cors import refused_preflight
from serving.errors import RateLimited, RequestError
from serving.problems import send_problem

# Probes have no rate; the other routes here ask for a key, and count each request for its client.
_NOT_BY_ADDRESS: Final = re.compile(r"(GET|HEAD) /(health/(live|ready)|species(/[^/]+)?)|POST /(identify|admin/reload)")


def with_refusals(app: ASGIApp, config: CORSConfig | None, access: AccessControl) -> ASGIApp:
    """Returns the application with this layer around it.

    Args:
        app: The application.
        config: Which origins may send requests; None if there are none.
        access: Limits what needs no key, such as the page and the metrics, by address.
    """

    async def layer(scope: Scope, receive: Receive, send: Send) -> None:
        error = _refusal(scope, config, access) if scope["type"] == ScopeType.HTTP else None
        if error is None:
            await app(scope, receive, send)
        else:
            await send_problem(scope, receive, send, error)

    return layer


def _refusal(scope: HTTPScope, config: CORSConfig | None, access: AccessControl) -> RequestError | None:
    if config is not None and scope["method"] == "OPTIONS":
        reason = _refused_preflight(scope, config)  # Litestar would answer in plain text
        if reason is None:
            return None  # a key keeps its rate; the browser asks before each of its requests
        return RequestError(f"a page of another origin may not send {reason}", remedy="ask the operator to allow it")
    if not _NOT_BY_ADDRESS.fullmatch(f"{scope['method']} {scope['path']}"):
        try:
            access.limit_address(scope["client"][0] if scope["client"] else None)
        except RateLimited as error:
            return error
    return None


def _refused_preflight(scope: HTTPScope, config: CORSConfig) -> str | None:
    headers = Request[Any, Any, Any](scope).headers
    return refused_preflight(
        config,
        headers.get("origin"),
        headers.get("access-control-request-method"),
        headers.get("access-control-request-headers", ""),
    )
