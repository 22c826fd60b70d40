"""The scheduler, with a stand-in network that blocks, fails or kills its thread on request."""

import asyncio
import gc
import math
import threading
import weakref

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.session import NetworkOutput
from serving.engine.scheduler import Scheduler, SchedulingPolicy, choose_policy, cpu_policy
from serving.errors import NotReady, RunFailed
from serving.metrics import Metrics
from tests.serving.tiny import in_event_loop
from tests.waiting import until

FAILING, KILLING, HANGING = -1.0, -2.0, -3.0
GPU = choose_policy(cuda=True, num_cores=2, num_threads=None, num_runs=None)
ONE_RUN = SchedulingPolicy(1, {"throughput": 1})


def picture(value):
    """A constant picture; the stand-in network returns its value."""
    return np.full((3, 2, 2), value, np.float32)


class Network:
    """Returns the mean of each picture as logits and ten times the mean as feature, and records the batches.

    It can block, fail, hang or end its thread.
    """

    def __init__(self):
        self.batches, self.broken, self.concurrent, self.max_concurrent = [], False, 0, 0
        self.unblocked, self.entered = threading.Event(), threading.Event()
        self.unblocked.set()
        self._lock = threading.Lock()

    def block(self):
        self.entered.clear()
        self.unblocked.clear()

    def run(self, pixels):
        values = pixels.mean(axis=(1, 2, 3))
        with self._lock:
            self.batches.append([float(value) for value in values])
            self.concurrent += 1
            self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            self.entered.set()
            assert self.unblocked.wait(60)
            if HANGING in values:
                threading.Event().wait()
            if KILLING in values:
                raise SystemExit
            if self.broken or FAILING in values:
                raise RuntimeError("no\nanswer")
        finally:
            with self._lock:
                self.concurrent -= 1
        return NetworkOutput(np.stack([values, values], axis=1), 10 * values[:, np.newaxis])


class WarmScheduler:
    """A warmed-up scheduler with stand-in networks."""

    def __init__(self, policy, **options):
        self.throughput, self.latency = Network(), Network()
        self.metrics = Metrics()
        networks = {"throughput": self.throughput} | (
            {"latency": self.latency} if "latency" in policy.num_threads_by_mode else {}
        )
        self.scheduler = Scheduler(networks, policy, self.metrics, check_interval_s=0.02, **options)

    async def __aenter__(self):
        output = await self.scheduler.warm_up(picture(7.0))
        assert np.all(output.logits == 7.0)
        assert np.all(output.features == 70.0)
        assert len(output.logits) == len(output.features)
        for network in (self.throughput, self.latency):
            network.batches.clear()
        return self

    async def __aexit__(self, *_):
        self.scheduler.close()

    async def fill(self, *values):
        """Blocks the network with one picture per worker, then queues the values; returns the tasks of both."""
        self.throughput.block()
        first = [asyncio.create_task(self.one(1.0)) for _ in range(self.scheduler.policy.num_workers)]
        assert await asyncio.to_thread(self.throughput.entered.wait, 30)
        await until(lambda: len(self.throughput.batches) == len(first))
        others = [asyncio.create_task(self.one(value)) for value in values]
        await asyncio.sleep(0)
        return first, others

    async def finish(self, first, others):
        """Lets the network run; returns what the others became."""
        self.throughput.unblocked.set()
        found = await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*first)
        return found

    def unblock(self):
        """Ends the hang of a network; from then on no run is so slow that it counts as hung."""
        self.scheduler._run_timeout_s = 60
        self.throughput.unblocked.set()

    def age_hanging_runs(self):
        """Makes each run of a HANGING picture so old that it counts as hung; honest runs have all their time."""
        for worker, run in self.scheduler._running.items():
            if any(picture.pixels[0, 0, 0] == HANGING for picture in run.pictures):
                worker._started_at = -math.inf

    async def one(self, value, **options):
        return float((await self.scheduler.run([picture(value)], **options)).logits[0, 0])

    def counted(self, name):
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def num_checks():
    return sum(thread.name == "health-check" for thread in threading.enumerate())


def scheduled(policy, **options):
    """Gives a test a warm scheduler, on an event loop."""

    def on_a_loop(test):
        @in_event_loop
        async def with_scheduler():
            async with WarmScheduler(policy, **options) as warm:
                await test(warm)

        return with_scheduler

    return on_a_loop


@scheduled(cpu_policy(2))
async def test_single_picture_runs_on_all_cores_and_several_on_one_core_each(warm):
    await warm.one(1.0, alone=True)
    assert (warm.latency.batches, warm.throughput.batches) == ([[1.0]], [])
    await warm.scheduler.run([picture(1.0), picture(2.0)], alone=True)
    assert sorted(warm.throughput.batches) == [[1.0], [2.0]]


@scheduled(msgspec.structs.replace(cpu_policy(2), num_workers=1))  # the last picture is alone in the queue
async def test_no_picture_of_a_request_of_several_runs_on_all_cores(warm):
    await warm.scheduler.run([picture(1.0), picture(2.0)], alone=True)
    assert (warm.latency.batches, warm.throughput.batches) == ([], [[1.0], [2.0]])


@scheduled(ONE_RUN)
async def test_time_in_the_queue_is_measured(warm):
    first, others = await warm.fill(3.0)
    before_s = warm.counted('botanify_stage_seconds_sum{stage="queue"}')
    await asyncio.sleep(0.05)
    await warm.finish(first, others)
    assert warm.counted('botanify_stage_seconds_sum{stage="queue"}') - before_s >= 0.05


@scheduled(SchedulingPolicy(2, {"throughput": 1}))
async def test_concurrent_runs_do_not_exceed_the_policy(warm):
    await warm.finish(*await warm.fill(*range(10)))
    assert warm.throughput.max_concurrent == 2
    assert all(len(batch) == 1 for batch in warm.throughput.batches)


@scheduled(GPU)
async def test_queue_becomes_the_next_batch_padded_to_a_warm_batch_size(warm):
    assert await warm.finish(*await warm.fill(3.0, 4.0, 5.0)) == [3.0, 4.0, 5.0]
    assert warm.throughput.batches[2:] == [[3.0, 4.0, 5.0, 0.0]]
    assert warm.counted("botanify_batch_pictures_sum") == 5


@scheduled(GPU)
async def test_a_batch_takes_the_queue_up_to_the_largest_batch_size(warm):
    await warm.finish(*await warm.fill(*range(40)))
    assert sorted(map(len, warm.throughput.batches[2:])) == [8, 32]


@in_event_loop
async def test_warm_up_runs_every_batch_size_in_one_worker_and_then_in_the_others():
    network = Network()
    scheduler = Scheduler({"throughput": network}, GPU, Metrics())
    await scheduler.warm_up(picture(1.0))
    sizes = [len(batch) for batch in network.batches]
    assert sizes == [1, 2, 4, 8, 16, 32] * 2  # two workers
    scheduler.close()


@scheduled(GPU)
async def test_picture_that_breaks_the_network_fails_alone(warm):
    first, failed, last = await warm.finish(*await warm.fill(3.0, FAILING, 5.0))
    assert (first, last) == (3.0, 5.0)
    assert isinstance(failed, RunFailed)
    assert warm.scheduler.is_healthy


@scheduled(msgspec.structs.replace(GPU, num_workers=1))
async def test_retried_pictures_stay_first_whatever_comes_while_they_wait(warm):
    first, others = await warm.fill()
    others = [asyncio.create_task(warm.one(value, virtual_starts_s=[5.0])) for value in (3.0, FAILING, 5.0)]
    await asyncio.sleep(0)
    network_runs, last = warm.throughput.run, []

    def run_and_let_another_picture_come(pixels):
        if len(warm.throughput.batches) == 2:  # the first run of a retried picture
            coming = asyncio.run_coroutine_threadsafe(come(), loop)
            coming.result(30)
        return network_runs(pixels)

    async def come():
        last.append(asyncio.create_task(warm.one(8.0, virtual_starts_s=[1.0])))
        await asyncio.sleep(0)

    loop, warm.throughput.run = asyncio.get_running_loop(), run_and_let_another_picture_come
    await warm.finish(first, others)
    await last[0]
    retried = [batch for batch in warm.throughput.batches[2:] if batch != [7.0]]  # that one is a health check
    assert retried == [[3.0], [FAILING], [5.0], [8.0]]


@scheduled(cpu_policy(2))
async def test_broken_network_is_reported_as_not_ready_and_recovers(warm):
    warm.throughput.broken = True
    with pytest.raises(NotReady):
        await warm.one(1.0)
    assert not warm.scheduler.is_healthy
    warm.throughput.broken = False
    await until(lambda: warm.scheduler.is_healthy)
    assert await warm.one(2.0) == 2.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@scheduled(GPU)
async def test_dead_worker_is_replaced_and_the_rest_of_its_batch_answered(warm):
    first, failed, last = await warm.finish(*await warm.fill(3.0, KILLING, 5.0))
    assert (first, last) == (3.0, 5.0)
    assert isinstance(failed, RunFailed)
    assert warm.counted("botanify_restarts_total") == 2
    assert await warm.one(6.0) == 6.0
    assert warm.scheduler.is_healthy


@scheduled(ONE_RUN)
async def test_hung_run_does_not_block_other_pictures(warm):
    endless = asyncio.create_task(warm.one(HANGING))
    other = asyncio.create_task(warm.one(4.0))
    await until(lambda: warm.age_hanging_runs() or endless.done())
    assert await other == 4.0
    assert isinstance((await asyncio.gather(endless, return_exceptions=True))[0], RunFailed)
    assert warm.counted("botanify_restarts_total") == 2
    assert warm.scheduler.is_healthy


@scheduled(ONE_RUN, run_timeout_s=0.1)
async def test_hung_network_is_unhealthy_until_it_runs_again(warm):
    warm.throughput.block()
    hung = asyncio.create_task(warm.one(1.0))
    await until(lambda: not warm.scheduler.is_healthy)
    await asyncio.sleep(0.3)
    assert not warm.scheduler.is_healthy
    hung.cancel()
    warm.unblock()
    await until(lambda: warm.scheduler.is_healthy)
    assert await warm.one(2.0) == 2.0


@scheduled(ONE_RUN, run_timeout_s=0.05)
async def test_hung_network_occupies_a_bounded_number_of_threads(warm):
    first, _ = await warm.fill()
    await until(lambda: num_checks() == 4)
    for _ in range(20):
        await asyncio.sleep(0.02)
        with pytest.raises(NotReady):
            await warm.one(2.0)
    assert num_checks() == 4
    assert not warm.scheduler.is_healthy
    await asyncio.wait(first)
    warm.unblock()
    await until(lambda: warm.scheduler.is_healthy)
    assert await warm.one(3.0) == 3.0
    assert isinstance((await asyncio.gather(*first, return_exceptions=True))[0], NotReady)


@scheduled(ONE_RUN)
async def test_closed_scheduler_refuses_pictures(warm):
    warm.scheduler.close()
    with pytest.raises(NotReady):
        await warm.one(1.0)


@in_event_loop
async def test_network_that_failed_is_freed_at_the_close_without_the_garbage_collector():
    gc.disable()
    try:
        async with WarmScheduler(GPU) as warm:
            warm.throughput.broken = True
            for _ in range(3):
                with pytest.raises(NotReady):
                    await warm.one(1.0)
        freed = weakref.ref(warm.throughput)
        del warm.throughput
        await until(lambda: freed() is None)
    finally:
        gc.enable()


@scheduled(ONE_RUN)
async def test_cancelled_pictures_leave_the_queue_at_once(warm):
    first, others = await warm.fill(3.0, 4.0, 5.0)
    assert warm.counted("botanify_pictures_queued") == 3
    others[1].cancel()
    await asyncio.wait([others[1]])
    assert warm.counted("botanify_pictures_queued") == 2
    assert len(warm.scheduler._queue) == 2  # a picture of 380 px takes 1.7 MB
    await warm.finish(first, others)


@scheduled(ONE_RUN)
async def test_close_finishes_runs_in_flight_and_drops_the_queue(warm):
    _, others = await warm.fill(3.0)
    warm.scheduler.close()
    with pytest.raises(asyncio.CancelledError):
        await others[0]
    warm.throughput.unblocked.set()
    assert warm.throughput.batches == [[1.0]]


@given(starts=st.lists(st.integers(0, 3), min_size=1, max_size=6))
@in_event_loop
async def test_pictures_run_in_the_order_of_their_virtual_starts_and_equal_ones_as_they_came(starts):
    async with WarmScheduler(cpu_policy(1)) as warm:
        first, _ = await warm.fill()
        queued = [
            asyncio.create_task(warm.one(float(10 + at), virtual_starts_s=[start])) for at, start in enumerate(starts)
        ]
        await asyncio.sleep(0)
        await warm.finish(first, queued)
        in_order = sorted(range(len(starts)), key=lambda at: starts[at])
        assert warm.throughput.batches[1:] == [[float(10 + at)] for at in in_order]
