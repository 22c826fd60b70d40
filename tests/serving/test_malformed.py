"""Requests that are no valid HTTP/1.1, through a real socket."""

import json
import time

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.serving.raw_http import GET, POST, SOON_S, ask, assert_refused, receive_all, receive_one, responses

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
        b"GET /echo HTTP/1.1\r\nHost: x\r\nX: a\r\n folded\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\nX y: a\r\n\r\n",
        b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n",
        b"GET /echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nhost: x\r\nX: a\r\nHOST: y\r\n\r\n",
        b"GET /echo HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET http://x/echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n",
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
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
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


@pytest.mark.parametrize("head", [b"GET /echo HTTP/1.0\r\n", b"GET /echo HTTP/1.0\r\nHost: x\r\n"])
def test_http_1_0_needs_no_host(dial, head):
    with dial(head + b"\r\n") as connection:
        assert [status for status, _ in responses(receive_all(connection))] == [200]


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
def test_chunked_is_the_transfer_coding_that_is_read(dial, coding):
    [(status, echo)] = ask(dial, POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert (status, json.loads(echo)["num_bytes"]) == (200, 5)


def test_body_for_which_there_is_no_memory_is_refused_as_overload(dial, monkeypatch):
    def use_up_memory(_connection, _body):
        raise MemoryError

    monkeypatch.setattr(HttpToolsProtocol, "on_body", use_up_memory)
    with dial(POST + b"Content-Length: 5\r\n\r\nhello") as connection:
        head, _, document = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"retry-after: 1" in head
    assert json.loads(document)["code"] == "overloaded"


def test_application_sees_a_disconnect_after_malformed_chunks(echo_app, dial):
    with dial(POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n") as connection:
        time.sleep(0.1)
        connection.sendall(b"no chunk\r\n")
        assert_refused(receive_all(connection))
    assert echo_app.disconnected.wait(SOON_S)


def test_malformed_request_does_not_overtake_the_response_before_it(dial):
    with dial(b"POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n") as connection:
        time.sleep(0.05)
        connection.sendall(b"agarbage\r\n\r\n")
        [(status, echo)] = responses(receive_all(connection))
    assert (status, json.loads(echo)["path"]) == (200, "/late")


def test_malformed_request_after_a_response_is_refused(dial):
    with dial(GET) as connection:
        receive_one(connection)
        connection.sendall(b"garbage\r\n\r\n")
        assert_refused(receive_all(connection))
