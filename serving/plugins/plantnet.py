"""The interface of Pl@ntNet (my-api.plantnet.org, version 2), so that programs written for it work with this service.

Only names, forms and errors are translated; the pictures go the way of POST /identify. What this service cannot know,
such as the organ on a picture, is empty. Source: the API's documentation at my.plantnet.org/doc and its examples.
"""

import asyncio
import re
from collections.abc import Mapping
from hashlib import md5
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
from litestar import Response, get, post
from litestar.config.app import AppConfig
from litestar.params import PathParameter
from litestar.plugins import InitPlugin
from typing_extensions import Doc

from models.harmful import Harm, harms_of
from models.ranking import RankedTaxon
from models.scoring import LIKELIER_OUTSIDE
from models.taxonomy import Taxon
from serving.access.control import Client
from serving.api.identify import AnyRequest, Deps, RouteDependencies, answer_pictures, authorize
from serving.api.middleware import PUBLIC
from serving.api.openapi import IMAGES, form_body, operation, problem_responses
from serving.engine.bodies import FormNames
from serving.engine.loaded_bundle import LoadedBundle
from serving.errors import BadParameter, RequestError, Unauthorized
from serving.schemas import MAX_K, filled_in, read_parameters
from serving.species import ALL_TAXA, LIST_PREFIX

UNLIMITED: Final = 2**31 - 1
"""Remaining requests where the service sets no rate: the largest number that programs can be expected to read."""
LANGUAGE: Final = "en"
_FORM: Final = FormNames("images", {"organs": 64})
# Python 3.13 has other phrases for these; an answer does not depend on the version.
_PHRASES: Final = {413: "Request Entity Too Large", 422: "Unprocessable Entity"}
ProjectName = Annotated[str, PathParameter(description="`all`, or the name of a list of taxa of this service")]


class PlantnetParameters(msgspec.Struct, frozen=True, rename="kebab"):
    """The query of POST /v2/identify."""

    api_key: Annotated[str, Doc("An API key, if the service has API keys")] = ""
    nb_results: Annotated[int, msgspec.Meta(ge=1, le=999_999_999), Doc("Maximum number of species to list")] = 10
    no_reject: Annotated[bool, Doc("List species even if the pictures show no plant")] = False
    lang: Annotated[str, Doc("Language of the common names")] = LANGUAGE
    reject_uncertain: Annotated[bool, Doc("Give 404 where no name is certain enough")] = False
    include_related_images: Annotated[bool, Doc("Give reference pictures, if the model has some")] = False


class Query(msgspec.Struct, frozen=True, rename="camel"):
    """What was asked."""

    project: str
    images: list[str]
    """MD5 of each picture, hexadecimal."""
    organs: list[str]
    include_related_images: bool
    no_reject: bool
    type: None = None


class Name(msgspec.Struct, frozen=True, rename="camel"):
    """A scientific name."""

    scientific_name_without_author: str
    scientific_name_authorship: str
    """Empty if unknown."""
    scientific_name: str


class Species(Name, frozen=True, rename="camel"):
    """A species, its genus and its family."""

    genus: Name
    family: Name
    common_names: list[str]


class Id(msgspec.Struct, frozen=True):
    """An identifier in another data base."""

    id: str


class RelatedImage(msgspec.Struct, frozen=True):
    """A picture of the species."""

    organ: str
    """Empty: the model does not know it."""
    author: str
    license: str
    citation: str
    url: dict[str, str]
    """Of the original (o), the medium (m) and the small (s) size, which are one picture here."""


class Result(msgspec.Struct, frozen=True):
    """A species and its probability."""

    score: float
    """Probability in [0, 1], among all taxa of the model: low where the project lacks the plant."""
    species: Species
    gbif: Id | None
    powo: Id | None
    images: list[RelatedImage]
    """Reference pictures of the species, if the request asks for them and the model has some."""
    harms: list[Harm]
    """How it harms who touches or eats it; this service adds it."""


class PlantnetAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to POST /v2/identify."""

    query: Query
    predicted_organs: list[dict[str, Any]]
    """Empty: the model tells no organs."""
    language: str
    prefered_referential: str
    """Name of the model. The word is misspelt in the interface."""
    best_match: str | None
    """None for a plant that the model does not seem to know, unless the request has `reject-uncertain=false`."""
    results: list[Result]
    remaining_identification_requests: int
    version: str
    warnings: list[str]
    """What this service adds: a sentence if no name is certain enough, and what else there is to know."""


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """A choice of taxa."""

    id: str
    title: str
    description: str
    species_count: int


class ListedSpecies(msgspec.Struct, frozen=True, rename="camel"):
    """A taxon of GET /v2/species."""

    id: str
    common_names: list[str]
    scientific_name_without_author: str
    scientific_name_authorship: str
    gbif_id: int | None
    powo_id: str | None
    iucn_category: None = None


class Failure(msgspec.Struct, frozen=True, rename="camel"):
    """An error."""

    status_code: int
    error: str
    """The HTTP status in words."""
    message: str


class NotFound(RequestError):
    """The project is not known, or the pictures show none of its species."""

    code = "not_found"

    def __str__(self) -> str:
        return self.problem  # without the period: programs compare it


class Plantnet(InitPlugin):
    """Adds the routes of the interface, and gives errors below /v2 in its form; logged and counted as our own."""

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Adds the routes, and wraps what answers errors."""
        problem_response = app_config.exception_handlers[Exception]

        def failure(request: AnyRequest, error: Exception) -> Response[Any]:
            response = problem_response(request, error)
            problem = response.content
            if problem is None or not request.scope["path"].startswith("/v2/"):
                return response
            status = HTTPStatus(problem.status)
            found = Failure(status, _PHRASES.get(status, status.phrase), problem.detail)
            return Response(found, status_code=status, headers=dict(response.headers))

        app_config.exception_handlers[Exception] = failure
        app_config.route_handlers += [plantnet_identify, identify_addresses, status, languages, projects, species]
        return app_config


@post(
    "/v2/identify/{project:str}",
    status_code=200,
    tags=["Pl@ntNet's interface"],
    summary="Identify a plant, as Pl@ntNet does",
    operation_class=operation(
        PlantnetParameters,
        form_body(
            {"images": IMAGES, "organs": {"type": "array", "items": {"type": "string"}, "description": "Ignored"}},
            required="images",
        ),
    ),
    responses=problem_responses(
        400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504, record=Failure, media_type="application/json"
    ),
)
async def plantnet_identify(request: AnyRequest, deps: Deps, project: ProjectName) -> Response[PlantnetAnswer]:
    """Identifies the plant on one to five photographs, the fields `images` of a form."""
    deps.live_bundle.require_warm()
    client = _authorize(request, deps, project)
    chosen = deps.live_bundle.current.selector.lists.get(project)
    if chosen is not None and not chosen.chosen_T.any():
        raise NotFound("The model can name no species of this project")
    number = {"nb-results": request.query_params.getall("nb-results", [])}
    asked = {
        "k": min(read_parameters(PlantnetParameters, number).nb_results, MAX_K),
        "taxa": () if project == ALL_TAXA else (f"{LIST_PREFIX}{project}",),
    }
    answered = await answer_pictures(request, deps, client, asked, deadline_s=deps.deadline_s, names=_FORM)
    no_reject = _is_on(request, "no-reject")
    with_images = _is_on(request, "include-related-images")
    verdict = answered.plant.verdict
    is_rejected = verdict.rank == "not_a_plant" or (verdict.rank == "uncertain" and _is_on(request, "reject-uncertain"))
    if is_rejected and not no_reject:
        raise NotFound("Species not found")
    is_unknown = verdict.unknown_plant and "reject-uncertain" not in request.query_params
    pictures = answered.body.pictures
    loaded = answered.loaded
    record = loaded.bundle.record
    hashes = await asyncio.to_thread(lambda: [md5(each, usedforsecurity=False).hexdigest() for each in pictures])
    organs = filled_in(answered.body.fields).get("organs", [])
    if len(organs) > len(pictures):
        raise BadParameter(
            "there is an organ without a picture",
            value=f"{len(organs)} organs",
            limit=f"at most {len(pictures)}, the number of pictures",
            remedy="send one field `organs` for each field `images`, or none",
        )
    language = _language(request)
    discarded = answered.plant.discarded_mass or 0.0
    doubt = "The plant may be none of this project" if discarded >= LIKELIER_OUTSIDE else ""
    if verdict.rank in {"uncertain", "not_a_plant"}:
        doubt = "No name is certain enough"
    results = [
        _result(each, 1 - discarded, language, _images(request, loaded, each.taxon) if with_images else [])
        for each in answered.plant.taxa
        if each.score > 0
    ]
    answer = PlantnetAnswer(
        query=Query(
            project=project,
            images=hashes,
            organs=[*organs, *["auto"] * (len(pictures) - len(organs))],
            include_related_images=with_images,
            no_reject=no_reject,
        ),
        predicted_organs=[],
        language=language,
        prefered_referential=record.name,
        best_match=None if is_unknown else results[0].species.scientific_name,
        results=results,
        remaining_identification_requests=_remaining(request.scope["state"]),
        version=f"{record.created[:10]} ({record.version})",
        warnings=[*([f"{doubt}: {verdict.reason}"] if doubt else []), *answered.warnings],
    )
    return Response(answer)


@get("/v2/identify/{project:str}", include_in_schema=False, sync_to_thread=False)
def identify_addresses(request: AnyRequest, deps: Deps, project: ProjectName) -> None:
    """Refuses addresses of pictures: the service fetches nothing from other servers."""
    _authorize(request, deps, project)
    raise BadParameter(
        "this service fetches no pictures from addresses",
        remedy="send the pictures themselves with POST, as the form fields `images`",
    )


@get("/v2/_status", include_in_schema=False, sync_to_thread=False, opt=PUBLIC)
def status(deps: Deps) -> dict[str, str]:
    """Says that the service answers."""
    deps.live_bundle.require_ready()
    return {"status": "ok"}


@get("/v2/languages", include_in_schema=False, sync_to_thread=False)
def languages(request: AnyRequest, deps: Deps) -> list[str]:
    """The languages of common names."""
    _authorize(request, deps)
    return sorted({LANGUAGE, *(each for taxon in deps.live_bundle.current.taxonomy.taxa for each in taxon.names)})


@get("/v2/projects", include_in_schema=False, sync_to_thread=False)
def projects(request: AnyRequest, deps: Deps) -> list[Project]:
    """All taxa, and the lists of taxa that the operator keeps."""
    _authorize(request, deps)
    loaded = deps.live_bundle.current
    record = loaded.bundle.record
    lists = loaded.selector.lists
    everything = Project(ALL_TAXA, record.name, record.description, len(loaded.taxonomy.taxa))
    return [everything, *(Project(name, name, "", int(choice.chosen_T.sum())) for name, choice in lists.items())]


@get(["/v2/species", "/v2/projects/{project:str}/species"], include_in_schema=False)
async def species(request: AnyRequest, deps: Deps, project: ProjectName = ALL_TAXA) -> Response[bytes]:
    """The taxa of a project."""
    _authorize(request, deps, project)
    loaded = deps.live_bundle.current
    language = _language(request)
    taxa = loaded.taxonomy.taxa
    chosen_T = np.ones(len(taxa), bool) if project == ALL_TAXA else loaded.selector.lists[project].chosen_T

    def listed() -> bytes:  # thousands of taxa take the event loop too long
        return msgspec.json.encode(
            [
                ListedSpecies(
                    taxon.taxon_id,
                    list(taxon.names_in(language)),
                    taxon.scientific_name,
                    taxon.author,
                    taxon.gbif_id,
                    taxon.powo_id or None,
                )
                for taxon in (taxa[index] for index in np.flatnonzero(chosen_T))
            ]
        )

    return Response(await asyncio.to_thread(listed), media_type="application/json")


def _authorize(request: AnyRequest, deps: RouteDependencies, project: str = ALL_TAXA) -> Client:
    """Checks the key, which may be a query parameter, the rate, and that there is such a project."""
    try:
        client = authorize(deps, request, request.query_params.get("api-key") or None)
    except Unauthorized as error:
        raise Unauthorized(error.problem, remedy="send a key as the parameter `api-key` of the query") from error
    if project != ALL_TAXA and project not in deps.live_bundle.current.selector.lists:
        raise NotFound("Project not found")
    return client


def _language(request: AnyRequest) -> str:
    return request.query_params.get("lang", "").strip()[:20].lower().replace("_", "-") or LANGUAGE


def _is_on(request: AnyRequest, name: str) -> bool:
    return request.query_params.get(name, "").lower() in {"true", "1", "on"}


def _result(found: RankedTaxon, kept_mass: float, language: str, images: list[RelatedImage]) -> Result:
    taxon = found.taxon
    return Result(
        score=found.score * kept_mass,
        species=Species(
            **msgspec.structs.asdict(_name(taxon.scientific_name, taxon.author)),
            genus=_name(taxon.genus),
            family=_name(taxon.family),
            common_names=list(taxon.names_in(language)),
        ),
        gbif=None if taxon.gbif_id is None else Id(str(taxon.gbif_id)),
        powo=Id(taxon.powo_id) if taxon.powo_id else None,
        images=images,
        harms=harms_of(taxon.scientific_name, taxon.genus),
    )


def _images(request: AnyRequest, loaded: LoadedBundle, taxon: Taxon) -> list[RelatedImage]:
    at = f"{request.base_url}species/{quote(taxon.taxon_id, safe='')}/images"
    return [
        RelatedImage(
            organ="",
            author=each.author,
            license=each.license,
            citation=", ".join(filter(None, (each.author, each.source, each.license))),
            url=dict.fromkeys(("o", "m", "s"), f"{at}/{number}"),
        )
        for number, each in enumerate(loaded.examples_of(taxon.taxon_id))
    ]


def _name(name: str, author: str = "") -> Name:
    return Name(name, author, f"{name} {author}".strip())


def _remaining(state: Mapping[str, Any]) -> int:
    """Reads the header RateLimit that the answer gets, `"client";r=19;t=3`, and the quota of the day."""
    found = re.search(r";r=(\d+)", state["quota"].get("RateLimit", ""))
    return int(min(int(found[1]) if found else UNLIMITED, state["left_today"]))
