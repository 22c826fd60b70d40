"""The use case: the pictures of one plant -> its answer. It knows neither HTTP nor ONNX Runtime."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import numpy as np

from models.bundle import Bundle
from models.errors import PictureError
from models.ranking import Ranking
from serving.admission import Admission, Ticket
from serving.decoding.pool import Decoded
from serving.errors import BadPicture, ClientLeft, TimedOut
from serving.loaded_bundle import PictureDecoder, Release, Releases
from serving.metrics import Dropped, Metrics


class PictureSize(msgspec.Struct, frozen=True):
    """Size of an upright original, px."""

    width: int
    height: int


class Answer(msgspec.Struct, frozen=True):
    """What the pictures of one plant say."""

    bundle: Bundle
    """What answered; another bundle may have taken its place since."""
    ranking: Ranking
    sizes: tuple[PictureSize, ...]
    """One for each picture, in the order they were sent."""


class _Job:
    """One request on its way; says how far it is."""

    stage: Dropped = "decode"
    task: asyncio.Task[Answer]


class Identifier:
    """Identifies plants.

    Args:
        releases: What answers.
        decoder: Turns picture bytes into network input.
        admission: Knows what else is to be done, and learns how long an answer takes.
        metrics: Times the steps.
    """

    def __init__(self, releases: Releases, decoder: PictureDecoder, admission: Admission, metrics: Metrics) -> None:
        self._releases, self._decoder = releases, decoder
        self._admission, self._metrics = admission, metrics
        self._tasks: set[asyncio.Task[Answer]] = set()

    async def identify(
        self,
        ticket: Ticket,
        pictures: Sequence[bytes],
        top_k: int,
        *,
        deadline_s: float,
        client_left: Coroutine[Any, Any, None],
    ) -> Answer:
        """Identifies the plant that all the pictures show.

        Args:
            ticket: Lets the request in.
            pictures: The bytes of one or more picture files.
            top_k: How many taxa, genera and families to list at most.
            deadline_s: Longest time to the answer, seconds.
            client_left: Ends when nobody waits for the answer any more; work not yet begun is then dropped.

        Raises:
            Overloaded: It could not be answered before its deadline.
            BadPicture: A picture is refused.
            RunFailed: The network has no answer for these pictures.
            TimedOut: The deadline came first.
            ClientLeft: The client left first.
        """
        left = asyncio.ensure_future(client_left)
        try:
            self._admission.begin(ticket, len(pictures), sum(map(len, pictures)), deadline_s)
            job = self._begin(pictures, top_k)
            try:
                await asyncio.wait({job.task, left}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
                answer = self._outcome(job, left, deadline_s)
            finally:
                job.task.cancel()
        finally:
            left.cancel()
        self._admission.answered(ticket)
        return answer

    def _begin(self, pictures: Sequence[bytes], top_k: int) -> _Job:
        job = _Job()
        job.task = asyncio.create_task(self._answer(job, pictures, top_k))
        self._tasks.add(job.task)  # asyncio itself holds tasks weakly, and this one may outlive its request
        job.task.add_done_callback(self._tasks.discard)
        return job

    def _outcome(self, job: _Job, left: asyncio.Future[None], deadline_s: float) -> Answer:
        if job.task.done():
            return job.task.result()
        if left.done():
            self._metrics.cancellation(job.stage)
            raise ClientLeft("the client left before its answer was there")
        raise TimedOut(
            "the answer was not there in time",
            limit=f"at most {deadline_s:g} seconds",
            remedy="try again later, or with fewer or smaller pictures",
        )

    async def _answer(self, job: _Job, pictures: Sequence[bytes], top_k: int) -> Answer:
        with self._releases.current.in_use() as release:
            decoded = await self._decode_all(pictures, release)
            job.stage = "run"
            alone = self._admission.num_pictures == 1
            logits = await release.scheduler.run([picture.pixels for picture in decoded], alone=alone)
            with self._metrics.stage("rank"):
                ranking = release.rank(np.asarray(logits), top_k)
            sizes = tuple(PictureSize(picture.width, picture.height) for picture in decoded)
            return Answer(release.bundle, ranking, sizes)

    async def _decode_all(self, pictures: Sequence[bytes], release: Release) -> list[Decoded]:
        """Decodes every picture before any is run: a request with a bad one costs no network run."""
        calls = (self._decoder.decode(data, release.spec) for data in pictures)
        return _all_decoded(await asyncio.gather(*calls, return_exceptions=True))


def _all_decoded(outcomes: list[Decoded | BaseException]) -> list[Decoded]:
    """The decoded pictures, or what is wrong with the first bad one."""
    decoded: list[Decoded] = []
    try:
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, PictureError):
                raise BadPicture(outcome, index) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
            decoded.append(outcome)
        return decoded
    finally:
        del outcomes, outcome  # an error that holds the frame that holds it would keep all pictures for long
