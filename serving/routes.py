"""HTTP in, HTTP out, no thinking."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from serving.admission import Admission
from serving.bodies import Body, BodyLimits, read_body, unknown_warnings
from serving.documentation import IdentifyOperation, problem_responses, whole_number_schema
from serving.errors import BadParameter, SlowBody
from serving.identify import Identifier
from serving.metrics import Metrics
from serving.pages import files, page
from serving.schemas import (
    DEFAULT_K,
    MAX_K,
    Health,
    Identification,
    ModelCard,
    ModelName,
    SpeciesList,
    identification,
    species_entry,
)

AnyRequest = Request[Any, Any, Any]

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 200
_MAX_QUERY_LENGTH: Final = 200


class UploadRules(msgspec.Struct, frozen=True):
    """How uploads are taken."""

    limits: BodyLimits
    seconds: float
    """Longest time for one upload."""
    held: Admission
    """Turns for requests whose bytes are held in memory."""


@post(
    "/identify",
    status_code=200,
    tags=["identify"],
    summary="Identify a plant",
    operation_id="identify",
    operation_class=IdentifyOperation,
    response_description="The answer",
    responses=problem_responses(400, 408, 413, 415, 422, 500, 503, 504),
)
async def identify(
    request: AnyRequest,
    *,
    identifier: NamedDependency[Identifier],
    model: NamedDependency[ModelName],
    uploads: NamedDependency[UploadRules],
    metrics: NamedDependency[Metrics],
    k: Annotated[
        str,
        QueryParameter(
            description="How many taxa, genera and families to list",
            schema_extra=whole_number_schema(MAX_K, DEFAULT_K),
        ),
    ] = str(DEFAULT_K),
) -> Identification:
    """Tells which plant one to five photographs show.

    Send them as `multipart/form-data` with the field `image` repeated, or one picture as the whole body.
    """
    identifier.require_ready()
    top_k = _whole_number("k", k, MAX_K)  # before the body is read: a refusal shall cost little
    async with uploads.held.turn():
        with metrics.stage("read"):
            body = await _read(request, uploads)
        if body.k is not None and "k" not in request.query_params:
            top_k = _whole_number("k", body.k, MAX_K)
        answer = await identifier.identify(body.pictures, top_k, _client_left(request.receive))
    warnings = [*_unknown_parameters(request, {"k"}), *body.warnings]
    return identification(_request_id(request), model, answer, warnings)


@get(
    "/species",
    tags=["model"],
    summary="Search the taxa that the model can name",
    operation_id="species",
    responses=problem_responses(400, 422, 500),
    sync_to_thread=True,  # a search folds every name of a large taxonomy
)
def species(
    request: AnyRequest,
    identifier: NamedDependency[Identifier],
    q: Annotated[
        str,
        QueryParameter(
            description="Start of a word of a scientific name, synonym, common name or family; empty finds every taxon",
            schema_extra={"maxLength": _MAX_QUERY_LENGTH},
        ),
    ] = "",
    limit: Annotated[
        str,
        QueryParameter(description="Most taxa to give", schema_extra=whole_number_schema(_MAX_LIMIT, _DEFAULT_LIMIT)),
    ] = str(_DEFAULT_LIMIT),
) -> SpeciesList:
    """Finds taxa by the start of a word of one of their names."""
    most = _whole_number("limit", limit, _MAX_LIMIT)
    if len(q) > _MAX_QUERY_LENGTH:
        raise BadParameter(
            "the parameter `q` is too long",
            value=f"{len(q)} characters",
            limit=f"at most {_MAX_QUERY_LENGTH}",
            remedy="search for the start of one name",
        )
    found = identifier.taxonomy.search(q, most)
    return SpeciesList(
        request_id=_request_id(request),
        species=[species_entry(taxon) for taxon in found],
        total=len(identifier.taxonomy.taxa),
        warnings=_unknown_parameters(request, {"q", "limit"}),
    )


@get(
    "/model",
    tags=["model"],
    summary="The model that answers",
    operation_id="model",
    responses=problem_responses(500),
    sync_to_thread=False,
)
def model_card_of(card: NamedDependency[ModelCard]) -> ModelCard:
    """Tells everything the bundle says about the model that answers."""
    return card


@get("/health/live", tags=["health"], summary="Is it alive?", operation_id="live", sync_to_thread=False)
def live() -> Health:
    """Answers as long as the event loop turns."""
    return Health("alive")


@get(
    "/health/ready",
    tags=["health"],
    summary="Does it take requests?",
    operation_id="ready",
    responses=problem_responses(503),
    sync_to_thread=False,
)
def ready(identifier: NamedDependency[Identifier]) -> Health:
    """Answers 200 once the network is loaded and warmed up."""
    identifier.require_ready()
    return Health("ready")


@get("/metrics", include_in_schema=False, sync_to_thread=False)
def metrics_text(metrics: NamedDependency[Metrics]) -> Response[bytes]:
    """Gives the metrics in Prometheus' text format."""
    return Response(metrics.text(), media_type=metrics.media_type)


def handlers() -> list[ControllerRouterHandler]:
    """Every route of the service."""
    return [identify, species, model_card_of, live, ready, metrics_text, page, files()]


async def _read(request: AnyRequest, uploads: UploadRules) -> Body:
    headers = request.headers
    try:
        async with asyncio.timeout(uploads.seconds):
            return await read_body(
                headers.get("content-type", ""), headers.get("content-length"), request.receive, uploads.limits
            )
    except TimeoutError:
        raise SlowBody(
            "the upload did not arrive in time",
            limit=f"at most {uploads.seconds:g} seconds",
            remedy="send smaller pictures or use a faster connection",
        ) from None


async def _client_left(receive: Callable[[], Awaitable[Any]]) -> None:
    """Ends when the connection does; to be called once the body is read, when nothing else can be received."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _whole_number(name: str, text: str, most: int) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= most:
        return int(text)
    raise BadParameter(
        f"the parameter `{name}` is out of its range",
        value=repr(text[:40]),
        limit=f"a whole number from 1 to {most}",
        remedy="send such a number, or leave the parameter out",
    )


def _unknown_parameters(request: AnyRequest, known: Iterable[str]) -> list[str]:
    return unknown_warnings("query parameter", [name for name in request.query_params if name not in set(known)])


def _request_id(request: AnyRequest) -> str:
    return str(request.scope["state"]["request_id"])
