"""Parts on the machines of a Ray cluster: each part is a task on a machine that this process chooses.

Nothing returns through Ray but the counts: the rows are in the file of the part. Ray could choose the machines, and
start a lost task again. But it noticed only after minutes that a frozen machine did not answer (2.60), and meanwhile no
task was started on the others.
"""

import asyncio
import logging
import math
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from models.errors import BotanifyError, InputError
from serving.errors import Unavailable
from serving.folder.command import IdentifyFolder
from serving.folder.plan import Part
from serving.folder.results import BundleName, PartFiles
from serving.folder.rows import Row
from serving.folder.worker import Worker, open_worker

_Result = TypeVar("_Result")
_LOOK_S: Final = 5.0  # between two looks at which machines are there
_AVOID_S: Final = 30.0  # after a loss: Ray may take some time to notice that a machine is dead
_CONNECT_S: Final = 10.0
_MAX_HOLDERS: Final = 2
MAX_LOSSES: Final = 10
"""Machines or processes that a part may cost; a photograph can end a process, but never so often by chance."""
_log = structlog.get_logger(__name__)


async def write_on_cluster(
    command: IdentifyFolder, bundle: BundleName, files: PartFiles, parts: Iterable[Part]
) -> AsyncIterator[list[Row]]:
    """Yields the counted columns of the rows of each part once they are written, in any order.

    Raises:
        InputError: Ray is not installed, no cluster has that address, or a part failed.
    """
    dispatch = Dispatch(parts)
    with _connected(str(command.ray)) as ray:
        machines = _Machines(ray, command, bundle, files)
        while not dispatch.is_done:
            machines.fill(dispatch)
            for part, machine, rows in await machines.wait():
                if rows is None:
                    dispatch.lose(part, machine)
                elif dispatch.finish(part):
                    yield rows


class Dispatch:
    """Gives parts to machines.

    When none is left, a machine with a free place gets one that another machine has had for the longest time: that one
    may be frozen or slow, and what is written twice counts once.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._left = deque(parts)
        self._held: dict[int, tuple[Part, list[str]]] = {}  # in the order in which they were given
        self._losses: Counter[int] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether every part is done."""
        return not self._left and not self._held

    def give(self, machine: str) -> Part | None:
        """Returns a part for a machine with a free place, if there is one."""
        held = ((part, holders) for part, holders in self._held.values() if len(holders) < _MAX_HOLDERS)
        copy = (part for part, holders in held if machine not in holders)
        part = self._left.popleft() if self._left else next(copy, None)
        if part is not None:
            self._held.setdefault(part.number, (part, []))[1].append(machine)
        return part

    def finish(self, part: Part) -> bool:
        """Notes that a part is done; returns whether it was not before."""
        return self._held.pop(part.number, None) is not None

    def lose(self, part: Part, machine: str) -> None:
        """Notes that a machine, or the process on it, ended before the part was done.

        Raises:
            InputError: The part has cost too many of them.
        """
        if part.number not in self._held:  # another machine did it
            return
        self._losses[part.number] += 1
        if self._losses[part.number] > MAX_LOSSES:
            raise InputError(
                f"{MAX_LOSSES + 1} processes ended while they answered one part",
                value=f"part {part.number}, which begins with {part.plants[0].photographs[0].path}",
                remedy="look at the logs of the cluster; the same command continues",
            )
        holders = self._held[part.number][1]
        holders.remove(machine)
        if not holders:
            del self._held[part.number]
            self._left.appendleft(part)


class _Machines:
    """The machines of a cluster, and what each of them does."""

    def __init__(self, ray: Any, command: IdentifyFolder, bundle: BundleName, files: PartFiles) -> None:
        self._ray, self._running = ray, dict[asyncio.Future[list[Row]], tuple[Part, str]]()
        self._needs = task_needs([node["Resources"] for node in ray.nodes() if node["Alive"]], command.provider)
        self._task = ray.remote(**self._needs, max_retries=0)(_write_part)
        self._open_worker = ray.put(partial(open_worker, command, bundle, files, int(self._needs["num_cpus"])))
        self._run_id = files.run_id
        self._places: dict[str, int] = {}
        self._avoided_until: dict[str, float] = {}
        self._looked_at = -math.inf

    def fill(self, dispatch: Dispatch) -> None:
        """Gives parts to the machines with free places."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._look()
        busy = Counter(machine for _, machine in self._running.values())
        for machine, num_places in self._places.items():
            for _ in range(num_places - busy[machine]):
                part = dispatch.give(machine)
                if part is not None:
                    self._running[self._start(part, machine)] = part, machine

    async def wait(self) -> list[tuple[Part, str, list[Row] | None]]:
        """Waits until a task ends, or some seconds, after which other machines may be there.

        Returns:
            For each task that ended its part, its machine, and the rows; None if the machine or the process died.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_LOOK_S)
        ended = []
        for future, (part, machine) in list(self._running.items()):
            if future.done() or machine not in self._places:
                del self._running[future]
                rows = _result(future) if future.done() else None
                if rows is None:
                    self._avoided_until[machine] = time.monotonic() + _AVOID_S
                    self._looked_at = -math.inf
                ended.append((part, machine, rows))
        return ended

    def _start(self, part: Part, machine: str) -> "asyncio.Future[list[Row]]":
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(machine, soft=False)
        task = self._task.options(scheduling_strategy=there).remote(self._run_id, self._open_worker, part)
        return asyncio.wrap_future(task.future())

    def _look(self) -> None:
        """Notices which machines came and which are gone."""
        now = self._looked_at = time.monotonic()
        alive = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        self._places = {
            machine: 0 if now < self._avoided_until.get(machine, 0) else num_places(has, self._needs)
            for machine, has in alive.items()
        }


def num_places(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Returns how many tasks with the needs of `task_needs` fit on a machine with such resources, by Ray's names."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return int(min(has.get(names[name], 0) // number for name, number in needs.items()))


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
            limit=" ".join(str(error).split())[:200],
            remedy="start one with `ray start --head`, or correct --ray",
        ) from error
    for number, handler in handlers.items():  # Ray's own would exit at once
        signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _result(future: "asyncio.Future[list[Row]]") -> list[Row] | None:
    """Returns what a task returned, or None if its machine died or cannot answer; other errors are raised."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return future.result()
    except RayTaskError as error:
        if not isinstance(error.cause, Unavailable):
            raise (error.cause if isinstance(error.cause, (BotanifyError, OSError)) else error) from None
        lost: Exception = error.cause
    except RayError as error:
        lost = error
    _log.warning("task_lost", error=" ".join(str(lost).split())[:300])
    return None


# ---- in the processes of the cluster


class _Process:
    """Opens the bundle once for all tasks of a process. Its event loop runs between them too, for the decoder."""

    def __init__(self, open_worker: Callable[[], AbstractAsyncContextManager[Worker]]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        # Kept, and never left: without it its generator, and thereby the decoder, would be collected.
        self._context = open_worker()
        self._worker = self.wait(self._context.__aenter__())

    async def write(self, part: Part) -> list[Row]:
        """Writes the rows of a part, and returns their counted columns."""
        rows: list[Row] = []
        async for _ in self._worker.write([part], rows.append):
            pass
        return [{name: row[name] for name in ("status", "num_photographs")} for row in rows]

    def wait(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


_processes: Final[dict[str, _Process]] = {}


def _write_part(run_id: str, open_worker: Callable[[], AbstractAsyncContextManager[Worker]], part: Part) -> list[Row]:
    """Is the task; Ray keeps its process for the next one."""
    if run_id not in _processes:
        _processes[run_id] = _Process(open_worker)
    return _processes[run_id].wait(_processes[run_id].write(part))
