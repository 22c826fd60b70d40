"""HTTP/1.1 as bytes over a real socket: an application behind the protocol class, and functions that read responses."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from serving.api.protocol import make_protocol
from tests.waiting import wait_until

HEADER_S, DRAIN_S, KEEP_ALIVE_S = 0.4, 0.6, 2.0
SOON_S = 60.0  # longest time for a connection to end when it should
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\n"


class App:
    """Reads the body and echoes the request as JSON; some paths behave differently."""

    def __init__(self):
        self.disconnected = threading.Event()

    async def __call__(self, scope, receive, send):
        path = scope["path"]
        content = b"" if path == "/early" else await self.read(scope, receive)
        if path == "/late":
            await asyncio.sleep(0.3)
        if path == "/wait":
            content = await self.read(scope, receive)  # ends when the client leaves
        if path == "/large":
            content = bytes(30_000_000)
        if content is not None:
            headers = [(b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 413 if path == "/early" else 200, "headers": headers})
            pieces = [content[start : start + 1_000_000] for start in range(0, len(content), 1_000_000)] or [b""]
            for number, piece in enumerate(pieces, start=1):
                await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})

    async def read(self, scope, receive):
        num_bytes, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return None
            num_bytes += len(message["body"])
            more = message["more_body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        return json.dumps({"path": scope["path"], "num_bytes": num_bytes, "headers": headers}).encode()


@contextmanager
def serve(app):
    """Serves the application; gives the address."""
    server = uvicorn.Server(config(app, HEADER_S, DRAIN_S, timeout_keep_alive=KEEP_ALIVE_S))
    with run(server) as address:
        yield address
        wait_until(lambda: not server.server_state.connections)  # a refused one lingers for two seconds


def config(app, header_s, drain_s, **options):
    http = make_protocol(header_s, drain_s)
    return uvicorn.Config(
        app, http=http, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1, **options
    )


@contextmanager
def run(server):
    """Runs a server in a thread; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def receive_all(connection):
    """Receives until the connection ends."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def receive_one(connection):
    """Receives one response; returns its status and content."""
    received = b""
    while b"\r\n\r\n" not in received or not response_is_complete(received):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    [response] = responses(received)
    return response


def drip(connection, piece, *, every_s=0.05, seconds=SOON_S):
    """Sends a piece repeatedly until the server closes the connection; returns the seconds until then."""
    start = time.monotonic()
    connection.settimeout(every_s)
    while time.monotonic() - start < seconds:
        try:
            connection.sendall(piece)
            if not connection.recv(65536):
                return time.monotonic() - start
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            return time.monotonic() - start
    raise AssertionError(f"the connection was still open after {seconds} s")


def responses(received):
    """Returns the status and content of each response, in order."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        found.append((int(head.split()[1]), rest[:length]))
        received = rest[length:]
    return found


def response_is_complete(received):
    head, _, content = received.partition(b"\r\n\r\n")
    return f"content-length: {len(content)}\r\n".encode() in head.lower() + b"\r\n"


def ask(dial, *pieces):
    """Returns the responses to the pieces; one more request closes the connection."""
    with dial(*pieces, LAST) as connection:
        *echoes, _ = responses(receive_all(connection))
    return echoes


def assert_refused(received):
    head, _, document = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem = json.loads(document)
    assert (problem["status"], problem["code"]) == (400, "bad_request")
    assert f"x-request-id: {problem['request_id']}".encode() in head
    return problem["detail"]
