"""Samples the machine while a run trains: cores, loader processes, GPU.

A thread reads counters of the kernel and the driver. No error here ends a run: values that a system does not provide
are None.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil  # type: ignore[import-untyped]
import torch

_INTERVAL_S: Final = 0.5
_SCAN_EVERY: Final = 20  # samples; a scan for child processes reads every process of the machine
_GB: Final = 1e9


class Usage(msgspec.Struct, frozen=True):
    """What a run used of its machine; None if unknown."""

    cores: int
    """Cores that this process may use."""
    loader_busy: float | None
    """Share of the time in which loader processes ran or waited for a core; else they waited, mostly for storage."""
    gpu_use_mean: float | None
    """Share of the time in which a kernel ran."""
    gpu_memory_gb_max: float | None
    """Of all processes on the GPU."""


class UsageSampler:
    """Samples in a background thread, between `begin` and `end`.

    Args:
        device: Where the run trains; a GPU is sampled, too.
        workers: Number of loader processes. The busiest children count as these: others, such as those of a loader that
            is no longer used, do not work.
    """

    def __init__(self, device: torch.device, workers: int) -> None:
        self.gpu_problem = ""
        """Why the GPU cannot be sampled; empty if it can, or if there is none."""
        self._device = device if device.type == "cuda" else None
        if self._device is not None and device.index is None and torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())  # it may differ between threads
        self._cores, self._workers = cores_available(), workers
        self._lock = threading.Lock()
        self._awake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._reset()

    def begin(self) -> None:
        """Discards earlier samples and samples from now on."""
        with self._lock:
            self._reset()
            self._sample()
        self._awake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
            self._thread.start()

    def so_far(self) -> Usage:
        """The usage since `begin`."""
        with self._lock:
            self._sample()
            seconds = max(time.perf_counter() - self._began, 1e-9)
            busy = sorted((last - first for first, last in self._busy_s.values()), reverse=True)[: self._workers]
            return Usage(
                cores=self._cores,
                loader_busy=round(min(sum(busy) / len(busy) / seconds, 1.0), 3) if busy else None,
                gpu_use_mean=round(sum(self._gpu_use) / len(self._gpu_use), 3) if self._gpu_use else None,
                gpu_memory_gb_max=max(self._gpu_memory, default=None),
            )

    def end(self) -> Usage:
        """The usage since `begin`; stops sampling."""
        self._awake.clear()
        return self.so_far()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _reset(self) -> None:
        self._began, self._taken = time.perf_counter(), 0
        self._children: list[psutil.Process] = []
        self._busy_s: dict[int, tuple[float, float]] = {}  # process id -> `_busy_s` at its first and its last sample
        self._gpu_use: list[float] = []
        self._gpu_memory: list[float] = []

    def _run(self) -> None:
        while self._awake.wait() and not self._closed.wait(_INTERVAL_S):
            with self._lock:
                if self._awake.is_set():
                    self._sample()

    def _sample(self) -> None:
        with suppress(psutil.Error):  # a process has ended meanwhile
            if self._taken % _SCAN_EVERY == 0:
                self._children = psutil.Process().children(recursive=True)
        self._taken += 1
        for child in self._children:
            with suppress(psutil.Error):
                busy_s = _busy_s(child)
                self._busy_s[child.pid] = self._busy_s.get(child.pid, (busy_s, busy_s))[0], busy_s
        if self._device is not None and not self.gpu_problem:
            try:
                self._gpu_use.append(torch.cuda.utilization(self._device) / 100)
                self._gpu_memory.append(torch.cuda.device_memory_used(self._device) / _GB)
            except Exception as error:  # the driver's library can fail in many ways, and none may end a run
                self.gpu_problem = str(error).splitlines()[0] if str(error) else type(error).__name__


def _busy_s(process: psutil.Process) -> float:
    """Seconds in which a process ran or waited for a core (kernel docs, sched-stats); its CPU seconds if unknown."""
    try:
        ran_ns, queued_ns, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        times = process.cpu_times()
        return float(times.user + times.system)
    return (int(ran_ns) + int(queued_ns)) / 1e9


def cores_available() -> int:
    """Cores that a rank may use: by CPU affinity and cgroup quota, divided by the ranks of this machine."""
    limits = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    with suppress(OSError, ValueError):  # not on every system; "max" sets no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limits.append(int(quota) / int(period))
    return max(1, int(min(limits) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
