"""The load generator against small servers whose behavior is known."""

import asyncio
import time
from itertools import pairwise

import httptools
import pytest

from benchmarks.serving.http_client import fetch, get, post_picture
from benchmarks.serving.load import Load, Outcome, arrivals, closed_loop, open_loop, percentile

REQUEST = post_picture("/identify", b"x" * 200_000)
PAGE = get("/")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers after a while, or does not."""

    answer_s, answer, hang_up = 0.0, OK, False
    abandoned = 0

    def connection_made(self, transport):
        self._transport, self._parser = transport, httptools.HttpRequestParser(self)
        self.transports.append(transport)
        self.waiting = 0

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_message_complete(self):
        self.waiting += 1
        asyncio.get_running_loop().call_later(self.answer_s, self.finish)

    def finish(self):
        self.waiting -= 1
        if self.hang_up:
            self._transport.abort()
        elif self.answer:
            self._transport.write(self.answer)

    def connection_lost(self, error):
        type(self).abandoned += self.waiting


def against(load, kind=Server, **behavior):
    """Runs a load, given a port, against a server of its own; gives what it found and the server's class."""
    kind = type("Tried", (kind,), {"transports": [], **behavior})

    async def run():
        server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
        async with server:
            found = await load(server.sockets[0].getsockname()[1])
            await asyncio.sleep(0.1)  # the server hears of those that hung up
            abandoned = kind.abandoned
            for transport in kind.transports:
                transport.abort()
            await asyncio.sleep(0.01)
            kind.abandoned = abandoned
            return found

    return asyncio.run(run()), kind


def opened(moments, request=PAGE, patience_s=15, **server):
    """An open loop of these moments against a server of its own."""
    return against(lambda port: open_loop(port, [request], moments, seconds=20, patience_s=patience_s), **server)


def closed(concurrency, seconds, **server):
    """A closed loop of so many clients against a server of its own."""
    return against(lambda port: closed_loop(port, [REQUEST], concurrency=concurrency, seconds=seconds), **server)


# ---- one request


@pytest.mark.parametrize(("answer", "body"), [(OK, b"{}"), (CHUNKED, b"abcde")])
def test_an_answer_is_read_to_its_end(answer, body):
    found, _ = against(lambda port: fetch(port, REQUEST), answer=answer)
    assert (found.status, found.body) == (200, body)


# ---- closed loop


@pytest.mark.slow
def test_a_closed_loop_measures_rate_and_latency():
    load, _ = against(
        lambda port: closed_loop(port, [REQUEST], concurrency=4, seconds=1.0, lead_in_s=0.2), answer_s=0.05
    )
    assert 8 < load.per_s <= 84  # 4 clients, 50 ms each: 80/s, and those that just ended within the window
    assert percentile([outcome.latency_s for outcome in load.outcomes], 0) >= 0.049
    assert load.words == {"200": len(load.outcomes)}
    assert 0 < load.generator_share < 1
    assert load.num_good >= len(load.good)


def test_lost_connections_are_counted_and_do_not_end_the_loop():
    load, _ = closed(2, 0.5, hang_up=True)
    assert load.words.keys() == {"connection lost"}
    assert len(load.outcomes) > 2
    assert load.per_s == 0


def test_only_answers_with_status_200_are_good():
    load, _ = closed(1, 0.2, answer=BUSY)
    assert load.words.keys() == {"503"}
    assert load.per_s == 0
    assert all(outcome.retry_after for outcome in load.outcomes)


# ---- open loop


def test_arrivals_are_reproducible_and_have_the_given_rate():
    moments = arrivals(100, 50, seed=3)
    assert moments == arrivals(100, 50, seed=3) != arrivals(100, 50, seed=4)
    assert moments == sorted(moments)
    assert len(moments) == pytest.approx(5000, rel=0.05)
    gaps = [b - a for a, b in pairwise(moments)]
    assert sum(gap < 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.03)  # 1 - 1/e, as for Poisson


class Stalling(Server):
    """Answers at once up to the tenth request, and all later ones when a second has passed since that."""

    count, until = 0, 0.0

    def on_message_complete(self):
        kind, now = type(self), asyncio.get_running_loop().time()
        kind.count += 1
        if kind.count == 10:
            kind.until = now + 1.0
        self.answer_s = max(kind.until - now, 0.0)
        super().on_message_complete()


@pytest.mark.slow
def test_a_stall_counts_in_the_latency_of_every_request_that_was_due():
    """A client that waits for its answer before it sends again would see one slow request."""
    moments = [number / 30 for number in range(60)]
    load, _ = opened(moments, kind=Stalling)
    by_due = sorted(load.outcomes, key=lambda outcome: outcome.due_s)
    end_of_stall = by_due[9].due_s + 1.0
    fell_into_it = [outcome for outcome in by_due[9:] if outcome.due_s < end_of_stall - 0.1]
    assert len(fell_into_it) >= 26
    assert all(outcome.latency_s > 0.99 * (end_of_stall - outcome.due_s) for outcome in fell_into_it)
    assert load.words == {"200": 60}


def test_latency_counts_from_the_due_time_even_if_the_generator_is_late():
    async def late(port):
        asyncio.get_running_loop().call_soon(time.sleep, 0.5)
        return await open_loop(port, [PAGE], [0.1, 0.2], seconds=20, patience_s=15)

    load, _ = against(late)
    assert all(outcome.latency_s >= outcome.sent_s - outcome.due_s >= 0.25 for outcome in load.outcomes)
    assert min(load.lateness_s) >= 0.25


@pytest.mark.slow
def test_requests_are_sent_when_due_even_if_the_server_is_slow():
    moments = [number / 50 for number in range(50)]
    began = time.monotonic()
    load, _ = opened(moments, REQUEST, answer_s=1.0)
    assert time.monotonic() - began < 40  # one after the other would take 50 s
    assert len(load.good) == 50
    assert all(outcome.latency_s >= 1.0 for outcome in load.good)
    assert percentile(load.lateness_s, 50) < 0.5


@pytest.mark.slow
def test_clients_disconnect_after_their_patience():
    load, server = opened([0.0, 0.1, 0.2], patience_s=1.0, answer_s=30.0)
    assert load.words == {"gave up": 3}
    assert all(1.0 <= outcome.latency_s < 10 for outcome in load.outcomes)
    assert server.abandoned == 3  # the server can see it


class Early(Server):
    """Refuses every connection before it has read anything."""

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.write(BUSY)
        transport.pause_reading()


def test_a_refusal_before_the_body_is_read_is_an_answer():
    large = post_picture("/identify", bytes(10_000_000))
    load, _ = opened([0.0, 0.05], large, kind=Early)
    assert load.words == {"503": 2}
    assert all(outcome.retry_after for outcome in load.outcomes)


def test_the_rate_counts_good_answers_in_the_window_only():
    def ended(at, status=200):
        return Outcome("answered", at - 0.2, at - 0.2, at, status)

    outcomes = [ended(0.4), ended(0.5), ended(0.7, status=503), ended(0.9), ended(0.99), ended(1.0)]
    load = Load(outcomes, (0.5, 1.0), 0.1, num_good=5)
    assert load.per_s == 3 / 0.5
    assert load.words == {"200": 5, "503": 1}
    assert len(load.good) == 5


# ---- figures


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_a_percentile_is_a_measured_value(percent, expected):
    values = list(range(100, 0, -1))
    assert percentile(values, percent) == expected
