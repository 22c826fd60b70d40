"""How helper processes are started: from a clean server, never by forking a process that already runs threads.

torch and Arrow run threads; a fork copies their locks but not the threads that would release them, and Python 3.12
warns of it. The server imports what the helpers need once, so that each starts in milliseconds.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from models.errors import DataError


def clean_context(*preloaded: str) -> BaseContext:
    """The way to start processes that is safe beside threads: a fork server where there is one, else spawning.

    Args:
        preloaded: Modules that the server imports; only those of the first start count, and the rest costs only time.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    return context


@contextmanager
def told_if_killed() -> Iterator[None]:
    """Turns the death of a pool's process into one clear error.

    Raises:
        DataError: A process was ended from outside, most often because memory ran out.
    """
    try:
        yield
    except BrokenProcessPool as error:
        raise DataError(
            "a helper process was ended from outside",
            value=error,
            remedy="if memory ran out, run the same command with fewer --workers",
        ) from error


def end_with_parent(_worker: int = 0) -> None:
    """Ends this helper process as soon as the one that asked for it is gone, killed or not.

    torch's own watchdog looks at the process above, which is the server, and the server stays as long as its helpers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def serve_training(worker: int = 0) -> None:
    """Sets up a loader process: it ends with the training process, and not by a SIGTERM before it.

    Schedulers send SIGTERM to all processes at once, and the training process still needs pictures until it has saved.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(worker)


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # at once: nobody is left to report to
