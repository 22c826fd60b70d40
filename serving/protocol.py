"""HTTP/1.1 on the wire: uvicorn's protocol with the bounds that it lacks.

What uvicorn leaves to others, and attackers use, is closed here:

* a head that never ends: a connection without a complete head is closed after `header_s`, also when it only sends line
  feeds, and a head or trailer of more than 64 kB is refused;
* a body that nobody reads any more: after an early refusal uvicorn takes the rest in without an end; here it ends after
  `drain_s`, and so does an answer that the client does not read;
* trailers, which uvicorn adds to the headers: a client behind a proxy could add an X-Forwarded-For of its own;
* the wish for another protocol (Upgrade), on which the parser skips the body, and would take it for the next request;
* many requests at once on one connection, each of which takes memory before the first is answered.

Malformed HTTP is answered with a problem document.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, ClassVar, Final

import httptools
import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving.problems import MEDIA_TYPE, problem_document

_MAX_HEAD_BYTES: Final = 65_536  # browsers and proxies stay under 16 kB
_MAX_PIPELINED: Final = 8  # requests that wait for the answer to an earlier one of their connection
_LINGER_S: Final = 2.0  # for a refusal to be read; a plain close would discard it while the client still sends
_HEADER_EXTRA_BYTES: Final = 4  # colon, space and line end

_CODE: Final = "bad_request"  # of the problem, for all that follow
_NO_HTTP: Final = "The bytes sent are no HTTP/1.1 that this service understands: use an HTTP library."
_HEAD_TOO_LARGE: Final = "The head of the request is larger than 64 kB: send fewer or shorter headers."
_TOO_MANY_AT_ONCE: Final = "Too many requests were sent at once on this connection: wait for their answers."

_log = structlog.get_logger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    header_s: ClassVar[float] = 10.0
    """Longest time for the head of a request, from the opening of the connection or the first byte on."""
    drain_s: ClassVar[float] = 60.0
    """Longest time for the rest of a body after its answer, and for an answer to be read."""
    count_refusal: ClassVar[Callable[[str], None]]
    """Takes the problem code of what was refused before the application saw it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True  # also between requests
        self._wants_upgrade = False
        self._has_body = False  # some of it at least
        self._is_over = False  # nothing that still comes counts
        self._num_head_bytes = 0
        self._num_idle_bytes = 0  # received since a head, a piece of a body or a whole request was complete
        self._refusal = _NO_HTTP
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets every timer."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes what was received, unless the connection is over."""
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._wait_for_head()
        self._num_idle_bytes += len(data)
        self._feed(data)
        if self._num_idle_bytes > _MAX_HEAD_BYTES and not self._is_over:
            self._refuse(_HEAD_TOO_LARGE)

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, also of a client that does not read its last answer."""
        super().timeout_keep_alive_handler()
        self._wait(self.drain_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Waits for the client to read."""
        super().pause_writing()
        self._writing = self._writing or self.loop.call_later(self.drain_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Notes that the client has read."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    # ---- what the parser finds

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._num_head_bytes = 0
        self._wants_upgrade = self._has_body = False
        self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        """Takes a part of the address."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, and leaves out a trailer."""
        self._count_head(len(name) + len(value) + _HEADER_EXTRA_BYTES)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Lets the application begin; a request that wishes for another protocol comes once more without its wish."""
        self._wants_upgrade = self.parser.should_upgrade()
        if self._wants_upgrade and self.parser.get_method() != b"CONNECT":
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._fail(_TOO_MANY_AT_ONCE)
        super().on_headers_complete()
        self._in_head = False
        self._num_idle_bytes = 0
        self._stop_waiting()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        self._num_idle_bytes = 0
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request; if its answer went before it, the connection is idle from now on."""
        if self._wants_upgrade:
            return
        super().on_message_complete()
        self._in_head = True
        self._num_idle_bytes = 0
        self._stop_waiting()
        if self.cycle.response_complete:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Waits for the rest of the body, if there is more of it.

        A client that was to ask first (Expect: 100-continue) may or may not send the body after a refusal; what follows
        could be taken for either, so the connection ends.
        """
        super().on_response_complete()
        if self._in_head or not self.cycle.response_complete:
            return
        if self.expect_100_continue and not self._has_body:
            self.transport.close()
        else:
            self._wait(self.drain_s, self.transport.abort)

    # ---- the bounds

    def _feed(self, data: bytes) -> None:
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._plain_head() + data[upgrade.args[0] :]
                    self.parser = _new_parser(self)
        except httptools.HttpParserError:
            self._refuse(self._refusal)

    def _plain_head(self) -> bytes:
        """The head without its wish for another protocol, which a server may ignore (RFC 9110, 7.8)."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *lines, b"", b""])

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > _MAX_HEAD_BYTES:
            self._fail(_HEAD_TOO_LARGE)

    def _fail(self, refusal: str) -> None:
        """Makes the parser give up."""
        self._refusal = refusal
        raise ValueError(refusal)

    def _wait_for_head(self) -> None:
        if self._reading is None:
            self._wait(self.header_s, self._give_up)

    def _wait(self, seconds: float, end: Callable[[], None]) -> None:
        self._stop_waiting()
        self._reading = self.loop.call_later(seconds, end)

    def _stop_waiting(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _give_up(self) -> None:
        """Closes a connection whose head did not come, after the answers that it still waits for."""
        if self._is_answering():
            self._end_after_answers()
        else:
            self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is not None and not cycle.response_complete

    def _end_after_answers(self) -> None:
        self._is_over = True
        self._stop_waiting()
        self.cycle.keep_alive = False

    def _refuse(self, detail: str) -> None:
        """Answers what is no HTTP, unless the answers to earlier requests of the connection come first."""
        if self.pipeline or (self._in_head and self._is_answering()):
            self._end_after_answers()
        elif not self._in_head and self.cycle.response_started:
            self._is_over = True
            self.transport.close()  # the fault is in the rest of a body that has its answer
        else:
            self._is_over = True
            self._write_refusal(detail)

    def _write_refusal(self, detail: str) -> None:
        if self._is_answering():  # the application learns that its client is gone, and writes nothing more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        request_id = uuid.uuid4().hex
        _log.info("no_http", request_id=request_id, detail=detail)
        type(self).count_refusal(_CODE)
        self.transport.write(_problem(detail, request_id, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._wait(_LINGER_S, self.transport.close)
        else:
            self.transport.close()


def make_protocol(
    header_s: float = 10.0, drain_s: float = 60.0, count_refusal: Callable[[str], None] = lambda _: None
) -> type[asyncio.Protocol]:
    """Gives the protocol for uvicorn's setting `http`.

    Args:
        header_s: Longest time for the head of a request.
        drain_s: Longest time for the rest of a body after its answer, and for an answer to be read.
        count_refusal: Called with the problem code of what is refused before the application sees it.
    """
    settings = {"header_s": header_s, "drain_s": drain_s, "count_refusal": staticmethod(count_refusal)}
    return type("BoundedProtocol", (BoundedProtocol,), settings)


def _new_parser(protocol: BoundedProtocol) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does: such data are skipped
    return parser


def _problem(detail: str, request_id: str, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    document = msgspec.json.encode(problem_document(_CODE, detail, request_id))
    headers = [
        *default_headers,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(document)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % header for header in headers), b"", document]
    return b"\r\n".join(lines)
