"""The shutdown, with clients that are slow: through a real socket, without signals."""

import asyncio
import itertools
import json
import signal
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import structlog
import uvicorn

from serving.api.middleware import ObservabilityMiddleware
from serving.api.server import DrainingServer
from serving.metrics import Metrics
from tests.serving.raw_http import POST, SOON_S, App, config, receive_all, receive_one, run
from tests.waiting import wait_until

UPLOAD = POST + b"Content-Length: 1000000\r\n\r\n"
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_service_says_that_it_listens_once_requests_are_answered():
    steps = []

    async def app(scope, receive, send):
        assert scope["type"] == "lifespan"
        await receive()
        steps.append("the application has started")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def act(app):
        settings = uvicorn.Config(app, lifespan="on", log_config=None)
        server = DrainingServer(settings, lambda: None, 0, 9, lambda: steps.append("listening"))
        settings.load()
        server.lifespan = settings.lifespan_class(settings)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await server.startup([listening])
            await server.shutdown([listening])

    asyncio.run(act(app))
    assert steps == ["the application has started", "listening"]


class Running:
    """A server that has been told to stop, as by SIGTERM."""

    def __init__(self, shutdown_s):
        self.app, self.metrics = App(), Metrics()
        draining = threading.Event()
        wrapped = ObservabilityMiddleware(self.app, self.metrics, draining.is_set)
        self.server = DrainingServer(config(wrapped, 60, 60), draining.set, 0, shutdown_s)

    @contextmanager
    def connected(self, *pieces):
        """Connects, sends the pieces, and stops the server once it has taken the request up."""
        with run(self.server) as address, socket.create_connection(address, timeout=60) as connection:
            for piece in pieces:
                connection.sendall(piece)
            wait_until(lambda: any(connection.cycle for connection in self.connections()))
            self.server.handle_exit(signal.SIGTERM, None)
            yield connection

    def connections(self):
        return tuple(self.server.server_state.connections)


def test_slow_upload_is_cut_off_with_a_problem_document_two_seconds_before_the_end(monkeypatch):
    running, clock = Running(shutdown_s=600), [0.0]
    monkeypatch.setattr("serving.api.server.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with structlog.testing.capture_logs() as lines, running.connected(UPLOAD, b"a") as connection:
        clock[0] = 597.9
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        clock[0] = 598.0
        connection.settimeout(SOON_S)
        head, _, document = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head
    assert json.loads(document)["code"] == "not_ready"
    assert b'botanify_refusals_total{code="not_ready"} 1.0' in running.metrics.text()
    [cut] = [line for line in lines if line["event"] == "shutdown_cut"]
    assert (cut["num_requests"], cut["num_connections"]) == (1, 1)
    [request] = [line for line in lines if line["event"] == "request"]
    assert (request["status"], request["code"]) == (503, "not_ready")


def test_download_that_is_not_read_is_cut_off(caplog):
    running = Running(shutdown_s=2.2)
    with running.connected(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        wait_until(lambda: not running.connections())
        assert len(receive_all(connection)) < 30_000_000
    assert not [record for record in caplog.records if record.exc_info]


def test_idle_connection_does_not_delay_the_end():
    running = Running(shutdown_s=60)
    with run(running.server) as address, socket.create_connection(address, timeout=60) as connection:
        connection.sendall(GET)
        receive_one(connection)
        start = time.monotonic()
        running.server.handle_exit(signal.SIGTERM, None)
        assert receive_all(connection) == b""
        assert time.monotonic() - start < 30


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
def test_request_that_comes_in_a_pause_of_the_process_as_the_port_closes_is_answered(before, monkeypatch):
    running = Running(shutdown_s=10_000)
    accept = running.server._accept_queued
    with run(running.server) as address, socket.create_connection(address, timeout=60) as connection:
        if before:
            connection.sendall(before)
            receive_one(connection)

        async def pause(listening):
            await accept(listening)
            connection.sendall(GET)
            monkeypatch.setattr("serving.api.server.time", SimpleNamespace(monotonic=itertools.count(step=2).__next__))

        monkeypatch.setattr(running.server, "_accept_queued", pause)
        running.server.handle_exit(signal.SIGTERM, None)
        assert receive_all(connection).startswith(b"HTTP/1.1 200 ")
