"""Starts worker processes from a fork server, never by forking a process that runs threads.

PyTorch and Arrow run threads. A fork copies their locks, but not the threads that would release them; Python 3.12 warns
of it. The fork server imports the workers' modules once, so each worker starts in milliseconds.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final, TypeVar

from models.errors import DataError

Task = TypeVar("Task")
Result = TypeVar("Result")
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def clean_context(*preloaded: str) -> BaseContext:
    """The multiprocessing context for worker processes: a fork server, or spawn where the platform has none.

    The server imports the preloaded modules when it starts. If it runs already, workers import them themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preloaded, "training.frozen"])
    _start_server()
    return context


def worker_pool(workers: int, *preloaded: str) -> ProcessPoolExecutor:
    """Returns a pool of so many processes of `clean_context`, which end with this one."""
    return ProcessPoolExecutor(workers, mp_context=clean_context(*preloaded), initializer=end_with_parent)


def _start_server() -> None:
    """Starts the server with the stop signals blocked, which all threads of all its workers inherit.

    Schedulers and terminals send them to every process of the group, and a loader process must outlive them: it serves
    the training process until that has saved. If it blocked them itself, it would be too late: threads that start while
    its data set is unpickled, such as Arrow's, would still receive them.
    """
    resource_tracker.ensure_running()  # first, since its start unblocks these signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def clear_error_if_killed() -> Iterator[None]:
    """Converts the error of a pool whose worker process was killed, most often for lack of memory, to a `DataError`."""
    try:
        yield
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed",
            value=error,
            remedy="if memory ran out, run the same command with fewer --workers",
        ) from error


def in_order(
    pool: Executor, work: Callable[[Task], Iterable[Result]], tasks: Iterable[Task], *, most: int
) -> Iterator[Result]:
    """Yields the results of tasks, each of which has several, in the order of the tasks; `most` tasks are in memory.

    Raises:
        DataError: A process was killed.
    """
    waiting: deque[Future[Iterable[Result]]] = deque()
    with clear_error_if_killed():
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= most:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def end_with_parent() -> None:
    """Initializer of a worker process: it exits on SIGTERM and Ctrl-C, or when its parent has ended for any reason.

    PyTorch's watchdog checks the operating system's parent. That is the fork server, which runs as long as its workers.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)  # the server blocks them
    _watch_parent()


def init_loader_worker(_worker: int = 0) -> None:
    """Initializer of a loader process: it exits on SIGTERM from the training process only, or when that has ended.

    SIGTERM is blocked since its start, so a thread has to wait for it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None and hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_exit_on_sigterm_from, args=(parent.pid,), daemon=True).start()
    _watch_parent()


def _exit_on_sigterm_from(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # at once: there is no parent to report to
