"""One question to the service: what to send, when to send it again, what came back. It does not send anything itself.

An exchange is a generator. It yields a request, and is sent the response or the error; it yields a number, and goes on
after so many seconds. So the client with threads and the one with asyncio share it.
"""

import math
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import httpx
import msgspec

from models.candidates import CoverageKind
from models.errors import BotanifyError
from serving.schemas import Identification, Problem

Exchange = Generator[httpx.Request | float, httpx.Response | httpx.TransportError | None, Identification]

_AGAIN: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LEAST_WAIT_S: Final = 1
_MOST_UNREACHED: Final = 6  # attempts without any answer, about ten seconds: a service that restarts needs less


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask about a plant, see the parameters of `POST /identify`."""

    k: int = 5
    """Number of taxa, genera and families, from 1 to 50."""
    coverage: float | None = None
    """How often the candidate set shall hold the right taxon; None for no candidate set."""
    coverage_kind: CoverageKind = "marginal"
    """Whether that holds for the mean plant or for the mean taxon."""
    taxa: Sequence[str] = ()
    """Names of the taxa that can be the answer, and list:NAME; none for all."""

    def parameters(self) -> list[tuple[str, str]]:
        """Returns the query parameters."""
        found = [("k", str(self.k)), *(("taxa", name) for name in self.taxa)]
        if self.coverage is not None:
            found += [("coverage", f"{self.coverage:g}"), ("coverage_kind", self.coverage_kind)]
        return found


EVERYTHING: Final = Asking()
"""Five likely taxa of all that the model knows."""


class ServiceRefusal(BotanifyError):
    """The service refused the request, and another attempt would not help or came too late.

    Args:
        problem: The problem document.
    """

    code = "refused"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.document = problem


class ServiceUnreachable(BotanifyError):
    """No service answered in time."""

    code = "unreachable"


def exchange(
    base_url: str,
    pictures: Sequence[bytes],
    asking: Asking,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[float, float], float] = random.uniform,
) -> Exchange:
    """Asks about the plant that all pictures show, and again while the service is overloaded or away.

    Before the n-th new attempt it waits as long as `Retry-After` says, and a random time of at most 0.5 s * 2^n more
    ("full jitter"), so that many clients do not come back together. `Prefer: wait` tells the service the time left.

    Args:
        base_url: Address of the service.
        pictures: The bytes of one to five picture files.
        asking: What to ask.
        timeout_s: Longest time for all attempts together, seconds.
        headers: Sent with each request.
        clock: The time, seconds.
        chance: A random number between two others.

    Raises:
        ServiceRefusal: The request is wrong, or the service was overloaded all the time.
        ServiceUnreachable: No service answered.
    """
    end, attempt, num_unreached = clock() + timeout_s, 0, 0
    while True:
        left_s = end - clock()
        outcome = yield _request(base_url, pictures, asking, {**headers, "Prefer": _wait(left_s)}, left_s)
        if isinstance(outcome, httpx.Response) and outcome.status_code == HTTPStatus.OK:
            return msgspec.json.decode(outcome.content, type=Identification)
        failure, pause_s = _failure(outcome, base_url)
        pause_s += chance(0.0, min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S))
        num_unreached += isinstance(failure, ServiceUnreachable)
        if not math.isfinite(pause_s) or clock() + pause_s >= end or num_unreached > _MOST_UNREACHED:
            raise failure
        attempt += 1
        yield pause_s


def _request(
    base_url: str, pictures: Sequence[bytes], asking: Asking, headers: Mapping[str, str], timeout_s: float
) -> httpx.Request:
    return httpx.Request(
        "POST",
        f"{base_url.rstrip('/')}/identify",
        params=httpx.QueryParams(tuple(asking.parameters())),
        headers=headers,
        files=[("image", ("image", data)) for data in pictures],
        extensions={"timeout": httpx.Timeout(max(timeout_s, _LEAST_WAIT_S)).as_dict()},
    )


def _wait(left_s: float) -> str:
    return f"wait={max(_LEAST_WAIT_S, math.floor(left_s))}"


def _failure(outcome: httpx.Response | httpx.TransportError | None, url: str) -> tuple[BotanifyError, float]:
    """Returns the error of an attempt, and the least time before another one, seconds; infinite if none would help."""
    if not isinstance(outcome, httpx.Response):
        reason = str(outcome) or type(outcome).__name__
        return ServiceUnreachable(f"no service answers at {url}: {reason}"), 0.0
    try:
        problem = msgspec.json.decode(outcome.content, type=Problem)
    except msgspec.DecodeError:  # a proxy answered
        status, phrase = outcome.status_code, outcome.reason_phrase
        detail = f"{url} answered {status} {phrase} and no problem document."
        problem = Problem("about:blank", phrase, status, detail, "http_error", "")
    if outcome.status_code not in _AGAIN and outcome.status_code != HTTPStatus.BAD_GATEWAY:
        return ServiceRefusal(problem), math.inf
    return ServiceRefusal(problem), _retry_after_s(outcome.headers.get("Retry-After", ""))


def _retry_after_s(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
