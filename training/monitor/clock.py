"""Measures how long each stage of a step takes, without making the host wait for the device."""

import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Final

import torch

STAGES: Final = ("wait", "copy", "forward", "backward", "optimizer")
"""The stages of a step, in order; in "wait" the step waits for the loader."""
DEVICE_STAGES: Final = STAGES[1:]
"""The stages on the device; all others are measured with the host's clock."""
_MAX_PAIRS = 1024  # of unread events; above, those that have completed are summed up


class StepClock:
    """Measures the stages of steps. Stages must not overlap.

    On CUDA a device stage is a pair of events in the stream. The time between them is the device's: work, and idling
    until the host launches more of the stage. On a CPU the host's clock measures all stages.

    Args:
        device: Where the run trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._stages = {name: self._new_stage(name) for name in STAGES}

    def stage(self, name: str) -> AbstractContextManager[None]:
        """A context manager that adds its block's time to a stage; a name outside STAGES is a stage of the host."""
        stage = self._stages.get(name)
        if stage is None:
            stage = self._stages[name] = self._new_stage(name)
        return stage

    def read(self) -> dict[str, float]:
        """Seconds in each stage since the last reading; on CUDA this waits for the last step."""
        return {name: stage.take() for name, stage in self._stages.items()}

    def _new_stage(self, name: str) -> "_HostStage | _CudaStage":
        return _CudaStage() if self._on_cuda and name in DEVICE_STAGES else _HostStage()


class _HostStage(AbstractContextManager[None]):
    """A stage measured with the host's clock."""

    def __init__(self) -> None:
        self._seconds = self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._started

    def take(self) -> float:
        """Seconds so far; resets them."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _CudaStage(AbstractContextManager[None]):
    """A stage measured with events in the current stream."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        self._pairs.append((_event(), _event()))
        self._pairs[-1][0].record()

    def __exit__(self, *_: object) -> None:
        self._pairs[-1][1].record()
        if len(self._pairs) > _MAX_PAIRS:
            self._sum_up(wait=False)

    def take(self) -> float:
        """Seconds so far; resets them."""
        self._sum_up(wait=True)
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _sum_up(self, *, wait: bool) -> None:
        if wait and self._pairs:
            self._pairs[-1][1].synchronize()
        while self._pairs and self._pairs[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._pairs.popleft()
            self._seconds += start.elapsed_time(end) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
