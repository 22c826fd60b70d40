"""Builds the application from the settings. Only this module knows every component."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import structlog
from litestar import Litestar
from litestar.config.compression import CompressionConfig
from litestar.di import Provide
from litestar.types import ASGIApp

from models.cores import cores
from models.session import NetworkSession
from serving.access.control import AccessControl, RateLimiter
from serving.access.keys import read_keys
from serving.access.origins import cors_config
from serving.api.identify import RouteDependencies
from serving.api.middleware import (
    MIN_COMPRESSED_BYTES,
    PRECOMPRESSED,
    AddressLimit,
    ObservabilityMiddleware,
    refusing_preflights,
)
from serving.api.openapi import FieldHelp, openapi_config
from serving.api.routes import ROUTES, metrics_text
from serving.api.server import on_sighup
from serving.engine.admission import Admission, AdmissionLimits
from serving.engine.bodies import BodyLimits
from serving.engine.decoding.pool import DecodeLimits, DecoderPool
from serving.engine.loaded_bundle import LiveBundle, open_bundle
from serving.metrics import Metrics
from serving.plugins.corrections import Corrections
from serving.plugins.page import Page
from serving.plugins.plantnet import Plantnet
from serving.schemas import MAX_IMAGES
from serving.settings import Settings

_MAX_REQUESTS_ON_CPU: Final = 64
_MAX_REQUESTS_ON_GPU: Final = 512
_COMPRESSION: Final = CompressionConfig(
    "gzip", minimum_size=MIN_COMPRESSED_BYTES, gzip_compress_level=6, exclude_opt_key=PRECOMPRESSED
)

_log = structlog.get_logger(__name__)


class Service(NamedTuple):
    """The application, with the components that the program and the tests use."""

    app: ASGIApp
    litestar: Litestar
    live_bundle: LiveBundle
    admission: Admission
    metrics: Metrics


def create_app(
    settings: Settings,
    *,
    session: NetworkSession | None = None,
    decoder: DecoderPool | None = None,
    on_failure: Callable[[Exception], None] | None = None,
) -> Service:
    """Builds the service.

    Args:
        settings: All settings.
        session: Replaces the bundle's network; for tests.
        decoder: Replaces the decoder processes; for tests.
        on_failure: Called when the warm-up fails; the service then never becomes ready.

    Raises:
        InputError: A setting, the bundle, the precision or the provider cannot be used.
    """
    metrics = Metrics()
    limiter = None if settings.rate_per_minute is None else RateLimiter(settings.rate_per_minute, settings.rate_burst)
    access = AccessControl(read_keys(settings.api_keys, settings.api_keys_file), limiter)
    num_decoders = settings.num_decoders or cores()
    decode_limits = DecodeLimits(settings.max_picture_bytes, settings.decode_budget_bytes, settings.decode_s)
    pool = decoder or DecoderPool(num_decoders, decode_limits, metrics)
    default = _MAX_REQUESTS_ON_GPU if settings.provider == "cuda" else _MAX_REQUESTS_ON_CPU
    admission_limits = AdmissionLimits(
        settings.max_requests or default,
        settings.max_held_bytes,
        settings.max_wait_s,
        num_decoders=num_decoders,
        client_share=settings.client_share,
    )

    def read_keys_again() -> None:
        access.replace_keys(read_keys(settings.api_keys, settings.api_keys_file))

    open_next = partial(open_bundle, settings, metrics, session)
    live_bundle = LiveBundle(open_next(), open_next, pool, metrics, read_keys=read_keys_again)
    admission = Admission(admission_limits, metrics)
    metrics.ready.set_function(lambda: live_bundle.is_ready)
    deps = RouteDependencies(
        admission=admission,
        access=access,
        decoder=pool,
        metrics=metrics,
        live_bundle=live_bundle,
        body_limits=BodyLimits(settings.max_picture_bytes, settings.max_request_bytes, MAX_IMAGES, settings.upload_s),
        deadline_s=settings.deadline_s,
        correction_days=None if settings.corrections is None else settings.corrections_days,
    )
    limit = AddressLimit(access)
    cors = cors_config(settings.cors_origins, has_keys=access.requires_key)
    litestar = Litestar(
        route_handlers=[*ROUTES, *([metrics_text] if settings.metrics is None else [])],
        plugins=[FieldHelp(), Page(), *([Plantnet()] if settings.plantnet_api else []), Corrections(settings, deps)],
        dependencies={"deps": Provide(lambda: deps, sync_to_thread=False)},
        guards=[limit.guard],
        exception_handlers={Exception: limit.respond},
        openapi_config=openapi_config(),
        compression_config=_COMPRESSION,
        cors_config=cors,
        lifespan=[partial(_running, live_bundle, pool, on_failure)],
        logging_config=None,  # serving.metrics configures logging; Litestar's own configuration changes in 3.0
        request_max_body_size=None,  # serving.engine.bodies limits the body
    )
    app: ASGIApp = litestar
    if cors is not None:
        app = refusing_preflights(app, cors)
    app = ObservabilityMiddleware(app, metrics, lambda: live_bundle.is_draining, cors=cors)
    return Service(app, litestar, live_bundle, admission, metrics)


@asynccontextmanager
async def _running(
    live_bundle: LiveBundle, pool: DecoderPool, on_failure: Callable[[Exception], None] | None, _: Litestar
) -> AsyncIterator[None]:
    """The application's lifespan.

    At the start it warms up the bundle in the background, so that health probes are answered meanwhile. It reloads the
    bundle on SIGHUP, and stops the worker threads and the decoder processes at shutdown.
    """

    async def warm_up() -> None:
        try:
            await live_bundle.warm_up()
        except Exception as error:  # ONNX Runtime raises errors of many types
            _log.error("warm_up_failed", error=str(error))
            if on_failure is not None:
                on_failure(error)
        else:
            _log.info("ready", scheduling=live_bundle.current.policy.describe())

    task = asyncio.create_task(warm_up())
    on_sighup(asyncio.get_running_loop(), live_bundle.request_reload)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await live_bundle.close()
        await pool.close()
