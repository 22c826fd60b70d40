"""The use case: the pictures of one plant -> its answer. It knows neither HTTP nor ONNX Runtime."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from models.errors import PictureError, UnreadableImage
from models.preprocess import InputSpec, picture_to_input
from models.ranking import Ranking, Thresholds, combine_pictures, rank
from models.taxonomy import Taxonomy
from serving.admission import Admission
from serving.errors import BadPicture, ClientLeft, NotReady, Overloaded, TimedOut
from serving.metrics import Metrics
from serving.runner import Runner
from serving.threads import Threads


class PictureSize(msgspec.Struct, frozen=True):
    """Size of an upright original, px."""

    width: int
    height: int


class Answer(msgspec.Struct, frozen=True):
    """What the pictures of one plant say."""

    ranking: Ranking
    sizes: tuple[PictureSize, ...]
    """One for each picture, in the order they were sent."""


class Knowledge(msgspec.Struct, frozen=True):
    """What a bundle knows about one of its networks."""

    spec: InputSpec
    taxonomy: Taxonomy
    temperature: float
    thresholds: Thresholds


class _Prepared(NamedTuple):
    pixels: npt.NDArray[np.float32]
    size: PictureSize


class Identifier:
    """Identifies plants, a bounded number of them at a time.

    Args:
        knowledge: What the bundle knows.
        runner: Runs the network.
        decoders: Threads that decode pictures; each holds at most one decoded picture.
        admission: Turns for the requests that hold prepared pictures.
        metrics: Times the steps.
        deadline_s: Longest time to an answer, seconds.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        *,
        runner: Runner,
        decoders: Threads,
        admission: Admission,
        metrics: Metrics,
        deadline_s: float,
    ) -> None:
        self.taxonomy = knowledge.taxonomy
        self._knowledge, self._runner, self._decoders = knowledge, runner, decoders
        self._admission, self._metrics, self._deadline_s = admission, metrics, deadline_s
        self._jobs: set[asyncio.Task[Answer]] = set()
        self._ready = False

    async def identify(self, pictures: Sequence[bytes], top_k: int, client_left: Coroutine[Any, Any, None]) -> Answer:
        """Identifies the plant that all the pictures show.

        Args:
            pictures: The bytes of one or more picture files.
            top_k: How many taxa, genera and families to list at most.
            client_left: Ends when nobody waits for the answer any more; work not yet begun is then dropped.

        Raises:
            Overloaded: Too many requests wait already.
            BadPicture: A picture is refused.
            TimedOut: The deadline came first.
            ClientLeft: The client left first.
        """
        job = asyncio.create_task(self._answer(pictures, top_k))
        self._jobs.add(job)  # asyncio itself holds tasks weakly, and this one may outlive its request
        job.add_done_callback(self._jobs.discard)
        left = asyncio.create_task(client_left)
        try:
            await asyncio.wait({job, left}, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED)
            return self._outcome(job, left)
        finally:
            left.cancel()
            job.cancel()

    def _outcome(self, job: asyncio.Task[Answer], left: asyncio.Task[None]) -> Answer:
        if job.done():
            return job.result()
        if left.done():
            raise ClientLeft("the client left before its answer was there")
        raise TimedOut(
            "the answer was not there in time",
            limit=f"at most {self._deadline_s:g} seconds",
            remedy="try again later, or with fewer or smaller pictures",
        )

    async def warm_up(self) -> None:
        """Runs the network once, so that the first request does not pay for it; after it, requests are taken."""
        spec = self._knowledge.spec
        logits = await self._runner.run([np.zeros((3, spec.height, spec.width), dtype=np.float32)])
        self._rank(logits, top_k=1)
        self._ready = True

    def require_ready(self) -> None:
        """Checks that requests are taken.

        Raises:
            NotReady: The warm-up is not over, or the service is closing.
        """
        if not self._ready:
            raise NotReady("the network is not warmed up", retry_after_s=1, remedy="try again in a second")

    def close(self) -> None:
        """Takes no further requests and drops the work that has not started."""
        self._ready = False
        self._runner.close()
        self._decoders.close()

    async def _answer(self, pictures: Sequence[bytes], top_k: int) -> Answer:
        arrived = time.perf_counter()
        async with self._admission.turn():
            self._metrics.stage_took("wait", time.perf_counter() - arrived)
            prepared = await self._prepare_all(pictures)
            logits = await self._runner.run([picture.pixels for picture in prepared])
            return Answer(self._rank(logits, top_k), tuple(picture.size for picture in prepared))

    async def _prepare_all(self, pictures: Sequence[bytes]) -> list[_Prepared]:
        """Decodes every picture before any is run: a request with a bad one costs no network run."""
        calls = (self._decoders.call(self._prepare, data, index) for index, data in enumerate(pictures))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        prepared = []
        for outcome in outcomes:  # in order, so that the first bad picture is named whichever was decoded first
            if isinstance(outcome, BaseException):
                raise outcome
            prepared.append(outcome)
        return prepared

    def _prepare(self, data: bytes, index: int) -> _Prepared:
        try:
            with self._metrics.stage("decode"):
                pixels, picture = picture_to_input(data, self._knowledge.spec)
        except PictureError as reason:
            raise BadPicture(reason, index) from reason
        except MemoryError as error:
            raise Overloaded("not enough memory for the picture", retry_after_s=1, remedy="try again later") from error
        except Exception as error:  # whatever a decoder raises for hostile bytes, it is the picture's fault
            fault = UnreadableImage("the picture does not decode", remedy="send the original photograph again")
            raise BadPicture(fault, index) from error
        self._metrics.picture(picture.format)
        return _Prepared(pixels, PictureSize(picture.width, picture.height))

    def _rank(self, logits: npt.NDArray[np.float32], top_k: int) -> Ranking:
        known = self._knowledge
        with self._metrics.stage("rank"):
            combined = combine_pictures(logits)
            return rank(combined, known.taxonomy, known.temperature, known.thresholds, top_k)
