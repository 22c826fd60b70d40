"""How helper processes are started: from a clean server, never by forking a process that already runs threads.

torch and Arrow run threads; a fork copies their locks but not the threads that would release them, and Python 3.12
warns of it. The server imports what the helpers need once, so that each starts in milliseconds.
"""

import multiprocessing
from multiprocessing.context import BaseContext
from typing import Final

_PRELOADED: Final = ["training.data"]


def clean_context() -> BaseContext:
    """The way to start processes that is safe beside threads: a fork server where there is one, else spawning."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
