"""The time of a call, its turn, and the thread of the client with threads."""

import asyncio
import gc
import gzip
import os
import threading
import time
from concurrent.futures import CancelledError

import httpx2
import msgspec
import pytest

from serving.client import AsyncClient, Client, ServiceRefusal, ServiceUnreachable
from tests.make import http_server
from tests.serving.client.test_exchange import ANSWER
from tests.waiting import wait_until


def trickle(start):
    def answer(handler):
        handler.wfile.write(start)
        for _ in range(400):  # much longer than the client waits
            time.sleep(0.05)
            handler.wfile.write(b" ")

    return answer


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_the_time_limit_is_for_the_whole_answer(start):
    async def ask(url):
        async with AsyncClient(url, timeout_s=0.3) as client:
            await client.identify(b"1")

    with http_server(trickle(start)) as url:
        with Client(url, timeout_s=0.3) as client, pytest.raises(ServiceUnreachable, match=r"in time \(limit 0.3 s\)"):
            client.identify(b"1")
        with pytest.raises(ServiceUnreachable, match="in time"):
            asyncio.run(ask(url))


def respond(handler, content, *headers):
    handler.wfile.write(
        b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(content), *headers, b"", content])
    )


def test_an_answer_may_take_longer_than_the_http_library_waits(monkeypatch):
    monkeypatch.setitem(httpx2.AsyncClient.__init__.__kwdefaults__, "timeout", httpx2.Timeout(0.2))  # of 5 s
    asked = []

    def answer(handler):
        asked.append(handler.headers["Prefer"])
        time.sleep(0.5)
        respond(handler, msgspec.json.encode(ANSWER))

    with http_server(answer) as url, Client(url) as client:
        assert client.identify(b"1") == ANSWER
    assert len(asked) == 1


def endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    handler.wfile.write(b" " * 20_000_000)
    handler.rfile.read()  # until the client closes the connection


def packed(handler):
    assert handler.headers["Accept-Encoding"] == "identity"
    respond(handler, gzip.compress(msgspec.json.encode(ANSWER)), b"Content-Encoding: gzip")


def redirect(handler):
    handler.wfile.write("HTTP/1.1 301 Moved\r\nLocation: /garden/é\r\nContent-Length: 0\r\n\r\n".encode())


def test_a_header_with_bytes_outside_ascii_is_read():
    with http_server(redirect) as url, Client(url) as client, pytest.raises(ServiceRefusal) as caught:
        client.identify(b"1")
    assert f"redirects to {url}/garden/%C3%A9 " in str(caught.value)


@pytest.mark.parametrize("answer", [endless, packed])
def test_no_more_is_read_than_an_answer_takes_and_nothing_is_unpacked(answer):
    refused = pytest.raises(ServiceRefusal, match="answered 200 OK, but not as botanify does")
    with http_server(answer) as url, Client(url, timeout_s=30) as client, refused:
        client.identify(b"1")


def test_calls_wait_for_their_turn_before_they_read_and_before_their_time_begins(monkeypatch):
    started, ended, most_at_once = [], [], []

    async def answer(*_):
        most_at_once.append(len(started) - len(ended))
        await asyncio.sleep(0.01)
        ended.append(1)
        return b""

    async def ask():
        async with AsyncClient() as client:
            await asyncio.gather(*(client.identify_json("a.jpg") for _ in range(200)))

    monkeypatch.setattr("serving.client.clients._picture_at", lambda _: started.append(1) or b"1")
    monkeypatch.setattr(AsyncClient, "_ask", answer)
    asyncio.run(ask())
    assert len(ended) == 200
    assert 1 < max(most_at_once) <= 64


def client_threads():
    return [thread for thread in threading.enumerate() if thread.name == "botanify-client"]


def test_a_closed_client_has_no_thread_and_says_so():
    client = Client()
    client.close()
    client.close()
    assert client_threads() == []
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.identify(b"1")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_forgotten_client_leaves_no_thread():
    Client()
    gc.collect()
    wait_until(lambda: not client_threads())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of a fork beside threads
def test_a_client_does_not_hang_in_a_forked_process():
    with Client() as client:
        child = os.fork()
        if not child:
            try:
                client.identify(b"1")
            except RuntimeError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_to_close_a_client_ends_the_calls_of_other_threads():
    reached, left = threading.Event(), threading.Event()

    def hold(_):
        reached.set()
        left.wait(60)

    with http_server(hold) as url:
        client = Client(url)
        outcomes = []

        def ask():
            try:
                client.identify(b"1")
            except CancelledError as error:
                outcomes.append(error)

        caller = threading.Thread(target=ask)
        caller.start()
        assert reached.wait(60)
        client.close()
        caller.join(60)
        left.set()
    assert len(outcomes) == 1
