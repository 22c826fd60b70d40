"""Wiring: settings -> application. The only place where the parts meet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import structlog
from litestar import Litestar
from litestar.di import Provide

from models.bundle import Bundle, Precision, load_bundle
from models.session import NetworkSession, OnnxSession
from serving.admission import Admission
from serving.bodies import BodyLimits
from serving.cores import available_cores
from serving.documentation import openapi_config
from serving.identify import Identifier, Knowledge
from serving.metrics import Metrics
from serving.observe import Observed
from serving.problems import problem_response
from serving.routes import UploadRules, handlers
from serving.runner import Runner, choose_precision, open_session
from serving.schemas import MAX_IMAGES, model_card, model_name
from serving.settings import Settings, find_bundle
from serving.threads import Threads

# A starting point, to be measured on larger machines: on two cores two threads halve the time of a lone run, while
# under load two runs of one thread answer 1.2 times as many requests, so many cores serve several runs better.
_MOST_THREADS_A_RUN: Final = 4

_log = structlog.get_logger(__name__)


def create_app(
    settings: Settings,
    *,
    session: NetworkSession | None = None,
    on_failure: Callable[[Exception], None] | None = None,
) -> Litestar:
    """Builds the service.

    Args:
        settings: Every knob.
        session: Runs in place of the bundle's own network; for tests.
        on_failure: Called when the warm-up fails; the service then never becomes ready.

    Raises:
        InputError: The bundle, the precision or the provider cannot be used.
    """
    bundle = load_bundle(find_bundle(settings))
    precision = choose_precision(bundle, settings.precision)
    metrics = Metrics()
    network, runner = _network(bundle, precision, settings, session, metrics)
    identifier = _identifier(_knowledge(bundle, precision), runner, settings, metrics)
    card = model_card(bundle, precision, network.providers if isinstance(network, OnnxSession) else ())
    metrics.model(name=card.name, version=card.version, label_hash=card.label_hash, precision=precision)
    provided = {
        "identifier": identifier,
        "model": model_name(bundle),
        "card": card,
        "uploads": _upload_rules(settings),
        "metrics": metrics,
    }
    app = Litestar(
        route_handlers=handlers(),
        dependencies={name: _provide(value) for name, value in provided.items()},
        exception_handlers={Exception: problem_response},
        openapi_config=openapi_config(),
        lifespan=[_running(identifier, on_failure)],
        logging_config=None,  # serving.logs does it; Litestar's own configuration changes in 3.0
        request_max_body_size=None,  # serving.bodies has limits of its own
    )
    app.asgi_handler = Observed(app.asgi_handler, metrics)
    return app


def _network(
    bundle: Bundle, precision: Precision, settings: Settings, session: NetworkSession | None, metrics: Metrics
) -> tuple[NetworkSession, Runner]:
    """Opens the network and shares the cores out among its runs."""
    cuda = settings.provider == "cuda"
    cores = available_cores()
    num_threads = settings.num_threads or min(cores, _MOST_THREADS_A_RUN)
    network = session or open_session(bundle, precision, cuda=cuda, num_threads=num_threads)
    num_runs = settings.num_runs or (1 if cuda else max(1, cores // num_threads))
    return network, Runner(network, num_runs=num_runs, batched=cuda, metrics=metrics)


def _identifier(knowledge: Knowledge, runner: Runner, settings: Settings, metrics: Metrics) -> Identifier:
    return Identifier(
        knowledge,
        runner=runner,
        decoders=Threads(settings.num_decoders or available_cores(), "decode"),
        admission=Admission(settings.max_active, settings.max_waiting, settings.max_wait_s),
        metrics=metrics,
        deadline_s=settings.deadline_s,
    )


def _provide(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def _knowledge(bundle: Bundle, precision: Precision) -> Knowledge:
    network = bundle.network(precision)
    return Knowledge(bundle.record.input, bundle.taxonomy, network.temperature, network.thresholds)


def _upload_rules(settings: Settings) -> UploadRules:
    limits = BodyLimits(settings.max_picture_bytes, settings.max_request_bytes, MAX_IMAGES)
    return UploadRules(limits, settings.upload_s, Admission(settings.max_requests))


def _running(
    identifier: Identifier, on_failure: Callable[[Exception], None] | None
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Warms up while the service already answers, and closes the threads at the end."""

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        warming = asyncio.create_task(_warm_up(identifier, on_failure))
        try:
            yield
        finally:
            warming.cancel()
            identifier.close()

    return running


async def _warm_up(identifier: Identifier, on_failure: Callable[[Exception], None] | None) -> None:
    try:
        await identifier.warm_up()
    except Exception as error:  # whatever the network raises, the service cannot do its work
        _log.error("warm_up_failed", error=str(error))
        if on_failure is not None:
            on_failure(error)
    else:
        _log.info("ready")
