"""The decoding children: as many as asked for, each replaced when it dies, and one picture in each."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from models.errors import InputError, PictureError, UnreadableImage
from models.preprocess import InputSpec, sniff_format
from serving.decoding.budget import ByteBudget
from serving.decoding.channel import ChildLost
from serving.decoding.process import ChildHangs, ChildProcess
from serving.errors import NotReady, Overloaded, TooLarge
from serving.metrics import Metrics

_GRACE_S: Final = 2.0  # a child that was told to leave does so within 0.1 s unless it decodes
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # between attempts to start a child
_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


class DecodeLimits(msgspec.Struct, frozen=True):
    """What decodes may take."""

    picture_bytes: int
    """Largest picture, bytes."""
    budget_bytes: int
    """Memory for all decodes in flight, bytes; one that needs more waits until it is alone."""
    child_bytes: int
    """Memory that one child may take beyond what it has after its start, bytes."""
    seconds: float
    """Longest time for one step of a picture, header or pixels; then its child is killed."""


class Decoded(NamedTuple):
    """A picture that is ready for the network."""

    pixels: npt.NDArray[np.float32]
    """`chw`, as `models.preprocess.to_network_input` gives it."""
    width: int
    """Width of the upright original, px."""
    height: int
    """Height of the upright original, px."""
    format: str
    """One of the keys of `models.preprocess.PIXEL_LIMITS`."""


class Decoders:
    """Decodes pictures in child processes.

    Args:
        num_children: Pictures at the same time.
        limits: What they may take.
        metrics: Counts pictures, failures, deaths and granted memory.
    """

    def __init__(self, num_children: int, limits: DecodeLimits, metrics: Metrics) -> None:
        self._num_children, self._limits, self._metrics = num_children, limits, metrics
        self._budget = ByteBudget(limits.budget_bytes, metrics.decode_bytes)
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._num_idle = asyncio.Semaphore(0)
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def num_alive(self) -> int:
        """Children that can decode, or do."""
        return sum(child.is_alive for child in self._children)

    async def start(self) -> None:
        """Starts all children at once and waits until each has answered or failed; those that failed are tried again.

        Raises:
            InputError: None of them starts.
            NotReady: `close` was called.
        """
        attempts = [asyncio.get_running_loop().create_future() for _ in range(self._num_children)]
        self._keepers = [asyncio.create_task(self._keep_one(attempt)) for attempt in attempts]
        failures = [failure for attempt in attempts if (failure := await attempt) is not None]
        if self._is_closed:
            raise _closed()
        if len(failures) == self._num_children:
            await self.close()
            raise InputError(
                "no program that decodes pictures starts",
                value=failures[0],
                remedy="see what it says above, and free memory or processes",
            )

    async def decode(self, data: bytes, spec: InputSpec) -> Decoded:
        """Decodes a picture once a child and the memory are free.

        When cancelled, a decode that has not begun never does, and one that runs is waited for.

        Raises:
            PictureError: As `models.preprocess.picture_to_input`, and for a picture whose decoder crashes, hangs or
                needs too much memory.
            Overloaded: This machine has no memory for the picture.
            TooLarge: The picture has more bytes than the limits say.
            NotReady: `close` was called.
        """
        name = "unknown"
        try:
            name = sniff_format(data)
            decoded = await self._in_a_child(data, spec, name)
        except PictureError as error:
            self._metrics.decode_failure(error.code, name)
            raise
        self._metrics.picture(decoded.format)
        return decoded

    async def close(self) -> None:
        """Ends every child; one that still decodes after two seconds is killed."""
        self._is_closed = True
        self._num_idle.release()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()

    async def _in_a_child(self, data: bytes, spec: InputSpec, name: str) -> Decoded:
        if len(data) > self._limits.picture_bytes:
            limit = f"at most {self._limits.picture_bytes} bytes"
            raise TooLarge("the picture is too large", value=f"{len(data)} bytes", limit=limit)
        began = time.perf_counter()
        child = await self._take()
        self._metrics.stage_took("wait", time.perf_counter() - began)
        try:
            cost = await _to_the_end(child.read_header(data, spec))
            async with self._budget.grant(cost.num_bytes):
                done, pixels = await _to_the_end(child.decode(spec))
        except ChildLost as error:
            raise self._fault(error, name) from error
        except (MemoryError, OSError) as error:
            raise Overloaded("not enough memory for the picture", retry_after_s=1, remedy="try again later") from error
        finally:
            self._metrics.stage_took("decode", child.worked_s)
            child.settle()
            self._give(child)
        return Decoded(pixels, done.width, done.height, done.format)

    async def _take(self) -> ChildProcess:
        while True:
            await self._num_idle.acquire()
            if self._is_closed:
                self._num_idle.release()  # for the next one who waits
                raise _closed()
            if self._idle and (child := self._idle.pop()).is_alive:
                return child

    def _give(self, child: ChildProcess) -> None:
        if child.is_alive:
            self._idle.append(child)  # the last one used is the next one taken: its pages are warm
            self._num_idle.release()

    def _fault(self, error: ChildLost, name: str) -> UnreadableImage | NotReady:
        if self._is_closed:
            return _closed()
        if isinstance(error, ChildHangs):
            limit, remedy = f"at most {self._limits.seconds:g} seconds", "send a smaller version"
            return UnreadableImage(f"the {name} picture takes too long to decode", limit=limit, remedy=remedy)
        limit, remedy = "a complete, undamaged file", "send the original photograph again"
        return UnreadableImage(f"the {name} picture made its decoder fail", limit=limit, remedy=remedy)

    async def _keep_one(self, attempt: asyncio.Future[Exception | None]) -> None:
        """Keeps one child running until cancelled; tells how the first attempt to start one went."""
        try:
            while True:
                child = await self._start_one(attempt)
                await self._attend(child, attempt)
                _log.warning("decoder_ended", pid=child.pid, exit_status=child.exit_status)
                self._metrics.restart("decoder")
        finally:
            _tell(attempt, _closed())

    async def _start_one(self, attempt: asyncio.Future[Exception | None]) -> ChildProcess:
        limits, pause_s = self._limits, _FIRST_PAUSE_S
        while True:
            try:
                return await ChildProcess.start(limits.picture_bytes, limits.child_bytes, limits.seconds)
            except (OSError, ChildLost) as error:
                _log.warning("decoder_does_not_start", reason=str(error), next_attempt_s=pause_s)
                _tell(attempt, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _attend(self, child: ChildProcess, attempt: asyncio.Future[Exception | None]) -> None:
        """Has a child take part until it ends, or ends it when cancelled."""
        self._children.add(child)
        self._give(child)
        _tell(attempt, None)
        try:
            await child.ended()
        finally:
            self._children.discard(child)
            self._idle = [other for other in self._idle if other is not child]
            await child.stop(_GRACE_S)


def _tell(attempt: asyncio.Future[Exception | None], outcome: Exception | None) -> None:
    if not attempt.done():
        attempt.set_result(outcome)


def _closed() -> NotReady:
    return NotReady("the programs that decode pictures are stopped", retry_after_s=1, remedy="try again in a second")


async def _to_the_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Awaits some work; when cancelled meanwhile, only once the work is done.

    So whoever cancels keeps its turn until the memory is free, and a child is never left in the middle of an order.
    """
    task, cancelled = asyncio.create_task(work), False
    try:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            if not task.cancelled():
                task.exception()  # looked at, or asyncio complains that nobody did
            raise asyncio.CancelledError
        return task.result()
    finally:
        del task  # it knows an error whose traceback knows this frame: the picture would stay until the next collection
