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
from multiprocessing import forkserver
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
    _start_server()
    return context


def _start_server() -> None:
    """Starts the server deaf to SIGTERM: helpers that must outlive one die if the server that started them does."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals belong to the main thread; the server then starts with its first helper
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


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
    """Ends this helper process as soon as the one that asked for it is gone, killed or not, or by SIGTERM.

    torch's own watchdog looks at the process above, which is the server, and the server stays as long as its helpers.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server ignores it
    _watch_parent()


def serve_training(_worker: int = 0) -> None:
    """Sets up a loader process: it ends with the training process or when told to by it, and by no other SIGTERM.

    Schedulers send SIGTERM to all processes at once, and the training process still needs pictures until it has saved.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None and hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of this thread and those that it starts
        threading.Thread(target=_end_when_told_by, args=(parent.pid,), daemon=True).start()
    _watch_parent()


def _end_when_told_by(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # at once: nobody is left to report to
