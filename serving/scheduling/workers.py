"""Threads that run the network; ONNX Runtime lets go of Python's lock while it does.

They are daemons of our own and not a pool's, since a pool waits at its end for a run that never returns.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from serving.cores import let_others_first

Finished = Callable[["Worker", Any, BaseException | None], None]
"""Told the worker, what its work gave, and what it raised instead."""


class Worker:
    """One thread that does one piece of work at a time and tells the event loop.

    Args:
        loop: Where the results are told.
        name: Shown by debuggers and profilers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Finished] | None] = queue.SimpleQueue()
        self._began: float | None = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def is_lost(self, longest_s: float) -> bool:
        """Whether the thread is dead, or has been at one piece of work for longer than `longest_s`."""
        if not self.is_alive:
            return True
        return self._began is not None and time.monotonic() - self._began > longest_s

    def begin(self, work: Callable[[], Any], finished: Finished) -> None:
        """Starts a piece of work; the worker must not be at another.

        Args:
            work: Runs in the thread.
            finished: Called once on the event loop, unless the thread dies or hangs, or `end` was called.
        """
        self._began = time.monotonic()
        self._work.put((work, finished))

    async def do(self, work: Callable[[], Any]) -> Any:
        """Does a piece of work and gives what it gives or raises."""
        outcome = self._loop.create_future()

        def finished(_worker: "Worker", result: Any, error: BaseException | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        self.begin(work, finished)
        return await outcome

    def end(self) -> None:
        """Lets the thread end after its present work, of which nobody is told any more."""
        self._has_ended = True
        self._work.put(None)

    def _run(self) -> None:
        let_others_first()
        while (ordered := self._work.get()) is not None:
            work, finished = ordered
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # whatever the network raises concerns its pictures, not this thread
                error = raised
            del work, ordered  # and with them the pictures
            try:
                self._loop.call_soon_threadsafe(self._settle, finished, result, error)
            except RuntimeError:  # the loop has closed
                return

    def _settle(self, finished: Finished, result: Any, error: BaseException | None) -> None:
        self._began = None
        if not self._has_ended:
            finished(self, result, error)


async def run_apart(work: Callable[[], Any]) -> Any:
    """Does a piece of work in a thread of its own, which nobody waits for at the end of the program."""
    worker = Worker(asyncio.get_running_loop(), "apart")
    try:
        return await worker.do(work)
    finally:
        worker.end()
