"""Memory is granted first come first served, and never more than there is."""

import asyncio
import contextlib

from serving.decoding.budget import ByteBudget
from serving.metrics import Metrics
from tests.serving.decoding.running_pool import value


class Desk:
    """A budget of 100 bytes, and who holds how much of it."""

    def __init__(self):
        self.metrics = Metrics()
        self.budget = ByteBudget(100, self.metrics.decode_bytes)
        self.held, self.leave = [], {}

    def ask(self, name, num_bytes):
        self.leave[name] = asyncio.Event()

        async def hold():
            async with self.budget.grant(num_bytes):
                self.held.append(name)
                await self.leave[name].wait()
                self.held.remove(name)

        return asyncio.create_task(hold())

    async def end(self, name):
        self.leave[name].set()
        await settled()

    @property
    def granted(self):
        return value(self.metrics, "botanify_decode_bytes")


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


def on_a_loop(test):
    def run():
        async def with_desk():
            desk = Desk()
            await test(desk)
            for name in desk.leave:
                await desk.end(name)
            assert (desk.held, desk.granted) == ([], 0)

        asyncio.run(with_desk())

    run.__name__ = test.__name__
    return run


@on_a_loop
async def test_what_fits_is_granted_at_once(desk):
    desk.ask("a", 60)
    desk.ask("b", 40)
    await settled()
    assert (desk.held, desk.granted) == (["a", "b"], 100)


@on_a_loop
async def test_what_does_not_fit_waits_until_it_does(desk):
    desk.ask("a", 60)
    desk.ask("b", 41)
    await settled()
    assert (desk.held, desk.granted) == (["a"], 60)
    await desk.end("a")
    assert (desk.held, desk.granted) == (["b"], 41)


@on_a_loop
async def test_small_requests_do_not_overtake_a_large_one(desk):
    desk.ask("a", 60)
    desk.ask("large", 90)
    desk.ask("small", 10)
    await settled()
    assert desk.held == ["a"]
    await desk.end("a")
    assert desk.held == ["large", "small"]


@on_a_loop
async def test_more_than_the_whole_budget_is_granted_alone(desk):
    desk.ask("a", 1)
    desk.ask("huge", 1_000)
    desk.ask("b", 1)
    await settled()
    assert desk.held == ["a"]
    await desk.end("a")
    assert (desk.held, desk.granted) == (["huge"], 1_000)
    await desk.end("huge")
    assert desk.held == ["b"]


@on_a_loop
async def test_who_gives_up_waiting_lets_the_next_one_through(desk):
    desk.ask("a", 60)
    given_up = desk.ask("large", 90)
    desk.ask("small", 10)
    await settled()
    given_up.cancel()
    await settled()
    assert desk.held == ["a", "small"]


@on_a_loop
async def test_who_gives_up_in_the_moment_of_the_grant_gives_it_back(desk):
    desk.ask("a", 100)
    given_up = desk.ask("b", 100)
    desk.ask("c", 100)
    await settled()
    desk.leave["a"].set()
    await asyncio.sleep(0)  # the bytes have gone over to b, which has not run since
    assert (desk.held, desk.granted) == ([], 100)
    given_up.cancel()
    await settled()
    assert (desk.held, desk.granted) == (["c"], 100)


@on_a_loop
async def test_a_failure_gives_the_memory_back(desk):
    with contextlib.suppress(KeyError):
        async with desk.budget.grant(70):
            assert desk.granted == 70
            raise KeyError
    assert desk.granted == 0
