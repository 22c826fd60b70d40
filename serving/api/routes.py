"""The routes beside POST /identify, which has a module of its own."""

import asyncio
from typing import Annotated, Final

import msgspec
from litestar import Response, get, post
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler
from typing_extensions import Doc

from models.errors import BundleError, InputError
from serving.api.identify import (
    AnyRequest,
    Deps,
    RouteDependencies,
    authorize,
    identify,
    request_id,
    unknown_parameters,
)
from serving.api.middleware import PUBLIC, revalidated
from serving.api.model_card import ModelCard, UploadLimits, model_card
from serving.api.openapi import ADMIN_KEY, OPTIONAL_KEY, documentation, operation, problem_responses
from serving.engine.loaded_bundle import LoadedBundle
from serving.errors import ReloadRefused, UnknownTaxon
from serving.schemas import Health, Language, Name, declared, read_parameters, wanted_languages
from serving.species import SpeciesDetail, SpeciesList, species_detail, species_list


class TaxonParameters(msgspec.Struct, frozen=True):
    """The query of GET /species/{taxon_id}."""

    lang: Language = None


class SearchParameters(msgspec.Struct, frozen=True):
    """The query of GET /species."""

    q: Annotated[
        Name,
        Doc("Start of a word of a scientific name, synonym, common name or family; empty matches all taxa"),
    ] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000), Doc("Maximum number of taxa to return")] = 20
    lang: Language = None


@get(
    "/species",
    tags=["model"],
    summary="Search the taxa that the model can name",
    operation_class=operation(SearchParameters),
    responses=problem_responses(400, 401, 422, 429, 500),
    security=OPTIONAL_KEY,
)
async def species(request: AnyRequest, deps: Deps) -> SpeciesList:
    """Finds taxa by the first letters of a word in one of their names, and says whether the model knows the name."""
    authorize(deps, request)
    wanted = read_parameters(SearchParameters, request.query_params.dict())
    names = deps.live_bundle.current.names
    warnings = unknown_parameters(request, declared(SearchParameters))
    languages = wanted_languages(wanted.lang, request.headers.get("accept-language", ""))
    # In a thread, because it compares every name, which is slow for many taxa.
    return await asyncio.to_thread(
        species_list, request_id(request), wanted.q, wanted.limit, names, languages=languages, warnings=warnings
    )


@get(
    "/species/{taxon_id:str}",
    tags=["model"],
    summary="One taxon that the model can name",
    operation_class=operation(TaxonParameters),
    responses=problem_responses(400, 401, 404, 422, 429, 500),
    security=OPTIONAL_KEY,
    sync_to_thread=False,
)
def taxon(
    request: AnyRequest,
    deps: Deps,
    taxon_id: Annotated[str, PathParameter(description="Identifier of the taxon, as in answers and in `/species`")],
) -> SpeciesDetail:
    """Describes one taxon: its accepted name with the author, its synonyms and its common names."""
    authorize(deps, request)
    loaded = deps.live_bundle.current
    found = loaded.taxonomy.by_id.get(taxon_id)
    if found is None:
        raise UnknownTaxon(
            "the model has no taxon with this id",
            value=repr(taxon_id[:40]),
            remedy="look for its name with /species?q=",
        )
    examples = loaded.examples_of(taxon_id)
    lang = read_parameters(TaxonParameters, request.query_params.dict()).lang
    languages = wanted_languages(lang, request.headers.get("accept-language", ""))
    return species_detail(request_id(request), found, loaded.num_calibration_plants(found), examples, languages)


@get(
    "/species/{taxon_id:str}/images/{number:int}",
    opt=PUBLIC,
    tags=["model"],
    summary="A reference picture of a taxon",
    responses=problem_responses(400, 404, 429, 500),
    media_type="image/webp",
)
async def taxon_image(
    deps: Deps,
    taxon_id: Annotated[str, PathParameter(description="Identifier of the taxon")],
    number: Annotated[int, PathParameter(description="Position of the picture, from 0")],
) -> Response[bytes]:
    """Gives a small picture of the taxon, WebP. It needs no key, so that a page can show it."""
    loaded = deps.live_bundle.current
    of_taxon = loaded.examples_of(taxon_id)
    if loaded.examples is None or not 0 <= number < len(of_taxon):
        raise UnknownTaxon(
            "there is no such reference picture",
            value=f"{taxon_id[:40]!r}, picture {number}",
            limit=f"{len(of_taxon)} pictures of this taxon",
            remedy="take an address that /species/{taxon_id} lists",
        )
    try:
        picture = await asyncio.to_thread(loaded.examples.picture, of_taxon[number])
    except BundleError as error:
        raise UnknownTaxon(
            "the reference pictures were written over after the service had loaded them",
            remedy="ask its operator to put the bundle back, or to reload it",
        ) from error
    return Response(picture, media_type="image/webp", headers={"Cache-Control": "max-age=86400"})


@get(
    "/model",
    opt=PUBLIC,
    tags=["model"],
    summary="The model that answers",
    responses=problem_responses(429, 500),
    after_request=revalidated,
    sync_to_thread=False,
)
def model(deps: Deps) -> ModelCard:
    """Describes the model that answers: its input, thresholds, figures, data sets and licenses."""
    return _card(deps, deps.live_bundle.current)


@post(
    "/admin/reload",
    status_code=200,
    tags=["admin"],
    summary="Reload the bundle",
    responses=problem_responses(401, 409, 429, 500, 503),
    security=ADMIN_KEY,
)
async def reload(request: AnyRequest, deps: Deps) -> ModelCard:
    """Verifies the bundle on disk, warms it up and switches to it. Needs an API key marked `admin`.

    Requests in progress finish with the bundle that they started with. A bundle that cannot be used is refused with
    the reason, and the current one stays.
    """
    deps.live_bundle.require_warm()
    authorize(deps, request, is_admin=True)
    try:
        return _card(deps, await deps.live_bundle.reload())
    except InputError as error:
        raise ReloadRefused(error.problem, value=error.value, limit=error.limit, remedy=error.remedy) from error


@get(
    "/health/live",
    tags=["health"],
    summary="Is the service alive?",
    sync_to_thread=False,
)
def live() -> Health:
    """Liveness probe: answers 200 as long as the event loop runs."""
    return Health("alive")


@get(
    "/health/ready",
    tags=["health"],
    summary="Is the service ready for requests?",
    responses=problem_responses(503),
    sync_to_thread=False,
)
def ready(deps: Deps) -> Health:
    """Readiness probe: answers 200 while the network is warm and healthy and the service is not shutting down."""
    deps.live_bundle.require_ready()
    return Health("ready")


@get("/metrics", include_in_schema=False, sync_to_thread=False, opt=PUBLIC)
def metrics_text(deps: Deps) -> Response[bytes]:
    """Returns the metrics in Prometheus' text format."""
    return Response(deps.metrics.recent_text(), media_type=deps.metrics.media_type)


ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    identify, species, taxon, taxon_image, model, reload, live, ready, documentation,
)  # fmt: skip


def _card(deps: RouteDependencies, loaded: LoadedBundle) -> ModelCard:
    limits = deps.body_limits
    uploads = UploadLimits(limits.num_pictures, limits.picture_bytes, limits.request_bytes)
    return model_card(loaded, uploads, deps.correction_days)
