"""Admission by the work ahead, the pace and the memory for uploads, and how clients share it. Tests set the clock."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.engine.admission import Admission, AdmissionLimits, DecoderQueue, ServiceTime
from serving.errors import Overloaded
from serving.metrics import Metrics
from tests.make import from_table
from tests.serving.tiny import in_event_loop

SCENARIOS = json.loads(Path(__file__).with_suffix(".json").read_text())["one or several clients"]


async def settled():
    for _ in range(6):
        await asyncio.sleep(0)


class Requests:
    """Requests to an admission with a clock of its own, each in progress until it is ended."""

    def __init__(self, *, num_requests=100, num_bytes=10**9, wait_s=1.0, pace_s=0.1, share=0.5):
        limits = AdmissionLimits(num_requests, num_bytes, wait_s, num_decoders=2, client_share=share)
        self.admission = Admission(limits, Metrics(), ServiceTime(pace_s))
        self.now, self.tasks = 1000.0, {}

    async def __aenter__(self):
        self._clock = patch("serving.engine.admission.time", SimpleNamespace(monotonic=lambda: self.now))
        self._clock.start()
        return self

    async def __aexit__(self, *_):
        for request in list(self.tasks):
            await self.end(request)
        self._clock.stop()

    async def enter(self, client, num_bytes=0):
        """Returns an admitted request of which so many bytes have arrived."""
        admitted = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._stay(client, admitted))
        await asyncio.wait({task, admitted}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            admitted.cancel()
            return task.result()
        request = admitted.result()
        self.tasks[request] = task
        try:
            self.admission.hold(request, num_bytes)
        except Overloaded:
            await self.end(request)
            raise
        return request

    async def upload(self, client, num_pictures=1, deadline_s=10.0):
        """Returns an admitted request whose work may start."""
        request = await self.enter(client, 1)
        self.admission.start_work(request, num_pictures, deadline_s)
        return request

    async def refuse(self, client, num_bytes=0, retry_after_s=1):
        """Checks that a request is refused, and after how many seconds it may come again."""
        with pytest.raises(Overloaded) as refused:
            await self.enter(client, num_bytes)
        assert refused.value.retry_after_s == retry_after_s

    async def hold(self, number, num_bytes, succeeds=True):
        with nullcontext() if succeeds else pytest.raises(Overloaded):
            self.admission.hold(list(self.tasks)[number], num_bytes)

    async def work(self, number, num_pictures, deadline_s, succeeds=True):
        with nullcontext() if succeeds else pytest.raises(Overloaded):
            self.admission.start_work(list(self.tasks)[number], num_pictures, deadline_s)

    async def end(self, request):
        """Ends a request, or that with this number."""
        task = self.tasks.pop(list(self.tasks)[request] if isinstance(request, int) else request)
        task.cancel()
        await asyncio.wait({task})

    async def pass_s(self, seconds):
        self.now += seconds

    async def set_pace(self, seconds):
        self.admission.service_time.seconds_per_picture = seconds

    async def is_behind(self, number, num_others):
        """Checks before how many of the others the first picture of a request starts."""
        starts = [request.virtual_starts_s[0] for request in self.tasks]
        assert sum(start < starts[number] for start in starts) == num_others

    async def _stay(self, client, admitted):
        async with AsyncExitStack() as stack:
            admitted.set_result(await stack.enter_async_context(self.admission.enter(client)))
            await asyncio.Event().wait()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["fact"])
@in_event_loop
async def test_requests_of_clients(scenario):
    async with Requests(**scenario["limits"]) as requests:
        for times, name, *args in scenario["steps"]:
            for _ in range(times):
                await getattr(requests, name)(*args)


CLIENTS = st.sampled_from("abc")
REQUESTS, BYTES, SHARE = 6, 100, 0.5


class SharedAdmission(RuleBasedStateMachine):
    """Three clients enter, upload, leave and pause: who is refused, who gives way, and what each holds then."""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.requests = Requests(num_requests=REQUESTS, num_bytes=BYTES, wait_s=1e9, share=SHARE)
        self.run(self.requests.__aenter__())
        self.held, self.seen_at = {}, {}  # bytes of each request in the order of the first; when each client came

    def teardown(self):
        self.run(self.requests.__aexit__())
        self.runner.close()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def of(self, client, amounts):
        return sum(amount for request, amount in amounts.items() if request.client == client)

    def is_alone(self, client):
        others = {request.client for request in self.held} - {client}
        return not others and all(self.requests.now - at >= 10 for name, at in self.seen_at.items() if name != client)

    def share_is_used(self, client, amount, amounts, capacity, own=0):
        has = self.of(client, amounts)
        return not self.is_alone(client) and has > own and has + amount > SHARE * capacity

    @rule(client=CLIENTS)
    def enter(self, client):
        self.seen_at[client] = self.requests.now
        counts = dict.fromkeys(self.held, 1)
        uploads = {request: amount for request, amount in self.held.items() if amount}
        is_refused = self.share_is_used(client, 1, counts, REQUESTS) or self.share_is_used(client, 0, uploads, BYTES)
        self.attempt(client, lambda: self.requests.enter(client), 1, counts, REQUESTS, is_refused=is_refused)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), amount=st.integers(1, 60))
    def upload(self, data, amount):
        request = data.draw(st.sampled_from(list(self.held)), label="request")
        uploads = {other: held for other, held in self.held.items() if held}
        own = self.held[request]
        assume(own + amount <= BYTES)  # a single upload may have more, until another one comes
        is_refused = self.share_is_used(request.client, amount, uploads, BYTES, own)

        async def hold():
            self.requests.admission.hold(request, amount)
            return request

        self.attempt(request.client, hold, amount, uploads, BYTES, own=own, is_refused=is_refused)

    def attempt(self, client, step, amount, amounts, capacity, *, is_refused, own=0):
        """Takes a step that needs so much more of something of which the requests have `amounts`."""
        try:
            request = self.run(step())
        except Overloaded:
            request = None
        self.run(asyncio.sleep(0.001))  # who had to give way ends
        gone = [other for other, task in self.requests.tasks.items() if task.done()]
        assert not (is_refused and request)
        is_full = sum(amounts.values()) > own and sum(amounts.values()) + amount > capacity
        assert bool(gone) <= is_full
        for victim in gone:
            most = max(self.of(each, amounts) for each in "abc")
            assert self.of(victim.client, amounts) == most > self.of(client, amounts) + amount
            assert victim is [other for other in amounts if other.client == victim.client][-1]
            assert isinstance(self.requests.tasks.pop(victim).exception(), Overloaded)
            del self.held[victim], amounts[victim]
        if request is None and not is_refused:
            assert max(self.of(each, amounts) for each in "abc") <= self.of(client, amounts) + amount
            assert sum(amounts.values()) + amount > capacity
        elif request:
            self.held[request] = self.held.get(request, 0) + (amount if capacity == BYTES else 0)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data):
        request = data.draw(st.sampled_from(list(self.held)), label="request")
        del self.held[request]
        self.run(self.requests.end(request))

    @rule(seconds=st.sampled_from([0.5, 9.5, 10.0]))
    def pause(self, seconds):
        self.requests.now += seconds

    @invariant()
    def is_within_the_limits(self):
        assert len(self.held) <= REQUESTS
        assert sum(self.held.values()) <= BYTES or sum(map(bool, self.held.values())) == 1


test_clients_share_an_admission = SharedAdmission.TestCase
test_clients_share_an_admission.settings = settings(max_examples=30, stateful_step_count=25)


@pytest.mark.parametrize(("num_clients", "num_at_once"), [(1, 2), (1, 5), (2, 1), (4, 1), (4, 3)])
@in_event_loop
async def test_late_picture_is_not_overtaken_without_end(num_clients, num_at_once):
    """Serves pictures by virtual start; when one is answered, its client sends the next at once."""

    async with Requests(wait_s=10.0, pace_s=0.1) as requests:
        patient = await requests.upload("patient", 5)
        waiting = [(start, patient) for start in patient.virtual_starts_s]
        arriving = [f"hasty {number}" for number in range(num_clients)] * num_at_once
        for _ in range(5 * (1 + num_clients) + len(arriving)):
            for name in arriving:
                request = await requests.upload(name)
                waiting.append((request.virtual_starts_s[0], request))
            waiting.sort(key=lambda item: item[0])
            _, served = waiting.pop(0)
            requests.now += 0.05
            arriving = []
            if served is not patient:
                requests.admission.end_work(served, answered=True)
                await requests.end(served)
                arriving = [served.client]
        assert patient not in {request for _, request in waiting}


@given(
    arrivals=st.lists(st.tuples(CLIENTS, st.integers(0, 5)), max_size=12),
    client=CLIENTS,
    num_pictures=st.integers(1, 5),
)
@in_event_loop
async def test_expected_waits_are_those_of_clients_that_take_turns(arrivals, client, num_pictures):
    async with Requests(num_requests=1000, wait_s=1e9, pace_s=1.0, share=1.0) as requests:
        for name, num in arrivals:
            request = await requests.enter(name)
            if num:
                requests.admission.start_work(request, num, 1e9)
        request = await requests.upload(client, num_pictures, 1e9)
        start = min(other.virtual_starts_s[0] for other in requests.tasks if other.virtual_starts_s)
        queues = Counter()
        for name, num in arrivals:
            queues[name] += num
        assert request.virtual_starts_s == [
            pytest.approx(start + wait) for wait in waits_in_turns(queues, client, num_pictures)
        ]


def waits_in_turns(queues, client, num_pictures):
    """Serves one picture of each client in turn, the new client last; gives the places of its newest pictures."""
    left, place, places = Counter(queues), 0, []
    left[client] += num_pictures
    while left[client]:
        for name in sorted(left, key=lambda name: name == client):
            if left[name]:
                left[name] -= 1
                places += [place] if name == client else []
                place += 1
    return places[-num_pictures:]


# ---- pace


@from_table
def test_pace_is_learned_from_requests_that_end(num_pictures, every_s, lasts_s, answered, expected_s):
    service_time = ServiceTime(0.5)
    for index in range(200):
        start = every_s * index
        service_time.record_end(num_pictures, start=start, now=start + lasts_s, answered=answered)
    assert service_time.seconds_per_picture == pytest.approx(expected_s, rel=0.01)


# ---- turns


class Decoding:
    """Pictures that take their turns; each is decoded until the test ends it."""

    def __init__(self, turns):
        self.turns, self.started, self.tasks, self.ends = turns, [], {}, {}

    async def add(self, client, rank):
        name = (client, rank)
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._decode(name))
        await settled()

    async def _decode(self, name):
        async with self.turns.take(*name):
            self.started.append(name)
            await self.ends[name].wait()

    async def end(self, name):
        self.ends[name].set()
        await settled()

    async def cancel(self, *names):
        for name in names:
            self.tasks[name].cancel()
        await settled()

    @property
    def running(self):
        return [name for name in self.started if not self.tasks[name].done()]


@given(
    pictures=st.lists(
        st.tuples(
            CLIENTS, st.integers(0, 5), st.sampled_from(["wait"] * 4 + ["end", "cancel", "cancel the first two"])
        ),
        max_size=15,
    ),
    num_decoders=st.integers(1, 5),
    share=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_decoders_are_shared_and_none_is_idle_without_a_reason(pictures, num_decoders, share):
    most = max(1, int(share * num_decoders))

    async def main():
        decoding = Decoding(DecoderQueue(num_decoders, share, lambda _: False))
        waiting = []
        for number, (client, rank, then) in enumerate(pictures):
            name = (client, rank + number / 1000)
            await decoding.add(*name)
            waiting.append(name)
            if then == "end" and decoding.running:
                await decoding.end(decoding.running[0])
            elif then == "cancel":
                await decoding.cancel(name)
            elif then == "cancel the first two":  # the turn of one is passed to the other, which is gone already
                alive = [each for each in decoding.tasks if not decoding.tasks[each].done()]
                await decoding.cancel(*alive[:2])
            running = decoding.running
            by_client = Counter(client for client, _ in running)
            waiting = [name for name in waiting if name not in decoding.started and not decoding.tasks[name].done()]
            assert len(decoding.turns._waiting) == len(waiting)
            assert len(running) <= num_decoders
            assert all(num <= most for num in by_client.values())
            assert len(running) == num_decoders or all(by_client[client] == most for client, _ in waiting)
        while decoding.running:  # the waiting ones of a client come in their order, and all of them
            before = len(decoding.started)
            await decoding.end(decoding.running[0])
            for client, rank in decoding.started[before:]:
                assert rank == min(other for owner, other in waiting if owner == client)
                waiting.remove((client, rank))
        assert not waiting

    asyncio.run(main())
