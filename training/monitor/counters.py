"""What the kernel counts of a process, and which processes there are."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil  # type: ignore[import-untyped]

_NS: Final = 1e9


class Counters(NamedTuple):
    """What the kernel has counted of one process."""

    at: float
    cpu_s: float
    wanted_s: float | None
    read_bytes: int | None


def cores_available() -> int:
    """Cores that each rank of this machine may use: affinity and the container's quota, shared among its ranks."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(min([affinity, *_quotas()]) / ranks))


def wanted_s(pid: int, thread: int) -> float | None:
    """Seconds in which a thread ran or waited for a core; None where the kernel does not tell (Linux does).

    What is missing to the time that has passed, it slept: for storage, for another thread, or on purpose. CPU time
    alone cannot tell sleeping from a machine that is busy with something else.
    """
    told = _schedule_s(pid, thread)
    return None if told is None else sum(told)


def waited_s(pid: int, thread: int) -> float | None:
    """Seconds in which a thread waited for a core; None where the kernel does not tell."""
    told = _schedule_s(pid, thread)
    return None if told is None else told[1]


def _schedule_s(pid: int, thread: int) -> tuple[float, float] | None:
    """Seconds in which a thread ran, and in which it waited for a core (kernel docs, sched-stats)."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) / _NS, int(waited) / _NS


def _quotas() -> Iterator[float]:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return
    if quota.isdigit():  # "max" sets no limit
        yield int(quota) / int(period)


def counters_of(process: psutil.Process, thread: int) -> Counters | None:
    """What is counted of a process; None if it has ended.

    Args:
        process: Which one.
        thread: The one whose sleep matters.
    """
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    wanted = wanted_s(process.pid, thread)
    return Counters(time.perf_counter(), times.user + times.system, wanted, _read_bytes(process))


def _read_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except (psutil.Error, AttributeError, OSError):  # not on every system, and not for every user
        return None


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Every process below one."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def is_loader(process: psutil.Process) -> bool:
    """Whether Python's multiprocessing started it to work, which its server and its tracker are not."""
    try:
        if "multiprocessing.forkserver" in " ".join(process.cmdline()):
            parent = process.parent()
            return parent is not None and "multiprocessing.forkserver" in " ".join(parent.cmdline())
        return "multiprocessing.spawn" in " ".join(process.cmdline())
    except psutil.Error:
        return False
