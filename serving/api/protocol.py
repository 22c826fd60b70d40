"""uvicorn's HTTP/1.1 protocol with limits against slow and malformed requests.

uvicorn does not limit these, so an attacker could use them:

* The head of a request (request line and headers). A connection without a complete head is closed after `header_s`,
  even if it keeps sending line feeds. A head or trailer of more than 64 kB is refused.
* The rest of a body after an early refusal, which uvicorn reads without a limit. It must end within `drain_s`;
  of a body in chunks, which has no known end, nothing more is read. A client must also read its response within
  `drain_s`.
* Tiny chunks, each of which costs as much as a large one. A body of many is refused.
* Trailers, which uvicorn adds to the headers. They are dropped, because a client behind a proxy could use them
  to set X-Forwarded-For.
* Upgrade requests. The parser stops after their head and would parse their body as the next request, so the header
  Upgrade is ignored.
* Connections, if uvicorn's `limit_concurrency` is set, which counts requests only.
* Pipelined requests, each of which takes memory before the first one is answered. Their number is limited.

Malformed HTTP is answered with a problem document.

A client may close its side after a complete request and still read the response. A client that has left looks the same
until something is sent to it. Therefore such a client gets an interim response (100 Continue) every half second: if it
has left, sending fails, and the application is told.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving.api.problems import (
    HEAD_TOO_LARGE,
    NO_MEMORY,
    NOT_HTTP,
    TINY_CHUNKS,
    TOO_MANY_PIPELINED,
    refusal,
    refusal_code,
    refusal_of_head,
)

HEADER_S: Final = 10.0
"""Longest time for the request line and headers, seconds."""
_MAX_HEAD_BYTES: Final = 65_536  # browsers and proxies stay under 16 kB
_MAX_PIPELINED: Final = 8  # requests that wait for the response to an earlier one of their connection
# A body of more pieces than this is refused if they average under 64 bytes; even 512 bytes, as microcontrollers send,
# are far above. In pieces of one byte, 30 clients stopped the event loop for 20 s.
_MAX_TINY_PIECES: Final = 2_000
_TINY_BYTES: Final = 64
# Time for the client to read a refusal. If the connection were closed while the client still sends, the refusal could
# be lost.
_LINGER_S: Final = 2.0
_HEADER_EXTRA_BYTES: Final = 4  # colon, space and line end
_PROBE_S: Final = 0.5  # between two interim responses to a client that has closed its side
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_log = structlog.get_logger(__name__)


class LimitedProtocol(HttpToolsProtocol):
    """One connection. asyncio and the parser call the callbacks below."""

    header_s: ClassVar[float]
    """Longest time for the head of a request, seconds, from the start of the connection or the first byte."""
    drain_s: ClassVar[float]
    """Longest time for the rest of a body after its response, and for reading a response, seconds."""
    count_refusal: ClassVar[Callable[[str], None]]
    """Called with the problem code of a request that is refused before the application sees it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True  # also between requests
        self._wants_upgrade = False
        self._num_pieces = self._num_body_bytes = 0  # of the body, as they arrived
        self._is_ending = False  # further bytes are ignored
        self._num_head_bytes = 0
        self._num_idle_bytes = 0  # received since the last complete head, body chunk or request
        self._refusal = NOT_HTTP
        self._open: deque[RequestResponseCycle] = deque()  # requests whose response is not complete, oldest first
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # ---- asyncio callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer for the first head; ends one connection too many at once."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.abort()
        else:
            self._start_head_timer()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection open for the responses to complete requests; returns whether there are any."""
        if not self._in_head or not self._open:
            return False
        self._end_after_responses()
        self._probe()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timers, and tells the application of every request; uvicorn would only tell that of the last."""
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)
        for cycle in self._open:
            _disconnect(cycle)

    def data_received(self, data: bytes) -> None:
        """Parses the received bytes, unless the connection is ending."""
        if self._is_ending:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._start_head_timer()
        self._num_idle_bytes += len(data)
        self._feed(data)
        if self._num_idle_bytes > _MAX_HEAD_BYTES and not self._is_ending:
            self._refuse(HEAD_TOO_LARGE)

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, even if the client does not read its last response."""
        super().timeout_keep_alive_handler()
        self._start_timer(self.drain_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Starts the timer for the client to read the response."""
        super().pause_writing()
        self._write_timer = self._write_timer or self.loop.call_later(self.drain_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancels the timer of `pause_writing`."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        """Starts a request."""
        super().on_message_begin()
        self._num_head_bytes = 0
        self._wants_upgrade = False
        self._num_pieces = self._num_body_bytes = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        """Handles a piece of the URL."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handles a header. Trailers are counted and dropped."""
        self._count_head(len(name) + len(value) + _HEADER_EXTRA_BYTES)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the application. An upgrade request is parsed again first, without its header Upgrade."""
        fault = refusal_of_head(self.parser.get_method(), self.parser.get_http_version(), self.headers)
        if fault is not None:
            self._fail(fault)
        self._wants_upgrade = self.parser.should_upgrade()
        if self._wants_upgrade:
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._fail(TOO_MANY_PIPELINED)
        # HTTP/1.0 has no interim responses (RFC 9110, section 10.1.1).
        self.expect_100_continue &= self.parser.get_http_version() != "1.0"
        super().on_headers_complete()
        self._open.append(self.cycle)
        self._in_head = False
        self._num_idle_bytes = 0
        self._stop_timer()

    def on_body(self, body: bytes) -> None:
        """Handles a piece of the body: a chunk, or what the network delivered at once."""
        self._num_idle_bytes = 0
        self._num_pieces += 1
        self._num_body_bytes += len(body)
        if self._num_pieces > _MAX_TINY_PIECES and self._num_body_bytes < _TINY_BYTES * self._num_pieces:
            self._fail(TINY_CHUNKS)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request. If its response is complete already, the connection is now idle."""
        if self._wants_upgrade:
            return
        super().on_message_complete()
        self._in_head = True
        self._num_idle_bytes = 0
        self._stop_timer()
        if self.cycle.response_complete:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Starts the timer for the rest of the body, if there is any.

        After `Expect: 100-continue` a client may or may not send the body of a refused request. The next bytes could
        be either that body or a new request, so the connection is closed.
        """
        super().on_response_complete()
        self._open.popleft()
        if self._in_head or not self.cycle.response_complete:
            return
        if self.expect_100_continue and not self._num_pieces:
            self.transport.close()
        elif any(name == b"transfer-encoding" for name, _ in self.headers):
            self._linger(reads=False)
        else:
            self._start_timer(self.drain_s, self.transport.abort)

    # ---- limits

    def _feed(self, data: bytes) -> None:
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    # As uvicorn does: data after the last request is skipped.
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        except httptools.HttpParserError as error:  # also what a callback below raises
            self._refuse(NO_MEMORY if isinstance(error.__context__, MemoryError) else self._refusal)

    def _head_without_upgrade(self) -> bytes:
        """Returns the head without the header Upgrade, which a server may ignore (RFC 9110, section 7.8)."""
        method = self.parser.get_method()
        version = self.parser.get_http_version().encode()
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *lines, b"", b""])

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > _MAX_HEAD_BYTES:
            self._fail(HEAD_TOO_LARGE)

    def _fail(self, refusal: str) -> None:
        """Makes the parser raise an error."""
        self._refusal = refusal
        raise ValueError(refusal)

    def _start_head_timer(self) -> None:
        if self._read_timer is None:
            self._start_timer(self.header_s, self._end_without_head)

    def _start_timer(self, seconds: float, end: Callable[[], None]) -> None:
        self._stop_timer()
        self._read_timer = self.loop.call_later(seconds, end)

    def _stop_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _end_without_head(self) -> None:
        """Closes a connection whose head did not arrive, after its pending responses."""
        if self._open:
            self._end_after_responses()
        else:
            self.transport.close()

    def _probe(self) -> None:
        """Sends an interim response now and then, but not within a response and not to HTTP/1.0, which has none."""
        if not self._open:
            return
        if not self._open[0].response_started and self.scope["http_version"] != "1.0":
            self.transport.write(_INTERIM)
        self._start_timer(_PROBE_S, self._probe)

    def _end_after_responses(self) -> None:
        self._is_ending = True
        self._stop_timer()
        self.cycle.keep_alive = False

    def _refuse(self, detail: str) -> None:
        """Answers a malformed request, unless earlier requests of the connection still wait for their responses."""
        if self.pipeline or (self._in_head and self._open):
            self._end_after_responses()
        elif not self._in_head and self.cycle.response_started:
            self._is_ending = True
            self.transport.close()  # the request has been answered; the error is in the rest of its body
        else:
            self._write_refusal(detail)

    def _write_refusal(self, detail: str) -> None:
        if self._open:
            _disconnect(self.cycle)
        request_id = uuid.uuid4().hex
        _log.info("no_http", request_id=request_id, detail=detail)
        type(self).count_refusal(refusal_code(detail))
        self.transport.write(refusal(detail, request_id, self.server_state.default_headers))
        self._linger(reads=detail != TINY_CHUNKS)

    def _linger(self, *, reads: bool) -> None:
        """Ends the connection after the time for the client to read the response; sees it leave only if it `reads`."""
        self._is_ending = True
        if not reads:
            self.flow.pause_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._start_timer(_LINGER_S, self.transport.close)
        else:
            self.transport.close()


def make_protocol(
    header_s: float, drain_s: float, count_refusal: Callable[[str], None] = lambda _: None
) -> type[asyncio.Protocol]:
    """Returns the protocol class for uvicorn's option `http`.

    Args:
        header_s: Longest time for the head of a request, seconds.
        drain_s: Longest time for the rest of a body after its response, and for reading a response, seconds.
        count_refusal: Called with the problem code of a request that is refused before the application sees it.
    """
    attributes = {"header_s": header_s, "drain_s": drain_s, "count_refusal": staticmethod(count_refusal)}
    return type("LimitedProtocol", (LimitedProtocol,), attributes)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tells the application that the client has left, so that it writes nothing more."""
    cycle.disconnected = True
    cycle.message_event.set()
