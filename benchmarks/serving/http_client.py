"""A small HTTP/1.1 client over raw connections: it must use little CPU, as client and server share the cores."""

import asyncio
from contextlib import closing
from typing import Final

import httptools
import msgspec

_BOUNDARY: Final = "botanify-benchmark-4b1c0a7e"


class ConnectionLost(Exception):
    """The connection ended before the answer was complete."""


class Answer(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: dict[str, str]
    """Lower-case name -> value."""
    body: bytes


class Connection(asyncio.Protocol):
    """A connection that sends one request at a time; use `connect`."""

    def __init__(self) -> None:
        self._is_kept = True
        self._answer: asyncio.Future[Answer] | None = None
        self._start()

    async def send(self, request: bytes) -> Answer:
        """Sends a request and returns its answer, which may come before all of the request is sent.

        Raises:
            ConnectionLost: The connection ended first.
        """
        self._answer = asyncio.get_running_loop().create_future()
        if not self._is_kept:
            self._fail("the connection is closed")
        self.write(request)
        return await self._answer

    def write(self, part: bytes) -> None:
        """Sends bytes without waiting for an answer."""
        self._transport.write(part)

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._is_kept and not self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection at once, even during a request."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once it is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._fail(str(error or "the connection was closed"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        parser = self._parser
        self._is_kept = parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(parser.get_status_code(), self._headers, b"".join(self._body)))
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def _fail(self, reason: str) -> None:
        self._is_kept = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLost(reason))


async def connect(port: int) -> Connection:
    """Opens a connection to a server on this machine.

    Raises:
        ConnectionLost: The connection was refused.
    """
    try:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    return connection


async def fetch(port: int, request: bytes) -> Answer:
    """Sends one request over a connection of its own.

    Raises:
        ConnectionLost: The connection ended first.
    """
    with closing(await connect(port)) as connection:
        return await connection.send(request)


def get(path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post_picture(path: str, *pictures: bytes, content_type: str = "image/jpeg") -> bytes:
    """A POST request with pictures in the field `image` of a form, as browsers and curl send it."""
    part = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="photograph.jpg"\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    ).encode()
    body = b"".join(part + picture + b"\r\n" for picture in pictures) + f"--{_BOUNDARY}--\r\n".encode()
    return post_head(path, len(body)) + body


def post_head(path: str, num_bytes: int) -> bytes:
    """The head of a POST request with a form of `num_bytes`."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={_BOUNDARY}\r\n"
        f"Content-Length: {num_bytes}\r\n\r\n"
    ).encode()
