"""Memory for all decodes in flight: whoever wants some waits until it is free."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Gauge


class ByteBudget:
    """A number of bytes, granted first come first served.

    Args:
        num_bytes: Most at any time, but for one grant that is larger than this and alone.
        granted: Shows how many are granted now.
    """

    def __init__(self, num_bytes: int, granted: Gauge) -> None:
        self._num_bytes, self._gauge = num_bytes, granted
        self._granted = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def grant(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits for memory, and gives it back at the end of the `with`."""
        await self._acquire(num_bytes)
        try:
            yield
        finally:
            self._add(-num_bytes)
            self._wake()

    async def _acquire(self, num_bytes: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((num_bytes, turn))
            else:  # granted in the same step of the loop
                self._add(-num_bytes)
            self._wake()
            raise

    def _wake(self) -> None:
        """Grants what fits, in order: a small request never overtakes a large one, or that might wait for ever."""
        while self._waiting and self._fits(self._waiting[0][0]):
            num_bytes, turn = self._waiting.popleft()
            self._add(num_bytes)
            turn.set_result(None)

    def _fits(self, num_bytes: int) -> bool:
        return self._granted == 0 or self._granted + num_bytes <= self._num_bytes

    def _add(self, num_bytes: int) -> None:
        self._granted += num_bytes
        self._gauge.set(self._granted)
