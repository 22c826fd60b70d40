"""Answers POST /identify: key and rate, admission, body, decoding, network, answer.

The work on the pictures is a task of its own, so that a deadline or a client that leaves ends it.
"""

import asyncio
import base64
import hashlib
import io
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from litestar import Request, Response, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from PIL import Image

from models.answer import PlaceNote, PlantAnswer, Question
from models.arrays import Singles
from models.errors import PictureError
from models.place import first_place
from models.preprocess import InputSpec
from models.ranking import RankedGroup, RankedTaxon
from serving.access.control import AccessControl, Client
from serving.api.middleware import NOT_BY_ADDRESS
from serving.api.pages import IDENTIFY_BODY, OPTIONAL_KEY, PREFER, operation, problem_responses
from serving.corrections.record import Correction
from serving.corrections.service import CorrectionService, RecentAnswer
from serving.engine.admission import Admission, AdmittedRequest, Readiness
from serving.engine.bodies import Body, BodyLimits, FormNames, read_body, unknown_warnings
from serving.engine.decoding.pool import Decoded, DecoderPool
from serving.engine.loaded_bundle import LiveBundle, LoadedBundle
from serving.errors import BadPicture, ClientLeft, EncodedBody, TimedOut
from serving.metrics import Metrics
from serving.schemas import (
    PLACE_REASONS,
    CandidatesView,
    HarmView,
    Identification,
    ImageView,
    ModelName,
    Parameters,
    PlaceUse,
    Prediction,
    declared,
    filled_in,
    parse_parameters,
    preferred_deadline,
    read_parameters,
    wanted_languages,
)
from serving.species import taxon_fields

_PREVIEW_PX: Final = 256
_MAX_REMEMBERED: Final = 10  # taxa of an answer that can be corrected
AnyRequest = Request[Any, Any, Any]
_Ranked = TypeVar("_Ranked", RankedTaxon, RankedGroup)


class RouteDependencies(msgspec.Struct, frozen=True):
    """The components that the routes use.

    They are one dependency because Litestar starts a task per dependency for every request.
    """

    admission: Admission
    access: AccessControl
    decoder: DecoderPool
    readiness: Readiness
    metrics: Metrics
    live_bundle: LiveBundle
    body_limits: BodyLimits
    deadline_s: float
    """Longest time from the complete upload to the answer, seconds."""
    correction_service: CorrectionService | None = None
    """Takes corrections of answers, if the service keeps them."""


Deps = NamedDependency[RouteDependencies]


# asyncio keeps only weak references to tasks, and a task may outlive its request.
_tasks: Final[set[asyncio.Task[None]]] = set()


@post(
    "/identify",
    opt=NOT_BY_ADDRESS,
    status_code=200,
    tags=["identify"],
    summary="Identify a plant",
    operation_class=operation(Parameters, IDENTIFY_BODY, PREFER),
    response_description="The answer",
    response_headers=[
        ResponseHeader(
            name="Preference-Applied",
            description="The `wait` that was applied, if the request had one",
            value="wait=5",
            documentation_only=True,
        )
    ],
    security=OPTIONAL_KEY,
    responses=problem_responses(400, 401, 408, 413, 415, 422, 429, 500, 503, 504),
)
async def identify(request: AnyRequest, deps: Deps) -> Response[Identification]:
    """Identifies the plant on one to five photographs.

    Send them as `multipart/form-data` with the field `image` repeated, or one picture as the whole body.
    """
    # Everything up to admission runs before the body is read, so that a refusal is cheap.
    deps.readiness.require_warm()
    client = authorize(deps.access, request)
    query = filled_in(request.query_params.dict())
    wanted_s = preferred_deadline(request.headers.getall("prefer", []), deps.deadline_s)

    def parse(fields: Mapping[str, Sequence[str]] | None) -> Parameters:
        if fields is None:
            return read_parameters(Parameters, query)
        read_parameters(Parameters, fields)  # a wrong field is an error, even if the query overrides it
        return parse_parameters({**fields, **query})

    answered = await answer_pictures(request, deps, client, parse, deadline_s=wanted_s or deps.deadline_s)
    answered.warnings[:0] = unknown_parameters(request, declared(Parameters))
    headers = {} if wanted_s is None else {"Preference-Applied": f"wait={wanted_s:g}"}
    if deps.correction_service is not None:
        deps.correction_service.remember(request_id(request), await _recent(answered, client))
    languages = wanted_languages(answered.asked.lang, request.headers.get("accept-language", ""))
    return Response(_identification(request_id(request), answered, languages), headers=headers)


async def answer_pictures(
    request: AnyRequest,
    deps: RouteDependencies,
    client: Client,
    parse: Callable[[Mapping[str, Sequence[str]] | None], Parameters],
    *,
    deadline_s: float,
    names: FormNames = FormNames(),  # noqa: B008  # it is frozen
) -> "Answered":
    """The way of every identification: admission, body, decoding, network, answer.

    Args:
        request: Its body holds the pictures.
        deps: The components.
        client: Who asks; its rate is counted.
        parse: What is asked, given the fields of the form. It is called with None before the body is read, so that
            most errors cost no upload.
        deadline_s: Longest time from the complete upload to the answer, seconds.
        names: The names of the form's fields.
    """
    with deps.live_bundle.current.in_use() as loaded:
        loaded.question(parse(None))  # refuses names that it does not know
        async with deps.admission.enter(client.identity) as admitted:
            body = await read(request, admitted, deps, names)
            asked = parse(body.fields)
            question, ignored = loaded.question(asked)
            answered = Answered(deps, admitted, body, loaded, question, asked, [*body.warnings, *ignored])
            await answered.work(deadline_s, _client_left(request))
            return answered


def authorize(
    access: AccessControl, request: AnyRequest, secret: str | None = None, *, is_admin: bool = False
) -> Client:
    """Checks the API key, which is in the headers or is `secret`, and the rate, and tells the log and the headers."""
    address = request.client.host if request.client else None  # as the connection or a trusted proxy gives it
    if is_admin:
        client = access.authorize_admin(request.headers, address)
    else:
        client = access.authorize(request.headers, address, secret)
    request.scope["state"]["client"] = client.name
    request.scope["state"]["quota"] = access.limit(client.identity)
    return client


def request_id(request: AnyRequest) -> str:
    """Returns the id that the middleware gave the request."""
    return str(request.scope["state"]["request_id"])


def unknown_parameters(request: AnyRequest, known: Mapping[str, Any] | set[str]) -> list[str]:
    """Returns a sentence for each query parameter that is not known."""
    return unknown_warnings("query parameter", [name for name in request.query_params if name not in known])


async def read(request: AnyRequest, admitted: AdmittedRequest, deps: RouteDependencies, names: FormNames) -> Body:
    """Reads the body of an admitted request; errors as `read_body`.

    Raises:
        EncodedBody: It has a content coding, such as gzip.
    """
    if (coding := ",".join(request.headers.getall("content-encoding", []))).lower() not in {"", "identity"}:
        raise EncodedBody(
            "the body is compressed",
            value=f"Content-Encoding: {coding[:40]}",
            limit="no Content-Encoding",
            remedy="send the body as it is, since photographs are compressed already",
        )

    async def receive() -> Mapping[str, Any]:
        message: Mapping[str, Any] = await request.receive()
        deps.admission.hold(admitted, len(message.get("body", b"")))
        return message

    content_type = request.headers.get("content-type", "")
    content_length = request.headers.get("content-length")
    try:
        with deps.metrics.stage_s.labels("read").time():
            return await read_body(content_type, content_length, receive, deps.body_limits, names)
    except ClientLeft:
        deps.metrics.cancellations.labels("read").inc()
        raise


async def _client_left(request: AnyRequest) -> None:
    """Completes when the client disconnects. Call it once the body is read, when nothing else can be received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Answered:
    """A request: a question about the plant that all its pictures show, and its answer once `work` has ended."""

    deps: RouteDependencies
    admitted: AdmittedRequest
    body: Body
    loaded: LoadedBundle
    question: Question
    asked: Parameters
    warnings: list[str]
    """A sentence for each part of the request that is ignored, or turns out to be."""
    plant: PlantAnswer = field(init=False)
    sizes: list[tuple[int, int]] = field(init=False)
    """Upright sizes of the pictures, (width, height) in px."""
    previews: list[str] = field(default_factory=list)
    """Of each picture a small one as a data URL, if asked for."""
    stage: str = "decode"

    async def work(self, deadline_s: float, client_left: Coroutine[Any, Any, None]) -> None:
        """Answers the question, or cancels the work at the deadline or when the client has left.

        Raises:
            Overloaded: The pictures ahead leave too little time before the deadline.
            BadPicture: A picture was refused.
            RunFailed: The network fails on these pictures.
            TimedOut: The deadline passed.
            ClientLeft: The client disconnected.
        """
        admission = self.deps.admission
        metrics = self.deps.metrics
        disconnected = asyncio.ensure_future(client_left)
        try:
            admission.start_work(self.admitted, len(self.body.pictures), deadline_s)
            task = asyncio.create_task(self._answer())
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
            try:
                await asyncio.wait({task, disconnected}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    if disconnected.done():
                        metrics.cancellations.labels(self.stage).inc()
                        raise ClientLeft("the client disconnected before its answer was ready")
                    raise TimedOut(
                        "the answer was not ready in time",
                        limit=f"at most {deadline_s:g} seconds",
                        remedy="try again later, or with fewer or smaller pictures",
                    )
                task.result()
            finally:
                task.cancel()
                has_answer = task.done() and not task.cancelled() and task.exception() is None
                admission.end_work(self.admitted, answered=has_answer)
        finally:
            disconnected.cancel()
        metrics.verdicts.labels(self.plant.verdict.rank).inc()

    async def _answer(self) -> None:
        decoded = await self._decode_all()
        self.stage = "run"
        alone = self.deps.admission.num_pictures == 1
        knows_places = self.loaded.answer_model.place is not None
        if knows_places and self.question.where is None and self.asked.use_exif and not self.asked.cultivated:
            where = first_place((picture.capture for picture in decoded), self.asked.date)
            self.question = msgspec.structs.replace(self.question, where=where)
            if where is None:
                self.warnings.append(PLACE_REASONS["no_place_in_exif"])
        pixels = [picture.pixels for picture in decoded]
        output = await self.loaded.scheduler.run(pixels, self.admitted.virtual_starts_s, alone=alone)
        with self.deps.metrics.stage_s.labels("rank").time():
            self.plant = self.loaded.answer(output, self.question)
        if self.question.where is not None and self.plant.place is None:
            self.warnings.append(PLACE_REASONS["no_records"])
        if self.asked.preview:
            self.previews = await asyncio.to_thread(lambda: [_preview(each, self.loaded.spec) for each in pixels])
        self.warnings += [
            f"Picture {number} is cut off at its end, where a few rows may be missing."
            for number, picture in enumerate(decoded, 1)
            if picture.is_cut_off
        ]
        self.sizes = [(picture.width, picture.height) for picture in decoded]

    async def _decode_all(self) -> list[Decoded]:
        """Decodes every picture before any network run, so that a request with a bad picture needs no run."""
        decoder = self.deps.decoder
        queue = self.deps.admission.decoding
        asked_at = perf_counter()
        time = decoder.decode_time()

        async def decode(data: bytes, virtual_start_s: float) -> Decoded:
            async with queue.take(self.admitted.client, virtual_start_s):
                self.deps.metrics.stage_s.labels("wait").observe(perf_counter() - asked_at)
                return await decoder.decode(data, self.loaded.spec, time)

        calls = map(decode, self.body.pictures, self.admitted.virtual_starts_s)
        return _all_decoded(await asyncio.gather(*calls, return_exceptions=True))


def _preview(pixels: Singles, spec: InputSpec) -> str:
    """Returns the network's input, shape (3, height, width), as a data URL."""
    rgb = pixels.transpose(1, 2, 0) * np.array(spec.std) + np.array(spec.mean)
    image = Image.fromarray((rgb.clip(0, 1) * 255).round().astype(np.uint8))
    image.thumbnail((_PREVIEW_PX, _PREVIEW_PX))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=75)
    return f"data:image/webp;base64,{base64.b64encode(encoded.getvalue()).decode()}"


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


async def _recent(answered: Answered, client: Client) -> RecentAnswer:
    """Returns what a correction of the answer needs."""
    pictures = answered.body.pictures
    hashes = await asyncio.to_thread(lambda: [hashlib.sha256(picture).hexdigest() for picture in pictures])
    record = answered.loaded.bundle.record
    best = [(each.taxon.taxon_id, each.score) for each in answered.plant.taxa[:_MAX_REMEMBERED]]
    draft = Correction(
        correction_id=secrets.token_hex(16),
        person=client.name,
        model=f"{record.name} {record.version}"[:200],  # as much as a column of the store holds
        label_hash=record.label_hash,
        verdict_rank=answered.plant.verdict.rank,
        predicted=best[0][0][:200],  # `predictions` has it whole
        score=best[0][1],
        predictions=msgspec.json.encode(best).decode(),
    )
    return RecentAnswer(identity=client.identity, sha256s=frozenset(hashes), draft=draft)


# ---- the answer as JSON


def _identification(id_of_request: str, answered: Answered, languages: Sequence[str]) -> Identification:
    loaded = answered.loaded
    question = answered.question
    plant = answered.plant

    def predictions(ranked: list[RankedTaxon], place: PlaceNote | None) -> list[Prediction]:
        return [
            Prediction(
                position=position,
                **taxon_fields(each.taxon, languages),
                score=each.score,
                vision_score=None if place is None else float(place.vision_T[at]),
                prior=None if place is None else float(place.ratio_T[at]),
                num_images=len(loaded.examples_of(each.taxon.taxon_id)),
            )
            for position, each in enumerate(_possible(ranked, question), start=1)
            for at in [loaded.taxonomy.position_of[each.taxon.taxon_id]]
        ]

    candidates = None
    found = plant.candidates
    record = loaded.bundle.record
    if found is not None and question.coverage is not None:
        network = loaded.bundle.network(loaded.precision)
        is_measured = found.guarantee is not None and plant.place is None
        candidates = CandidatesView(
            coverage=question.coverage,
            kind=question.coverage_kind,
            guarantee=found.guarantee,
            num_taxa=found.num_taxa,
            score=found.score,
            taxa=predictions(found.taxa, plant.place),
            num_uncalibrated_taxa=found.num_uncalibrated_taxa,
            measured=network.measured(question.coverage_kind, question.coverage) if is_measured else None,
        )
    return Identification(
        request_id=id_of_request,
        model=ModelName(record.name, record.version, record.label_hash),
        verdict=plant.verdict,
        predictions=predictions(plant.taxa, plant.place),
        genera=_possible(plant.genera, question),
        families=_possible(plant.families, question),
        plant_score=plant.plant_score,
        candidates=candidates,
        discarded_mass=plant.discarded_mass,
        uses_place=plant.place is not None,
        place=_place_use(answered),
        look_alikes=predictions(plant.look_alikes, plant.place),
        harmful=[
            HarmView(each.genus.name, each.genus.harm, each.genus.effect, each.score, taxon)
            for each in plant.harmful
            for taxon in predictions([each.taxon], plant.place)
        ],
        images=[_image_view(answered, index, predictions) for index in range(len(answered.sizes))],
        warnings=answered.warnings,
    )


def _image_view(
    answered: Answered, index: int, predictions: Callable[[list[RankedTaxon], PlaceNote | None], list[Prediction]]
) -> ImageView:
    width, height = answered.sizes[index]
    picture = answered.plant.pictures[index]
    return ImageView(
        index=index,
        width=width,
        height=height,
        plant_score=picture.plant_score,
        weight=picture.weight,
        predictions=predictions(picture.taxa, picture.place),
        preview=answered.previews[index] if answered.previews else None,
    )


def _place_use(answered: Answered) -> PlaceUse | None:
    """Says what became of the place and the date; None if the request gave none."""
    asked = answered.asked
    if asked.where is None and asked.date is None and not asked.use_exif:
        return None
    if answered.plant.place is not None:
        return PlaceUse.of("used")
    if asked.cultivated:
        return PlaceUse.of("cultivated")
    if answered.loaded.answer_model.place is None:
        return PlaceUse.of("no_prior")
    if answered.question.where is not None:
        return PlaceUse.of("no_records")
    return PlaceUse.of("no_place_in_exif" if asked.use_exif else "date_without_place")


def _possible(ranked: list[_Ranked], question: Question) -> list[_Ranked]:
    """Leaves out what the request ruled out, which has the probability 0."""
    return ranked if question.allowed_T is None else [each for each in ranked if each.score > 0]
