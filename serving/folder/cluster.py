"""Parts on the machines of a Ray cluster: each part is a task of Ray, which starts it again if its machine is lost.

Nothing returns through Ray but the counts: the rows are in the file of the part.
"""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from models.errors import BotanifyError, InputError, one_line
from serving.errors import Unavailable
from serving.folder.command import IdentifyFolder
from serving.folder.results import Part
from serving.folder.rows import Row
from serving.folder.worker import Worker

_Result = TypeVar("_Result")
_OpenWorker = Callable[..., AbstractAsyncContextManager[Worker]]
_CONNECT_S: Final = 10.0
_MAX_RETRIES: Final = 10
"""Machines or processes that a part may cost; a photograph can end a process, but never so often by chance."""


async def write_on_cluster(
    command: IdentifyFolder,
    open_worker: _OpenWorker,
    parts: Iterable[Part],
    on_row: Callable[[Row], None],
    on_part: Callable[[], None],
) -> None:
    """Does what `Worker.write` does; rows have only the columns that are counted.

    Args:
        command: The flags.
        open_worker: Opens a worker that uses so many cores.
        parts: What to identify.
        on_row: Called with each row of a part that is written.
        on_part: Called after each part.

    Raises:
        InputError: Ray is not installed, no cluster has that address, or a part failed.
    """
    with _connected(str(command.ray)) as ray:
        needs = task_needs([node["Resources"] for node in ray.nodes() if node["Alive"]], command.provider)
        # A machine whose network or decoder fails is lost as one that dies; any other error ends the run.
        task = ray.remote(**needs, max_retries=_MAX_RETRIES, retry_exceptions=[Unavailable])(_write_part)
        opener = ray.put(partial(open_worker, int(needs["num_cpus"])))
        results = [asyncio.wrap_future(task.remote(opener, part).future()) for part in parts]
        try:
            for ended in asyncio.as_completed(results):
                for row in await ended:
                    on_row(row)
                on_part()
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, (BotanifyError, OSError)) else error) from None
        except ray.exceptions.RayError as error:
            raise InputError(
                f"{_MAX_RETRIES + 1} processes ended while they answered one part",
                value=one_line(error),
                remedy="look at the logs of the cluster; the same command continues",
            ) from None


def task_needs(nodes: Sequence[Mapping[str, float]], provider: str) -> dict[str, float]:
    """Returns what a task takes of its machine: a core, or a GPU with its share of the cores, which decode ahead of it.

    Args:
        nodes: Resources of each machine, by Ray's names.
        provider: "cpu" or "cuda".

    Raises:
        InputError: No machine has a GPU.
    """
    if provider == "cpu":
        return {"num_cpus": 1}
    shares = [node.get("CPU", 0) // node["GPU"] for node in nodes if node.get("GPU", 0) >= 1]
    if not shares:
        raise InputError("no machine of the Ray cluster has a GPU", remedy="add one, or leave out --provider cuda")
    return {"num_cpus": max(1, min(shares)), "num_gpus": 1}


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connects this process to a cluster; what it has started there ends with the context."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError(
            "--ray needs the package ray", remedy="run `python -m uv pip install --editable '.[ray]'` in the clone"
        ) from error
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        host, _, port = address.rpartition(":")
        if port.isdecimal() and "://" not in address:  # Ray would try again for many minutes if nothing listens there
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            "no Ray cluster can be reached",
            value=address,
            limit=one_line(error, 200),
            remedy="start one with `ray start --head`, or correct --ray",
        ) from error
    for number, handler in handlers.items():  # Ray's own would exit at once
        signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


# ---- in the processes of the cluster


class _Process:
    """Opens the bundle once for all tasks of a process. Its event loop runs between them too, for the decoder."""

    def __init__(self, open_worker: _OpenWorker) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        # Kept, and never left: without it its generator, and thereby the decoder, would be collected.
        self._context = open_worker()
        self._worker = self.wait(self._context.__aenter__())

    async def write(self, part: Part) -> list[Row]:
        """Writes the rows of a part, and returns their counted columns."""
        rows: list[Row] = []
        await self._worker.write([part], rows.append)
        return [{name: row[name] for name in ("status", "num_photographs")} for row in rows]

    def wait(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


_process: Final[list[_Process]] = []  # Ray keeps a process for further tasks of a run


def _write_part(open_worker: _OpenWorker, part: Part) -> list[Row]:
    """Is the task."""
    if not _process:
        _process.append(_Process(open_worker))
    return _process[0].wait(_process[0].write(part))
