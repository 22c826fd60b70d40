"""The operating system's counters of a process, and its child processes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil  # type: ignore[import-untyped]

_NS: Final = 1e9


class Counters(NamedTuple):
    """Counters of a process at one time."""

    at: float
    """Time of the reading, by time.perf_counter."""
    cpu_s: float
    runnable_s: float | None
    """Seconds in which its thread ran or waited for a core."""
    read_bytes: int | None


def cores_available() -> int:
    """Cores that a rank may use: by CPU affinity and cgroup quota, divided by the ranks of this machine."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(min([affinity, *_quotas()]) / ranks))


def _quotas() -> Iterator[float]:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return
    if quota.isdigit():  # "max" sets no limit
        yield int(quota) / int(period)


def counters_of(process: psutil.Process, thread: int) -> Counters | None:
    """The counters of a process; None if it has ended.

    Args:
        process: The process.
        thread: Its thread whose sleep is measured.
    """
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    runnable = runnable_s(process.pid, thread)
    return Counters(time.perf_counter(), times.user + times.system, runnable, _read_bytes(process))


def runnable_s(pid: int, thread: int) -> float | None:
    """Seconds in which a thread ran or waited for a core; None if unknown (known on Linux).

    The rest of the time it slept: for storage, for another thread, or on purpose. CPU time alone does not distinguish
    sleeping from waiting for a core on a busy machine.
    """
    times = _schedule_s(pid, thread)
    return None if times is None else sum(times)


def queued_s(pid: int, thread: int) -> float | None:
    """Seconds in which a thread waited for a core; None if unknown."""
    times = _schedule_s(pid, thread)
    return None if times is None else times[1]


def _schedule_s(pid: int, thread: int) -> tuple[float, float] | None:
    """Seconds in which a thread ran and in which it waited for a core (kernel docs, sched-stats)."""
    try:
        ran, queued, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) / _NS, int(queued) / _NS


def _read_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except (psutil.Error, AttributeError, OSError):  # not available on every system, nor to every user
        return None


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """All descendants of a process."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def is_loader(process: psutil.Process) -> bool:
    """Whether it is a worker of multiprocessing, and not its fork server or resource tracker."""
    try:
        if "multiprocessing.forkserver" in " ".join(process.cmdline()):
            parent = process.parent()
            return parent is not None and "multiprocessing.forkserver" in " ".join(parent.cmdline())
        return "multiprocessing.spawn" in " ".join(process.cmdline())
    except psutil.Error:
        return False
