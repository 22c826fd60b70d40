"""The client with asyncio, and the one with threads: what they send, when they send it again, and what came back."""

import asyncio
import io
import itertools
import math
import random
import re
import threading
import time
import weakref
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx2
import msgspec

from models.errors import BotanifyError, InputError, PictureError, without_password
from models.preprocess import PIXEL_LIMITS, in_srgb, read_picture
from models.retry_after import retry_after_s
from serving.schemas import MAX_IMAGES, Identification, Parameters, Problem

EVERYTHING: Final = Parameters()
Picture = bytes | str | Path
"""The bytes of a picture file, or its path."""
_MOST_QUESTIONS: Final = 64  # at the same time: each has a connection, and its pictures in memory
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=_MOST_QUESTIONS, keepalive_expiry=60)
_MOST_BYTES: Final = 16_000_000  # far more than the names of 50 taxa and 100 candidates take
_MOST_PICTURE_BYTES: Final = 100_000_000  # as in folders; /dev/zero has no end
_READ_HEADERS: Final = (b"location", b"retry-after")
_CONNECT_S: Final = 5.0
_MOST_TIMEOUT_S: Final = 86_400.0
_LEAST_SIDE_PX: Final = 224  # the input of common networks; smaller pictures lose what the network looks at
_QUALITY: Final = 90
_MOST_PIXELS: Final = dict.fromkeys(PIXEL_LIMITS, max(PIXEL_LIMITS.values()))
# A proxy of the environment cannot reach a service on this machine.
_WITHOUT_PROXY: Final = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
_AGAIN: Final = (429, 502, 503, 504)
_now = time.monotonic  # tests replace these three
_sleep = asyncio.sleep
_chance = random.uniform
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_MOST_UNREACHED: Final = 6  # attempts, 16 s on average, at an address that has never answered and may be wrong
_Result = TypeVar("_Result")
_Document = TypeVar("_Document", Identification, Problem)


class ServiceRefusal(BotanifyError):
    """The service refused the request, and another attempt would not help or came too late.

    Args:
        problem: The problem document; the error's `document`. Its code is that of the error: `http_error` if what
            answered is not the service.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.document = problem
        self.code = problem.code


class ServiceUnreachable(BotanifyError):
    """No service answered in time."""

    code = "unreachable"


class AsyncClient:
    """Asks the service with asyncio, in one event loop.

    Start as many calls at the same time as you like: 64 are in progress, and the others wait for their turn, with
    nothing read yet. The arguments are those of `Client`.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 < timeout_s <= _MOST_TIMEOUT_S:
            limit = f"more than 0 s and at most {_MOST_TIMEOUT_S:,.0f} s"
            raise InputError("timeout_s is out of range", value=timeout_s, limit=limit, remedy="take 120, for example")
        if max_side_px is not None and max_side_px < _LEAST_SIDE_PX:
            limit = f"at least {_LEAST_SIDE_PX} px"
            remedy = "give a longer side, such as 1600, or leave it out"
            raise InputError("max_side_px is too small", value=max_side_px, limit=limit, remedy=remedy)
        self._url = checked_url(url)
        self._headers = key_header(api_key)
        self._timeout_s = timeout_s
        self._max_side_px = max_side_px
        try:
            # `_ask` has the time limit; a machine that does not take the connection is not there, and asked again.
            timeout = httpx2.Timeout(None, connect=_CONNECT_S)
            self._http = httpx2.AsyncClient(limits=_LIMITS, mounts=_WITHOUT_PROXY, timeout=timeout)
        except (httpx2.InvalidURL, ValueError, ImportError) as error:  # ImportError: SOCKS needs another package
            limit = "an address with http:// or https://"
            remedy = "correct HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            raise InputError("a proxy of the environment cannot be used", limit=limit, remedy=remedy) from error
        self._turns = asyncio.Semaphore(_MOST_QUESTIONS)
        self._has_answered = False  # whatever the answer: the address is right, and a service that is gone comes back

    async def identify(self, *pictures: Picture, parameters: Parameters = EVERYTHING) -> Identification:
        """See `Client.identify`."""
        return msgspec.json.decode(await self.identify_json(*pictures, parameters=parameters), type=Identification)

    async def identify_json(self, *pictures: Picture, parameters: Parameters = EVERYTHING) -> bytes:
        """See `Client.identify_json`."""
        if not 1 <= len(pictures) <= MAX_IMAGES:
            value = f"{len(pictures)} photographs"
            limit = f"1 to {MAX_IMAGES}"
            remedy = "ask once for each plant, or name a whole folder with `python -m serving.identify_folder`"
            raise InputError("one question is about one plant", value=value, limit=limit, remedy=remedy)
        async with self._turns:
            data = await asyncio.to_thread(self._read, pictures)
            return await self._ask(data, parameters)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, pictures: Sequence[bytes], parameters: Parameters) -> bytes:
        """Asks about the plant that all pictures show, and again while the service is overloaded or away.

        Before a new attempt it waits as long as `Retry-After` says, and a random time more ("full jitter"), so that
        many clients do not come back together: at most 0.5 s before the first, twice as much before each further one,
        and 30 s or half of the time left at most. `Prefer: wait` tells the service the time left. An attempt is
        canceled when the time of all is over.
        """
        end = _now() + self._timeout_s
        num_unreached = 0
        shown = without_password(str(self._url))
        failure: BotanifyError
        for attempt in itertools.count():
            left_s = end - _now()
            request = httpx2.Request(
                "POST",
                f"{str(self._url).rstrip('/')}/identify",
                params=httpx2.QueryParams(tuple(query_of(parameters))),
                headers={
                    **self._headers,
                    "Accept-Encoding": "identity",
                    "Prefer": f"wait={max(1, math.floor(left_s))}",
                },
                files=[("image", ("image", data)) for data in pictures],
            )
            try:
                async with asyncio.timeout(left_s):
                    response = await self._send(request)
            except TimeoutError:
                raise ServiceUnreachable(
                    f"{shown} did not answer in time (limit {self._timeout_s:g} s): allow more time, or send smaller "
                    "pictures."
                ) from None
            except httpx2.RequestError as error:
                num_unreached += 1
                failure, pause_s = _unreachable(error, shown)
            else:
                self._has_answered = True
                if response.status_code == HTTPStatus.OK and _decoded(Identification, response):
                    return response.content
                failure = ServiceRefusal(_problem(response, shown))
                pause_s = math.inf
                if response.status_code in _AGAIN:
                    pause_s = retry_after_s(response.headers.get("Retry-After", ""))
            left_s = end - _now() - pause_s
            if left_s < _FIRST_PAUSE_S or (num_unreached > _MOST_UNREACHED and not self._has_answered):
                break
            longest_s = min(_FIRST_PAUSE_S * 2 ** min(attempt, 9), _LONGEST_PAUSE_S, left_s / 2)
            await _sleep(pause_s + _chance(0.0, longest_s))
        raise failure

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request, and reads no more than an answer takes; what was packed unasked is not unpacked."""
        content = bytearray()
        async with aclosing(await self._http.send(request, stream=True)) as response:
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > _MOST_BYTES:
                    break
        headers = [header for header in response.headers.raw if header[0].lower() in _READ_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, content=bytes(content))

    def _read(self, pictures: tuple[Picture, ...]) -> list[bytes]:
        data = [each if isinstance(each, bytes) else _picture_at(Path(each)) for each in pictures]
        return data if self._max_side_px is None else [shrunk(each, self._max_side_px) for each in data]


class Client:
    """Asks the service, and waits for the answer. Threads may share a client; processes may not.

    It asks in an event loop in a thread of its own: only so can it end an attempt whose bytes come one by one.

    Args:
        url: Address of the service, also with a path. Without the proxies that the environment names if it is
            localhost, 127.0.0.1 or ::1, else with them. Redirects are refused.
        api_key: Key, if the service needs one.
        timeout_s: Longest time for an answer with all attempts, seconds. It begins after the pictures are read;
            the wait for one of 64 turns before that does not count.
        max_side_px: Pictures with a longer side are reduced to it before they are sent, at least 224; None sends them
            as they are.

    Raises:
        InputError: An argument is wrong.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        self._service = AsyncClient(url, api_key=api_key, timeout_s=timeout_s, max_side_px=max_side_px)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="botanify-client", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def identify(self, *pictures: Picture, parameters: Parameters = EVERYTHING) -> Identification:
        """Identifies the plant that all pictures show.

        Args:
            pictures: One to five picture files, as bytes or paths.
            parameters: What to ask, see `POST /identify`.

        Raises:
            InputError: There are no pictures, too many, or one with more than 100 MB.
            ServiceRefusal: The request is wrong, what answers is not botanify, or the service was always overloaded.
            ServiceUnreachable: No service answered in time. An address that has never answered is given up after 16 s.
            OSError: A file cannot be read.
        """
        return msgspec.json.decode(self.identify_json(*pictures, parameters=parameters), type=Identification)

    def identify_json(self, *pictures: Picture, parameters: Parameters = EVERYTHING) -> bytes:
        """Identifies the plant, see `identify`; returns the answer as the service sent it, JSON in UTF-8."""
        return self._wait(self._service.identify_json(*pictures, parameters=parameters))

    def close(self) -> None:
        """Closes the connections and ends the thread; a call of another thread raises `futures.CancelledError`."""
        if self._thread.is_alive():
            self._wait(self._service.close())
            self._stop()
            self._thread.join()

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if not self._thread.is_alive():  # a fork copies no threads
            work.close()
            raise RuntimeError("this client is closed, or was made before this process was forked: make another one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # such as Ctrl-C
            future.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def checked_url(text: str) -> httpx2.URL:
    """Returns the address of a service; one that is not of HTTP, or has a query or a fragment, is an InputError."""
    with suppress(httpx2.InvalidURL, ValueError):  # ValueError: a host name that IDNA does not allow
        url = httpx2.URL(text)
        is_plain = url.scheme in {"http", "https"} and not url.query and not url.fragment
        if is_plain and url.host and 0 < (url.port or 80) < 65_536:
            return url
    raise InputError(
        "this is not the address of a service",
        value=repr(text.rpartition("@")[2]),  # without a password
        limit="http://HOST:PORT or https://HOST",
        remedy="give the address that the service shows when it starts",
    )


def key_header(key: str) -> dict[str, str]:
    """Returns the header with an API key, if there is one; an error does not show the key."""
    if bad := re.search(r"[^!-~]", key):
        raise InputError(
            "the API key has a character that no key has",
            value=f"U+{ord(bad[0]):04X} as character {bad.start() + 1} of {len(key)}",
            limit="visible ASCII characters",
            remedy="copy the key again, without spaces and line breaks",
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


def shrunk(data: bytes, max_side_px: int) -> bytes:
    """Reduces a picture to a longest side in px: upright, in sRGB, without EXIF data, as JPEG.

    What needs no change has none, nor has a file that lacks its end, since the service says so in its answer. A picture
    may have more pixels than the service takes.
    """
    try:
        picture = read_picture(data, max_side_px, _MOST_PIXELS)
    except PictureError:  # the service says what is wrong with it
        return data
    if picture.is_cut_off or max(picture.width, picture.height) <= max_side_px:
        return data
    picture.image.thumbnail((max_side_px, max_side_px))
    stream = io.BytesIO()
    in_srgb(picture.image).save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()


def _picture_at(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(_MOST_PICTURE_BYTES + 1)
    if len(data) > _MOST_PICTURE_BYTES:
        limit = f"at most {_MOST_PICTURE_BYTES:,} bytes"
        raise InputError(f"{path} is no photograph, it has more bytes", limit=limit, remedy="name a picture file")
    return data


def _unreachable(error: httpx2.RequestError, url: str) -> tuple[BotanifyError, float]:
    """Returns the error of an attempt without an answer, and the least time before another; infinite if none helps."""
    cannot_be_sent = isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)
    # The text about a request that cannot be sent can hold its headers, and so the key.
    reason = type(error).__name__ if cannot_be_sent or not str(error) else error
    failure = ServiceUnreachable(
        f"no service answers at {url} ({reason}): check the address, and that the service runs."
    )
    return failure, math.inf if cannot_be_sent else 0.0


def _decoded(kind: type[_Document], response: httpx2.Response) -> _Document | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what msgspec raises for odd bytes
        return msgspec.json.decode(response.content, type=kind)
    return None


def _problem(response: httpx2.Response, url: str) -> Problem:
    """Returns the problem document of a refusal, or that of a response that is not from the service, but a proxy's."""
    if problem := _decoded(Problem, response):
        return problem
    status = response.status_code
    phrase = response.reason_phrase
    detail = f"{url} answered {status} {phrase}, but not as botanify does: check the address, and any proxy before it."
    if response.has_redirect_location:  # to follow it could send the key and the pictures to somebody else
        place = response.headers["Location"]
        with suppress(httpx2.InvalidURL, ValueError):
            found = httpx2.URL(f"{url.rstrip('/')}/identify").join(place)
            place = str(found.copy_with(userinfo=b"", query=None, fragment=None)).removesuffix("/identify")
        detail = f"{url} redirects to {place} ({status} {phrase}): give that address, if you trust it."
    return Problem("about:blank", phrase, status, detail, "http_error", "")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, and then cancels what is left."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
