"""Samples the machine while a run trains: cores, loader processes, storage, GPU.

A thread reads counters of the kernel and the driver every half second. No error here ends a run: values that a system
does not provide are None.
"""

import threading
import time
from typing import Final, NamedTuple

import msgspec
import psutil  # type: ignore[import-untyped]
import torch

from training.monitor.counters import Counters, children_of, cores_available, counters_of, is_loader

_INTERVAL_S: Final = 0.5
_FIRST_INTERVAL_S: Final = 0.05  # short epochs are sampled more often
_SHORTEST_RATE_S: Final = 0.4  # CPU time is counted in ticks of 10 ms
_SCAN_INTERVAL_S: Final = 10.0  # a scan for child processes reads every process of the machine
_MB: Final = 1e6
_GB: Final = 1e9


class Usage(msgspec.Struct, frozen=True):
    """What a run used of its machine; None if unknown."""

    cores: int
    """Cores that this process may use."""
    cpu_cores_mean: float
    """Busy cores, of this process and its children."""
    cpu_cores_max: float
    loader_busy: float | None
    """Share of the time in which loader processes ran or waited for a core; otherwise they waited for storage or for
    space in their queue."""
    host_slept_s: float | None
    """Seconds in which the training thread slept."""
    read_mb_per_s: float | None
    """Read from disks, not from the page cache; network file systems may not be counted."""
    gpu_use_mean: float | None
    """Share of the time in which a kernel ran."""
    gpu_use_max: float | None
    gpu_memory_gb_max: float | None
    """Of all processes on the GPU."""


class UsageSampler:
    """Samples in a background thread, between `begin` and `end`.

    Args:
        device: Where the run trains; a GPU is sampled, too.
        workers: Number of loader processes. Of all that are found, this many of the busiest count, since a loader that
            is no longer used may keep its processes.
    """

    def __init__(self, device: torch.device, workers: int) -> None:
        self.gpu_problem = ""
        """Why the GPU cannot be sampled; empty if it can, or if there is none."""
        self._device = _with_index(device) if device.type == "cuda" else None
        self._cores, self._workers = cores_available(), workers
        self._lock = threading.Lock()
        self._awake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = _Samples(0)

    def begin(self) -> None:
        """Discards earlier samples and samples from now on; called by the training thread."""
        with self._lock:
            self._samples = _Samples(threading.get_native_id())
            self._sample()
        self._awake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
            self._thread.start()

    def so_far(self) -> Usage:
        """The usage since `begin`."""
        with self._lock:
            return self._samples.usage(self._cores, self._workers)

    def end(self) -> Usage:
        """The usage since `begin`; stops sampling."""
        self._awake.clear()
        with self._lock:
            self._sample()
            return self._samples.usage(self._cores, self._workers)

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while self._awake.wait() and not self._closed.wait(self._samples.pause_s()):
            with self._lock:
                if self._awake.is_set():
                    self._sample()

    def _sample(self) -> None:
        self._samples.sample()
        if self._device is not None and not self.gpu_problem:
            try:
                self._samples.sample_gpu(self._device)
            except Exception as error:  # the driver's library can fail in many ways, and none may end a run
                self.gpu_problem = str(error).splitlines()[0] if str(error) else type(error).__name__


class _Samples:
    """All samples since `begin`."""

    def __init__(self, training_thread: int) -> None:
        self._began = self._scanned = time.perf_counter()
        self._thread = training_thread
        self._own = psutil.Process()
        self._processes: dict[int, psutil.Process] = {}
        self._loaders: set[int] = set()
        self._spans: dict[int, _Span] = {}
        self._cpu_max = 0.0
        self._cpu_marked: tuple[float, float] | None = None
        self._gpu_use: list[float] = []
        self._gpu_memory: list[float] = []

    def pause_s(self) -> float:
        """Seconds until the next sample."""
        return min(max((time.perf_counter() - self._began) / 8, _FIRST_INTERVAL_S), _INTERVAL_S)

    def sample(self) -> None:
        now = time.perf_counter()
        since_scan = now - self._scanned
        if not self._processes or since_scan >= min(_SCAN_INTERVAL_S, self._scanned - self._began):
            self._scan(now)
        for pid, process in self._processes.items():
            counters = counters_of(process, self._thread if pid == self._own.pid else pid)
            if counters is not None:
                span = self._spans.get(pid)
                self._spans[pid] = _Span(span.first if span else counters, counters)
        self._mark_cpu(now)

    def sample_gpu(self, device: torch.device) -> None:
        self._gpu_use.append(torch.cuda.utilization(device) / 100)
        self._gpu_memory.append(torch.cuda.device_memory_used(device) / _GB)

    def usage(self, cores: int, workers: int) -> Usage:
        own = self._spans[self._own.pid]
        seconds = max(own.seconds(), 1e-9)
        cpu_mean = self._cpu_s() / seconds
        runnable = own.runnable_s()
        return Usage(
            cores=cores,
            cpu_cores_mean=round(cpu_mean, 2),
            cpu_cores_max=round(max(self._cpu_max, cpu_mean), 2),
            loader_busy=self._loader_busy(workers),
            host_slept_s=None if runnable is None else round(max(seconds - runnable, 0.0), 3),
            read_mb_per_s=self._read_mb_per_s(seconds),
            gpu_use_mean=_mean(self._gpu_use),
            gpu_use_max=max(self._gpu_use, default=None),
            gpu_memory_gb_max=max(self._gpu_memory, default=None),
        )

    def _scan(self, now: float) -> None:
        self._scanned = now
        self._processes.setdefault(self._own.pid, self._own)
        for child in children_of(self._own):
            if child.pid not in self._processes:
                self._processes[child.pid] = child
                if is_loader(child):
                    self._loaders.add(child.pid)

    def _mark_cpu(self, now: float) -> None:
        cpu_s = self._cpu_s()
        if self._cpu_marked is None:
            self._cpu_marked = now, cpu_s
        elif now - self._cpu_marked[0] >= _SHORTEST_RATE_S:
            self._cpu_max = max(self._cpu_max, (cpu_s - self._cpu_marked[1]) / (now - self._cpu_marked[0]))
            self._cpu_marked = now, cpu_s

    def _cpu_s(self) -> float:
        return sum(span.cpu_s() for span in self._spans.values())

    def _loader_busy(self, workers: int) -> float | None:
        spans = [self._spans[pid] for pid in self._loaders if pid in self._spans]
        busy = sorted((share for span in spans if (share := span.busy()) is not None), reverse=True)[:workers]
        return _mean(busy)

    def _read_mb_per_s(self, seconds: float) -> float | None:
        read = [num_bytes for span in self._spans.values() if (num_bytes := span.read_bytes()) is not None]
        return round(sum(read) / _MB / seconds, 2) if read else None


class _Span(NamedTuple):
    """The first and the last counters of a process."""

    first: Counters
    last: Counters

    def seconds(self) -> float:
        return self.last.at - self.first.at

    def cpu_s(self) -> float:
        return self.last.cpu_s - self.first.cpu_s

    def runnable_s(self) -> float | None:
        if self.first.runnable_s is None or self.last.runnable_s is None:
            return None
        return self.last.runnable_s - self.first.runnable_s

    def busy(self) -> float | None:
        """Share of the time in which the process ran or waited for a core; None after a single sample."""
        runnable = self.runnable_s()
        busy_s = self.cpu_s() if runnable is None else runnable
        return min(busy_s / self.seconds(), 1.0) if self.seconds() > 0 else None

    def read_bytes(self) -> int | None:
        if self.first.read_bytes is None or self.last.read_bytes is None:
            return None
        return self.last.read_bytes - self.first.read_bytes


def _with_index(device: torch.device) -> torch.device:
    """The GPU with its index, since the current GPU may differ between threads."""
    if device.index is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
