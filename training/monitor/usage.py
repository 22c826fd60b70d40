"""What the machine does while a run trains: cores, loader processes, storage, GPU.

A thread looks every half second at counters that the kernel and the driver keep anyway. Nothing here can fail a run:
what a system does not tell is None.
"""

import threading
import time
from typing import Final, NamedTuple

import msgspec
import psutil  # type: ignore[import-untyped]
import torch

from training.monitor.counters import Counters, children_of, cores_available, counters_of, is_loader

_INTERVAL_S: Final = 0.5
_FIRST_INTERVAL_S: Final = 0.05  # a short epoch is looked at more often
_SHORTEST_RATE_S: Final = 0.4  # the kernel counts CPU time in ticks of 10 ms
_SCAN_INTERVAL_S: Final = 10.0  # finding children reads every process of the machine
_MB: Final = 1e6
_GB: Final = 1e9


class Usage(msgspec.Struct, frozen=True):
    """What a run used of its machine; None is unknown."""

    cores: int
    """Cores that this process may use."""
    cpu_cores_mean: float
    """Cores that this process and its children kept busy."""
    cpu_cores_max: float
    loader_busy: float | None
    """Share of their time in which loader processes ran or would have; the rest they waited for storage or for room."""
    host_slept_s: float | None
    """Seconds in which the training thread neither ran nor would have."""
    read_mb_per_s: float | None
    """Read from disks, not from the system's memory of them; network file systems may not count."""
    gpu_use_mean: float | None
    """Share of the time in which some kernel ran."""
    gpu_use_max: float | None
    gpu_memory_gb_max: float | None
    """Of all programs on the GPU."""


class UsageSampler:
    """Samples in a thread of its own, between `begin` and `end`.

    Args:
        device: Where the steps run; a GPU is sampled too.
        workers: Loader processes that the run has; the busiest so many are taken for them, since a loader that is no
            longer used may keep its own.
    """

    def __init__(self, device: torch.device, workers: int) -> None:
        self.gpu_problem = ""
        """Why the GPU cannot be sampled; empty where it can, or where there is none."""
        self._device = _with_index(device) if device.type == "cuda" else None
        self._cores, self._workers = cores_available(), workers
        self._lock = threading.Lock()
        self._awake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = _Seen(0)

    def begin(self) -> None:
        """Forgets what was seen and samples from now on; called by the thread that trains."""
        with self._lock:
            self._seen = _Seen(threading.get_native_id())
            self._sample()
        self._awake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
            self._thread.start()

    def so_far(self) -> Usage:
        """What was seen since `begin`."""
        with self._lock:
            return self._seen.usage(self._cores, self._workers)

    def end(self) -> Usage:
        """What was seen since `begin`, up to now, and samples no more."""
        self._awake.clear()
        with self._lock:
            self._sample()
            return self._seen.usage(self._cores, self._workers)

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while self._awake.wait() and not self._closed.wait(self._seen.pause_s()):
            with self._lock:
                if self._awake.is_set():
                    self._sample()

    def _sample(self) -> None:
        self._seen.look()
        if self._device is not None and not self.gpu_problem:
            try:
                self._seen.look_at_gpu(self._device)
            except Exception as error:  # the driver's library has many ways to be missing, and none may end a run
                self.gpu_problem = str(error).splitlines()[0] if str(error) else type(error).__name__


class _Span(NamedTuple):
    """Counters of a process when it was first and last seen."""

    first: Counters
    last: Counters

    def seconds(self) -> float:
        return self.last.at - self.first.at

    def cpu_s(self) -> float:
        return self.last.cpu_s - self.first.cpu_s

    def wanted_s(self) -> float | None:
        if self.first.wanted_s is None or self.last.wanted_s is None:
            return None
        return self.last.wanted_s - self.first.wanted_s

    def busy(self) -> float | None:
        """Share of the time in which the process ran or would have; None if it was seen only once."""
        wanted = self.wanted_s()
        busy_s = self.cpu_s() if wanted is None else wanted
        return min(busy_s / self.seconds(), 1.0) if self.seconds() > 0 else None

    def read_bytes(self) -> int | None:
        if self.first.read_bytes is None or self.last.read_bytes is None:
            return None
        return self.last.read_bytes - self.first.read_bytes


class _Seen:
    """Everything seen since a beginning."""

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
        """Until the next look."""
        return min(max((time.perf_counter() - self._began) / 8, _FIRST_INTERVAL_S), _INTERVAL_S)

    def look(self) -> None:
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

    def look_at_gpu(self, device: torch.device) -> None:
        self._gpu_use.append(torch.cuda.utilization(device) / 100)
        self._gpu_memory.append(torch.cuda.device_memory_used(device) / _GB)

    def usage(self, cores: int, workers: int) -> Usage:
        own = self._spans[self._own.pid]
        seconds = max(own.seconds(), 1e-9)
        cpu_mean = self._cpu_s() / seconds
        wanted = own.wanted_s()
        return Usage(
            cores=cores,
            cpu_cores_mean=round(cpu_mean, 2),
            cpu_cores_max=round(max(self._cpu_max, cpu_mean), 2),
            loader_busy=self._loader_busy(workers),
            host_slept_s=None if wanted is None else round(max(seconds - wanted, 0.0), 3),
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


def _with_index(device: torch.device) -> torch.device:
    """The GPU by its number: "the current one" is another in another thread."""
    if device.index is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
