"""Plugin: POST /identify/{request_id}/correction, what a person says of an answer, and its withdrawal."""

import asyncio
import hashlib
import secrets
import unicodedata
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final

import msgspec
from litestar import Litestar, delete, post
from litestar.config.app import AppConfig
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter
from litestar.plugins import InitPlugin
from typing_extensions import Doc

from models.errors import InputError
from serving.access.control import Client
from serving.api.identify import Answered, AnyRequest, Deps, RouteDependencies, authorize, read
from serving.api.openapi import IMAGES, OPTIONAL_KEY, form_body, operation, problem_responses
from serving.corrections.record import Correction
from serving.corrections.service import CorrectionService, RecentAnswer
from serving.engine.bodies import Body, FormNames
from serving.errors import BadParameter, MalformedBody
from serving.schemas import Name, declared, field_bytes, filled_in, read_parameters
from serving.settings import Settings

_MAX_REMEMBERED: Final = 10  # taxa of an answer that can be corrected
Service = NamedDependency[CorrectionService]
# Persian, Hindi and Sinhala are spelled with them. Other characters that are not shown, such as those that reverse the
# direction of a text, are refused.
_JOINERS: Final = dict.fromkeys(map(ord, "\u200c\u200d"))


class CorrectionView(msgspec.Struct, frozen=True):
    """A correction that is kept."""

    correction_id: str
    """With it, `DELETE /corrections/{correction_id}` takes the correction back."""
    taxon_id: str | None
    """What the plant is; null if the model does not know that plant."""
    name: str
    num_pictures: int
    """Number of pictures that are kept."""
    days: int
    """How long they are kept."""


class CorrectionParameters(msgspec.Struct, frozen=True):
    """What the plant is: one of `taxon` and `other`."""

    taxon: Annotated[Name, Doc("What the plant is: a taxon id, or a name that means one taxon of the model")] = ""
    other: Annotated[Name, Doc("What the plant is, in words, if the model does not know it")] = ""
    certain: Annotated[bool, Doc("Whether you are certain")] = False


_FORM: Final = FormNames(parameters=field_bytes(CorrectionParameters), needs_image=False)


@post(
    "/identify/{id_of_request:str}/correction",
    status_code=200,
    tags=["corrections"],
    summary="Say what the plant is",
    operation_class=operation(
        CorrectionParameters,
        form_body(
            {"image": IMAGES, **declared(CorrectionParameters)},
            "The pictures that may be kept, the same bytes as were identified; none keeps none",
        ),
    ),
    security=OPTIONAL_KEY,
    responses=problem_responses(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 507),
)
async def correct(
    request: AnyRequest,
    deps: Deps,
    correction_service: Service,
    id_of_request: Annotated[str, PathParameter(description="`request_id` of the answer")],
) -> CorrectionView:
    """Keeps what you say about an answer, right or wrong, and those of its pictures that you send again.

    The answer must be one of the last that this service gave you. A second correction of it replaces the first.
    """
    client = authorize(deps, request)
    answer = correction_service.find(id_of_request, client.identity)
    correction_service.require_free()  # before the upload
    async with deps.admission.enter(client.identity) as admitted:  # until it is stored, for its pictures take memory
        admitted.num_pictures = 0  # that are decoded
        body = Body([], {}, [])
        if (content_type := request.headers.get("content-type", "")).lower().startswith("multipart/"):
            body = await read(request, admitted, deps, _FORM)
        elif content_type:
            raise MalformedBody(
                "the body is not a form", value=content_type[:60], limit="multipart/form-data, or no body"
            )
        given = {**body.fields, **filled_in(request.query_params.dict())}
        taxon_id, name = _taxon(deps, given)
        certain = read_parameters(CorrectionParameters, {"certain": given.get("certain", ())}).certain
        await correction_service.correct(answer, taxon_id, name, certain=certain, pictures=body.pictures)
    return CorrectionView(
        correction_id=answer.draft.correction_id,
        taxon_id=taxon_id,
        name=name,
        num_pictures=len(body.pictures),
        days=correction_service.days,
    )


@delete(
    "/corrections/{correction_id:str}",
    status_code=204,
    tags=["corrections"],
    summary="Take a correction back",
    responses=problem_responses(401, 404, 429, 500, 503),
    security=OPTIONAL_KEY,
)
async def delete_correction(
    request: AnyRequest,
    deps: Deps,
    correction_service: Service,
    correction_id: Annotated[str, PathParameter(description="As `POST /identify/{request_id}/correction` gave it")],
) -> None:
    """Deletes a correction and its pictures."""
    authorize(deps, request)
    await correction_service.delete(correction_id)


class Corrections(InitPlugin):
    """Adds the routes if the settings say so; remembers answers, and lets the store work in the background."""

    def __init__(self, settings: Settings, deps: RouteDependencies) -> None:
        self._settings = settings
        self._deps = deps

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Opens the store, and adds routes, the hook after an answer, and what runs while the service does.

        Raises:
            InputError: The store cannot be opened.
        """
        settings = self._settings
        deps = self._deps
        deps.metrics.corrections_limit_bytes.set(settings.corrections_bytes)
        deps.metrics.corrections_age_limit_s.set(settings.corrections_days * 86_400)
        if settings.corrections is None:
            return app_config
        try:
            from serving.corrections.store import Store  # the extra `corrections` is optional
        except ImportError as error:
            raise InputError(
                "--corrections needs more packages", value=error, remedy="python -m pip install -e '.[corrections]'"
            ) from error
        store = Store(settings.corrections, settings.corrections_database, settings.corrections_bytes)
        service = CorrectionService(store, settings.corrections_days)

        async def remember(id_of_request: str, client: Client, answered: Answered) -> None:
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
            service.remember(
                id_of_request, RecentAnswer(identity=client.identity, sha256s=frozenset(hashes), draft=draft)
            )

        @asynccontextmanager
        async def lifespan(_: Litestar) -> AsyncIterator[None]:
            work = service.purge_forever(), service.measure_forever(deps.metrics)
            tasks = [*map(asyncio.create_task, work)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.to_thread(service.close)

        deps.on_answer.append(remember)
        app_config.route_handlers += [correct, delete_correction]
        app_config.dependencies["correction_service"] = Provide(lambda: service, sync_to_thread=False)
        app_config.lifespan.append(lifespan)
        return app_config


def _plain(text: str) -> str:
    """Returns a name as another person types it: composed letters, ordinary spaces, no hyphens that are not shown."""
    composed = unicodedata.normalize("NFC", text).replace("\u00ad", "")
    return "".join(" " if unicodedata.category(char) == "Zs" else char for char in composed).strip()


def _taxon(deps: RouteDependencies, given: Mapping[str, Sequence[str]]) -> tuple[str | None, str]:
    """Returns the id of the taxon, None if the model does not know it, and its name."""
    names, others = ([*filter(None, map(_plain, given.get(name, ())))] for name in ("taxon", "other"))
    if len(names) + len(others) != 1:
        raise BadParameter(
            "a correction needs `taxon` or `other`, once",
            value=f"{len(names)} and {len(others)}",
            remedy="send one of them",
        )
    [text] = names or others
    read_parameters(CorrectionParameters, {"taxon" if names else "other": [text]})  # refuses one that is too long
    loaded = deps.live_bundle.current
    known = loaded.names.find(text)
    only = loaded.taxonomy.taxa[int(known.taxa[0])] if known is not None and len(known.taxa) == 1 else None
    if known is not None and known.is_group and only is not None and only.rank == "species":
        only = None  # the model knows one species of the genus, and the plant may be another
    if others and only is None:
        seen = text.translate(_JOINERS)
        if not (seen and seen.isprintable()):
            raise BadParameter("the parameter `other` has characters that cannot be printed", remedy="send plain text")
        return None, text
    taxon = loaded.taxonomy.by_id.get(text) or only
    if taxon is None:
        raise BadParameter.of(
            "taxon",
            text,
            "means no single taxon of the model",
            limit="a taxon id, or a name of one taxon",
            remedy="look for it with /species?q=, or send it as `other`",
        )
    return taxon.taxon_id, taxon.scientific_name
