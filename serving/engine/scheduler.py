"""The scheduler: a queue of prepared pictures, batched into runs of the network; it retries failed runs.

On a CPU it runs single pictures, on a GPU dynamic batches.

All of its code except the runs themselves executes on the event loop, so no locks are needed. The runs have threads of
their own, since ONNX Runtime releases the GIL while it runs.
"""

import asyncio
import itertools
import math
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import structlog

from models.arrays import Singles
from models.errors import one_line
from models.session import NetworkOutput, NetworkSession
from serving.engine.machine import return_freed_memory
from serving.engine.threads import Worker
from serving.errors import NotReady, RunFailed
from serving.metrics import Metrics

RunMode = Literal["latency", "throughput"]
"""Which session a run uses: `latency` gives a single run all cores, `throughput` is for concurrent runs."""

Row = tuple[Singles, Singles]
"""Logits and features of one picture."""

# A GPU runs only these batch sizes. All of them are warmed up, so that no shape is new under load.
_BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32)
# More threads would speed up a single picture little. An estimate, not yet measured on large machines.
_MAX_LATENCY_THREADS: Final = 16
_RUN_TIMEOUT_S: Final = 15.0  # a picture takes 0.15 s on one core; a run that takes 100 times as long has hung
_CHECK_INTERVAL_S: Final = 0.5
_BETWEEN_FREES_S: Final = 0.01  # freeing a network holds the interpreter's lock; the event loop runs in between
_MAX_CHECKS: Final = 4  # health checks that may hang in the network at once; a hung thread cannot be ended

_log = structlog.get_logger(__name__)
_kept = threading.local()  # the batches of a thread, by shape


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """Decides what runs next. A batch never waits to fill up: when a run ends, the queue becomes the next one."""

    num_workers: int
    """Maximum number of concurrent runs."""
    num_threads_by_mode: dict[RunMode, int | None]
    """Threads of a run in each mode; None leaves the number to ONNX Runtime."""
    batch_sizes: tuple[int, ...] = (1,)
    """The batch sizes that runs use, ascending; each is warmed up."""

    def choose(self, running: tuple[RunMode, ...], *, alone: bool) -> RunMode | None:
        """Returns the mode of the next run, or None if the device is fully used.

        Args:
            running: The modes of the runs in flight.
            alone: Whether the service works on no other picture than the first one in the queue.
        """
        if "latency" in running or len(running) >= self.num_workers:
            return None
        takes_all_cores = alone and not running and "latency" in self.num_threads_by_mode
        return "latency" if takes_all_cores else "throughput"

    def describe(self) -> str:
        """Describes the policy in a few words, for the log, `/model` and the metrics."""
        num_threads = self.num_threads_by_mode["throughput"]
        if num_threads is None:
            return f"batches of {', '.join(map(str, self.batch_sizes))}, {self.num_workers} in flight"
        if "latency" in self.num_threads_by_mode:
            latency_threads = self.num_threads_by_mode["latency"]
            return f"1 run on {latency_threads} threads when alone, {self.num_workers} runs on 1 thread each when busy"
        if self.num_workers == num_threads == 1:
            return "1 run on 1 thread"
        return f"{self.num_workers} runs on {num_threads} threads each"


def cpu_policy(num_cores: int) -> SchedulingPolicy:
    """Batch size 1: a single picture uses all cores; under load each core runs one picture.

    Measured with EfficientNet-B4 in fp32 on two cores. A batch of 8 took 178 ms per picture on one thread; pictures run
    one by one took 144 to 150 ms. Two concurrent runs with one thread each reached 10.8 pictures/s; consecutive runs
    with two threads reached 9.2.
    """
    threads: dict[RunMode, int | None] = {"throughput": 1}
    if num_cores > 1:
        threads["latency"] = min(num_cores, _MAX_LATENCY_THREADS)
    return SchedulingPolicy(num_cores, threads)


def choose_policy(*, cuda: bool, num_cores: int, num_threads: int | None, num_runs: int | None) -> SchedulingPolicy:
    """Returns the scheduling policy for the device.

    Args:
        cuda: Whether the network runs on a GPU.
        num_cores: Cores that this process may use.
        num_threads: Threads per run, if the operator set them.
        num_runs: Concurrent runs, if the operator set them.
    """
    if cuda:  # by default two batches in flight, so that one can be copied while the other runs
        return SchedulingPolicy(num_runs or 2, {"throughput": None}, _BATCH_SIZES)
    if num_threads is None and num_runs is None:
        return cpu_policy(num_cores)
    threads = num_threads or max(1, num_cores // (num_runs or 1))
    return SchedulingPolicy(num_runs or max(1, num_cores // threads), {"throughput": threads})


class _WaitingPicture(msgspec.Struct, eq=False):
    """One picture and the future of its logits and features."""

    pixels: Singles
    virtual_start_s: float
    alone: bool
    output: asyncio.Future[Row]
    queued_at: float = msgspec.field(default_factory=time.perf_counter)
    has_failed: bool = False
    """Whether a run with this picture failed; the picture is then retried in a run of its own."""


class _Run(NamedTuple):
    """A batch of pictures in flight."""

    mode: RunMode
    pictures: Sequence[_WaitingPicture]
    started_at: float
    rows: asyncio.Future[list[Row]]


class Scheduler:
    """Runs pictures through the network, off the event loop.

    If a run fails, its pictures are retried one by one, so that a picture that breaks the network fails alone. If a
    picture fails alone, the warm-up picture is run as a health check. If the check succeeds, the picture is refused
    with `RunFailed`; otherwise the network has failed, and the error is `NotReady`. A worker that has died or hangs is
    replaced, and its pictures are retried one by one.
    """

    def __init__(
        self,
        networks: Mapping[RunMode, NetworkSession],
        policy: SchedulingPolicy,
        metrics: Metrics,
        *,
        run_timeout_s: float = _RUN_TIMEOUT_S,
        check_interval_s: float = _CHECK_INTERVAL_S,
    ) -> None:
        self.policy = policy
        self._networks = dict(networks)
        self._metrics = metrics
        self._run_timeout_s = run_timeout_s
        self._check_interval_s = check_interval_s
        self._queue: deque[_WaitingPicture] = deque()
        self._running: dict[Worker, _Run] = {}
        self._idle: list[Worker] = []
        self._worker_numbers = itertools.count(1)
        self._warm_up_pixels: Singles | None = None
        self._is_healthy = False
        self._is_closed = False
        self._monitor: asyncio.Task[None] | None = None
        self._check: asyncio.Task[bool] | None = None
        self._check_workers: list[Worker] = []
        self._failing: set[asyncio.Task[None]] = set()

    @property
    def is_healthy(self) -> bool:
        """Whether the network gives answers.

        False after a failed health check or a lost worker, until a run or a health check succeeds.
        """
        return self._is_healthy and not self._is_closed

    async def warm_up(self, pixels: Singles) -> NetworkOutput:
        """Runs a picture in every mode and batch size that the policy uses; returns a row for each run.

        The picture, of shape (3, height, width), normalized, is kept as the input of later health checks.
        """
        for _ in range(self.policy.num_workers):
            self._add_worker()
        # In every worker, because buffers belong to a thread. The first one alone, because a GPU then chooses its
        # algorithms and takes their working memory; the others concurrently, because there may be many.
        first, *others = self._idle
        rows = await self._warm_up_worker(first, pixels)
        for more in await asyncio.gather(*(self._warm_up_worker(worker, pixels) for worker in others)):
            rows += more
        self._warm_up_pixels = pixels
        self._is_healthy = True
        self._monitor = asyncio.create_task(self._monitor_workers())
        return _stack(rows)

    async def run(
        self, inputs: Sequence[Singles], virtual_starts_s: Sequence[float] | None = None, *, alone: bool = False
    ) -> NetworkOutput:
        """Returns the logits and features of some pictures, a row for each.

        If the caller is cancelled, pictures whose run has not started are dropped.

        Args:
            inputs: At least one picture, shape (3, height, width), normalized.
            virtual_starts_s: The place of each picture in the queue: the earliest comes first; by default, 0 for all.
            alone: Whether the service works on no other pictures.

        Raises:
            RunFailed: The network fails on one of these pictures, but not on others.
            NotReady: The network fails on every picture, hangs, or is closed.
        """
        if self._is_closed:
            raise NotReady.with_retry("the network is closed", 1)
        if self._has_hung_checks():  # each further picture would hang in one more thread that cannot be ended
            raise _network_failed()
        loop = asyncio.get_running_loop()
        alone = alone and len(inputs) == 1
        pictures = [
            _WaitingPicture(pixels, start_s, alone, loop.create_future())
            for pixels, start_s in zip(inputs, virtual_starts_s or [0.0] * len(inputs), strict=True)
        ]
        for picture in pictures:
            insort(self._queue, picture, key=lambda queued: queued.virtual_start_s)
        self._start_runs()
        try:
            return _stack(await asyncio.gather(*(picture.output for picture in pictures)))
        finally:
            for picture in pictures:  # after a failure or a cancellation the other outputs are not needed
                picture.output.cancel()
            self._drop_cancelled()
            del pictures, picture  # an output holds its exception, whose traceback holds this frame

    def close(self) -> None:
        """Drops the queued pictures; the networks are freed when the runs in flight have finished."""
        self._is_closed = True
        for task in (self._monitor, self._check):
            if task is not None:
                task.cancel()
        self._monitor = self._check = None  # a cancelled task holds a traceback, whose frames hold this object
        for picture in self._queue:
            picture.output.cancel()
        self._drop_cancelled()
        for run in self._running.values():
            run.rows.cancel()
        workers = [*self._idle, *self._running]
        for worker in workers:
            worker.stop()
        threading.Thread(target=_free, args=(self._networks, workers), name="free-networks", daemon=True).start()
        self._networks = {}

    async def _warm_up_worker(self, worker: Worker, pixels: Singles) -> list[Row]:
        """Returns the logits and features of the first picture of each run."""
        runs: list[list[Row]] = [
            await worker.submit(partial(_run_batch, network, [pixels] * size, size))
            for network in self._networks.values()
            for size in self.policy.batch_sizes
        ]
        return [rows[0] for rows in runs]

    # ---- the queue

    def _start_runs(self) -> None:
        """Starts every run that the policy allows now."""
        self._drop_cancelled()
        while self._idle and self._queue:
            running = tuple(run.mode for run in self._running.values())
            mode = self.policy.choose(running, alone=self._queue[0].alone and len(self._queue) == 1)
            if mode is None:
                break
            self._start_run(self._idle.pop(), mode)
        self._metrics.queued.set(len(self._queue))

    def _start_run(self, worker: Worker, mode: RunMode) -> None:
        """Takes the pictures of the next run off the queue; a retried picture gets a run of its own."""
        first = itertools.islice(self._queue, self.policy.batch_sizes[-1])
        pictures = list(itertools.takewhile(lambda picture: not picture.has_failed, first)) or [self._queue[0]]
        for _ in pictures:
            self._queue.popleft()
        pixels = [picture.pixels for picture in pictures]
        size = next(size for size in self.policy.batch_sizes if size >= len(pixels))
        rows = worker.submit(partial(_run_batch, self._networks[mode], pixels, size))
        rows.add_done_callback(partial(self._on_run_done, worker))
        run = self._running[worker] = _Run(mode, pictures, time.perf_counter(), rows)
        self._metrics.batch_pictures.observe(len(pictures))
        for picture in pictures:
            self._metrics.stage_s.labels("queue").observe(run.started_at - picture.queued_at)

    def _drop_cancelled(self) -> None:
        """Removes pictures whose caller no longer waits."""
        self._queue = deque(picture for picture in self._queue if not picture.output.done())
        self._metrics.queued.set(len(self._queue))

    # ---- results and retries

    def _on_run_done(self, worker: Worker, rows: "asyncio.Future[list[Row]]") -> None:
        if rows.cancelled() or self._is_closed:  # cancelled if the worker was lost
            return
        run = self._running.pop(worker)
        self._idle.append(worker)
        self._metrics.stage_s.labels("run").observe(time.perf_counter() - run.started_at)
        error = rows.exception()
        if error is not None:
            self._retry(run, error)
        else:
            self._is_healthy = True
            for picture, row in zip(run.pictures, rows.result(), strict=False):  # padding rows come last
                if not picture.output.done():
                    picture.output.set_result(row)
        self._start_runs()

    def _retry(self, run: _Run, error: BaseException | None) -> None:
        """Queues the pictures of a failed run again, at the front and in order; each then runs alone.

        A picture whose run failed before, or that failed alone, is not retried.
        """
        _log.error("run_failed", num_pictures=len(run.pictures), error=one_line(error))
        has_failed_alone = len(run.pictures) == 1 and error is not None
        retried = [] if has_failed_alone else [picture for picture in run.pictures if not picture.has_failed]
        for picture in run.pictures:
            if picture not in retried:
                task = asyncio.create_task(self._fail(picture))
                self._failing.add(task)  # asyncio holds only weak references to tasks
                task.add_done_callback(self._failing.discard)
        for picture in retried:
            picture.has_failed = True
            picture.virtual_start_s = -math.inf
        self._queue.extendleft(reversed(retried))

    async def _fail(self, picture: _WaitingPicture) -> None:
        """Fails a picture, with an error that names the picture or the network as the cause."""
        is_healthy = await self._check_network()
        if picture.output.done():
            return
        if is_healthy:
            error = RunFailed("the network fails on the picture", remedy="send another picture of the plant")
            picture.output.set_exception(error)
        else:
            picture.output.set_exception(_network_failed())

    # ---- health

    async def _check_network(self) -> bool:
        """Runs the warm-up picture in a thread of its own and returns whether the network is healthy."""
        assert self._warm_up_pixels is not None, "warm_up must be called first"
        if self._is_closed or self._has_hung_checks():
            return False
        worker = Worker("health-check")
        self._check_workers.append(worker)
        size = self.policy.batch_sizes[0]
        try:
            async with asyncio.timeout(self._run_timeout_s):
                await worker.submit(partial(_run_batch, self._networks["throughput"], [self._warm_up_pixels], size))
        except Exception as error:
            _log.error("network_unwell", error=one_line(error))
            self._is_healthy = False
        else:
            self._is_healthy = True
        finally:
            worker.stop()
        return self._is_healthy

    def _has_hung_checks(self) -> bool:
        """Whether so many health checks hang in the network that no further one may start."""
        self._check_workers = [worker for worker in self._check_workers if worker.is_alive]
        return not self._is_healthy and len(self._check_workers) >= _MAX_CHECKS

    async def _monitor_workers(self) -> None:
        """Replaces lost workers, and checks an unhealthy network until it runs again."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            for worker in [worker for worker in self._running if worker.is_lost(self._run_timeout_s)]:
                self._replace(worker)
            if not self._is_healthy and (self._check is None or self._check.done()):
                self._check = asyncio.create_task(self._check_network())

    def _replace(self, worker: Worker) -> None:
        self._add_worker()
        run = self._running.pop(worker)
        run.rows.cancel()
        worker.stop()
        self._metrics.restarts.labels("executor").inc()
        self._is_healthy = False  # until a run succeeds
        self._retry(run, None)
        self._start_runs()

    def _add_worker(self) -> None:
        self._idle.append(Worker(f"run-{next(self._worker_numbers)}"))


def _free(networks: dict[RunMode, NetworkSession], workers: Iterable[Worker]) -> None:
    """Frees the networks when the workers have ended; runs in a thread of its own."""
    for worker in workers:
        worker.join()
    while networks:
        networks.popitem()
        time.sleep(_BETWEEN_FREES_S)
    return_freed_memory()


def _network_failed() -> NotReady:
    return NotReady("the network does not run", retry_after_s=5, remedy="try again later")


def _run_batch(network: NetworkSession, pixels: Sequence[Singles], size: int) -> list[Row]:
    """Runs pictures as a batch of `size`, padded with zeros, in memory that the thread keeps for each size.

    For 32 pictures of 380 px that are 55 MB, which would be allocated anew in each run. A single picture is not copied.
    """
    if size == 1:
        batch = pixels[0][np.newaxis]
    else:
        shape = (size, *pixels[0].shape)
        kept: dict[tuple[int, ...], Singles] = _kept.__dict__.setdefault("batches", {})
        if shape not in kept:
            kept[shape] = np.zeros(shape, np.float32)
        batch = kept[shape]
        np.stack(pixels, out=batch[: len(pixels)])
        batch[len(pixels) :] = 0.0
    output = network.run(batch)
    return list(zip(output.logits, output.features, strict=True))


def _stack(rows: Iterable[Row]) -> NetworkOutput:
    logits, features = zip(*rows, strict=True)
    return NetworkOutput(np.stack(logits), np.stack(features))
