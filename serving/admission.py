"""Bounded work: so many at a time, so many waiting, so long; the rest is refused at once and kindly."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.errors import Overloaded


class Admission:
    """Turns for a limited number of requests.

    Args:
        max_active: Turns taken at the same time.
        max_waiting: Requests that may wait for a turn; 0 refuses as soon as every turn is taken.
        max_wait_s: Longest wait, seconds.
    """

    def __init__(self, max_active: int, max_waiting: int = 0, max_wait_s: float = 1.0) -> None:
        self._turns = asyncio.Semaphore(max_active)
        self._max_waiting, self._max_wait_s = max_waiting, max_wait_s
        self._num_waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn and holds it.

        Raises:
            Overloaded: Too many wait already, or the wait was too long.
        """
        await self._take()
        try:
            yield
        finally:
            self._turns.release()

    async def _take(self) -> None:
        if self._turns.locked() and self._num_waiting >= self._max_waiting:
            raise self._refusal()
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._turns.acquire()
        except TimeoutError:
            raise self._refusal() from None
        finally:
            self._num_waiting -= 1

    def _refusal(self) -> Overloaded:
        wait_s = math.ceil(self._max_wait_s)
        return Overloaded(
            "more requests arrive than can be answered",
            retry_after_s=wait_s,
            remedy=f"try again in {wait_s} seconds",
        )
