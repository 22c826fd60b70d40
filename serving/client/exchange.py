"""One question to the service: what to send, when to send it again, what came back."""

import asyncio
import email.utils
import itertools
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from http import HTTPStatus
from typing import Final, TypeVar

import httpx
import msgspec

from models.errors import BotanifyError, InputError, without_password
from serving.schemas import Identification, Parameters, Problem

_Document = TypeVar("_Document", Identification, Problem)
_AGAIN: Final = (429, 502, 503, 504)
_now, _sleep, _chance = time.monotonic, asyncio.sleep, random.uniform  # tests replace them
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_MOST_UNREACHED: Final = 6  # attempts without any answer, 16 s on average: a service that restarts needs less


def query_of(parameters: Parameters) -> list[tuple[str, str]]:
    """Returns what is not as the service has it by default; a text that is not UTF-8 is an InputError."""
    found: list[tuple[str, str]] = []
    for field in msgspec.structs.fields(Parameters):
        value = getattr(parameters, field.name)
        if value == field.default:
            continue
        for each in value if isinstance(value, tuple | list) else [value]:
            text = f"{each:.9f}" if isinstance(each, float) else str(each)
            if re.search("[\\ud800-\\udfff]", text):  # a command line in another encoding
                raise InputError(f"the parameter `{field.name}` is not UTF-8", value=ascii(text), remedy="correct it")
            found.append((field.name, text))
    return found


class ServiceRefusal(BotanifyError):
    """The service refused the request, and another attempt would not help or came too late.

    Args:
        problem: The problem document; the error's `document`.
    """

    code = "refused"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.document = problem


class ServiceUnreachable(BotanifyError):
    """No service answered in time."""

    code = "unreachable"


async def exchange(
    send: Callable[[httpx.Request], Awaitable[httpx.Response]],
    base_url: httpx.URL,
    pictures: Sequence[bytes],
    parameters: Parameters,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
) -> bytes:
    """Asks about the plant that all pictures show, and again while the service is overloaded or away.

    Before a new attempt it waits as long as `Retry-After` says, and a random time more ("full jitter"), so that many
    clients do not come back together: at most 0.5 s before the first, twice as much before each further one, and 30 s
    at most. `Prefer: wait` tells the service the time left. An attempt is canceled when the time of all is over.

    Returns:
        The answer as the service sent it: an `Identification` in JSON.

    Raises:
        ServiceRefusal: The request is wrong, what answers is not botanify, or the service was overloaded all the time.
        ServiceUnreachable: No service answered in time.
    """
    end, num_unreached = _now() + timeout_s, 0
    shown = without_password(str(base_url))
    failure: BotanifyError
    for attempt in itertools.count():
        left_s = end - _now()
        request = httpx.Request(
            "POST",
            f"{str(base_url).rstrip('/')}/identify",
            params=httpx.QueryParams(tuple(query_of(parameters))),
            headers={**headers, "Accept-Encoding": "identity", "Prefer": f"wait={max(1, math.floor(left_s))}"},
            files=[("image", ("image", data)) for data in pictures],
        )
        try:
            async with asyncio.timeout(left_s):
                response = await send(request)
        except TimeoutError:
            raise ServiceUnreachable(
                f"{shown} did not answer in time (limit {timeout_s:g} s): allow more time, or send smaller pictures."
            ) from None
        except httpx.RequestError as error:
            num_unreached += 1
            failure, pause_s = _unreachable(error, shown)
        else:
            if response.status_code == HTTPStatus.OK and _decoded(Identification, response):
                return response.content
            failure, pause_s = ServiceRefusal(_problem(response, shown)), math.inf
            if response.status_code in _AGAIN:
                pause_s = _retry_after_s(response.headers.get("Retry-After", ""))
        pause_s += _chance(0.0, min(_FIRST_PAUSE_S * 2 ** min(attempt, 9), _LONGEST_PAUSE_S))
        if not math.isfinite(pause_s) or _now() + pause_s >= end or num_unreached > _MOST_UNREACHED:
            break
        await _sleep(pause_s)
    raise failure


def _unreachable(error: httpx.RequestError, url: str) -> tuple[BotanifyError, float]:
    """Returns the error of an attempt without an answer, and the least time before another; infinite if none helps."""
    cannot_be_sent = isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)
    # The text about a request that cannot be sent can hold its headers, and so the key.
    reason = type(error).__name__ if cannot_be_sent or not str(error) else error
    failure = ServiceUnreachable(
        f"no service answers at {url} ({reason}): check the address, and that the service runs."
    )
    return failure, math.inf if cannot_be_sent else 0.0


def _decoded(kind: type[_Document], response: httpx.Response) -> _Document | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what msgspec raises for odd bytes
        return msgspec.json.decode(response.content, type=kind)
    return None


def _problem(response: httpx.Response, url: str) -> Problem:
    """Returns the problem document of a refusal, or that of a response that is not from the service, but a proxy's."""
    if problem := _decoded(Problem, response):
        return problem
    status, phrase = response.status_code, response.reason_phrase
    detail = f"{url} answered {status} {phrase}, but not as botanify does: check the address, and any proxy before it."
    if response.has_redirect_location:  # to follow it could send the key and the pictures to somebody else
        place = response.headers["Location"]
        with suppress(httpx.InvalidURL, ValueError):
            found = httpx.URL(f"{url.rstrip('/')}/identify").join(place)
            place = str(found.copy_with(userinfo=b"", query=None, fragment=None)).removesuffix("/identify")
        detail = f"{url} redirects to {place} ({status} {phrase}): give that address, if you trust it."
    return Problem("about:blank", phrase, status, detail, "http_error", "")


def _retry_after_s(text: str) -> float:
    """Returns the seconds of a `Retry-After`, which are a number or a date (RFC 9110, 10.2.3); 0 for anything else."""
    if text.isdecimal():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
