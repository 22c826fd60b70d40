"""A pool of decoding children: one picture per child. A child that dies is replaced, and its picture is tried again."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog
from prometheus_client import Gauge

from models.arrays import Singles
from models.decode_cost import header_cost
from models.errors import InputError, PictureError, UnreadableImage
from models.exif import Capture
from models.file_structure import sniff_format
from models.preprocess import InputSpec
from serving.engine.decoding.process import ChildCrashed, ChildLost, ChildProcess, DecodeTime, OutOfTime
from serving.errors import NotReady, Overloaded, TooLarge
from serving.metrics import Metrics

_EXIT_GRACE_S: Final = 2.0  # an idle child exits within 0.1 s; a child that decodes takes longer
# between attempts to start a child
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 30.0
_ATTEMPTS: Final = 2  # to decode a picture whose child is lost
_PING_INTERVAL_S: Final = 1.0
# How long a child may go on with a picture that nobody waits for. Its replacement takes 0.5 s of processor time to
# start, so that it often costs less to let it finish than to kill it at once.
_CANCEL_GRACE_S: Final = 1.0
_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


class ByteBudget:
    """Grants bytes of memory for the decodes in flight, in the order of the requests.

    At most `num_bytes` are granted at any time. A larger request is granted once no other grant is held.
    """

    def __init__(self, num_bytes: int, gauge: Gauge) -> None:
        self._num_bytes = num_bytes
        self._gauge = gauge
        self._granted = 0
        # First come, first served: otherwise small requests could delay a large one forever.
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def grant(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits for memory, and returns it when the context ends."""
        async with self._turn:
            while self._granted and self._granted + num_bytes > self._num_bytes:
                self._returned.clear()
                await self._returned.wait()
            self._add(num_bytes)
        try:
            yield
        finally:
            self._add(-num_bytes)
            self._returned.set()

    def _add(self, num_bytes: int) -> None:
        self._granted += num_bytes
        self._gauge.set(self._granted)


class DecodeLimits(msgspec.Struct, frozen=True):
    """Limits of memory and time for decodes."""

    picture_bytes: int
    """Largest picture, bytes."""
    budget_bytes: int
    """Memory for all decodes in flight, bytes; a picture that needs more is decoded alone."""
    seconds: float
    """Processor time for all pictures of a request."""
    child_bytes: int = 768_000_000
    """Memory that a child may use in addition to what it uses when it has started, bytes."""


class Decoded(NamedTuple):
    """A picture as network input."""

    pixels: Singles
    """`chw`, as `models.preprocess.to_network_input` gives it."""
    width: int
    """Width of the upright original, px."""
    height: int
    """Height of the upright original, px."""
    format: str
    """One of the keys of `models.preprocess.PIXEL_LIMITS`."""
    capture: Capture
    is_cut_off: bool


class DecoderPool:
    """Decodes pictures in child processes, one in each at a time."""

    def __init__(self, num_children: int, limits: DecodeLimits, metrics: Metrics) -> None:
        self._num_children = num_children
        self._limits = limits
        self._metrics = metrics
        self._budget = ByteBudget(limits.budget_bytes, metrics.decode_bytes)
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._num_idle = asyncio.Semaphore(0)
        self._supervisors: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def num_alive(self) -> int:
        """Number of children that are running, idle or not."""
        return sum(child.is_alive for child in self._children)

    async def start(self) -> None:
        """Starts all children concurrently and waits for the outcome of each; a failed start is retried later.

        Raises:
            InputError: No child starts.
            NotReady: `close` was called.
        """
        outcomes = [asyncio.get_running_loop().create_future() for _ in range(self._num_children)]
        self._supervisors = [asyncio.create_task(self._supervise(outcome)) for outcome in outcomes]
        failures = [failure for outcome in outcomes if (failure := await outcome) is not None]
        if self._is_closed:
            raise _closed()
        if len(failures) == self._num_children:
            await self.close()
            raise InputError(
                "no decoder process starts",
                value=failures[0],
                remedy="see the messages above, and free memory or processes",
            )

    def decode_time(self) -> DecodeTime:
        """Returns the processor time for the pictures of one request."""
        return DecodeTime(self._limits.seconds)

    async def decode(self, data: bytes, spec: InputSpec, time: DecodeTime | None = None) -> Decoded:
        """Decodes a picture once a child and the memory are available.

        If the child is lost, another one tries the picture once more. If the caller is cancelled, a waiting decode is
        dropped; a running one has a second to finish before its child is killed. `time` counts for all pictures of a
        request; by default this is the only one.

        Raises:
            PictureError: As in `models.preprocess.picture_to_input`; also if the picture crashes two children, or
                exceeds the memory or the time.
            Overloaded: The system has no memory for the picture.
            TooLarge: The picture has more bytes than the limits allow.
            NotReady: `close` was called, or two children were lost for reasons outside the picture.
        """
        picture_format = "unknown"
        try:
            picture_format = sniff_format(data)
            decoded = await self._decode_or_retry(data, spec, picture_format, time or self.decode_time())
        except PictureError as error:
            self._metrics.decode_failures.labels(error.code, picture_format).inc()
            raise
        self._metrics.pictures.labels(decoded.format).inc()
        return decoded

    async def close(self) -> None:
        """Stops all children; one that still decodes after two seconds is killed."""
        self._is_closed = True
        self._num_idle.release()
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        self._supervisors.clear()

    async def _decode_or_retry(self, data: bytes, spec: InputSpec, picture_format: str, time: DecodeTime) -> Decoded:
        if len(data) > self._limits.picture_bytes:
            limit = f"at most {self._limits.picture_bytes} bytes"
            raise TooLarge("the picture is too large", value=f"{len(data)} bytes", limit=limit)
        num_crashes = 0
        for _ in range(_ATTEMPTS):
            try:
                return await self._decode_in_child(data, spec, time)
            except OutOfTime:
                raise UnreadableImage(
                    f"the {picture_format} picture takes too long to decode",
                    limit=f"at most {time.seconds:g} seconds for all pictures of a request",
                    remedy="send a smaller version, or fewer pictures",
                ) from None
            except ChildLost as error:
                num_crashes += isinstance(error, ChildCrashed)
                _log.warning("decoder_lost", reason=error.code, detail=str(error), format=picture_format)
            if self._is_closed:
                raise _closed()
        if num_crashes == _ATTEMPTS:
            raise UnreadableImage.damaged(f"the {picture_format} picture crashes its decoder")
        raise NotReady.with_retry("two processes that decoded the picture have ended", 1)

    async def _decode_in_child(self, data: bytes, spec: InputSpec, time: DecodeTime) -> Decoded:
        child = await self._acquire()
        try:
            header_bytes = header_cost(len(data))
            async with self._budget.grant(header_bytes):
                cost = await _finish_before_cancelling(child.read_header(data, spec, header_bytes, time))
            async with self._budget.grant(cost.num_bytes):
                done, pixels = await _finish_before_cancelling(child.decode(data, spec, cost.num_bytes, time))
        except (MemoryError, OSError) as error:
            raise Overloaded("not enough memory for the picture", retry_after_s=1, remedy="try again later") from error
        finally:
            self._metrics.stage_s.labels("decode").observe(child.decode_s)
            child.reset()
            self._release(child)
        return Decoded(pixels, done.width, done.height, done.format, done.capture, done.is_cut_off)

    async def _acquire(self) -> ChildProcess:
        while True:
            await self._num_idle.acquire()
            if self._is_closed:
                self._num_idle.release()  # wakes the next waiting decode
                raise _closed()
            if self._idle:
                child = self._idle.pop()
                if await self._is_ready(child):
                    return child

    async def _is_ready(self, child: ChildProcess) -> bool:
        """Whether a child that was idle can have a picture; one that was idle for long may be suspended."""
        try:
            if child.is_alive and perf_counter() - child.replied_at > _PING_INTERVAL_S / 2:
                await child.ping()
        except asyncio.CancelledError:
            self._release(child)
            raise
        return child.is_alive

    def _release(self, child: ChildProcess) -> None:
        if child.is_alive:
            self._idle.append(child)  # last in, first out: the pages of this child are already mapped
            self._num_idle.release()

    async def _supervise(self, first_outcome: asyncio.Future[Exception | None]) -> None:
        """Keeps one child running until cancelled; `first_outcome` is that of the first attempt to start it."""
        try:
            while True:
                child = await self._start_child(first_outcome)
                await self._use_until_exit(child, first_outcome)
                _log.warning("decoder_ended", pid=child.pid, exit_status=child.exit_status)
                self._metrics.restarts.labels("decoder").inc()
        finally:
            _set_once(first_outcome, _closed())

    async def _start_child(self, first_outcome: asyncio.Future[Exception | None]) -> ChildProcess:
        limits = self._limits
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                return await ChildProcess.start(limits.picture_bytes, limits.child_bytes, limits.seconds)
            except (OSError, MemoryError, RuntimeError, ChildLost) as error:  # RuntimeError: no thread for its watcher
                _log.warning("decoder_does_not_start", reason=str(error), next_attempt_s=retry_s)
                _set_once(first_outcome, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)

    async def _use_until_exit(self, child: ChildProcess, first_outcome: asyncio.Future[Exception | None]) -> None:
        """Adds a child to the pool until it exits; stops it if cancelled."""
        self._children.add(child)
        self._release(child)
        _set_once(first_outcome, None)
        try:
            while child.is_alive:
                await child.wait(_PING_INTERVAL_S)
                if not child.is_busy:
                    await child.ping()
        finally:
            self._children.discard(child)
            self._idle = [other for other in self._idle if other is not child]
            await child.stop(_EXIT_GRACE_S)


def _set_once(future: asyncio.Future[Exception | None], outcome: Exception | None) -> None:
    if not future.done():
        future.set_result(outcome)


def _closed() -> NotReady:
    return NotReady.with_retry("the decoder processes are stopped", 1)


async def _finish_before_cancelling(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Awaits a coroutine; a cancellation takes effect once the coroutine has finished, or after `_CANCEL_GRACE_S`.

    So a cancelled decode keeps its share of the budget until its memory is free, and few commands are interrupted.
    """
    task = asyncio.create_task(coroutine)
    patience_s = None
    cancelled = False
    try:
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=patience_s)
                if cancelled:
                    task.cancel()
            except asyncio.CancelledError:
                patience_s = _CANCEL_GRACE_S
                cancelled = True
        if cancelled:
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that is never retrieved
            raise asyncio.CancelledError
        return task.result()
    finally:
        del task  # task, error, traceback and frame would form a cycle that keeps the picture in memory
