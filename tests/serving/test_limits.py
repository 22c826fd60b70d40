"""Bounded work: turns, waiting, deadlines, readiness, and clients that leave."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import structlog
from litestar.testing import TestClient

from serving.app import create_app
from serving.threads import Threads
from tests.serving.tiny import StandIn, assert_problem, images, jpeg


def post(client, num_pictures=1):
    return client.post("/identify", files=images(*[jpeg()] * num_pictures))


@contextmanager
def held_request(client, session, num_pictures=1):
    """A request whose network run does not end before the block does; gives its future response."""
    session.hold()
    with ThreadPoolExecutor(1) as thread:
        response = thread.submit(post, client, num_pictures)
        assert session.entered.wait(10)
        try:
            yield response
        finally:
            session.free.set()


def test_more_requests_than_may_wait_are_overloaded(start):
    session = StandIn()
    client = start(session=session, max_active=1, max_waiting=0)
    with held_request(client, session) as first:
        refused = post(client)
    assert_problem(refused, 503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert first.result().status_code == 200
    assert post(client).status_code == 200


def test_request_that_may_wait_is_answered_when_its_turn_comes(start):
    session = StandIn()
    client = start(session=session, max_active=1, max_waiting=1)
    with ThreadPoolExecutor(1) as thread:
        with held_request(client, session) as first:
            second = thread.submit(post, client)
            time.sleep(0.1)
            assert not second.done()
        assert (first.result().status_code, second.result().status_code) == (200, 200)


def test_wait_is_bounded(start):
    session = StandIn()
    client = start(session=session, max_active=1, max_waiting=1, max_wait_s=0.2)
    with held_request(client, session):
        assert_problem(post(client), 503, "overloaded")


def test_full_service_refuses_before_it_reads(start):
    session = StandIn()
    client = start(session=session, max_requests=1)

    def never_read():
        raise AssertionError("the body was read")
        yield b""

    with held_request(client, session):
        refused = client.post("/identify", content=never_read(), headers={"content-type": "image/jpeg"})
    assert_problem(refused, 503, "overloaded")


def test_deadline_is_kept_and_the_turn_with_it(start):
    session = StandIn()
    client = start(session=session, deadline_s=0.3, max_active=1, max_waiting=0)
    with held_request(client, session, num_pictures=3) as late:
        response = late.result(timeout=5)  # while the run still goes on
        problem = assert_problem(response, 504, "timed_out")
        assert "at most 0.3 seconds" in problem["detail"]
        assert_problem(post(client), 503, "overloaded")  # the run's memory is still held, and so is its turn
    deadline = time.monotonic() + 5
    while post(client).status_code != 200:
        assert time.monotonic() < deadline, "the turn was never given back"
    assert session.num_runs == 3  # warm-up, the first of three pictures, and the last request


def test_not_ready_until_the_warm_up_is_over(start):
    session = StandIn()
    session.hold()
    client = start(session=session, ready=False)
    assert session.entered.wait(10)
    assert client.get("/health/live").status_code == 200
    for refused in (client.get("/health/ready"), post(client)):
        assert_problem(refused, 503, "not_ready")
        assert refused.headers["retry-after"] == "1"
    session.free.set()
    deadline = time.monotonic() + 5
    while client.get("/health/ready").status_code != 200:
        assert time.monotonic() < deadline
    assert post(client).status_code == 200


def test_warm_up_that_fails_is_told_and_the_service_never_ready(settings):
    failures = []
    session = StandIn()
    session.fails = True
    app = create_app(settings, session=session, on_failure=failures.append)
    with TestClient(app) as client:
        deadline = time.monotonic() + 5
        while not failures:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.get("/health/ready").status_code == 503
    assert "secret words" in str(failures[0])


# ---- clients that leave


async def exchange(app, messages, method="POST", path="/identify"):
    """Sends one request by hand; gives what was sent back and the log lines."""
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80), "client": None,
        "headers": [(b"host", b"localhost"), (b"content-type", b"image/jpeg")], "asgi": {"version": "3.0"},
    }  # fmt: skip
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    with structlog.testing.capture_logs() as lines:
        await app(scope, receive, send)
    return sent, lines


def run_exchange(settings, session, messages, **request):
    async def main():
        app = create_app(settings, session=session)
        async with app.lifespan():
            await asyncio.to_thread(session.entered.wait)
            await asyncio.sleep(0.1)  # the warm-up ran, and now its result is taken in
            return await exchange(app, messages, **request)

    return asyncio.run(main())


def test_client_that_leaves_during_its_upload_is_no_error(settings):
    half = {"type": "http.request", "body": jpeg()[:100], "more_body": True}
    _, lines = run_exchange(settings, StandIn(), [half])
    assert [(line["event"], line["status"], line["code"], line["log_level"]) for line in lines] == [
        ("request", 499, "client_left", "info")
    ]


def test_nothing_runs_for_a_client_that_left(settings):
    session = StandIn()
    whole = {"type": "http.request", "body": jpeg(size=(2000, 2000)), "more_body": False}
    _, lines = run_exchange(settings, session, [whole])
    assert lines[-1]["status"] == 499
    assert session.num_runs == 1  # the warm-up


def test_head_sends_no_body_whatever_the_server_does_with_it(settings):
    sent, _ = run_exchange(settings, StandIn(), [], method="HEAD", path="/model")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == b""


# ---- the promise that all of it stands on


def test_cancelled_call_no_longer_runs_when_it_returns():
    ended = []

    def work():
        time.sleep(0.2)
        ended.append(True)

    async def main():
        threads = Threads(1, "test")
        running, waiting = (asyncio.ensure_future(threads.call(work)) for _ in range(2))
        await asyncio.sleep(0.05)
        for call in (waiting, running):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert ended == [True]  # the one that ran has ended, the one that waited never began
        threads.close()

    asyncio.run(main())
