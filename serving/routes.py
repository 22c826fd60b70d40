"""The routes of the service. They read requests, call the components and write responses."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from models.errors import InputError
from serving.access.control import AccessControl, Client
from serving.admission import Admission, AdmittedRequest, Readiness
from serving.bodies import Body, BodyLimits, read_body, unknown_warnings
from serving.errors import ClientLeft, ReloadRefused, UnknownTaxon
from serving.identify import Identifier, identification
from serving.loaded_bundle import LiveBundle
from serving.metrics import Metrics
from serving.middleware import revalidated
from serving.model_card import ModelCard, UploadLimits, model_card
from serving.pages import (
    ADMIN_KEY,
    OPTIONAL_KEY,
    IdentifyOperation,
    page_routes,
    problem_responses,
    whole_number_schema,
)
from serving.schemas import (
    MAX_FIELD_BYTES,
    MAX_NAME_LENGTH,
    Health,
    Identification,
    check_name_length,
    parse_parameters,
    parse_whole_number,
    preferred_deadline,
)
from serving.species import SpeciesDetail, SpeciesList, species_detail, species_list

AnyRequest = Request[Any, Any, Any]

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 200


class IdentifyLimits(msgspec.Struct, frozen=True):
    """Limits of an identify request."""

    body: BodyLimits
    deadline_s: float
    """Longest time from the complete upload to the answer, seconds."""

    @property
    def upload(self) -> UploadLimits:
        """What `/model` says of them."""
        return UploadLimits(self.body.num_pictures, self.body.picture_bytes, self.body.request_bytes)


class RouteDependencies(msgspec.Struct, frozen=True):
    """The components that the routes use.

    They are one dependency because Litestar starts a task per dependency for every request.
    """

    admission: Admission
    access: AccessControl
    identifier: Identifier
    readiness: Readiness
    metrics: Metrics
    live_bundle: LiveBundle
    limits: IdentifyLimits


@post(
    "/identify",
    status_code=200,
    tags=["identify"],
    summary="Identify a plant",
    operation_id="identify",
    operation_class=IdentifyOperation,
    response_description="The answer",
    responses=problem_responses(400, 401, 408, 413, 415, 422, 429, 500, 503, 504),
)
async def identify(
    request: AnyRequest,
    deps: NamedDependency[RouteDependencies],
) -> Response[Identification]:
    """Identifies the plant on one to five photographs.

    Send them as `multipart/form-data` with the field `image` repeated, or one picture as the whole body.
    """
    # Everything up to admission runs before the body is read, so that a refusal is cheap.
    deps.readiness.require_warm()
    client = _authorize(deps.access, request)
    query = request.query_params.dict()
    asked = parse_parameters(query)
    deps.live_bundle.current.question(asked)  # refuses names that it does not know
    longest_s = deps.limits.deadline_s
    wanted_s = preferred_deadline(request.headers.getall("prefer", []), longest_s)
    async with deps.admission.enter(client.identity) as admitted:
        body = await _read(request, admitted, deps)
        if body.fields:
            parse_parameters(body.fields)  # a wrong field is an error, even if the query overrides it
            asked = parse_parameters(body.fields | query)
        answer = await deps.identifier.identify(
            admitted,
            body.pictures,
            asked,
            deadline_s=wanted_s or longest_s,
            client_left=_client_left(request.receive),
        )
    warnings = [*_unknown_parameters(request, MAX_FIELD_BYTES), *body.warnings, *answer.warnings]
    headers = {} if wanted_s is None else {"Preference-Applied": f"wait={wanted_s:g}"}
    return Response(identification(_request_id(request), answer, warnings), headers=headers)


@get(
    "/species",
    tags=["model"],
    summary="Search the taxa that the model can name",
    operation_id="species",
    responses=problem_responses(400, 401, 422, 429, 500),
    security=OPTIONAL_KEY,
)
async def species(
    request: AnyRequest,
    deps: NamedDependency[RouteDependencies],
    q: Annotated[
        str,
        QueryParameter(
            description="Start of a word of a scientific name, synonym, common name or family; empty matches all taxa",
            schema_extra={"maxLength": MAX_NAME_LENGTH},
        ),
    ] = "",
    limit: Annotated[
        str,
        QueryParameter(
            description="Maximum number of taxa to return", schema_extra=whole_number_schema(_MAX_LIMIT, _DEFAULT_LIMIT)
        ),
    ] = str(_DEFAULT_LIMIT),
) -> SpeciesList:
    """Finds taxa by the first letters of a word in one of their names, and says whether the model knows the name."""
    _authorize(deps.access, request)
    max_taxa = parse_whole_number("limit", limit, _MAX_LIMIT)
    check_name_length("q", q)
    names, warnings = deps.live_bundle.current.names, _unknown_parameters(request, {"q", "limit"})
    # In a thread, because it compares every name, which is slow for many taxa.
    return await asyncio.to_thread(species_list, _request_id(request), q, max_taxa, names, warnings)


@get(
    "/species/{taxon_id:str}",
    tags=["model"],
    summary="One taxon that the model can name",
    operation_id="taxon",
    responses=problem_responses(400, 401, 404, 429, 500),
    security=OPTIONAL_KEY,
    sync_to_thread=False,
)
def taxon(
    request: AnyRequest,
    deps: NamedDependency[RouteDependencies],
    taxon_id: Annotated[str, PathParameter(description="Identifier of the taxon, as in answers and in `/species`")],
) -> SpeciesDetail:
    """Describes one taxon: its accepted name with the author, its synonyms and its common names."""
    _authorize(deps.access, request)
    loaded = deps.live_bundle.current
    found = loaded.taxonomy.by_id.get(taxon_id)
    if found is None:
        raise UnknownTaxon(
            "the model has no taxon with this id",
            value=repr(taxon_id[:40]),
            remedy="look for its name with /species?q=",
        )
    return species_detail(_request_id(request), found, loaded.num_calibration_plants(found))


@get(
    "/model",
    tags=["model"],
    summary="The model that answers",
    operation_id="model",
    responses=problem_responses(429, 500),
    after_request=revalidated,
    sync_to_thread=False,
)
def model(deps: NamedDependency[RouteDependencies]) -> ModelCard:
    """Describes the model that answers: its input, thresholds, figures, data sets and licenses."""
    return model_card(deps.live_bundle.current, deps.limits.upload)


@post(
    "/admin/reload",
    status_code=200,
    tags=["admin"],
    summary="Reload the bundle",
    operation_id="reload",
    responses=problem_responses(401, 409, 429, 500, 503),
    security=ADMIN_KEY,
)
async def reload(request: AnyRequest, deps: NamedDependency[RouteDependencies]) -> ModelCard:
    """Verifies the bundle on disk, warms it up and switches to it. Needs an API key marked `admin`.

    Requests in progress finish with the bundle that they started with. A bundle that cannot be used is refused with
    the reason, and the current one stays.
    """
    deps.readiness.require_warm()
    _count(deps.access, request, deps.access.authorize_admin(request.headers, _address(request)))
    try:
        return model_card(await deps.live_bundle.reload(), deps.limits.upload)
    except InputError as error:
        raise ReloadRefused(error.problem, value=error.value, limit=error.limit, remedy=error.remedy) from error


@get("/health/live", tags=["health"], summary="Is the service alive?", operation_id="live", sync_to_thread=False)
def live() -> Health:
    """Liveness probe: answers 200 as long as the event loop runs."""
    return Health("alive")


@get(
    "/health/ready",
    tags=["health"],
    summary="Is the service ready for requests?",
    operation_id="ready",
    responses=problem_responses(503),
    sync_to_thread=False,
)
def ready(deps: NamedDependency[RouteDependencies]) -> Health:
    """Readiness probe: answers 200 while the network is warm and healthy and the service is not shutting down."""
    deps.readiness.require_ready()
    return Health("ready")


@get("/metrics", include_in_schema=False, sync_to_thread=False)
def metrics_text(deps: NamedDependency[RouteDependencies]) -> Response[bytes]:
    """Returns the metrics in Prometheus' text format."""
    return Response(deps.metrics.recent_text(), media_type=deps.metrics.media_type)


def route_handlers(*, with_metrics: bool = True) -> list[ControllerRouterHandler]:
    """Returns every route of the service, by default with `/metrics`."""
    shown = [metrics_text] if with_metrics else []
    return [identify, species, taxon, model, reload, live, ready, *shown, *page_routes()]


def _authorize(access: AccessControl, request: AnyRequest) -> Client:
    """Checks the API key and the rate."""
    client = access.authorize(request.headers, _address(request))
    _count(access, request, client)
    return client


def _count(access: AccessControl, request: AnyRequest, client: Client) -> None:
    request.scope["state"]["client"] = client.name
    request.scope["state"]["quota"] = access.limit(client.identity)


def _address(request: AnyRequest) -> str | None:
    return request.client.host if request.client else None


async def _read(request: AnyRequest, admitted: AdmittedRequest, deps: RouteDependencies) -> Body:
    async def receive() -> Mapping[str, Any]:
        message: Mapping[str, Any] = await request.receive()
        deps.admission.hold(admitted, len(message.get("body", b"")))
        return message

    content_type, content_length = request.headers.get("content-type", ""), request.headers.get("content-length")
    try:
        with deps.metrics.stage("read"):
            return await read_body(content_type, content_length, receive, deps.limits.body)
    except ClientLeft:
        deps.metrics.cancellation("read")
        raise


async def _client_left(receive: Callable[[], Awaitable[Any]]) -> None:
    """Completes when the client disconnects. Call it once the body is read, when nothing else can be received."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _unknown_parameters(request: AnyRequest, known: Iterable[str]) -> list[str]:
    return unknown_warnings("query parameter", [name for name in request.query_params if name not in set(known)])


def _request_id(request: AnyRequest) -> str:
    return str(request.scope["state"]["request_id"])
