"""Waits for what another thread or process does."""

import asyncio
import time

PATIENCE_S = 300  # longest time for what a busy machine does late; a test that fails ends when its process does


def wait_until(condition, process=None):
    """Waits until a condition holds, or a process has ended; returns what the condition gives."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()) and (process is None or process.poll() is None):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


async def until(condition):
    """Waits on an event loop until a condition holds that another thread or process changes."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
