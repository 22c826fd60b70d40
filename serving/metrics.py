"""Prometheus metrics. Each application has its own registry, so that tests do not share one."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, get_args

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from models.ranking import VerdictRank

Stage = Literal["read", "wait", "decode", "queue", "run", "rank"]
"""Stages of an identify request: upload, wait for a decoder, decode, wait for a network run, run, rank."""
CancelledStage = Literal["read", "decode", "run"]
"""The stage in which a client disconnected; a wait counts toward the stage that follows it."""
Component = Literal["decoder", "executor"]
"""A part of the service that is replaced when it fails."""
ReloadOutcome = Literal["swapped", "refused"]

# The problem codes that are the service's own fault; deploy/service/prometheus/alerts.yml watches them.
_FAILURES: Final = ("internal", "overloaded", "timed_out")
# Each about twice the previous one. A small picture decodes in 5 ms, and the default deadline is 10 s.
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_BUCKETS_PICTURES: Final = (1, 2, 4, 8, 16, 32)
_TEXT_KEPT_S: Final = 1.0


class Metrics:
    """The counters, gauges and histograms of one application."""

    media_type: Final = "text/plain; version=0.0.4"

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._requests = counter("botanify_requests", "Requests answered.", ["route", "method", "status"])
        self._request_s = histogram("botanify_request_seconds", "Time of a request.", ["route"], buckets=_BUCKETS_S)
        self._stage_s = histogram(
            "botanify_stage_seconds", "Time of one stage of an identify request.", ["stage"], buckets=_BUCKETS_S
        )
        self._batch_pictures = histogram(
            "botanify_batch_pictures", "Pictures in a network run.", buckets=_BUCKETS_PICTURES
        )
        self._pictures = counter("botanify_pictures", "Pictures decoded.", ["format"])
        self._decode_failures = counter(
            "botanify_decode_failures", "Pictures refused, by problem code.", ["code", "format"]
        )
        self._refusals = counter("botanify_refusals", "Requests refused, by problem code.", ["code"])
        self._verdicts = counter("botanify_verdicts", "Answers, by the rank of their verdict.", ["rank"])
        self._cancellations = counter("botanify_cancellations", "Clients that disconnected, by stage.", ["stage"])
        self._restarts = counter(
            "botanify_restarts", "Decoder processes and network workers that failed and were replaced.", ["part"]
        )
        self._reloads = counter("botanify_reloads", "Reloads of the bundle, by outcome.", ["outcome"])
        self.in_flight = gauge("botanify_requests_in_flight", "Requests in progress.")
        self.admitted = gauge("botanify_requests_admitted", "Identify requests admitted and in progress.")
        self.queued = gauge("botanify_pictures_queued", "Pictures waiting for a network run.")
        self.decode_bytes = gauge("botanify_decode_bytes", "Memory reserved for decodes in progress.")
        self._model = Info("botanify_model", "The model that answers.", registry=registry)
        ProcessCollector(registry=registry)
        self._recent_text, self._text_until = b"", 0.0
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Exports the counters of failures from the start.

        Otherwise each would appear with its first failure, and Prometheus' `increase` does not see a first value.
        """
        for code in _FAILURES:
            self._refusals.labels(code)
        for component in get_args(Component):
            self._restarts.labels(component)
        for outcome in get_args(ReloadOutcome):
            self._reloads.labels(outcome)

    def model(self, **facts: str) -> None:
        """Sets the labels of the model that answers."""
        self._model.info(facts)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_s.labels(route).observe(seconds)

    def refusal(self, code: str) -> None:
        """Counts one refused request."""
        self._refusals.labels(code).inc()

    def verdict(self, rank: VerdictRank) -> None:
        """Counts one answer."""
        self._verdicts.labels(rank).inc()

    def cancellation(self, stage: CancelledStage) -> None:
        """Counts one client that disconnected before its answer was ready."""
        self._cancellations.labels(stage).inc()

    def picture(self, picture_format: str) -> None:
        """Counts one decoded picture."""
        self._pictures.labels(picture_format).inc()

    def decode_failure(self, code: str, picture_format: str = "unknown") -> None:
        """Counts one picture that could not be decoded."""
        self._decode_failures.labels(code, picture_format).inc()

    def batch(self, num_pictures: int) -> None:
        """Records how many pictures shared a run."""
        self._batch_pictures.observe(num_pictures)

    def restart(self, component: Component) -> None:
        """Counts one decoder process or network worker that failed and was replaced."""
        self._restarts.labels(component).inc()

    def reload(self, outcome: ReloadOutcome) -> None:
        """Counts one reload of the bundle."""
        self._reloads.labels(outcome).inc()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Times one stage of an identify request; may be used in any thread."""
        with self._stage_s.labels(stage).time():
            yield

    def observe_stage(self, stage: Stage, seconds: float) -> None:
        """Records a stage that was timed elsewhere."""
        self._stage_s.labels(stage).observe(seconds)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def recent_text(self) -> bytes:
        """Returns the text of the last second; to make one takes 8 ms, in which the event loop does nothing else."""
        now = time.monotonic()
        if now >= self._text_until:
            self._recent_text, self._text_until = self.text(), now + _TEXT_KEPT_S
        return self._recent_text


# ---- The log: one JSON object per line, or colored text on a terminal. It never contains pictures, file names or EX


def configure_logging() -> None:
    """Sends the logs of this process and of its libraries to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*_renderers(sys.stderr.isatty())])
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the service logs its own start and stop


def say_warnings() -> None:
    """Sends warnings and errors to standard error, a line in words each."""
    structlog.configure(
        processors=[_as_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _as_line(_logger: object, _level: str, event: structlog.typing.EventDict) -> str:
    name = str(event.pop("event")).replace("_", " ")
    return f"{name}: {', '.join(map(str, event.values()))}"


def _renderers(terminal: bool) -> list[structlog.typing.Processor]:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if terminal:  # plain tracebacks: rich ones show local variables, which may hold a picture
        return [remove_meta, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [remove_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
