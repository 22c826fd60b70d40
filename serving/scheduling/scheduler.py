"""A queue of prepared pictures -> runs of the network: batches, second tries, lost workers.

Everything here happens on the event loop but the runs themselves, so nothing needs a lock.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from models.session import NetworkSession
from serving.errors import NotReady, RunFailed
from serving.metrics import Metrics
from serving.scheduling.policies import Choice, Lane, Plan, bucket_of
from serving.scheduling.workers import Worker

Array = npt.NDArray[np.float32]

_LONGEST_RUN_S: Final = 15.0  # a picture takes 0.15 s of one core; what takes so much longer never returns
_LONGEST_WARM_UP_S: Final = 300.0  # every batch size in every lane and worker; a GPU also loads its kernels
_WATCH_S: Final = 0.5
_MOST_ASKERS: Final = 4  # threads that may hang in a network that never returns; nothing can end them

_log = structlog.get_logger(__name__)


class _Job:
    """One picture on its way through the network."""

    def __init__(self, pixels: Array, *, alone: bool, logits: "asyncio.Future[Array]") -> None:
        self.pixels, self.alone, self.logits = pixels, alone, logits
        self.queued = time.perf_counter()
        self.failed = False
        """Whether a run that it was part of failed; it then gets one of its own."""


class _Run:
    """Pictures that go through the network together."""

    def __init__(self, lane: Lane, jobs: Sequence[_Job]) -> None:
        self.lane, self.jobs = lane, jobs
        self.began = time.perf_counter()


class Scheduler:
    """Runs pictures through the network, off the event loop.

    A run that fails is repeated picture by picture, so that one that the network cannot stand costs no other. When a
    picture fails by itself, a picture that ran at the start is tried: if that fails too, the network is to blame.
    A worker that died or hangs is replaced, and its pictures are tried once more, each by itself.

    Args:
        networks: The network for each lane that the plan chooses.
        plan: Which run is next.
        metrics: Times and counts the runs.
        longest_run_s: After so many seconds a run counts as hung.
        watch_s: How often the workers are looked at, seconds.
    """

    def __init__(
        self,
        networks: Mapping[Lane, NetworkSession],
        plan: Plan,
        metrics: Metrics,
        *,
        longest_run_s: float = _LONGEST_RUN_S,
        watch_s: float = _WATCH_S,
    ) -> None:
        self.plan = plan
        self._networks, self._metrics = networks, metrics
        self._longest_run_s, self._watch_s = longest_run_s, watch_s
        self._waiting: deque[_Job] = deque()
        self._running: dict[Worker, _Run] = {}
        self._idle: list[Worker] = []
        self._watch: asyncio.Task[None] | None = None
        self._sound: Array | None = None
        self._is_well = False
        self._num_started = 0
        self._closed = False
        self._asking: asyncio.Task[bool] | None = None
        self._giving_up: set[asyncio.Task[None]] = set()
        self._askers: list[Worker] = []

    @property
    def is_well(self) -> bool:
        """Whether pictures get answers: no run was lost or failed since the network last ran."""
        return self._is_well and not self._closed

    async def warm_up(self, pixels: Array) -> Array:
        """Runs a picture in every lane and batch size that the plan may ever choose; then runs are taken.

        Args:
            pixels: Shape (3, height, width), normalized; kept, to find out later whether the network still runs.

        Returns:
            Its logits in each of these runs, shape (num_runs, num_outputs).
        """
        for _ in range(self.plan.num_workers):
            self._hire()
        async with asyncio.timeout(_LONGEST_WARM_UP_S):
            # Every worker, since buffers on a device belong to their thread; at once, since there may be many.
            rows = await asyncio.gather(*(self._warm_up_one(worker, pixels) for worker in self._idle))
        self._sound, self._is_well = pixels, True
        self._watch = asyncio.create_task(self._keep_watch())
        return np.concatenate(rows)

    async def run(self, inputs: Sequence[Array], *, alone: bool = False) -> Array:
        """Gives the logits of some pictures.

        When cancelled, pictures whose run has not begun are never run.

        Args:
            inputs: At least one picture as (3, height, width), normalized.
            alone: Whether nothing else is to be done in the whole service.

        Returns:
            Shape (num_pictures, num_outputs).

        Raises:
            RunFailed: The network fails on one of these pictures and on no other.
            NotReady: The network fails on every picture, has hung for long, or is closed.
        """
        if self._closed:
            raise NotReady("the network is closed", retry_after_s=1, remedy="try again in a second")
        if self._hangs():  # or each picture would take one more thread that nothing can end
            raise _not_running()
        loop = asyncio.get_running_loop()
        jobs = [_Job(pixels, alone=alone and len(inputs) == 1, logits=loop.create_future()) for pixels in inputs]
        self._waiting.extend(jobs)
        self._begin_runs()
        try:
            return np.stack(await asyncio.gather(*(job.logits for job in jobs)))
        finally:
            for job in jobs:  # a bad one among them, or nobody waits any more
                job.logits.cancel()
            self._forget_cancelled()

    def close(self) -> None:
        """Drops the pictures whose run has not begun; what runs, ends by itself."""
        self._closed = True
        for task in (self._watch, self._asking):
            if task is not None:
                task.cancel()
        for job in self._waiting:
            job.logits.cancel()
        self._forget_cancelled()
        for worker in [*self._idle, *self._running]:
            worker.end()

    async def _warm_up_one(self, worker: Worker, pixels: Array) -> Array:
        runs = [
            await worker.do(partial(_logits, network, [pixels] * size, size))
            for network in self._networks.values()
            for size in self.plan.buckets
        ]
        return np.stack([logits[0] for logits in runs])

    def _begin_runs(self) -> None:
        """Begins every run that the plan wants now."""
        while self._idle and (run := self._next_run()) is not None:
            worker = self._idle.pop()
            self._running[worker] = run
            self._metrics.batch(len(run.jobs))
            for job in run.jobs:
                self._metrics.stage_took("queue", run.began - job.queued)
            pixels = [job.pixels for job in run.jobs]
            size = bucket_of(len(pixels), self.plan.buckets)
            worker.begin(partial(_logits, self._networks[run.lane], pixels, size), self._finished)
        self._metrics.queued.set(len(self._waiting))

    def _forget_cancelled(self) -> None:
        """Lets go of pictures that nobody waits for any more."""
        self._waiting = deque(job for job in self._waiting if not job.logits.done())
        self._metrics.queued.set(len(self._waiting))

    def _next_run(self) -> _Run | None:
        while self._waiting and self._waiting[0].logits.done():
            self._waiting.popleft()
        if not self._waiting:
            return None
        running = tuple(run.lane for run in self._running.values())
        alone = self._waiting[0].alone and len(self._waiting) == 1
        choice = self.plan.choose(len(self._waiting), running, alone=alone)
        return None if choice is None else _Run(choice.lane, self._take(choice))

    def _take(self, choice: Choice) -> list[_Job]:
        """Takes as many pictures as wanted off the queue; one that failed before comes by itself."""
        taken: list[_Job] = []
        while self._waiting and len(taken) < choice.num_pictures:
            job = self._waiting[0]
            if not job.logits.done():
                if job.failed and taken:
                    break
                taken.append(job)
            self._waiting.popleft()
            if job.failed and taken:
                break
        return taken

    def _finished(self, worker: Worker, logits: Array | None, error: BaseException | None) -> None:
        run = self._running.pop(worker)
        self._idle.append(worker)
        self._metrics.stage_took("run", time.perf_counter() - run.began)
        if logits is None:
            self._try_again(run, error)
        else:
            self._is_well = True
            for job, row in zip(run.jobs, logits, strict=False):  # rows of filling come last
                if not job.logits.done():
                    job.logits.set_result(row)
        self._begin_runs()

    def _try_again(self, run: _Run, error: BaseException | None) -> None:
        """Queues the pictures of a run that gave nothing, each for a run of its own; first in, first out."""
        _log.error("run_failed", num_pictures=len(run.jobs), error=" ".join(str(error).split())[:300])
        hopeless = [job for job in run.jobs if job.failed or (len(run.jobs) == 1 and error is not None)]
        for job in hopeless:
            task = asyncio.create_task(self._give_up(job))
            self._giving_up.add(task)  # asyncio itself holds tasks weakly
            task.add_done_callback(self._giving_up.discard)
        again = [job for job in run.jobs if job not in hopeless]
        for job in again:
            job.failed = True
        self._waiting.extendleft(reversed(again))

    async def _give_up(self, job: _Job) -> None:
        """Tells whose fault it is that a picture has no answer."""
        well = await self._runs_a_sound_picture()
        if job.logits.done():
            return
        if well:
            job.logits.set_exception(RunFailed("the network gives no answer for the picture"))
        else:
            job.logits.set_exception(_not_running())

    async def _runs_a_sound_picture(self) -> bool:
        assert self._sound is not None, "warm_up comes first"
        if self._hangs():
            return False
        asker = Worker(asyncio.get_running_loop(), "ask")
        self._askers.append(asker)
        try:
            async with asyncio.timeout(self._longest_run_s):
                await asker.do(partial(_logits, self._networks["narrow"], [self._sound], self.plan.buckets[0]))
        except Exception as error:
            _log.error("network_unwell", error=" ".join(str(error).split())[:300])
            self._is_well = False
        else:
            self._is_well = True
        finally:
            asker.end()
        return self._is_well

    def _hangs(self) -> bool:
        """Whether as many threads hang in the network as may; the first that returns makes room for a question."""
        self._askers = [asker for asker in self._askers if asker.is_alive]
        return not self._is_well and len(self._askers) >= _MOST_ASKERS

    async def _keep_watch(self) -> None:
        """Replaces lost workers, and asks a network that failed whether it runs again."""
        while True:
            await asyncio.sleep(self._watch_s)
            for worker in [worker for worker in self._running if worker.is_lost(self._longest_run_s)]:
                self._replace(worker)
            if not self._is_well and (self._asking is None or self._asking.done()):
                self._asking = asyncio.create_task(self._runs_a_sound_picture())

    def _replace(self, worker: Worker) -> None:
        self._hire()
        run = self._running.pop(worker)
        worker.end()
        self._metrics.restart("executor")
        self._is_well = False  # until the network has shown that it runs
        self._try_again(run, None)
        self._begin_runs()

    def _hire(self) -> None:
        self._num_started += 1
        self._idle.append(Worker(asyncio.get_running_loop(), f"run-{self._num_started}"))


def _not_running() -> NotReady:
    return NotReady("the network does not run", retry_after_s=5, remedy="try again later")


def _logits(network: NetworkSession, pixels: Sequence[Array], size: int) -> Array:
    """Runs some pictures as a batch of `size`, filled up with zeros; one alone is not copied."""
    if size == 1:
        return network.run(pixels[0][np.newaxis]).logits
    filling = [np.zeros_like(pixels[0])] * (size - len(pixels))
    return network.run(np.stack([*pixels, *filling])).logits
