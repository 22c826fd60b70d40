"""HTTP/1.1 through a real socket: slow heads, unread bodies, malformed bytes."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from serving.protocol import make_protocol

HEADER_S, DRAIN_S, KEEP_ALIVE_S = 0.4, 0.6, 0.9
SOON_S = 3.0  # longest time for a connection to end when it should
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n"
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
        if path == "/large":
            content = bytes(30_000_000)
        if content is not None:
            headers = [(b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 413 if path == "/early" else 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})

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


@pytest.fixture(scope="module")
def served():
    app = App()
    config = uvicorn.Config(
        app,
        http=make_protocol(HEADER_S, DRAIN_S),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield app, listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def app(served):
    served[0].disconnected.clear()
    return served[0]


@pytest.fixture
def dial(served):
    @contextmanager
    def connected(*pieces):
        with socket.create_connection(served[1], timeout=SOON_S) as connection:
            for piece in pieces:
                connection.sendall(piece)
            yield connection

    return connected


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


# ---- heads


def test_connection_without_a_byte_is_closed(dial):
    start = time.monotonic()
    with dial() as connection:
        assert receive_all(connection) == b""
    assert HEADER_S * 0.8 < time.monotonic() - start < SOON_S


def test_connection_with_a_trickling_head_is_closed(dial):
    with dial(b"GET /echo HTTP/1.1\r\nX: ") as connection:
        assert drip(connection, b"a") > HEADER_S * 0.8


def test_head_of_a_later_request_has_the_same_time_limit(dial):
    with dial(GET) as connection:
        receive_one(connection)
        time.sleep(HEADER_S * 0.8)  # idle between two requests: the keep-alive timeout applies
        connection.sendall(b"GET /echo HTTP/1.1\r\nX: ")
        assert drip(connection, b"a") > HEADER_S * 0.8


def test_line_feeds_between_requests_do_not_keep_a_connection_open(dial):
    with dial(GET) as connection:
        receive_one(connection)
        assert drip(connection, b"\r\n") < SOON_S


def test_idle_connection_is_kept_for_the_keep_alive_time(dial):
    with dial(GET) as connection:
        receive_one(connection)
        time.sleep(HEADER_S * 1.4)
        connection.sendall(GET)
        assert receive_one(connection)[0] == 200
        assert receive_all(connection) == b""


def test_body_may_take_longer_than_the_head(dial):
    with dial(POST + b"Content-Length: 4\r\n\r\nab") as connection:
        time.sleep(HEADER_S * 1.5)
        connection.sendall(b"cd")
        assert b'"num_bytes": 4' in receive_one(connection)[1]


def test_half_of_the_next_head_does_not_cut_off_a_response(dial):
    with dial(b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\n") as connection:
        time.sleep(0.1)
        connection.sendall(b"aGET /echo HT")
        assert [status for status, _ in responses(receive_all(connection))] == [200]


def test_head_of_sixty_kilobytes_is_accepted(dial):
    [(status, echo)] = ask(dial, b"GET /echo HTTP/1.1\r\nX: " + b"a" * 60_000 + b"\r\n\r\n")
    assert status == 200
    assert len(json.loads(echo)["headers"]["x"]) == 60_000


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 66_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 11_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 3_000_000,
        b"GET / HTTP/1.1\r\n" + b"X" * 3_000_000,
        b"\r\n" * 40_000,
    ],
    ids=["address", "one header", "many headers", "header without end", "name without end", "line feeds"],
)
def test_large_head_is_refused(dial, head):
    with dial(head) as connection:
        assert "64 kB" in assert_refused(receive_all(connection))


# ---- malformed HTTP


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"get /echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/9.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /echo HTTP/1.1\nHost: x\n\n",
        b"GET /echo HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nX: a\0b\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nX y: a\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: +1\r\n\r\na",
        POST + b"Content-Length: 0x1\r\n\r\na",
        POST + b"Content-Length: 1, 1\r\n\r\na",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\nhello",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nnone\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
    ],
)  # fmt: skip
def test_malformed_http_gets_a_problem_document_and_ends_the_connection(dial, request_bytes):
    with dial(request_bytes) as connection:
        assert_refused(receive_all(connection))


def test_application_sees_a_disconnect_after_malformed_chunks(app, dial):
    with dial(POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n") as connection:
        time.sleep(0.1)
        connection.sendall(b"no chunk\r\n")
        assert_refused(receive_all(connection))
    assert app.disconnected.wait(SOON_S)


def test_malformed_request_does_not_overtake_the_response_before_it(dial):
    with dial(b"POST /late HTTP/1.1\r\nContent-Length: 1\r\n\r\n") as connection:
        time.sleep(0.05)
        connection.sendall(b"agarbage\r\n\r\n")
        [(status, echo)] = responses(receive_all(connection))
    assert (status, json.loads(echo)["path"]) == (200, "/late")


def test_malformed_request_after_a_response_is_refused(dial):
    with dial(GET) as connection:
        receive_one(connection)
        connection.sendall(b"garbage\r\n\r\n")
        assert_refused(receive_all(connection))


# ---- unread bodies


def test_rest_of_a_refused_body_is_read_and_the_connection_stays_open(dial):
    with dial(b"POST /early HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n") as connection:
        assert receive_one(connection)[0] == 413
        connection.sendall(bytes(3_000_000) + GET)
        assert receive_one(connection)[0] == 200


def test_rest_of_a_refused_body_has_a_time_limit(dial):
    with dial(b"POST /early HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n") as connection:
        assert receive_one(connection)[0] == 413
        assert DRAIN_S * 0.8 < drip(connection, b"a" * 100) < DRAIN_S + 1


def test_idle_connection_after_a_refused_body_is_closed(dial):
    with dial(b"POST /early HTTP/1.1\r\nContent-Length: 10\r\n\r\n") as connection:
        assert receive_one(connection)[0] == 413
        connection.sendall(bytes(10))
        assert receive_all(connection) == b""


def test_malformed_rest_of_a_refused_body_ends_the_connection_without_a_second_response(dial):
    with dial(b"POST /early HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n") as connection:
        assert receive_one(connection)[0] == 413
        connection.sendall(b"no chunk\r\n")
        assert receive_all(connection) == b""


def test_refusal_closes_a_connection_whose_client_waits_for_100_continue(dial):
    with dial(b"POST /early HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n") as connection:
        start = time.monotonic()
        [(status, _)] = responses(receive_all(connection))
        assert time.monotonic() - start < KEEP_ALIVE_S / 2
    assert status == 413


def test_100_continue_is_sent_when_the_application_reads_the_body(dial):
    with dial(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n") as connection:
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert b'"num_bytes": 5' in receive_one(connection)[1]


def test_response_that_is_not_read_is_aborted(dial):
    with dial(b"GET /large HTTP/1.1\r\n\r\n") as connection:
        time.sleep(3 * DRAIN_S)
        assert len(receive_all(connection)) < 30_000_000  # only what the kernel had buffered


# ---- trailers, upgrades and pipelining


def test_trailers_are_dropped(dial):
    body = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
    [(status, echo)] = ask(dial, POST + body)
    assert (status, json.loads(echo)["num_bytes"]) == (200, 5)
    assert set(json.loads(echo)["headers"]) == {"host", "transfer-encoding"}


@pytest.mark.parametrize("more", [b"X: a\r\n" * 20_000, b"X: " + b"a" * 3_000_000], ids=["many", "one without end"])
def test_trailers_are_limited(dial, more):
    with dial(POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + more) as connection:
        assert "64 kB" in assert_refused(receive_all(connection))


def test_chunk_extensions_are_limited(dial):
    with dial(POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * 3_000_000) as connection:
        assert "64 kB" in assert_refused(receive_all(connection))


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"anything"])
def test_upgrade_request_keeps_its_body(dial, protocol):
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AA\r\n"
    one = POST + upgrade + b"Content-Length: 5\r\n\r\nhello"
    chunked = POST + upgrade + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    echoes = ask(dial, one, chunked, GET)
    assert [(status, json.loads(text)["num_bytes"]) for status, text in echoes] == [(200, 5), (200, 5), (200, 0)]


def test_body_of_an_upgrade_request_is_not_parsed_as_a_request(dial):
    head = POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(GET)
    with dial(head) as connection:
        time.sleep(0.1)
        connection.sendall(GET + LAST)
        [(status, echo), (_, last)] = responses(receive_all(connection))
    assert json.loads(last)["path"] == "/last"
    assert (status, json.loads(echo)["num_bytes"]) == (200, len(GET))


def test_pipelined_requests_are_answered_in_order(dial):
    echoes = ask(dial, b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(8)))
    assert [json.loads(text)["path"] for _, text in echoes] == [f"/{number}" for number in range(8)]


@pytest.mark.parametrize(
    "head", [b"GET /echo HTTP/1.1\r\n", b"GET /echo HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: a\r\n"]
)
def test_number_of_pipelined_requests_is_limited(dial, head):
    start = time.monotonic()
    with dial((head + b"\r\n") * 1_000) as connection:
        echoes = responses(receive_all(connection))
    assert 1 <= len(echoes) < 20
    assert all(status == 200 for status, _ in echoes)
    assert time.monotonic() - start < SOON_S
