"""Prometheus metrics and the log. Each application has its own registry, so that tests do not share one."""

import logging
import sys
import time
from functools import partial
from typing import Final, get_args

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
        self.requests = counter("botanify_requests", "Requests answered.", ["route", "method", "status"])
        self.request_s = histogram("botanify_request_seconds", "Time of a request.", ["route"], buckets=_BUCKETS_S)
        # Stages of an identify request: read (upload), wait (for a decoder), decode, queue (for a network run), run,
        # rank. A client that disconnects while it waits counts toward the stage that follows.
        self.stage_s = histogram(
            "botanify_stage_seconds", "Time of one stage of an identify request.", ["stage"], buckets=_BUCKETS_S
        )
        self.batch_pictures = histogram(
            "botanify_batch_pictures", "Pictures in a network run.", buckets=_BUCKETS_PICTURES
        )
        self.pictures = counter("botanify_pictures", "Pictures decoded.", ["format"])
        self.decode_failures = counter(
            "botanify_decode_failures", "Pictures refused, by problem code.", ["code", "format"]
        )
        self.refusals = counter("botanify_refusals", "Requests refused, by problem code.", ["code"])
        self.verdicts = counter("botanify_verdicts", "Answers, by the rank of their verdict.", ["rank"])
        self.cancellations = counter("botanify_cancellations", "Clients that disconnected, by stage.", ["stage"])
        self.restarts = counter(
            "botanify_restarts", "Decoder processes and network workers that failed and were replaced.", ["part"]
        )
        self.reloads = counter("botanify_reloads", "Reloads of the bundle, by outcome.", ["outcome"])
        self.in_flight = gauge("botanify_requests_in_flight", "Requests in progress.")
        self.admitted = gauge("botanify_requests_admitted", "Identify requests admitted and in progress.")
        self.queued = gauge("botanify_pictures_queued", "Pictures waiting for a network run.")
        self.decode_bytes = gauge("botanify_decode_bytes", "Memory reserved for decodes in progress.")
        self.ready = gauge("botanify_ready", "1 while a load balancer should send requests to this instance, else 0.")
        self.corrections = gauge("botanify_corrections", "Corrections that are kept; several instances may share them.")
        self.corrections_bytes = gauge("botanify_corrections_bytes", "Bytes of their pictures.")
        self.corrections_limit_bytes = gauge("botanify_corrections_limit_bytes", "The setting --corrections-bytes.")
        self.corrections_age_s = gauge(
            "botanify_corrections_age_seconds", "Age of the oldest correction; 0 if there is none."
        )
        self.corrections_age_limit_s = gauge(
            "botanify_corrections_age_limit_seconds", "The setting --corrections-days."
        )
        self.model = Info("botanify_model", "The model that answers.", registry=registry)
        ProcessCollector(registry=registry)
        self._recent_text = b""
        self._text_until = 0.0
        # Counters of alerts are exported from the start. Otherwise each would appear with its first event, and
        # Prometheus' `increase` does not see a first value.
        for counted, names in (
            (self.refusals, _FAILURES),
            (self.restarts, ("decoder", "executor")),
            (self.reloads, ("swapped", "refused")),
            (self.verdicts, get_args(VerdictRank)),
        ):
            for name in names:
                counted.labels(name)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def recent_text(self) -> bytes:
        """Returns the text of the last second; to make one takes 8 ms, in which the event loop does nothing else."""
        now = time.monotonic()
        if now >= self._text_until:
            self._recent_text = self.text()
            self._text_until = now + _TEXT_KEPT_S
        return self._recent_text


# ---- the log, which never contains pictures, file names or EXIF


def configure_logging() -> None:
    """Sends the logs of this process and of its libraries to standard error.

    One JSON object per line, or colored text on a terminal.
    """
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
    if sys.stderr.isatty():  # plain tracebacks: rich ones show local variables, which may hold a picture
        renderers: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    formatter = structlog.stdlib.ProcessorFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(foreign_pre_chain=shared, processors=[formatter.remove_processors_meta, *renderers]))
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
