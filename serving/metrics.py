"""What the service counts and times, for Prometheus. One registry an application, so that tests do not share any."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

Stage = Literal["read", "wait", "decode", "queue", "run", "rank"]
"""Steps of one identify request: upload, wait for a decoder, decode, wait for a run, run, rank."""
Dropped = Literal["read", "decode", "run"]
"""The step in which a client left, or for which it waited."""
Part = Literal["decoder", "executor"]
"""What can die and is started again."""
ReloadOutcome = Literal["swapped", "refused"]

# From a small resized picture (5 ms to decode) to the deadline of a request (10 s), each step about a doubling.
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_BUCKETS_PICTURES: Final = (1, 2, 4, 8, 16, 32)


class Metrics:
    """Counters, gauges and histograms of one application."""

    media_type: Final = "text/plain; version=0.0.4"

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "botanify_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self._request_s = Histogram(
            "botanify_request_seconds", "Time of a request.", ["route"], buckets=_BUCKETS_S, registry=registry
        )
        self._stage_s = Histogram(
            "botanify_stage_seconds", "Time of one step of identify.", ["stage"], buckets=_BUCKETS_S, registry=registry
        )
        self._batch_pictures = Histogram(
            "botanify_batch_pictures", "Pictures in a run.", buckets=_BUCKETS_PICTURES, registry=registry
        )
        self._pictures = Counter("botanify_pictures", "Pictures decoded.", ["format"], registry=registry)
        self._decode_failures = Counter(
            "botanify_decode_failures", "Pictures refused, by problem code.", ["code", "format"], registry=registry
        )
        self._refusals = Counter("botanify_refusals", "Requests refused, by problem code.", ["code"], registry=registry)
        self._cancellations = Counter(
            "botanify_cancellations", "Clients that left, by step.", ["stage"], registry=registry
        )
        self._restarts = Counter("botanify_restarts", "Parts that died and were replaced.", ["part"], registry=registry)
        self._reloads = Counter("botanify_reloads", "Bundles loaded while serving.", ["outcome"], registry=registry)
        self.in_flight = Gauge("botanify_requests_in_flight", "Requests being answered now.", registry=registry)
        self.admitted = Gauge("botanify_requests_admitted", "Identify requests let in now.", registry=registry)
        self.queued = Gauge("botanify_pictures_queued", "Pictures that wait for a run now.", registry=registry)
        self.decode_bytes = Gauge("botanify_decode_bytes", "Memory promised to decodes in flight.", registry=registry)
        self._model = Info("botanify_model", "The model that answers.", registry=registry)
        ProcessCollector(registry=registry)

    def model(self, **facts: str) -> None:
        """Names the model that answers, and how it is run."""
        self._model.info(facts)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_s.labels(route).observe(seconds)

    def refusal(self, code: str) -> None:
        """Counts one refused request."""
        self._refusals.labels(code).inc()

    def cancellation(self, stage: Dropped) -> None:
        """Counts one client that left before its answer was there."""
        self._cancellations.labels(stage).inc()

    def picture(self, picture_format: str) -> None:
        """Counts one decoded picture."""
        self._pictures.labels(picture_format).inc()

    def decode_failure(self, code: str, picture_format: str = "unknown") -> None:
        """Counts one picture that did not decode."""
        self._decode_failures.labels(code, picture_format).inc()

    def batch(self, num_pictures: int) -> None:
        """Records how many pictures shared a run."""
        self._batch_pictures.observe(num_pictures)

    def restart(self, part: Part) -> None:
        """Counts one part that died and was replaced."""
        self._restarts.labels(part).inc()

    def reload(self, outcome: ReloadOutcome) -> None:
        """Counts one bundle that was to be loaded while serving."""
        self._reloads.labels(outcome).inc()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Times one step of identify; may be used in any thread."""
        with self._stage_s.labels(stage).time():
            yield

    def stage_took(self, stage: Stage, seconds: float) -> None:
        """Records a step that was timed elsewhere."""
        self._stage_s.labels(stage).observe(seconds)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)
