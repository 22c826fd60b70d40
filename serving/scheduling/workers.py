"""Threads that run the network; ONNX Runtime releases the GIL while it runs.

They are daemon threads, not a `ThreadPoolExecutor`: the executor joins its threads at exit and would wait for a run
that never returns.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from serving.cores import lower_priority

Callback = Callable[["Worker", Any, BaseException | None], None]
"""Receives the worker, the result of its call, and the exception if the call raised one."""


class Worker:
    """A thread that runs one call at a time and reports the result to the event loop.

    Args:
        loop: The event loop on which callbacks run.
        name: Thread name, for debuggers and profilers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Callback] | None] = queue.SimpleQueue()
        self._started_at: float | None = None
        self._is_stopped = False
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

    def submit(self, call: Callable[[], Any], callback: Callback) -> None:
        """Starts a call; the worker must be idle.

        Args:
            call: Runs in the thread.
            callback: Called once on the event loop, unless the thread dies or hangs or `stop` was called.
        """
        self._started_at = time.monotonic()
        self._calls.put((call, callback))

    async def run(self, call: Callable[[], Any]) -> Any:
        """Runs a call in the thread and returns its result or raises its exception."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(call, partial(_complete, future))
        try:
            return await future
        finally:
            del future  # it holds the exception, whose traceback holds this frame and thereby the call

    def stop(self) -> None:
        """Ends the thread after its current call. The callback of that call is no longer called."""
        self._is_stopped = True
        self._calls.put(None)

    def join(self) -> None:
        """Waits until the thread has ended; blocks the caller."""
        self._thread.join()

    def _process_calls(self) -> None:
        lower_priority()
        while (item := self._calls.get()) is not None:
            call, callback = item
            result, error = None, None
            try:
                result = call()
            except Exception as raised:  # an error of the network must not end this thread
                error = raised
            del call, item  # they hold the pictures
            try:
                self._loop.call_soon_threadsafe(self._report, callback, result, error)
            except RuntimeError:  # the loop is closed
                return
            del callback, result, error  # the traceback of the error holds this frame

    def _report(self, callback: Callback, result: Any, error: BaseException | None) -> None:
        self._started_at = None
        if not self._is_stopped:
            callback(self, result, error)


def _complete(future: asyncio.Future[Any], _worker: Worker, result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


async def run_in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Runs a call in a new daemon thread, which the program does not wait for when it exits."""
    worker = Worker(asyncio.get_running_loop(), "daemon")
    try:
        return await worker.run(call)
    finally:
        worker.stop()
