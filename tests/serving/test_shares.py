"""How clients share requests, bytes and decoders."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.admission import Holdings, Presence, Turns


class Upload:
    def __init__(self, client):
        self.client = client


def held(holdings, uploads):
    """What each client holds, counted from the uploads."""
    total = Counter()
    for upload, amount in uploads.items():
        total[upload.client] += amount
    assert holdings.clients == {client for client, amount in total.items() if amount}
    return total


CLIENTS = st.sampled_from("abc")
STEPS = st.lists(st.tuples(CLIENTS, st.integers(1, 40), st.booleans()), max_size=40)


@given(steps=STEPS, share=st.sampled_from([0.25, 0.5, 1.0]))
def test_no_client_exceeds_its_share_nor_all_the_capacity_except_with_a_single_holder(steps, share):
    holdings, uploads = Holdings(100, share), {}
    for client, amount, ends in steps:
        upload = Upload(client)
        if not holdings.exceeds_share(upload, amount) and not holdings.is_full(upload, amount):
            holdings.take(upload, amount)
            uploads[upload] = amount
        if ends and uploads:
            oldest = next(iter(uploads))
            holdings.release(oldest)
            del uploads[oldest]
        total = held(holdings, uploads)
        for each, sum_held in total.items():
            num_holders = sum(upload.client == each for upload in uploads)
            assert sum_held <= 100 * share or num_holders == 1
        assert total.total() <= 100


@given(steps=STEPS, newcomer=CLIENTS, amount=st.integers(0, 40))
def test_whoever_has_to_give_up_something_holds_the_most_and_more_than_the_one_who_gains(steps, newcomer, amount):
    holdings, uploads = Holdings(100, 1.0), {}
    for client, taken, _ in steps:
        upload = Upload(client)
        holdings.take(upload, taken)
        uploads[upload] = taken
    total = held(holdings, uploads)
    if not total:
        return
    victim = holdings.first_to_give_up(Upload(newcomer), amount)
    if victim is None:
        assert max(total.values()) <= total[newcomer] + amount
    else:
        assert total[victim.client] == max(total.values()) > total[newcomer] + amount
        assert victim is [upload for upload in uploads if upload.client == victim.client][-1]


@given(sights=st.lists(st.tuples(CLIENTS, st.floats(0, 8)), max_size=20), client=CLIENTS, later=st.floats(0, 20))
def test_client_is_alone_if_no_other_was_seen_in_the_last_ten_seconds(sights, client, later):
    presence, now, last = Presence(), 0.0, {}
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
def test_cancelled_picture_passes_its_turn_on(first):
    async def main():
        decoding = Decoding(Turns(1, 1.0, lambda _: False))
        await decoding.add("a", 0)
        await decoding.add("a", 1)
        await decoding.add("b", 2)
        await decoding.cancel(("a", 1 if first == "waiting" else 0))
        await decoding.end(("a", 0))
        await decoding.end(("a", 1))
        assert decoding.started[-1] == ("b", 2)
        assert len(decoding.started) == (2 if first == "waiting" else 3)

    asyncio.run(main())


def test_picture_cancelled_in_the_moment_of_its_turn_passes_it_on():
    async def main():
        decoding = Decoding(Turns(1, 1.0, lambda _: False))
        await decoding.add("a", 0)
        await decoding.add("a", 1)
        await decoding.add("b", 2)
        decoding.tasks["a", 0].cancel()
        decoding.tasks["a", 1].cancel()
        await decoding.settle()
        assert decoding.running == [("b", 2)]

    asyncio.run(main())


@given(
    pictures=st.lists(st.tuples(CLIENTS, st.integers(0, 5), st.sampled_from(["end", "cancel", "wait"])), max_size=15),
    num_decoders=st.integers(1, 5),
    share=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_decoders_are_shared_and_none_is_idle_without_a_reason(pictures, num_decoders, share):
    most = max(1, int(share * num_decoders))

    async def main():
        decoding = Decoding(Turns(num_decoders, share, lambda _: False))
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
