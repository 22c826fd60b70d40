"""The scheduler over a network that blocks, fails and dies as it is told."""

import asyncio
import threading

import numpy as np
import pytest

from models.session import NetworkOutput
from serving.errors import NotReady, RunFailed
from serving.metrics import Metrics
from serving.scheduling.policies import BatchPlan, CorePlan, FixedPlan
from serving.scheduling.scheduler import Scheduler

POISON, DEADLY, ENDLESS = -1.0, -2.0, -3.0


def picture(value):
    """A picture that the stand-in network answers with its own value."""
    return np.full((3, 2, 2), value, np.float32)


class Network:
    """Answers the mean of a picture; keeps the batches it ran; may be held up, poisoned, killed or broken."""

    def __init__(self):
        self.batches, self.broken, self.at_once, self.most_at_once = [], False, 0, 0
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()
        self._lock = threading.Lock()

    def hold(self):
        self.entered.clear()
        self.free.clear()

    def run(self, pixels):
        values = pixels.mean(axis=(1, 2, 3))
        with self._lock:
            self.batches.append([float(value) for value in values])
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.entered.set()
            assert self.free.wait(10)
            if ENDLESS in values:
                threading.Event().wait()
            if DEADLY in values:
                raise SystemExit
            if self.broken or POISON in values:
                raise RuntimeError("no\nanswer")
        finally:
            with self._lock:
                self.at_once -= 1
        return NetworkOutput(np.stack([values, values], axis=1), np.zeros((len(values), 1), np.float32))


class Held:
    """A scheduler over stand-in networks, warmed up."""

    def __init__(self, plan, **options):
        self.narrow, self.wide = Network(), Network()
        self.metrics = Metrics()
        networks = {"narrow": self.narrow} | ({"wide": self.wide} if isinstance(plan, CorePlan) else {})
        self.scheduler = Scheduler(networks, plan, self.metrics, watch_s=0.02, **options)

    async def __aenter__(self):
        assert np.all(await self.scheduler.warm_up(picture(7.0)) == 7.0)
        for network in (self.narrow, self.wide):
            network.batches.clear()
        return self

    async def __aexit__(self, *_):
        self.scheduler.close()

    async def fill(self, *values):
        """Holds the narrow network up with one picture a worker, then queues the values; gives both kinds of tasks."""
        self.narrow.hold()
        first = [asyncio.create_task(self.one(1.0)) for _ in range(self.scheduler.plan.num_workers)]
        assert await asyncio.to_thread(self.narrow.entered.wait, 5)
        await until(lambda: len(self.narrow.batches) == len(first))
        others = [asyncio.create_task(self.one(value)) for value in values]
        await asyncio.sleep(0)
        return first, others

    async def one(self, value, **how):
        return float((await self.scheduler.run([picture(value)], **how))[0, 0])

    def counted(self, name):
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def num_asking():
    return sum(thread.name == "ask" for thread in threading.enumerate())


async def until(holds):
    while not holds():  # noqa: ASYNC110  # what is waited for happens in a thread
        await asyncio.sleep(0.001)


def run(test):
    asyncio.run(asyncio.wait_for(test, 20))


def test_every_picture_gets_its_own_answer_in_its_own_order():
    async def test():
        async with Held(CorePlan(2)) as held:
            logits = await held.scheduler.run([picture(value) for value in (3.0, 1.0, 2.0)])
            assert logits[:, 0].tolist() == [3.0, 1.0, 2.0]

    run(test())


def test_a_lone_picture_runs_wide_and_company_runs_narrow():
    async def test():
        async with Held(CorePlan(2)) as held:
            await held.one(1.0, alone=True)
            assert (held.wide.batches, held.narrow.batches) == ([[1.0]], [])
            await held.scheduler.run([picture(1.0), picture(2.0)], alone=True)
            assert sorted(held.narrow.batches) == [[1.0], [2.0]]

    run(test())


def test_no_more_runs_at_once_than_planned():
    async def test():
        async with Held(FixedPlan(2, 1)) as held:
            first, others = await held.fill(*range(10))
            held.narrow.free.set()
            await asyncio.gather(*first, *others)
            assert held.narrow.most_at_once == 2
            assert all(len(batch) == 1 for batch in held.narrow.batches)

    run(test())


def test_what_waits_is_the_next_batch_filled_up_to_a_warm_bucket():
    async def test():
        async with Held(BatchPlan()) as held:
            first, others = await held.fill(3.0, 4.0, 5.0)
            held.narrow.free.set()
            assert await asyncio.gather(*others) == [3.0, 4.0, 5.0]
            await asyncio.gather(*first)
            assert held.narrow.batches[2:] == [[3.0, 4.0, 5.0, 0.0]]
            assert held.counted("botanify_batch_pictures_sum") == 5

    run(test())


def test_every_bucket_is_warm_before_the_first_picture():
    async def test():
        network = Network()
        scheduler = Scheduler({"narrow": network}, BatchPlan(), Metrics())
        await scheduler.warm_up(picture(1.0))
        sizes = sorted(len(batch) for batch in network.batches)
        assert sizes == sorted([1, 2, 4, 8, 16, 32] * 2)  # in each of the two workers
        scheduler.close()

    run(test())


def test_a_poisonous_picture_costs_only_itself():
    async def test():
        async with Held(BatchPlan()) as held:
            first, others = await held.fill(3.0, POISON, 5.0)
            held.narrow.free.set()
            found = await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*first)
            assert (found[0], found[2]) == (3.0, 5.0)
            assert isinstance(found[1], RunFailed)
            assert held.scheduler.is_well

    run(test())


def test_a_broken_network_is_told_from_a_bad_picture_and_heals():
    async def test():
        async with Held(CorePlan(2)) as held:
            held.narrow.broken = True
            with pytest.raises(NotReady):
                await held.one(1.0)
            assert not held.scheduler.is_well
            held.narrow.broken = False
            await until(lambda: held.scheduler.is_well)
            assert await held.one(2.0) == 2.0

    run(test())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_replaced_and_its_company_answered():
    async def test():
        async with Held(BatchPlan()) as held:
            first, others = await held.fill(3.0, DEADLY, 5.0)
            held.narrow.free.set()
            found = await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*first)
            assert (found[0], found[2]) == (3.0, 5.0)
            assert isinstance(found[1], RunFailed)
            assert held.counted("botanify_restarts_total") == 2
            assert await held.one(6.0) == 6.0
            assert held.scheduler.is_well

    run(test())


def test_a_run_that_never_ends_costs_its_worker_and_nobody_else():
    async def test():
        async with Held(FixedPlan(1, 1), longest_run_s=0.2) as held:
            endless = asyncio.create_task(held.one(ENDLESS))
            assert await held.one(4.0) == 4.0
            assert isinstance((await asyncio.gather(endless, return_exceptions=True))[0], RunFailed)
            assert held.scheduler.is_well

    run(test())


def test_a_network_that_hangs_has_no_pulse_until_it_runs_again():
    async def test():
        async with Held(FixedPlan(1, 1), longest_run_s=0.1) as held:
            held.narrow.hold()
            hung = asyncio.create_task(held.one(1.0))
            await until(lambda: not held.scheduler.is_well)
            await asyncio.sleep(0.3)
            assert not held.scheduler.is_well
            hung.cancel()
            held.narrow.free.set()
            await until(lambda: held.scheduler.is_well)
            assert await held.one(2.0) == 2.0

    run(test())


def test_a_network_that_hangs_for_ever_takes_a_bounded_number_of_threads():
    async def test():
        async with Held(FixedPlan(1, 1), longest_run_s=0.05) as held:
            first, _ = await held.fill()
            await until(lambda: num_asking() == 4)
            for _ in range(20):
                await asyncio.sleep(0.02)
                with pytest.raises(NotReady):
                    await held.one(2.0)
            assert num_asking() == 4
            assert not held.scheduler.is_well
            held.narrow.free.set()
            await until(lambda: held.scheduler.is_well)
            assert await held.one(3.0) == 3.0
            assert isinstance((await asyncio.gather(*first, return_exceptions=True))[0], NotReady)

    run(test())


def test_nothing_is_queued_once_it_is_closed():
    async def test():
        async with Held(FixedPlan(1, 1)) as held:
            held.scheduler.close()
            with pytest.raises(NotReady):
                await held.one(1.0)

    run(test())


def test_nothing_runs_for_whoever_left():
    async def test():
        async with Held(FixedPlan(1, 1)) as held:
            first, others = await held.fill(3.0, 4.0, 5.0)
            others[1].cancel()
            await asyncio.sleep(0)
            held.narrow.free.set()
            assert await asyncio.gather(others[0], others[2]) == [3.0, 5.0]
            await asyncio.gather(*first)
            assert held.narrow.batches == [[1.0], [3.0], [5.0]]

    run(test())


def test_closing_lets_running_pictures_end_and_drops_the_rest():
    async def test():
        async with Held(FixedPlan(1, 1)) as held:
            _, others = await held.fill(3.0)
            held.scheduler.close()
            with pytest.raises(asyncio.CancelledError):
                await others[0]
            held.narrow.free.set()
            assert held.narrow.batches == [[1.0]]

    run(test())
