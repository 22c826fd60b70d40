"""Wiring: settings -> application. The only place where the parts meet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog
from litestar import Litestar
from litestar.di import Provide

from models.session import NetworkSession
from serving.access.control import AccessControl
from serving.access.cors import cors_config
from serving.access.keys import read_keys
from serving.access.rates import RateLimiter
from serving.admission import Admission, AdmissionLimits
from serving.bodies import BodyLimits
from serving.cores import available_cores
from serving.decoding.pool import DecodeLimits, Decoders
from serving.identify import Identifier
from serving.loaded_bundle import PictureDecoder, Releases, open_release
from serving.metrics import Metrics
from serving.middleware import Observed
from serving.openapi import openapi_config
from serving.problems import problem_response
from serving.routes import IdentifyRules, Parts, handlers
from serving.schemas import MAX_IMAGES
from serving.server import Life, on_hangup
from serving.settings import Settings

_REQUESTS_ON_CPU: Final = 64
_REQUESTS_ON_GPU: Final = 512

_log = structlog.get_logger(__name__)


class RunningDecoder(PictureDecoder, Protocol):
    """A decoder with a beginning and an end."""

    @property
    def num_alive(self) -> int:
        """How many pictures it could decode at the same time now."""
        ...

    async def start(self) -> None:
        """Begins."""
        ...

    async def close(self) -> None:
        """Ends."""
        ...


class Service(NamedTuple):
    """The application, and the parts of it that the program and the tests speak to."""

    app: Litestar
    life: Life
    admission: Admission
    metrics: Metrics


def create_app(
    settings: Settings,
    *,
    session: NetworkSession | None = None,
    decoder: RunningDecoder | None = None,
    on_failure: Callable[[Exception], None] | None = None,
) -> Service:
    """Builds the service.

    Args:
        settings: Every knob.
        session: Runs in place of the bundle's own network; for tests.
        decoder: Decodes in place of the child processes; for tests.
        on_failure: Called when the warm-up fails; the service then never becomes ready.

    Raises:
        InputError: A setting, the bundle, the precision or the provider cannot be used.
    """
    metrics = Metrics()
    access = _access_control(settings)
    decoder = decoder or _decoders(settings, metrics)
    reopen = partial(open_release, settings, metrics, session)
    releases = Releases(reopen(), reopen, decoder, metrics)
    admission = Admission(_admission_limits(settings), metrics)
    life = Life(
        is_warm=lambda: releases.is_warm,
        has_pulse=lambda: decoder.num_alive > 0 and releases.current.scheduler.is_healthy,
    )
    parts = Parts(
        admission=admission,
        access=access,
        identifier=Identifier(releases, decoder, admission, metrics),
        life=life,
        metrics=metrics,
        releases=releases,
        rules=IdentifyRules(_body_limits(settings), settings.deadline_s),
    )
    app = Litestar(
        route_handlers=handlers(),
        dependencies={"parts": Provide(lambda: parts, sync_to_thread=False)},
        exception_handlers={Exception: problem_response},
        openapi_config=openapi_config(),
        cors_config=cors_config(settings.cors_origins, has_keys=access.requires_key),
        lifespan=[_running(releases, decoder, on_failure)],
        logging_config=None,  # serving.logs does it; Litestar's own configuration changes in 3.0
        request_max_body_size=None,  # serving.bodies has limits of its own
    )
    app.asgi_handler = Observed(app.asgi_handler, metrics, is_draining=lambda: life.is_draining)
    return Service(app, life, admission, metrics)


def _access_control(settings: Settings) -> AccessControl:
    limiter = None if settings.rate_per_minute is None else RateLimiter(settings.rate_per_minute, settings.rate_burst)
    return AccessControl(read_keys(settings.api_keys, settings.api_keys_file), limiter)


def _decoders(settings: Settings, metrics: Metrics) -> Decoders:
    limits = DecodeLimits(
        picture_bytes=settings.max_picture_bytes,
        budget_bytes=settings.decode_budget_bytes,
        child_bytes=settings.decode_child_bytes,
        seconds=settings.decode_s,
    )
    return Decoders(settings.num_decoders or available_cores(), limits, metrics)


def _admission_limits(settings: Settings) -> AdmissionLimits:
    usual = _REQUESTS_ON_GPU if settings.provider == "cuda" else _REQUESTS_ON_CPU
    return AdmissionLimits(settings.max_requests or usual, settings.max_held_bytes, settings.max_wait_s)


def _body_limits(settings: Settings) -> BodyLimits:
    return BodyLimits(
        settings.max_picture_bytes,
        settings.max_request_bytes,
        MAX_IMAGES,
        upload_s=settings.upload_s,
        bytes_per_s=settings.min_upload_bytes_per_s,
    )


def _running(
    releases: Releases, decoder: RunningDecoder, on_failure: Callable[[Exception], None] | None
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Warms up while the service already answers, reloads on SIGHUP, and ends threads and children at the end."""

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        tasks = {asyncio.create_task(_warm_up(releases, decoder, on_failure))}

        def reload() -> None:
            task = asyncio.create_task(_reload(releases))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        on_hangup(asyncio.get_running_loop(), reload)
        try:
            yield
        finally:
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tuple(tasks), return_exceptions=True)
            releases.close()
            await decoder.close()

    return running


async def _warm_up(releases: Releases, decoder: RunningDecoder, on_failure: Callable[[Exception], None] | None) -> None:
    try:
        await decoder.start()
        await releases.warm_up()
    except Exception as error:  # whatever the network raises, the service cannot do its work
        _log.error("warm_up_failed", error=str(error))
        if on_failure is not None:
            on_failure(error)
    else:
        _log.info("ready", scheduling=releases.current.policy.describe())


async def _reload(releases: Releases) -> None:
    with contextlib.suppress(Exception):  # told and counted where it happened; the old release goes on
        await releases.reload()
