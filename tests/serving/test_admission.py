"""Admission by the work ahead, the throughput and the memory for uploads. Tests set the clock."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import admission as module
from serving.admission import Admission, AdmissionLimits, Pace
from serving.errors import Overloaded
from serving.metrics import Metrics


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


class Requests:
    """Requests to an admission, each in progress until it is ended."""

    def __init__(self, *, num_requests=100, num_bytes=10**9, wait_s=1.0, pace_s=0.1, share=0.5):
        limits = AdmissionLimits(num_requests, num_bytes, wait_s, num_decoders=2, client_share=share)
        self.admission = Admission(limits, Metrics(), Pace(pace_s))
        self.tasks = {}

    async def enter(self, client="a", num_bytes=0):
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

    async def upload(self, client="a", num_pictures=1, *, num_bytes=1, deadline_s=10.0):
        """Returns an admitted request whose work may start."""
        request = await self.enter(client, num_bytes)
        self.admission.start_work(request, num_pictures, deadline_s)
        return request

    async def end(self, request):
        self.tasks[request].cancel()
        await asyncio.wait({self.tasks.pop(request)})

    async def is_revoked(self, request):
        for _ in range(5):
            await asyncio.sleep(0)
        return self.tasks[request].done() and isinstance(self.tasks[request].exception(), Overloaded)

    async def _stay(self, client, admitted):
        async with AsyncExitStack() as stack:
            admitted.set_result(await stack.enter_async_context(self.admission.enter(client)))
            await asyncio.Event().wait()


def with_requests(**limits):
    """Runs a test in an event loop, with an admission of its own."""

    def decorate(test):
        def run(clock):
            async def main():
                requests = Requests(**limits)
                await test(requests, clock)
                for request in list(requests.tasks):
                    await requests.end(request)

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


# ---- one client


@with_requests(wait_s=1.0, pace_s=0.1)
async def test_request_is_refused_when_its_expected_wait_is_too_long(requests, clock):
    for _ in range(11):
        await requests.upload()
    with pytest.raises(Overloaded) as refused:
        await requests.enter()
    assert refused.value.retry_after_s == 1


@with_requests(wait_s=1.0, pace_s=3.0)
async def test_slow_machine_still_serves_eight_clients(requests, clock):
    for _ in range(8):
        await requests.upload(deadline_s=60)
    with pytest.raises(Overloaded):
        await requests.enter()


@with_requests(num_requests=3, num_bytes=100)
async def test_client_that_is_alone_may_have_everything(requests, clock):
    first, *_ = [await requests.enter(num_bytes=30) for _ in range(3)]
    with pytest.raises(Overloaded):
        await requests.enter()
    requests.admission.hold(first, 10)
    with pytest.raises(Overloaded):
        requests.admission.hold(first, 1)
    await requests.end(first)
    await requests.enter()


@with_requests(num_bytes=100)
async def test_single_upload_may_exceed_the_memory_for_uploads(requests, clock):
    request = await requests.enter(num_bytes=500)
    with pytest.raises(Overloaded):
        await requests.enter()
    await requests.end(request)
    await requests.enter(num_bytes=60)
    with pytest.raises(Overloaded):
        await requests.enter(num_bytes=60)
    await requests.enter(num_bytes=40)


@with_requests(wait_s=1.0, pace_s=0.1)
async def test_upload_counts_as_work_only_in_its_first_second(requests, clock):
    for _ in range(11):
        await requests.enter(num_bytes=1)
    with pytest.raises(Overloaded):
        await requests.enter()
    clock[0] += 1.1
    await requests.upload()


@with_requests(wait_s=10, pace_s=0.5)
async def test_request_that_would_miss_its_deadline_is_refused_before_any_work(requests, clock):
    for _ in range(4):
        await requests.upload()
    request = await requests.enter()
    with pytest.raises(Overloaded):
        requests.admission.start_work(request, 1, 2.0)
    requests.admission.start_work(request, 1, 3.0)


# ---- several clients


@with_requests(num_requests=8)
async def test_client_that_is_not_alone_may_have_its_share_of_the_requests(requests, clock):
    await requests.enter("honest")
    for _ in range(4):
        await requests.enter("attacker")
    with pytest.raises(Overloaded):
        await requests.enter("attacker")
    for _ in range(3):
        await requests.enter("honest")


@with_requests(num_requests=8)
async def test_client_counts_as_there_for_ten_seconds_after_its_last_request(requests, clock):
    await requests.end(await requests.enter("honest"))
    clock[0] += 9.9
    for _ in range(4):
        await requests.enter("attacker")
    with pytest.raises(Overloaded):
        await requests.enter("attacker")
    clock[0] += 0.2
    await requests.enter("attacker")


@with_requests(num_requests=3)
async def test_newest_request_of_the_client_that_has_the_most_gives_way(requests, clock):
    oldest, middle, newest = [await requests.enter("attacker") for _ in range(3)]
    await requests.enter("honest")
    assert [await requests.is_revoked(request) for request in (oldest, middle, newest)] == [False, False, True]
    with pytest.raises(Overloaded):
        await requests.enter("attacker")
    requests.admission.hold(newest, 10)  # a last part of its body, which nobody wants any more


@with_requests(wait_s=10.0, pace_s=0.1)
async def test_client_that_comes_while_the_work_is_late_is_not_behind_all_that_is_late(requests, clock):
    late = [await requests.upload("attacker") for _ in range(5)]
    clock[0] += 5
    honest = await requests.upload("honest")
    assert sum(other.virtual_starts_s[0] < honest.virtual_starts_s[0] for other in late) == 1


@pytest.mark.parametrize(("num_clients", "num_at_once"), [(1, 2), (1, 5), (2, 1), (4, 1), (4, 3)])
def test_late_picture_is_not_overtaken_without_end(clock, num_clients, num_at_once):
    """Serves pictures by virtual start; when one is answered, its client sends the next at once."""

    @with_requests(wait_s=10.0, pace_s=0.1)
    async def run(requests, clock):
        patient = await requests.upload("patient", 5)
        waiting = [(start, patient) for start in patient.virtual_starts_s]
        arriving = [f"hasty {number}" for number in range(num_clients)] * num_at_once
        for _ in range(5 * (1 + num_clients) + len(arriving)):
            for name in arriving:
                request = await requests.upload(name)
                waiting.append((request.virtual_starts_s[0], request))
            waiting.sort(key=lambda item: item[0])
            _, served = waiting.pop(0)
            clock[0] += 0.05
            arriving = []
            if served is not patient:
                requests.admission.end_work(served, answered=True)
                await requests.end(served)
                arriving = [served.client]
        assert patient not in {request for _, request in waiting}

    run(clock)


NEXT = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=12)


@given(arrivals=NEXT, client=st.sampled_from("abc"), num_pictures=st.integers(1, 5))
def test_expected_waits_are_those_of_clients_that_take_turns(arrivals, client, num_pictures):
    async def main():
        requests = Requests(num_requests=1000, wait_s=1e9, pace_s=1.0, share=1.0)
        queues = Counter()
        for name, num in arrivals:
            request = await requests.enter(name)
            if num:
                requests.admission.start_work(request, num, 1e9)
            queues[name] += num
        request = await requests.enter(client)
        requests.admission.start_work(request, num_pictures, 1e9)
        start = min(other.virtual_starts_s[0] for other in requests.tasks if other.virtual_starts_s)
        assert request.virtual_starts_s == [
            pytest.approx(start + wait) for wait in waits_in_turns(queues, client, num_pictures)
        ]
        for request in list(requests.tasks):
            await requests.end(request)

    asyncio.run(main())


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


def test_pace_is_the_throughput_and_not_the_latency():
    pace = Pace(1.0)
    for index in range(200):  # eight requests in progress, one answered every 0.1 s
        now = 10 + 0.1 * index
        pace.record_end(1, start=now - 0.8, now=now, answered=True)
    assert pace.seconds_per_picture == pytest.approx(0.1, rel=0.01)


def test_pace_learns_from_refused_pictures_only_if_they_were_slow():
    pace = Pace(0.2)
    for index in range(200):
        pace.record_end(1, start=60.0 * index, now=60.0 * index + 0.01, answered=False)
    assert pace.seconds_per_picture == 0.2
    for index in range(200, 400):
        pace.record_end(1, start=60.0 * index, now=60.0 * index + 5.0, answered=False)
    assert pace.seconds_per_picture == pytest.approx(5.0, rel=0.01)
