"""The service in this process, with a tiny bundle; and an application behind a real socket."""

import socket
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import structlog
from litestar.testing import TestClient

from serving.access.control import RateLimiter
from serving.app import create_app
from serving.settings import Settings
from tests.serving.raw_http import SOON_S, App, serve
from tests.serving.tiny import InProcessDecoder
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _same_logging():
    """A program that a test runs in this process sends the log to a stream that is closed with the test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def bundle_folder(sealed):
    return sealed()


@pytest.fixture
def settings(bundle_folder):
    return Settings(bundle=bundle_folder, num_threads=1, num_runs=1, num_decoders=1)


def wait_until_ready(client):
    wait_until(lambda: client.get("/health/ready").status_code == 200)
    return client


@contextmanager
def ready_service(*, session=None, in_process=True, ready=True, **settings):
    """A client of a service in this process that is ready, and decodes in this process too."""
    chosen = Settings(**{"num_threads": 1, "num_runs": 1, "num_decoders": 1} | settings)
    service = create_app(chosen, session=session, decoder=InProcessDecoder() if in_process else None)
    with TestClient(service.app, raise_server_exceptions=False) as client:
        client.service = service
        yield wait_until_ready(client) if ready else client


def failure_of_start(*, session=None, **settings):
    """Why the warm-up of a service fails, which then is never ready."""
    failures = []
    service = create_app(Settings(**settings), session=session, decoder=InProcessDecoder(), on_failure=failures.append)
    with TestClient(service.app) as client:
        wait_until(lambda: failures)
        assert client.get("/health/ready").status_code == 503
    return str(failures[0])


@pytest.fixture(scope="module")
def client(bundle_folder):
    """The service in this process, ready, with default limits, decoding in a child process."""
    with ready_service(bundle=bundle_folder, in_process=False) as client:
        yield client


@pytest.fixture
def start(bundle_folder):
    """Starts more services in this process, with other settings or a fake network."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(ready_service(**{"bundle": bundle_folder} | changes))


@pytest.fixture
def still_clock(monkeypatch):
    """The rates of the services that the test starts do not refill, however slow the machine is."""
    monkeypatch.setattr("serving.app.RateLimiter", partial(RateLimiter, clock=lambda: 0.0))


@pytest.fixture(scope="module")
def echo_server():
    """An application that echoes requests, and its address."""
    app = App()
    with serve(app) as address:
        yield app, address


@pytest.fixture
def echo_app(echo_server):
    echo_server[0].disconnected.clear()
    return echo_server[0]


@pytest.fixture
def dial(echo_server):
    """Opens a connection to the application and sends the pieces."""

    @contextmanager
    def connected(*pieces):
        with socket.create_connection(echo_server[1], timeout=SOON_S) as connection:
            for piece in pieces:
                connection.sendall(piece)
            yield connection

    return connected
