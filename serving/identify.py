"""Identifies a plant from its pictures: decode, run the network, rank. Independent of HTTP and ONNX Runtime."""

import asyncio
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from models.answer import PlantAnswer, Question
from models.bundle import Bundle
from models.bundle_record import Precision
from models.errors import PictureError
from models.ranking import RankedGroup, RankedTaxon
from serving.admission import Admission, AdmittedRequest
from serving.decoding.pool import Decoded
from serving.errors import BadPicture, ClientLeft, TimedOut
from serving.loaded_bundle import LiveBundle, LoadedBundle, PictureDecoder
from serving.metrics import CancelledStage, Metrics
from serving.schemas import (
    Asked,
    CandidatesView,
    GroupScore,
    Identification,
    ImageView,
    ModelName,
    Prediction,
    VerdictView,
)


class PictureSize(msgspec.Struct, frozen=True):
    """Size of a picture after its EXIF rotation, px."""

    width: int
    height: int


class Answer(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    bundle: Bundle
    """The bundle that answered; a reload may have replaced it since."""
    plant: PlantAnswer
    question: Question
    sizes: tuple[PictureSize, ...]
    """One per picture, in the order of the request."""
    warnings: tuple[str, ...]
    """A sentence for each part of the question that was ignored."""
    precision: Precision
    """Precision of the network that answered."""


class _PendingAnswer:
    """A request in progress, and the stage that it has reached."""

    stage: CancelledStage = "decode"
    task: asyncio.Task[Answer]


class Identifier:
    """Identifies plants.

    Args:
        live_bundle: Holds the bundle that answers.
        decoder: Turns picture bytes into network input.
        admission: Checks each deadline against the work in progress, and measures the throughput.
        metrics: Records the time of each stage.
    """

    def __init__(
        self, live_bundle: LiveBundle, decoder: PictureDecoder, admission: Admission, metrics: Metrics
    ) -> None:
        self._live_bundle, self._decoder = live_bundle, decoder
        self._admission, self._metrics = admission, metrics
        self._tasks: set[asyncio.Task[Answer]] = set()

    async def identify(
        self,
        request: AdmittedRequest,
        pictures: Sequence[bytes],
        asked: Asked,
        *,
        deadline_s: float,
        client_left: Coroutine[Any, Any, None],
    ) -> Answer:
        """Identifies the plant that all the pictures show.

        Args:
            request: The request, as `Admission.enter` gave it.
            pictures: The bytes of one or more picture files.
            asked: What the client asks for.
            deadline_s: Longest time to the answer, seconds.
            client_left: Completes when the client disconnects; work that has not started is then cancelled.

        Raises:
            Overloaded: The pictures ahead leave too little time before the deadline.
            BadPicture: A picture was refused.
            BadParameter: The bundle knows none of the taxa that the client asks for.
            RunFailed: The network fails on these pictures.
            TimedOut: The deadline passed.
            ClientLeft: The client disconnected.
        """
        disconnected = asyncio.ensure_future(client_left)
        try:
            self._admission.start_work(request, len(pictures), deadline_s)
            pending = self._start(request, pictures, asked)
            try:
                await asyncio.wait(
                    {pending.task, disconnected}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
                )
                answer = self._outcome(pending, disconnected, deadline_s)
            finally:
                pending.task.cancel()
                self._admission.end_work(request, answered=_has_answer(pending.task))
        finally:
            disconnected.cancel()
        self._metrics.verdict(answer.plant.verdict.rank)
        return answer

    def _start(self, request: AdmittedRequest, pictures: Sequence[bytes], asked: Asked) -> _PendingAnswer:
        pending = _PendingAnswer()
        pending.task = asyncio.create_task(self._answer(pending, request, pictures, asked))
        self._tasks.add(pending.task)  # asyncio keeps only weak references, and the task may outlive its request
        pending.task.add_done_callback(self._tasks.discard)
        return pending

    def _outcome(self, pending: _PendingAnswer, disconnected: asyncio.Future[None], deadline_s: float) -> Answer:
        if pending.task.done():
            return pending.task.result()
        if disconnected.done():
            self._metrics.cancellation(pending.stage)
            raise ClientLeft("the client disconnected before its answer was ready")
        raise TimedOut(
            "the answer was not ready in time",
            limit=f"at most {deadline_s:g} seconds",
            remedy="try again later, or with fewer or smaller pictures",
        )

    async def _answer(
        self, pending: _PendingAnswer, request: AdmittedRequest, pictures: Sequence[bytes], asked: Asked
    ) -> Answer:
        with self._live_bundle.current.in_use() as loaded:
            question, warnings = loaded.question(asked)
            decoded = await self._decode_all(request, pictures, loaded)
            pending.stage = "run"
            alone = self._admission.num_pictures == 1
            pixels = [picture.pixels for picture in decoded]
            output = await loaded.scheduler.run(pixels, request.ranks, alone=alone)
            with self._metrics.stage("rank"):
                plant = loaded.answer(output, question)
            sizes = tuple(PictureSize(picture.width, picture.height) for picture in decoded)
            return Answer(loaded.bundle, plant, question, sizes, warnings, loaded.precision)

    async def _decode_all(
        self, request: AdmittedRequest, pictures: Sequence[bytes], loaded: LoadedBundle
    ) -> list[Decoded]:
        """Decodes every picture before any network run, so that a request with a bad picture needs no run."""
        time, turns, asked_at = self._decoder.decode_time(), self._admission.decoding, perf_counter()

        async def decode(data: bytes, rank: float) -> Decoded:
            async with turns.take(request.client, rank):
                self._metrics.observe_stage("wait", perf_counter() - asked_at)
                return await self._decoder.decode(data, loaded.spec, time)

        calls = map(decode, pictures, request.ranks)
        return _all_decoded(await asyncio.gather(*calls, return_exceptions=True))


def _has_answer(task: asyncio.Task[Answer]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _all_decoded(outcomes: list[Decoded | BaseException]) -> list[Decoded]:
    """Returns the decoded pictures, or raises the error of the first bad one."""
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
        del outcomes, outcome  # an error references this frame, which would keep all pictures alive


# ---- Builds the response to an identify request from the answer.

_Ranked = TypeVar("_Ranked", RankedTaxon, RankedGroup)


def identification(request_id: str, answer: Answer, warnings: list[str]) -> Identification:
    """Builds the response to an identify request."""
    plant = answer.plant
    return Identification(
        request_id=request_id,
        model=_model_name(answer.bundle),
        verdict=VerdictView(**msgspec.structs.asdict(plant.verdict)),
        predictions=_predictions(plant.taxa, answer),
        genera=_group_scores(plant.genera, answer),
        families=_group_scores(plant.families, answer),
        plant_score=plant.plant_score,
        candidates=_candidates(answer),
        discarded_mass=plant.discarded_mass,
        images=_images(answer),
        warnings=warnings,
    )


def _candidates(answer: Answer) -> CandidatesView | None:
    found, question = answer.plant.candidates, answer.question
    if found is None or question.coverage is None:
        return None
    network = answer.bundle.network(answer.precision)
    return CandidatesView(
        coverage=question.coverage,
        kind=question.coverage_kind,
        guarantee=found.guarantee,
        num_taxa=found.num_taxa,
        score=found.score,
        taxa=_predictions(found.taxa, answer),
        num_uncalibrated_taxa=found.num_uncalibrated_taxa,
        measured=None if found.guarantee is None else network.measured(question.coverage_kind, question.coverage),
    )


def _images(answer: Answer) -> list[ImageView]:
    return [
        ImageView(
            index=index,
            width=size.width,
            height=size.height,
            plant_score=picture.plant_score,
            weight=picture.weight,
            predictions=_predictions(picture.taxa, answer),
        )
        for index, (size, picture) in enumerate(zip(answer.sizes, answer.plant.pictures, strict=True))
    ]


def _predictions(ranked: Sequence[RankedTaxon], answer: Answer) -> list[Prediction]:
    return [_prediction(position, each) for position, each in enumerate(_possible(ranked, answer), start=1)]


def _group_scores(groups: Sequence[RankedGroup], answer: Answer) -> list[GroupScore]:
    return [GroupScore(group.name, group.score) for group in _possible(groups, answer)]


def _possible(ranked: Sequence[_Ranked], answer: Answer) -> Sequence[_Ranked]:
    """Leaves out what the request ruled out, which has the probability 0."""
    return ranked if answer.question.allowed_T is None else [each for each in ranked if each.score > 0]


def _prediction(position: int, ranked: RankedTaxon) -> Prediction:
    taxon = ranked.taxon
    return Prediction(
        position=position,
        rank=taxon.rank,
        taxon_id=taxon.taxon_id,
        scientific_name=taxon.scientific_name,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
        score=ranked.score,
    )


def _model_name(bundle: Bundle) -> ModelName:
    return ModelName(bundle.record.name, bundle.record.version, bundle.record.label_hash)
