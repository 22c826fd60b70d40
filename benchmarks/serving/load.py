"""The load generator: clients that wait for their answers (closed loop) and clients that do not (open loop).

In an open loop the time of each request is fixed in advance, so a slow server does not delay requests. Latency counts
from the time a request was due, so a stall counts for every request that was due during it (no coordinated omission).
"""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Final, Literal

import msgspec

from benchmarks.serving.http_client import Answer, Connection, ConnectionLost, connect, fetch

Ending = Literal["answered", "gave up", "connection lost"]
_PATIENCE_S: Final = 120.0  # of clients in a closed loop; longer than any working server needs
_PAUSE_S: Final = 0.05  # after a refusal or a lost connection, so that retries do not use up the CPU


class Outcome(msgspec.Struct, frozen=True):
    """How one request ended; times in seconds since the start of the load."""

    ending: Ending
    due_s: float
    """Time at which it should be sent."""
    sent_s: float
    """Time at which it was sent."""
    ended_s: float
    """Time of the last byte of the answer, or of the client's disconnect."""
    status: int = 0
    """HTTP status; 0 without an answer."""
    retry_after: bool = False
    """Whether the answer has a Retry-After header."""

    @property
    def latency_s(self) -> float:
        """Time from when it was due to its end."""
        return self.ended_s - self.due_s

    @property
    def word(self) -> str:
        """The status, or how it ended without one."""
        return str(self.status) if self.ending == "answered" else self.ending


class Load(msgspec.Struct, frozen=True):
    """The outcomes of a load."""

    outcomes: list[Outcome]
    """Outcomes, in the order of their end."""
    window_s: tuple[float, float]
    """Period in which the rate of good answers is measured; the server's queue neither fills nor empties in it."""
    generator_share: float
    """Share of one core that this process used; an upper bound of the cost of the load generator."""
    num_good: int
    """All good answers, also those before and after the window."""

    @property
    def good(self) -> list[Outcome]:
        """Outcomes with status 200."""
        return [outcome for outcome in self.outcomes if outcome.status == 200]

    @property
    def per_s(self) -> float:
        """Good answers per second in the window."""
        start, end = self.window_s
        return sum(start <= outcome.ended_s < end for outcome in self.good) / (end - start)

    @property
    def words(self) -> dict[str, int]:
        """How often each status, or end without a status, occurred."""
        return dict(sorted(Counter(outcome.word for outcome in self.outcomes).items()))

    @property
    def lateness_s(self) -> list[float]:
        """How late the generator sent each request."""
        return [outcome.sent_s - outcome.due_s for outcome in self.outcomes]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of the values do not exceed; None without values."""
    if not values:
        return None
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    return sorted(values)[rank - 1]


def latencies_ms(outcomes: Sequence[Outcome]) -> list[float]:
    """The latency of each request, ms."""
    return [outcome.latency_s * 1000 for outcome in outcomes]


def arrivals(per_s: float, seconds: float, seed: int) -> list[float]:
    """Times of independent arrivals (a Poisson process), s."""
    chance, moments, at = random.Random(seed), [], 0.0
    while (at := at + chance.expovariate(per_s)) < seconds:
        moments.append(at)
    return moments


async def closed_loop(
    port: int, requests: Sequence[bytes], *, concurrency: int, seconds: float, lead_in_s: float = 0.0
) -> Load:
    """Runs clients that each send the next request when the last is answered, over persistent connections.

    Args:
        port: Port of the server.
        requests: Sent in turns.
        concurrency: Number of clients.
        seconds: Length of the measurement; requests that end before or after it are not counted, but waited for.
        lead_in_s: Time of load before the measurement.
    """
    clock, outcomes = _Clock(), list[Outcome]()
    start, end = lead_in_s, lead_in_s + seconds
    clients = [
        asyncio.create_task(_client(port, requests, number=number, clock=clock, end_s=end, outcomes=outcomes))
        for number in range(concurrency)
    ]
    await clock.wait_until(start)
    before = time.process_time()
    await clock.wait_until(end)
    generator_share = (time.process_time() - before) / seconds
    # Clients wait for their answers: abandoned requests would slow the next measurement.
    await asyncio.gather(*clients)
    counted = [outcome for outcome in outcomes if start <= outcome.ended_s < end]
    return Load(counted, (start, end), generator_share, _num_good(outcomes))


async def open_loop(
    port: int, requests: Sequence[bytes], moments: Sequence[float], *, seconds: float, patience_s: float
) -> Load:
    """Sends requests at given times, each over a new connection; a client disconnects after its patience.

    Args:
        port: Port of the server.
        requests: Sent in turns.
        moments: When each request is due, seconds from now, in order.
        seconds: Length of the load; the rate is measured from `patience_s` to then.
        patience_s: Time after which a client disconnects, from when its request was due; shorter than `seconds`.
    """
    clock, clients = _Clock(), list[asyncio.Task[Outcome]]()
    before = time.process_time()
    for number, moment in enumerate(moments):
        await clock.wait_until(moment)
        asking = fetch(port, requests[number % len(requests)])
        clients.append(asyncio.create_task(_outcome(asking, clock, moment, patience_s)))
    outcomes = await asyncio.gather(*clients)
    generator_share = (time.process_time() - before) / clock.now()
    outcomes.sort(key=lambda outcome: outcome.ended_s)
    return Load(outcomes, (patience_s, seconds), generator_share, _num_good(outcomes))


async def one_by_one(port: int, request: bytes, count: int) -> Load:
    """Sends a request `count` times, one after another, each over a new connection."""
    clock = _Clock()
    before = time.process_time()
    outcomes = [await _outcome(fetch(port, request), clock, clock.now(), _PATIENCE_S) for _ in range(count)]
    return Load(outcomes, (0.0, clock.now()), (time.process_time() - before) / clock.now(), _num_good(outcomes))


class _Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def wait_until(self, moment: float) -> None:
        if (wait_s := moment - self.now()) > 0:
            await asyncio.sleep(wait_s)


async def _client(
    port: int, requests: Sequence[bytes], *, number: int, clock: _Clock, end_s: float, outcomes: list[Outcome]
) -> None:
    """Sends requests in turns, starting with `number`, until `end_s`."""
    connection: Connection | None = None

    async def send() -> Answer:
        nonlocal connection
        if connection is None or not connection.usable:
            connection = await connect(port)
        return await connection.send(requests[number % len(requests)])

    try:
        while (due_s := clock.now()) < end_s:
            outcome = await _outcome(send(), clock, due_s, _PATIENCE_S)
            outcomes.append(outcome)
            if connection is not None and not (outcome.ending == "answered" and connection.usable):
                connection.close()
            if outcome.status != 200:
                await asyncio.sleep(_PAUSE_S)
            number += 1
    finally:
        if connection is not None:
            connection.close()


async def _outcome(asking: Awaitable[Answer], clock: _Clock, due_s: float, patience_s: float) -> Outcome:
    """Sends a request, and waits for its answer until the client's patience is over."""
    sent_s = clock.now()
    try:
        async with asyncio.timeout(due_s + patience_s - sent_s):
            answer = await asking
    except TimeoutError:
        return Outcome("gave up", due_s, sent_s, clock.now())
    except ConnectionLost:
        return Outcome("connection lost", due_s, sent_s, clock.now())
    return Outcome("answered", due_s, sent_s, clock.now(), answer.status, "retry-after" in answer.headers)


def _num_good(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.status == 200 for outcome in outcomes)
