"""Overload, deadlines, readiness, and clients that disconnect."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import structlog

from serving.app import create_app
from serving.engine.scheduler import Scheduler
from tests.make import from_table
from tests.serving.conftest import failure_of_start, wait_until_ready
from tests.serving.program import PATIENCE_S
from tests.serving.tiny import FakeNetwork, InProcessDecoder, assert_problem, in_event_loop, jpeg, post
from tests.waiting import until, wait_until

FIVE = [jpeg()] * 5


@contextmanager
def held_request(client, session, *pictures):
    """Sends a request whose network run ends with the context; yields the future of its response."""
    session.hold()
    with ThreadPoolExecutor(1) as thread:
        response = thread.submit(post, client, *pictures)
        assert session.entered.wait(PATIENCE_S)
        try:
            yield response
        finally:
            session.free.set()


def test_request_that_would_wait_too_long_is_overloaded(start):
    session = FakeNetwork()
    client = start(session=session)
    admission = client.service.admission
    with ThreadPoolExecutor(1) as thread:
        with held_request(client, session, *FIVE) as first:
            second = thread.submit(post, client, *FIVE)
            wait_until(lambda: admission.num_pictures >= 10)
            admission.service_time.seconds_per_picture = 0.5
            refused = post(client)
        assert_problem(refused, 503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert post(client).status_code == 200


def test_picture_has_all_cores_only_while_the_service_works_on_no_other(start, monkeypatch):
    session, alone, run = FakeNetwork(), [], Scheduler.run

    def noted(self, *arguments, **options):
        alone.append(options["alone"])
        return run(self, *arguments, **options)

    client = start(session=session)
    monkeypatch.setattr(Scheduler, "run", noted)
    with ThreadPoolExecutor(1) as thread, held_request(client, session) as first:
        second = thread.submit(post, client)
        wait_until(lambda: len(alone) >= 2)
        session.free.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert alone == [True, False]


def test_full_service_refuses_before_it_reads_the_body(start):
    session = FakeNetwork()
    client = start(session=session, max_requests=1)

    def never_read():
        raise AssertionError("the body was read")
        yield b""

    with held_request(client, session):
        refused = client.post("/identify", content=never_read(), headers={"content-type": "image/jpeg"})
    assert_problem(refused, 503, "overloaded")


def test_answer_times_out_at_its_deadline_while_the_network_still_runs(start, monkeypatch):
    session = FakeNetwork()

    async def until_the_network_runs(tasks, **_options):
        assert await asyncio.to_thread(session.entered.wait, PATIENCE_S)
        return set(), tasks

    client = start(session=session, deadline_s=20.0)
    with monkeypatch.context() as patch:
        patch.setattr("serving.api.identify.asyncio.wait", until_the_network_runs)
        session.hold()
        problem = assert_problem(post(client, *FIVE[:3]), 504, "timed_out")
    assert "at most 20 seconds" in problem["detail"]
    session.free.set()
    assert post(client).status_code == 200
    assert session.num_runs == 3  # warm-up, the first of three pictures, and the last request


@from_table
def test_answer_is_awaited_for_its_deadline_and_no_longer(start, monkeypatch, wanted, expected_s, applied):
    wait, timeouts_s = asyncio.wait, []

    def noted(tasks, **options):
        timeouts_s.append(options.get("timeout"))
        return wait(tasks, **options)

    client = start(session=FakeNetwork(), deadline_s=20.0)
    monkeypatch.setattr("serving.api.identify.asyncio.wait", noted)
    answer = post(client, headers=wanted)
    assert (answer.status_code, answer.headers.get("preference-applied"), timeouts_s) == (200, applied, [expected_s])


def test_refused_pictures_leave_the_pace_as_it_is(start):
    client = start(session=FakeNetwork())
    service_time = client.service.admission.service_time
    service_time.seconds_per_picture = 50.0
    for _ in range(3):
        assert_problem(post(client, b"no picture"), 415, "unsupported_format")
    assert service_time.seconds_per_picture == 50.0
    assert post(client).status_code == 200
    assert service_time.seconds_per_picture < 50.0


def test_not_ready_until_the_warm_up_has_finished_and_what_is_refused_before_does_not_count_for_the_rate(start):
    session = FakeNetwork()
    session.hold()
    client = start(session=session, ready=False, rate_per_minute=0.01, rate_burst=1)
    assert session.entered.wait(PATIENCE_S)
    assert client.get("/health/live").status_code == 200
    for refused in (client.get("/health/ready"), post(client), post(client)):
        assert_problem(refused, 503, "not_ready")
        assert refused.headers["retry-after"] == "1"
    session.free.set()
    wait_until_ready(client)
    assert post(client).status_code == 200
    assert_problem(post(client), 429, "rate_limited")


def test_failed_warm_up_is_reported_and_the_service_never_ready(bundle_folder):
    session = FakeNetwork()
    session.fails = True
    assert "secret words" in failure_of_start(session=session, bundle=bundle_folder)


# ---- clients that disconnect


async def exchange(app, messages):
    """Sends one ASGI request, and disconnects; returns the log lines."""
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/identify", "raw_path": b"/identify",
        "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80), "client": None,
        "headers": [(b"host", b"localhost"), (b"content-type", b"image/jpeg")], "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(_):
        pass

    with structlog.testing.capture_logs() as lines:
        await app(scope, receive, send)
    return lines


@in_event_loop
async def test_network_does_not_run_for_a_client_that_disconnected(settings):
    session = FakeNetwork()
    service = create_app(settings, session=session, decoder=InProcessDecoder())
    async with service.litestar.lifespan():
        await until(lambda: service.live_bundle.is_ready)
        warm_up = session.num_runs
        lines = await exchange(service.app, [{"type": "http.request", "body": jpeg(size=(2000, 2000))}])
    assert lines[-1]["status"] == 499
    assert session.num_runs == warm_up
    assert not re.search(rb"(?m)^botanify_refusals_total\{.*\} [^0]", service.metrics.text())  # of one that leaves
