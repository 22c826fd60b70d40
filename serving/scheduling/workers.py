"""Threads that run the network; ONNX Runtime lets go of Python's lock while it does.

They are daemons of our own and not a pool's, since a pool waits at its end for a run that never returns.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

Finished = Callable[["Worker", Any, BaseException | None], None]
"""Told the worker, what its work gave, and what it raised instead."""


class Worker:
    """One thread that does one piece of work at a time and tells the event loop.

    Args:
        loop: Where `finished` is called.
        finished: Called once for each piece of work, unless the thread dies or hangs in it.
        name: Shown by debuggers and profilers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, finished: Finished, name: str) -> None:
        self._loop, self._finished = loop, finished
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether it was given work that it has not finished."""
        return self._began is not None

    def is_lost(self, longest_s: float) -> bool:
        """Whether the thread is dead, or has been at one piece of work for longer than `longest_s`."""
        if not self._thread.is_alive():
            return True
        return self._began is not None and time.monotonic() - self._began > longest_s

    def begin(self, work: Callable[[], Any]) -> None:
        """Starts a piece of work; the worker must not be busy."""
        self._began = time.monotonic()
        self._work.put(work)

    def end(self) -> None:
        """Lets the thread end after its present work, and never calls `finished` again."""
        self._finished = _forget
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # whatever the network raises concerns its pictures, not this thread
                error = raised
            del work  # and with it the pictures
            if not self._tell(result, error):
                return

    def _tell(self, result: Any, error: BaseException | None) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._settle, result, error)
        except RuntimeError:  # the loop has closed
            return False
        return True

    def _settle(self, result: Any, error: BaseException | None) -> None:
        self._began = None
        self._finished(self, result, error)


def _forget(_worker: Worker, _result: Any, _error: BaseException | None) -> None:
    """For a worker that was replaced."""


async def run_apart(work: Callable[[], Any]) -> Any:
    """Does a piece of work in a thread of its own, which nobody waits for at the end of the program."""
    loop = asyncio.get_running_loop()
    outcome = loop.create_future()

    def finished(_worker: Worker, result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    worker = Worker(loop, finished, "apart")
    worker.begin(work)
    try:
        return await outcome
    finally:
        worker.end()
