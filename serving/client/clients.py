"""The client with threads, and the one with asyncio."""

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from serving.client.exchange import EVERYTHING, Asking, Exchange, exchange
from serving.client.shrinking import shrunk
from serving.schemas import Identification

Picture = bytes | str | Path
"""The bytes of a picture file, or its path."""
_CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=60)


class _Settings:
    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        self._url, self._timeout_s, self._max_side_px = url, timeout_s, max_side_px
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def _exchange(self, pictures: tuple[Picture, ...], asking: Asking) -> Exchange:
        data = [each if isinstance(each, bytes) else Path(each).read_bytes() for each in pictures]
        if self._max_side_px is not None:
            data = [shrunk(each, self._max_side_px) for each in data]
        return exchange(self._url, data, asking, timeout_s=self._timeout_s, headers=self._headers)


class Client(_Settings):
    """Asks the service, and waits for the answer. Threads may share a client.

    Args:
        url: Address of the service.
        api_key: Key, if the service needs one.
        timeout_s: Longest time for an answer with all attempts, seconds.
        max_side_px: Pictures with a longer side are reduced to it before they are sent; None sends them as they are.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, max_side_px=max_side_px)
        self._http = httpx.Client(limits=_CONNECTIONS)

    def identify(self, *pictures: Picture, asking: Asking = EVERYTHING) -> Identification:
        """Identifies the plant that all pictures show.

        Args:
            pictures: One to five picture files, as bytes or paths.
            asking: What to ask.

        Raises:
            ServiceRefusal: The request is wrong, or the service was overloaded all the time.
            ServiceUnreachable: No service answered.
            OSError: A file cannot be read.
        """
        steps = self._exchange(pictures, asking)
        outcome: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                answer: Identification = end.value
                return answer
            if isinstance(step, httpx.Request):
                try:
                    outcome = self._http.send(step)
                except httpx.TransportError as error:
                    outcome = error
            else:
                time.sleep(step)
                outcome = None

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Settings):
    """Asks the service with asyncio. Start as many calls at the same time as you like; see `Client`."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0,
        max_side_px: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, max_side_px=max_side_px)
        self._http = httpx.AsyncClient(limits=_CONNECTIONS)

    async def identify(self, *pictures: Picture, asking: Asking = EVERYTHING) -> Identification:
        """Identifies the plant that all pictures show, see `Client.identify`."""
        steps = await asyncio.to_thread(self._exchange, pictures, asking)
        outcome: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                answer: Identification = end.value
                return answer
            if isinstance(step, httpx.Request):
                try:
                    outcome = await self._http.send(step)
                except httpx.TransportError as error:
                    outcome = error
            else:
                await asyncio.sleep(step)
                outcome = None

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
