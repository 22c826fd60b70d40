"""Threads for the work that would stop the event loop; Pillow and ONNX Runtime both let go of Python's lock."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Threads:
    """A pool of threads with one promise: a call that returns, or is cancelled, no longer runs.

    So whoever holds a turn while calling never lets go of it while the work, and its memory, live on.

    Args:
        num_threads: Calls at the same time.
        name: Shown by debuggers and profilers.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    async def call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Runs a function in a thread and gives what it gives or raises.

        When cancelled, a call that has not started never does, and one that runs is waited for.
        """
        work = self._pool.submit(function, *args, **kwargs)
        outcome = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not work.cancel():
                await asyncio.wait({outcome})
                outcome.exception()  # looked at, or asyncio complains that nobody did
            raise

    def close(self) -> None:
        """Drops what has not started; what runs, ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
