"""Answers POST /identify: key and rate, admission, body, decoding, network, answer.

The work on the pictures is a task of its own, so that a deadline or a client that leaves ends it.
"""

import asyncio
import base64
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
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
from models.differences import differences
from models.errors import PictureError
from models.harmful import EFFECTS
from models.place import first_place
from models.preprocess import InputSpec
from models.ranking import RankedGroup, RankedTaxon
from serving.access.control import AccessControl, Client
from serving.api.openapi import IDENTIFY_BODY, OPTIONAL_KEY, PREFER, operation, problem_responses
from serving.engine.admission import Admission, AdmittedRequest
from serving.engine.bodies import Body, BodyLimits, FormNames, read_body, unknown_warnings
from serving.engine.decoding.pool import Decoded, DecoderPool
from serving.engine.loaded_bundle import LiveBundle, LoadedBundle
from serving.errors import BadPicture, ClientLeft, EncodedBody, TimedOut
from serving.metrics import Metrics
from serving.schemas import (
    CandidatesView,
    HarmView,
    Identification,
    ImageView,
    ModelName,
    Parameters,
    PlaceUse,
    Prediction,
    declared,
    parse_parameters,
    preferred_deadline,
    read_values,
    wanted_languages,
)
from serving.species import taxon_fields

_PREVIEW_PX: Final = 256
AnyRequest = Request[Any, Any, Any]
_Ranked = TypeVar("_Ranked", RankedTaxon, RankedGroup)


class RouteDependencies(msgspec.Struct, frozen=True):
    """The components that the routes use.

    They are one dependency because Litestar starts a task per dependency for every request.
    """

    admission: Admission
    access: AccessControl
    decoder: DecoderPool
    metrics: Metrics
    live_bundle: LiveBundle
    body_limits: BodyLimits
    deadline_s: float
    """Longest time from the complete upload to the answer, seconds."""
    on_answer: list["OnAnswer"] = msgspec.field(default_factory=list)
    """What plugins do with an answer before it is sent."""
    correction_days: int | None = None
    """How long corrections are kept, for `/model`; None if the service keeps none."""
    tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)
    """asyncio keeps only weak references to tasks, and the work on a request may outlive it."""


Deps = NamedDependency[RouteDependencies]


@post(
    "/identify",
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
    deps.live_bundle.require_warm()
    client = authorize(deps, request)
    query = read_values(Parameters, request.query_params.dict())
    wanted_s = preferred_deadline(request.headers.getall("prefer", []), deps.deadline_s)
    answered = await answer_pictures(request, deps, client, query, deadline_s=wanted_s or deps.deadline_s)
    for hook in deps.on_answer:
        await hook(request_id(request), client, answered)
    headers = {} if wanted_s is None else {"Preference-Applied": f"wait={wanted_s:g}"}
    languages = wanted_languages(answered.asked.lang, request.headers.get("accept-language", ""))
    warnings = [*unknown_parameters(request, declared(Parameters)), *answered.warnings]
    return Response(_identification(request_id(request), answered, languages, warnings), headers=headers)


async def answer_pictures(
    request: AnyRequest,
    deps: RouteDependencies,
    client: Client,
    query: Mapping[str, Any],
    *,
    deadline_s: float,
    names: FormNames = FormNames(),  # noqa: B008  # it is frozen
) -> "Answered":
    """The way of every identification: admission, body, decoding, network, answer.

    Args:
        request: Its body holds the pictures.
        deps: The components.
        client: Who asks; its questions of the day are counted.
        query: The parameters outside of the body, which take precedence over the fields of a form.
        deadline_s: Longest time from the complete upload to the answer, seconds.
        names: The names of the form's fields.
    """
    with deps.live_bundle.current.in_use() as loaded:
        loaded.selector.select(query.get("taxa", ()))  # refuses unknown names before the upload
        async with deps.admission.enter(client.identity) as admitted:
            request.scope["state"]["left_today"] = deps.access.count_for_the_day(client.name)
            body = await read(request, admitted, deps, names)
            asked = parse_parameters(body.fields, query)
            question, ignored = loaded.question(asked)
            deps.admission.start_work(admitted, len(body.pictures), deadline_s)
            body = msgspec.structs.replace(body, warnings=[*body.warnings, *ignored])
            work = _answer(deps, admitted, loaded=loaded, body=body, asked=asked, question=question)
            task = asyncio.create_task(work)
            deps.tasks.add(task)
            task.add_done_callback(deps.tasks.discard)
            answered = await _in_time(request, deps, admitted, task, deadline_s)
    deps.metrics.verdicts.labels(answered.plant.verdict.rank).inc()
    return answered


def authorize(
    deps: RouteDependencies, request: AnyRequest, secret: str | None = None, *, is_admin: bool = False
) -> Client:
    """Checks the API key, which is in the headers or is `secret`, and the rate, and tells the log and the headers."""
    address = request.client.host if request.client else None  # as the connection or a trusted proxy gives it
    if is_admin:
        client = deps.access.authorize_admin(request.headers, address)
    else:
        client = deps.access.authorize(request.headers, address, secret)
    request.scope["state"]["client"] = client.name
    request.scope["state"]["quota"] = deps.access.limit(client.identity)
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


class Answered(msgspec.Struct, frozen=True):
    """The answer about the plant that all pictures of a request show, with what was asked."""

    loaded: LoadedBundle
    body: Body
    asked: Parameters
    question: Question
    plant: PlantAnswer
    place: PlaceUse | None
    """What became of the place and the date; None if the request gave none."""
    sizes: list[tuple[int, int]]
    """Upright sizes of the pictures, (width, height) in px."""
    previews: Sequence[str | None]
    """Of each picture a small one as a data URL, if asked for."""
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""


OnAnswer = Callable[[str, Client, Answered], Awaitable[None]]
"""Called with the id of the request and its client."""


async def _in_time(
    request: AnyRequest,
    deps: RouteDependencies,
    admitted: AdmittedRequest,
    task: "asyncio.Task[Answered]",
    deadline_s: float,
) -> Answered:
    """Waits for the work on a request, and cancels it at the deadline or when the client has left.

    Raises:
        BadPicture: A picture was refused.
        RunFailed: The network fails on these pictures.
        TimedOut: The deadline passed.
        ClientLeft: The client disconnected.
    """
    disconnected = asyncio.create_task(_client_left(request))
    try:
        await asyncio.wait({task, disconnected}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if disconnected.done():
            deps.metrics.cancellations.labels(admitted.stage).inc()
            raise ClientLeft("the client disconnected before its answer was ready")
        raise TimedOut(
            "the answer was not ready in time",
            limit=f"at most {deadline_s:g} seconds",
            remedy="try again later, or with fewer or smaller pictures",
        )
    finally:
        task.cancel()
        disconnected.cancel()
        has_answer = task.done() and not task.cancelled() and task.exception() is None
        deps.admission.end_work(admitted, answered=has_answer)


async def _answer(
    deps: RouteDependencies,
    admitted: AdmittedRequest,
    *,
    loaded: LoadedBundle,
    body: Body,
    asked: Parameters,
    question: Question,
) -> Answered:
    """The work on a request whose body has been read: pictures, outputs of the network, answer."""
    decoded = await _decode_all(deps, admitted, loaded.spec, body.pictures)
    admitted.stage = "run"
    warnings = [*body.warnings]
    knows_places = loaded.answer_model.place is not None
    if knows_places and question.where is None and asked.use_exif and not asked.cultivated:
        where = first_place((picture.capture for picture in decoded), asked.date)
        question = msgspec.structs.replace(question, where=where)
    pixels = [picture.pixels for picture in decoded]
    alone = deps.admission.num_pictures == 1
    outputs = await loaded.scheduler.run(pixels, admitted.virtual_starts_s, alone=alone)
    with deps.metrics.stage_s.labels("rank").time():
        plant = loaded.answer(outputs, question)
    place = _place_use(asked, question, plant, knows_places=knows_places)
    if place is not None and place.code not in {"used", "cultivated"}:
        warnings.append(place.reason)
    previews: Sequence[str | None] = [None] * len(pixels)
    if asked.preview:
        previews = await asyncio.to_thread(lambda: [_preview(each, loaded.spec) for each in pixels])
    warnings += [
        f"Picture {number} is cut off at its end, where a few rows may be missing."
        for number, picture in enumerate(decoded, 1)
        if picture.is_cut_off
    ]
    sizes = [(picture.width, picture.height) for picture in decoded]
    return Answered(loaded, body, asked, question, plant, place, sizes, previews, warnings)


async def _decode_all(
    deps: RouteDependencies, admitted: AdmittedRequest, spec: InputSpec, pictures: Sequence[bytes]
) -> list[Decoded]:
    """Decodes every picture before any network run, so that a request with a bad picture needs no run."""
    asked_at = perf_counter()
    time = deps.decoder.decode_time()

    async def decode(data: bytes, virtual_start_s: float) -> Decoded:
        async with deps.admission.decoding.take(admitted.client, virtual_start_s):
            deps.metrics.stage_s.labels("wait").observe(perf_counter() - asked_at)
            return await deps.decoder.decode(data, spec, time)

    calls = map(decode, pictures, admitted.virtual_starts_s)
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


# ---- the answer as JSON


def _identification(
    id_of_request: str, answered: Answered, languages: Sequence[str], warnings: list[str]
) -> Identification:
    question = answered.question
    plant = answered.plant
    predictions = partial(_predictions, answered, languages)
    record = answered.loaded.bundle.record
    told = _possible([*plant.taxa, *plant.look_alikes, *(each.taxon for each in plant.harmful)], question)
    if plant.verdict.rank == "not_a_plant":
        told = []
    return Identification(
        request_id=id_of_request,
        model=ModelName(record.name, record.version, record.label_hash),
        verdict=plant.verdict,
        predictions=predictions(plant.taxa, plant.place),
        genera=_possible(plant.genera, question),
        families=_possible(plant.families, question),
        plant_score=plant.plant_score,
        candidates=_candidates_view(answered, languages),
        discarded_mass=plant.discarded_mass,
        uses_place=plant.place is not None,
        place=answered.place,
        look_alikes=predictions(plant.look_alikes, plant.place),
        guess=plant.guess,
        harmful=[
            HarmView(taxon.genus, each.harm.kind, EFFECTS[each.harm.kind], each.score, taxon, each.is_likely)
            for each in plant.harmful
            for taxon in predictions([each.taxon], plant.place)
        ],
        differences=differences(list({each.taxon.taxon_id: each.taxon for each in told}.values())),
        images=[
            ImageView(
                index=index,
                width=width,
                height=height,
                plant_score=picture.plant_score,
                weight=picture.weight,
                predictions=predictions(picture.taxa, picture.place),
                looks_different=picture.looks_different,
                preview=preview,
            )
            for index, (picture, (width, height), preview) in enumerate(
                zip(plant.pictures, answered.sizes, answered.previews, strict=True)
            )
        ],
        warnings=warnings,
    )


def _predictions(
    answered: Answered, languages: Sequence[str], ranked: list[RankedTaxon], place: PlaceNote | None
) -> list[Prediction]:
    loaded = answered.loaded
    return [
        Prediction(
            position=position,
            **taxon_fields(each.taxon, languages),
            score=each.score,
            vision_score=None if place is None else float(place.vision_T[at]),
            prior=None if place is None else float(place.ratio_T[at]),
            num_images=len(loaded.examples_of(each.taxon.taxon_id)),
        )
        for position, each in enumerate(_possible(ranked, answered.question), start=1)
        for at in [loaded.taxonomy.position_of[each.taxon.taxon_id]]
    ]


def _candidates_view(answered: Answered, languages: Sequence[str]) -> CandidatesView | None:
    question = answered.question
    plant = answered.plant
    found = plant.candidates
    if found is None or question.coverage is None:
        return None
    network = answered.loaded.bundle.network(answered.loaded.precision)
    is_measured = found.guarantee is not None and plant.place is None
    return CandidatesView(
        coverage=question.coverage,
        kind=question.coverage_kind,
        guarantee=found.guarantee,
        num_taxa=found.num_taxa,
        score=found.score,
        taxa=_predictions(answered, languages, found.taxa, plant.place),
        num_uncalibrated_taxa=found.num_uncalibrated_taxa,
        measured=network.measured(question.coverage_kind, question.coverage) if is_measured else None,
    )


def _place_use(asked: Parameters, question: Question, plant: PlantAnswer, *, knows_places: bool) -> PlaceUse | None:
    if asked.where is None and asked.date is None and not asked.use_exif:
        return None
    if plant.place is not None:
        return PlaceUse.of("used")
    if asked.cultivated:
        return PlaceUse.of("cultivated")
    if not knows_places:
        return PlaceUse.of("no_prior")
    if question.where is not None:
        return PlaceUse.of("no_records")
    return PlaceUse.of("no_place_in_exif" if asked.use_exif else "date_without_place")


def _possible(ranked: list[_Ranked], question: Question) -> list[_Ranked]:
    """Leaves out what the request ruled out, which has the probability 0."""
    return ranked if question.allowed_T is None else [each for each in ranked if each.score > 0]
