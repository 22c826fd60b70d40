"""The load generator: clients that wait for their answers (closed loop) and clients that do not (open loop).

In an open loop requests are due on a schedule drawn beforehand. A slow server delays none of them, and latency counts
from the moment a request was due, so a stall shows in every request that fell into it (no coordinated omission).
"""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from benchmarks.serving.http_client import Answer, Connection, ConnectionLost, connect, fetch

Ending = Literal["answered", "gave up", "connection lost"]
_PATIENCE_S: Final = 120.0  # of clients in a closed loop: longer than any server needs that works at all
_PAUSE_S: Final = 0.05  # after a refusal or a lost connection: clients that hammer would take the server's cores


class Outcome(msgspec.Struct, frozen=True):
    """What became of one request; times in seconds since the load began."""

    ending: Ending
    due_s: float
    """When it should be sent."""
    sent_s: float
    """When it was."""
    ended_s: float
    """When its last byte was there, or its client left."""
    status: int = 0
    """HTTP status; 0 without an answer."""
    retry_after: bool = False
    """Whether the answer says when to come back."""

    @property
    def latency_s(self) -> float:
        """From the moment it was due to its end."""
        return self.ended_s - self.due_s

    @property
    def word(self) -> str:
        """Its status, or how it ended without one."""
        return str(self.status) if self.ending == "answered" else self.ending


class Load(msgspec.Struct, frozen=True):
    """What a load found out."""

    outcomes: list[Outcome]
    """In the order in which they ended."""
    window_s: tuple[float, float]
    """The time in which the rate of good answers is taken; a server's queue is neither filled nor emptied in it."""
    generator_share: float
    """Share of one core that this process took, an upper bound of what generating the load cost."""
    num_good: int
    """Good answers in all, those of the lead-in and those that came after the window too."""

    @property
    def good(self) -> list[Outcome]:
        """Those with a good answer."""
        return [outcome for outcome in self.outcomes if outcome.status == 200]

    @property
    def per_s(self) -> float:
        """Good answers that ended in the window, a second."""
        start, end = self.window_s
        return sum(start <= outcome.ended_s < end for outcome in self.good) / (end - start)

    @property
    def words(self) -> dict[str, int]:
        """How often each status, or ending without one, occurred."""
        return dict(sorted(Counter(outcome.word for outcome in self.outcomes).items()))

    @property
    def lateness_s(self) -> list[float]:
        """How late each request was sent: of the generator, not of the server."""
        return [outcome.sent_s - outcome.due_s for outcome in self.outcomes]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least so many percent of them do not exceed; None without values."""
    if not values:
        return None
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    return sorted(values)[rank - 1]


def arrivals(per_s: float, seconds: float, seed: int) -> list[float]:
    """Moments of independent arrivals (a Poisson process), seconds."""
    chance, moments, at = random.Random(seed), [], 0.0
    while (at := at + chance.expovariate(per_s)) < seconds:
        moments.append(at)
    return moments


async def closed_loop(
    port: int, requests: Sequence[bytes], *, concurrency: int, seconds: float, lead_in_s: float = 0.0
) -> Load:
    """Clients that each send the next request when the last was answered, over connections that stay open.

    Args:
        port: Where the server listens.
        requests: Sent in turns.
        concurrency: Number of clients.
        seconds: The time that counts; what ends before or after it does not, but is waited for.
        lead_in_s: Time before that.
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
    # Nobody hangs up: a server that goes on with what nobody waits for would have less for what comes next.
    await asyncio.gather(*clients)
    counted = [outcome for outcome in outcomes if start <= outcome.ended_s < end]
    return Load(counted, (start, end), generator_share, _num_good(outcomes))


async def open_loop(
    port: int, requests: Sequence[bytes], moments: Sequence[float], *, seconds: float, patience_s: float
) -> Load:
    """Clients that come at given moments, each over a connection of its own, and leave when their patience ends.

    Args:
        port: Where the server listens.
        requests: Sent in turns.
        moments: When each request is due, seconds from now, in order.
        seconds: The time over which they are spread; the rate is taken from when patience has ended once to then.
        patience_s: A client hangs up so long after its request was due; shorter than `seconds`.
    """
    clock, clients = _Clock(), list[asyncio.Task[Outcome]]()
    before = time.process_time()
    for number, moment in enumerate(moments):
        await clock.wait_until(moment)
        clients.append(asyncio.create_task(_visit(port, requests[number % len(requests)], clock, moment, patience_s)))
    outcomes = await asyncio.gather(*clients)
    generator_share = (time.process_time() - before) / clock.now()
    outcomes.sort(key=lambda outcome: outcome.ended_s)
    return Load(outcomes, (patience_s, seconds), generator_share, _num_good(outcomes))


async def one_by_one(port: int, request: bytes, count: int) -> Load:
    """One client alone that sends a request so many times, each over a connection of its own."""
    clock = _Clock()
    before = time.process_time()
    outcomes = [await _visit(port, request, clock, clock.now(), _PATIENCE_S) for _ in range(count)]
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
    """Sends requests from that number on, the last one before a given moment."""
    connection: Connection | None = None
    try:
        while (sent_s := clock.now()) < end_s:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    if connection is not None and not connection.usable:
                        connection.close()
                        connection = None
                    connection = connection or await connect(port)
                    answer = await connection.send(requests[number % len(requests)])
                outcome = _answered(answer, sent_s, sent_s, clock.now())
            except (ConnectionLost, TimeoutError) as error:
                outcome = Outcome(_ending(error), sent_s, sent_s, clock.now())
                if connection is not None:
                    connection.close()
            outcomes.append(outcome)
            if outcome.status != 200:
                await asyncio.sleep(_PAUSE_S)
            number += 1
    finally:
        if connection is not None:
            connection.close()


async def _visit(port: int, request: bytes, clock: _Clock, due_s: float, patience_s: float) -> Outcome:
    sent_s = clock.now()
    try:
        async with asyncio.timeout(due_s + patience_s - sent_s):
            answer = await fetch(port, request)
    except (ConnectionLost, TimeoutError) as error:
        return Outcome(_ending(error), due_s, sent_s, clock.now())
    return _answered(answer, due_s, sent_s, clock.now())


def _answered(answer: Answer, due_s: float, sent_s: float, ended_s: float) -> Outcome:
    return Outcome("answered", due_s, sent_s, ended_s, answer.status, "retry-after" in answer.headers)


def _ending(error: Exception) -> Ending:
    return "gave up" if isinstance(error, TimeoutError) else "connection lost"


def _num_good(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.status == 200 for outcome in outcomes)
