"""Samples the GPU while a run trains.

A thread reads the driver's counters. No error here ends a run: values that a system does not provide are None.
"""

import threading
from typing import Final

import msgspec
import torch

from training.machine import cores_available

_INTERVAL_S: Final = 0.5
_GB: Final = 1e9


class Usage(msgspec.Struct, frozen=True):
    """What a run used of its machine; None if unknown."""

    cores: int
    """Cores that this process may use."""
    gpu_use_mean: float | None = None
    """Share of the time in which a kernel ran."""
    gpu_memory_gb_max: float | None = None
    """Of all processes on the GPU."""


class UsageSampler:
    """Samples in a background thread from `begin` on, if the run trains on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.gpu_problem = ""
        """Why the GPU cannot be sampled; empty if it can, or if there is none."""
        self._device = device if device.type == "cuda" else None
        if self._device is not None and device.index is None and torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())  # it may differ between threads
        self._samples: list[tuple[float, float]] = []  # share of the time in use, and memory in GB
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Discards earlier samples and samples from now on."""
        self._samples = []
        if self._device is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._device,), name="usage", daemon=True)
            self._thread.start()

    def so_far(self) -> Usage:
        """The usage since `begin`."""
        samples, cores = list(self._samples), cores_available()
        if not samples:
            return Usage(cores)
        use, memory_gb = zip(*samples, strict=True)
        return Usage(cores, round(sum(use) / len(use), 3), max(memory_gb))

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, device: torch.device) -> None:
        try:
            while True:
                use, memory_gb = torch.cuda.utilization(device) / 100, torch.cuda.device_memory_used(device) / _GB
                self._samples.append((use, memory_gb))
                if self._closed.wait(_INTERVAL_S):
                    return
        except Exception as error:  # the driver's library can fail in many ways, and none may end a run
            self.gpu_problem = str(error).splitlines()[0] if str(error) else type(error).__name__
