"""How long a single request spends in each step of our service, by its metrics before and after the request."""

import asyncio
import re
import time
from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from benchmarks.serving.http_client import connect, fetch, get
from benchmarks.serving.photographs import Photograph
from benchmarks.serving.servers import identify
from models.errors import DataError

_METRICS: Final = get("/metrics")
_SECONDS: Final = re.compile(rb'^botanify_stage_seconds_sum\{stage="(\w+)"\} (\S+)$', re.MULTILINE)
_WARM_UP: Final = 3
_Stage = Literal["decode", "run"]


class Parts(msgspec.Struct, frozen=True):
    """The parts of the latency of one request, s."""

    latency_s: float
    decode_s: float
    run_s: float

    @property
    def rest_s(self) -> float:
        """All but decode and run."""
        return self.latency_s - self.decode_s - self.run_s


class Overhead(msgspec.Struct, frozen=True):
    """The parts of the latency of single requests in an idle service; medians, ms."""

    photograph: str
    requests: int
    latency_ms: float
    """Latency at the client."""
    decode_ms: float
    """Decode time by the service's metrics; so is `run_ms`."""
    run_ms: float
    rest_ms: float
    """Latency minus decode and run, request by request."""


def overhead(port: int, photograph: Photograph, requests: int) -> Overhead:
    """Sends a photograph to our service `requests` times, one at a time.

    Raises:
        DataError: The service answers with another status than 200.
    """
    parts = asyncio.run(_measure(port, identify(photograph.data), requests + _WARM_UP))[_WARM_UP:]
    return Overhead(
        photograph.name,
        len(parts),
        _median_ms([each.latency_s for each in parts]),
        _median_ms([each.decode_s for each in parts]),
        _median_ms([each.run_s for each in parts]),
        _median_ms([each.rest_s for each in parts]),
    )


async def _measure(port: int, request: bytes, count: int) -> list[Parts]:
    parts = []
    with await connect(port) as connection:
        for _ in range(count):
            before = await _seconds(port)
            began = time.perf_counter()
            answer = await connection.send(request)
            latency_s = time.perf_counter() - began
            if answer.status != 200:
                raise DataError(
                    "a single request was not answered", value=f"status {answer.status}", limit="status 200"
                )
            after = await _seconds(port)
            parts.append(Parts(latency_s, after["decode"] - before["decode"], after["run"] - before["run"]))
    return parts


async def _seconds(port: int) -> dict[str, float]:
    """Time that the service has spent in each step since its start, s."""
    text = (await fetch(port, _METRICS)).body
    found = {name.decode(): float(value) for name, value in _SECONDS.findall(text)}
    return {"decode": 0.0, "run": 0.0} | found


def _median_ms(values: Sequence[float]) -> float:
    return median(values) * 1000
