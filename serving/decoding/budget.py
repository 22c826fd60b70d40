"""A memory budget for all decodes in flight; a decode waits until its memory is available."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Gauge


class ByteBudget:
    """Grants bytes of memory in the order of the requests.

    Args:
        num_bytes: Maximum granted at any time. A larger request is granted once no other grant is held.
        granted: Gauge of the bytes granted now.
    """

    def __init__(self, num_bytes: int, granted: Gauge) -> None:
        self._num_bytes, self._gauge = num_bytes, granted
        self._granted = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._waiting)

    @asynccontextmanager
    async def grant(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits for memory, and returns it when the context ends."""
        await self._acquire(num_bytes)
        try:
            yield
        finally:
            self._add(-num_bytes)
            self._grant_waiting()

    async def _acquire(self, num_bytes: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, granted))
        self._grant_waiting()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove((num_bytes, granted))
            else:  # granted just before the cancellation
                self._add(-num_bytes)
            self._grant_waiting()
            raise

    def _grant_waiting(self) -> None:
        """Grants what fits, strictly in order: otherwise small requests could delay a large one without end."""
        while self._waiting and self._fits(self._waiting[0][0]):
            num_bytes, granted = self._waiting.popleft()
            self._add(num_bytes)
            granted.set_result(None)

    def _fits(self, num_bytes: int) -> bool:
        return self._granted == 0 or self._granted + num_bytes <= self._num_bytes

    def _add(self, num_bytes: int) -> None:
        self._granted += num_bytes
        self._gauge.set(self._granted)
