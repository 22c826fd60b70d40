"""The headers of every response and the fields of every log line."""

import asyncio

import pytest
import structlog

from serving.metrics import Metrics
from serving.middleware import ObservabilityMiddleware


def answer(*, is_draining=False, headers=(), client=None):
    """Returns the headers and the log line of one response."""

    async def app(scope, receive, send):
        if client is not None:
            scope["state"]["client"] = client
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": b""})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/model", "headers": [], "client": ("192.0.2.1", 4711)}
    with structlog.testing.capture_logs() as lines:
        asyncio.run(ObservabilityMiddleware(app, Metrics(), lambda: is_draining)(scope, None, send))
    [line] = lines
    return sent[0]["headers"], line


@pytest.mark.parametrize(("is_draining", "expected"), [(False, []), (True, [b"close"])])
def test_connections_are_closed_after_their_response_only_while_draining(is_draining, expected):
    headers, _ = answer(is_draining=is_draining)
    assert [value for name, value in headers if name == b"connection"] == expected


def test_duration_is_in_milliseconds(monkeypatch):
    clock = iter([100.0, 100.25])
    monkeypatch.setattr("serving.middleware.time.perf_counter", lambda: next(clock))
    assert answer()[1]["duration_ms"] == 250.0


@pytest.mark.parametrize("client", [None, ""])
def test_log_line_without_a_key_has_no_client(client):
    _, line = answer(client=client)
    assert "client" not in line
    assert "192.0.2.1" not in str(line)
