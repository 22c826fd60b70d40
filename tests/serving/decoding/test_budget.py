"""The memory budget: grants are in order and within the limit."""

import asyncio

from serving.decoding.pool import ByteBudget
from serving.metrics import Metrics
from tests.serving.decoding.running_pool import value


class Requests:
    """A budget of 100 bytes and named requests to it."""

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
        async def with_requests():
            requests = Requests()
            await test(requests)
            for name in requests.leave:
                await requests.end(name)
            assert (requests.held, requests.granted) == ([], 0)

        asyncio.run(with_requests())

    run.__name__ = test.__name__
    return run


@on_a_loop
async def test_small_requests_do_not_overtake_a_large_one(requests):
    requests.ask("a", 60)
    requests.ask("large", 90)
    requests.ask("small", 10)
    await settled()
    assert requests.held == ["a"]
    await requests.end("a")
    assert requests.held == ["large", "small"]


@on_a_loop
async def test_request_over_the_whole_budget_is_granted_alone(requests):
    requests.ask("a", 1)
    requests.ask("huge", 1_000)
    requests.ask("b", 1)
    await settled()
    assert requests.held == ["a"]
    await requests.end("a")
    assert (requests.held, requests.granted) == (["huge"], 1_000)
    await requests.end("huge")
    assert requests.held == ["b"]


@on_a_loop
async def test_cancelled_waiting_request_lets_the_next_one_through(requests):
    requests.ask("a", 60)
    cancelled = requests.ask("large", 90)
    requests.ask("small", 10)
    await settled()
    cancelled.cancel()
    await settled()
    assert requests.held == ["a", "small"]


@on_a_loop
async def test_request_cancelled_right_after_its_grant_returns_the_memory(requests):
    requests.ask("a", 100)
    cancelled = requests.ask("b", 100)
    requests.ask("c", 100)
    await settled()
    requests.leave["a"].set()
    await asyncio.sleep(0)  # granted to b, which has not run yet
    assert (requests.held, requests.granted) == ([], 100)
    cancelled.cancel()
    await settled()
    assert (requests.held, requests.granted) == (["c"], 100)
