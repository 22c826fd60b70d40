"""Admission by the work ahead, the pace and the memory for uploads, and how clients share it. Tests set the clock."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine import admission as module
from serving.engine.admission import Admission, AdmissionLimits, DecoderQueue, Quota, RecentClients, ServiceTime
from serving.errors import Overloaded
from serving.metrics import Metrics
from tests.serving.tiny import in_event_loop


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


class Requests:
    """Requests to an admission, each in progress until it is ended."""

    def __init__(self, *, num_requests=100, num_bytes=10**9, wait_s=1.0, pace_s=0.1, share=0.5):
        limits = AdmissionLimits(num_requests, num_bytes, wait_s, num_decoders=2, client_share=share)
        self.admission = Admission(limits, Metrics(), ServiceTime(pace_s))
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

    async def refuse(self, client="a", num_bytes=0):
        """Checks that a request is refused; returns after how many seconds it may come again."""
        with pytest.raises(Overloaded) as refused:
            await self.enter(client, num_bytes)
        return refused.value.retry_after_s

    async def end(self, request):
        self.tasks[request].cancel()
        await asyncio.wait({self.tasks.pop(request)})

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
    assert await requests.refuse() == 1


@with_requests(wait_s=1.0, pace_s=0.05)
async def test_retry_after_is_the_time_until_the_expected_wait_is_short_enough(requests, clock):
    for _ in range(3):
        await requests.upload(num_pictures=5)
    requests.admission.service_time.seconds_per_picture = 0.4
    # 15 pictures of 0.4 s make 6 s, less the 2.8 s of the seven that may always be ahead
    assert await requests.refuse() == 4


@with_requests(wait_s=1.0, pace_s=3.0)
async def test_slow_machine_still_serves_eight_clients(requests, clock):
    for _ in range(8):
        await requests.upload(deadline_s=60)
    await requests.refuse()


@with_requests(num_requests=3, num_bytes=100)
async def test_client_that_is_alone_may_have_everything(requests, clock):
    first, *_ = [await requests.enter(num_bytes=30) for _ in range(3)]
    await requests.refuse()
    requests.admission.hold(first, 10)
    with pytest.raises(Overloaded):
        requests.admission.hold(first, 1)
    await requests.end(first)
    await requests.enter()


@with_requests(num_bytes=100)
async def test_single_upload_may_exceed_the_memory_for_uploads(requests, clock):
    request = await requests.enter(num_bytes=500)
    await requests.refuse()
    await requests.end(request)
    await requests.enter(num_bytes=60)
    await requests.refuse(num_bytes=60)
    await requests.enter(num_bytes=40)


@with_requests(wait_s=1.0, pace_s=0.1)
async def test_upload_counts_as_work_only_in_its_first_second(requests, clock):
    for _ in range(11):
        await requests.enter(num_bytes=1)
    await requests.refuse()
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


@with_requests(wait_s=10, pace_s=0.5)
async def test_request_whose_last_picture_would_miss_its_deadline_is_refused(requests, clock):
    await requests.upload()
    request = await requests.enter()
    with pytest.raises(Overloaded):
        requests.admission.start_work(request, 5, 2.0)  # the first would be answered after 1 s, the last after 3 s
    requests.admission.start_work(request, 5, 3.0)


# ---- several clients


@with_requests(num_requests=8)
async def test_client_that_is_not_alone_may_have_its_share_of_the_requests(requests, clock):
    await requests.enter("honest")
    for _ in range(4):
        await requests.enter("attacker")
    await requests.refuse("attacker")
    for _ in range(3):
        await requests.enter("honest")


@with_requests(num_requests=8)
async def test_client_counts_as_there_for_ten_seconds_after_its_last_request(requests, clock):
    await requests.end(await requests.enter("honest"))
    clock[0] += 9.9
    for _ in range(4):
        await requests.enter("attacker")
    await requests.refuse("attacker")
    clock[0] += 0.2
    await requests.enter("attacker")


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
@in_event_loop
async def test_expected_waits_are_those_of_clients_that_take_turns(arrivals, client, num_pictures):
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


@pytest.mark.parametrize(
    ("num_pictures", "every_s", "lasts_s", "answered", "expected_s"),
    [(1, 0.1, 0.8, True, 0.1), (5, 60, 1, True, 0.2), (1, 60, 0.01, False, 0.5), (1, 60, 5, False, 5)],
    ids=["the throughput, not the latency", "per picture", "unless refused soon", "of refused ones that were slow"],
)
def test_pace_is_learned_from_requests_that_end(num_pictures, every_s, lasts_s, answered, expected_s):
    service_time = ServiceTime(0.5)
    for index in range(200):
        start = every_s * index
        service_time.record_end(num_pictures, start=start, now=start + lasts_s, answered=answered)
    assert service_time.seconds_per_picture == pytest.approx(expected_s, rel=0.01)


class Upload:
    def __init__(self, client):
        self.client = client


def held(quota, uploads):
    """What each client holds, counted from the uploads."""
    total = Counter()
    for upload, amount in uploads.items():
        total[upload.client] += amount
    assert quota.clients == {client for client, amount in total.items() if amount}
    return total


CLIENTS = st.sampled_from("abc")
STEPS = st.lists(st.tuples(CLIENTS, st.integers(1, 40), st.booleans()), max_size=40)


@given(steps=STEPS, share=st.sampled_from([0.25, 0.5, 1.0]))
def test_no_client_exceeds_its_share_nor_all_the_capacity_except_with_a_single_holder(steps, share):
    quota, uploads = Quota(100, share), {}
    for client, amount, ends in steps:
        upload = Upload(client)
        if not quota.exceeds_share(upload, amount) and not quota.is_full(upload, amount):
            quota.take(upload, amount)
            uploads[upload] = amount
        if ends and uploads:
            oldest = next(iter(uploads))
            quota.release(oldest)
            del uploads[oldest]
        total = held(quota, uploads)
        for each, sum_held in total.items():
            num_holders = sum(upload.client == each for upload in uploads)
            assert sum_held <= 100 * share or num_holders == 1
        assert total.total() <= 100


@given(steps=STEPS, newcomer=CLIENTS, amount=st.integers(0, 40))
def test_whoever_has_to_give_up_something_holds_the_most_and_more_than_the_one_who_gains(steps, newcomer, amount):
    quota, uploads = Quota(100, 1.0), {}
    for client, taken, _ in steps:
        upload = Upload(client)
        quota.take(upload, taken)
        uploads[upload] = taken
    total = held(quota, uploads)
    if not total:
        return
    victim = quota.first_to_give_up(Upload(newcomer), amount)
    if victim is None:
        assert max(total.values()) <= total[newcomer] + amount
    else:
        assert total[victim.client] == max(total.values()) > total[newcomer] + amount
        assert victim is [upload for upload in uploads if upload.client == victim.client][-1]


@given(sights=st.lists(st.tuples(CLIENTS, st.floats(0, 8)), max_size=20), client=CLIENTS, later=st.floats(0, 20))
def test_client_is_alone_if_no_other_was_seen_in_the_last_ten_seconds(sights, client, later):
    presence, now, last = RecentClients(), 0.0, {}
    for seen, pause in sights:
        now += pause
        presence.see(seen, now)
        last[seen] = now
    now += later
    expected = all(now - at >= 10 for other, at in last.items() if other != client)
    assert presence.is_alone(client, now) is expected


# ---- turns


class Decoding:
    """Pictures that take their turns; each is decoded until the test ends it."""

    def __init__(self, turns):
        self.turns, self.started, self.tasks, self.ends = turns, [], {}, {}

    async def add(self, client, rank):
        name = (client, rank)
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._decode(name))
        await self.settle()

    async def _decode(self, name):
        async with self.turns.take(*name):
            self.started.append(name)
            await self.ends[name].wait()

    async def end(self, name):
        self.ends[name].set()
        await self.settle()

    async def cancel(self, name):
        self.tasks[name].cancel()
        await self.settle()

    async def settle(self):
        for _ in range(6):
            await asyncio.sleep(0)

    @property
    def running(self):
        return [name for name in self.started if not self.tasks[name].done()]


@pytest.mark.parametrize("first", ["waiting", "running"])
@in_event_loop
async def test_cancelled_picture_passes_its_turn_on(first):
    decoding = Decoding(DecoderQueue(1, 1.0, lambda _: False))
    await decoding.add("a", 0)
    await decoding.add("a", 1)
    await decoding.add("b", 2)
    await decoding.cancel(("a", 1 if first == "waiting" else 0))
    assert len(decoding.turns._waiting) == 1
    await decoding.end(("a", 0))
    await decoding.end(("a", 1))
    assert decoding.started[-1] == ("b", 2)
    assert len(decoding.started) == (2 if first == "waiting" else 3)


@in_event_loop
async def test_picture_cancelled_in_the_moment_of_its_turn_passes_it_on():
    decoding = Decoding(DecoderQueue(1, 1.0, lambda _: False))
    await decoding.add("a", 0)
    await decoding.add("a", 1)
    await decoding.add("b", 2)
    decoding.tasks["a", 0].cancel()
    decoding.tasks["a", 1].cancel()
    await decoding.settle()
    assert decoding.running == [("b", 2)]
    assert decoding.tasks["a", 0].cancelled()


@given(
    pictures=st.lists(st.tuples(CLIENTS, st.integers(0, 5), st.sampled_from(["end", "cancel", "wait"])), max_size=15),
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
            running = decoding.running
            by_client = Counter(client for client, _ in running)
            waiting = [name for name in waiting if name not in decoding.started and not decoding.tasks[name].done()]
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
