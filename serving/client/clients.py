"""The client with asyncio, and the one with threads."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec

from models.errors import InputError
from serving.client.checks import check_limits, check_number, checked_url, key_header
from serving.client.exchange import EVERYTHING, Asking, exchange
from serving.client.shrinking import shrunk
from serving.schemas import Identification

Picture = bytes | str | Path
"""The bytes of a picture file, or its path."""
_MOST_QUESTIONS: Final = 64  # at the same time: each has a connection, and its pictures in memory
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_QUESTIONS, keepalive_expiry=60)
_MOST_BYTES: Final = 16_000_000  # far more than the names of 50 taxa and 100 candidates take
_READ_HEADERS: Final = ("Location", "Retry-After")
_CONNECT_S: Final = 5.0
# A proxy of the environment cannot reach a service on this machine.
_WITHOUT_PROXY: Final = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
_Result = TypeVar("_Result")


class _Service:
    """What both clients are made of: a connection to a service, which runs in one event loop."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        check_limits(timeout_s, max_side_px)
        self._url, self._headers = checked_url(url), key_header(api_key)
        self._timeout_s, self._max_side_px = timeout_s, max_side_px
        self._http, self._turns = _connections(), asyncio.Semaphore(_MOST_QUESTIONS)
        self._start()

    def _start(self) -> None:
        """Starts what a client needs beside the connections."""

    async def _ask(self, pictures: tuple[Picture, ...], asking: Asking) -> bytes:
        check_number(len(pictures))
        async with self._turns:
            data = await asyncio.to_thread(self._read, pictures)
            return await exchange(self._send, self._url, data, asking, timeout_s=self._timeout_s, headers=self._headers)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request, and reads no more than an answer takes; what was packed unasked is not unpacked."""
        content = bytearray()
        async with aclosing(await self._http.send(request, stream=True)) as response:
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > _MOST_BYTES:
                    break
        headers = {name: response.headers[name] for name in _READ_HEADERS if name in response.headers}
        return httpx.Response(response.status_code, headers=headers, content=bytes(content))

    def _read(self, pictures: tuple[Picture, ...]) -> list[bytes]:
        data = [each if isinstance(each, bytes) else Path(each).read_bytes() for each in pictures]
        return data if self._max_side_px is None else [shrunk(each, self._max_side_px) for each in data]


class AsyncClient(_Service):
    """Asks the service with asyncio, in one event loop.

    Start as many calls at the same time as you like: 64 are in progress, and the others wait for their turn, with
    nothing read yet. The arguments are those of `Client`.
    """

    async def identify(self, *pictures: Picture, asking: Asking = EVERYTHING) -> Identification:
        """Identifies the plant that all pictures show, see `Client.identify`."""
        return msgspec.json.decode(await self._ask(pictures, asking), type=Identification)

    async def identify_json(self, *pictures: Picture, asking: Asking = EVERYTHING) -> bytes:
        """Identifies the plant that all pictures show, see `Client.identify_json`."""
        return await self._ask(pictures, asking)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client(_Service):
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

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="botanify-client", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def identify(self, *pictures: Picture, asking: Asking = EVERYTHING) -> Identification:
        """Identifies the plant that all pictures show.

        Args:
            pictures: One to five picture files, as bytes or paths.
            asking: What to ask.

        Raises:
            InputError: There are no pictures, or too many.
            ServiceRefusal: The request is wrong, what answers is not botanify, or the service was overloaded all the
                time.
            ServiceUnreachable: No service answered in time.
            OSError: A file cannot be read.
        """
        return msgspec.json.decode(self.identify_json(*pictures, asking=asking), type=Identification)

    def identify_json(self, *pictures: Picture, asking: Asking = EVERYTHING) -> bytes:
        """Does the same as `identify`, and returns the answer as the service sent it: JSON in UTF-8."""
        return self._wait(self._ask(pictures, asking))

    def close(self) -> None:
        """Closes the connections and ends the thread; a call of another thread raises `futures.CancelledError`."""
        if self._thread.is_alive():
            self._wait(self._http.aclose())
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _connections() -> httpx.AsyncClient:
    try:
        # `exchange` has the time limit. A machine that does not take the connection is not there: that is tried again.
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        return httpx.AsyncClient(limits=_LIMITS, mounts=_WITHOUT_PROXY, timeout=timeout)
    except (httpx.InvalidURL, ValueError, ImportError) as error:  # ImportError: SOCKS needs another package
        raise InputError(
            "a proxy that the environment names cannot be used",
            limit="an address with http:// or https://",
            remedy="correct or unset HTTP_PROXY, HTTPS_PROXY and ALL_PROXY",
        ) from error


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, and then cancels what is left."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
