"""Bytes that are no valid HTTP/1.1, or just so, through a real socket."""

import json
import time
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.serving.raw_http import GET, POST, SOON_S, ask, assert_refused, receive_all, receive_one, responses
from tests.serving.tiny import spelled

ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PARTS = {"GET": GET.decode(), "POST": POST.decode()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["fact"])
def test_bytes_are_refused_or_answered_as_stored(dial, row):
    """Refused, with a word of the sentence, and the connection ends; or answered, with the bytes of each body."""
    sent = spelled(row["sent"], PARTS)
    if "refused" in row:
        with dial(sent) as connection:
            assert row["refused"] in assert_refused(receive_all(connection))
    elif row.get("ends"):
        with dial(sent) as connection:
            assert [status for status, _ in responses(receive_all(connection))] == [200]
    else:
        answers = [(status, json.loads(echo)["num_bytes"]) for status, echo in ask(dial, sent)]
        assert answers == [(200, number) for number in row["answers"]]


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
