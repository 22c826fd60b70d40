"""Threads that run calls for the event loop, and that the program does not wait for when it exits."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Worker:
    """A thread that runs one call at a time for an event loop.

    It is a daemon thread, not one of a `ThreadPoolExecutor`: the executor joins its threads at exit and would wait for
    a call that never returns.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._started_at: float | None = None
        self._thread = threading.Thread(target=self._process_calls, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def is_lost(self, timeout_s: float) -> bool:
        """Whether the thread has died, or its current call has run longer than `timeout_s`."""
        if not self.is_alive:
            return True
        return self._started_at is not None and time.monotonic() - self._started_at > timeout_s

    def submit(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Starts a call, and returns the future of its result; it stays pending if the thread dies or hangs.

        The worker must be idle.
        """
        self._started_at = time.monotonic()
        future = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def stop(self) -> None:
        """Ends the thread after its current call."""
        self._calls.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until the thread has ended, or the time is over; blocks the caller."""
        self._thread.join(timeout_s)

    def _process_calls(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            result = None
            error = None
            try:
                result = call()
            except Exception as raised:  # an error of the network must not end this thread
                error = raised
            del call, item  # they hold the pictures
            try:
                future.get_loop().call_soon_threadsafe(self._complete, future, result, error)
            except RuntimeError:  # the loop is closed
                return
            del future, result, error  # the traceback of the error holds this frame

    def _complete(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self._started_at = None
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)


async def run_in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Runs a call in a new daemon thread, which the program does not wait for when it exits."""
    worker = Worker("daemon")
    try:
        return await worker.submit(call)
    finally:
        worker.stop()
