"""How long each stage of a step takes, without ever making the host wait for the device."""

import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Final

import torch

STAGES: Final = ("wait", "copy", "forward", "backward", "optimizer")
"""The stages of a step, in order; "wait" is for the loader."""
DEVICE_STAGES: Final = STAGES[1:]
"""Those in which the device works. Every other stage is measured on the host's own clock."""
_MOST_PAIRS = 1024  # of events that nobody has read; beyond, those that have happened are summed up


class StepClock:
    """Measures the stages of steps; stages follow one another and never hold one another.

    On CUDA a stage of the device is a pair of events in its stream, so the time between them is the device's own: work
    as well as idling until the host sends more of the stage. On a CPU the host's clock tells all.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._stages = {name: self._new_stage(name) for name in STAGES}

    def stage(self, name: str) -> AbstractContextManager[None]:
        """The block whose time counts for a stage; a name that is not of STAGES is the host's."""
        stage = self._stages.get(name)
        if stage is None:
            stage = self._stages[name] = self._new_stage(name)
        return stage

    def read(self) -> dict[str, float]:
        """Seconds in each stage since the last reading; on CUDA it waits for the last step that was begun."""
        return {name: stage.take() for name, stage in self._stages.items()}

    def _new_stage(self, name: str) -> "_HostStage | _CudaStage":
        return _CudaStage() if self._on_cuda and name in DEVICE_STAGES else _HostStage()


class _HostStage(AbstractContextManager[None]):
    """A stage by the host's clock."""

    def __init__(self) -> None:
        self._seconds = self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._started

    def take(self) -> float:
        """Seconds so far, and begins anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _CudaStage(AbstractContextManager[None]):
    """A stage by events in the current stream."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        self._pairs.append((_event(), _event()))
        self._pairs[-1][0].record()

    def __exit__(self, *_: object) -> None:
        self._pairs[-1][1].record()
        if len(self._pairs) > _MOST_PAIRS:
            self._sum_up(wait=False)

    def take(self) -> float:
        """Seconds so far, and begins anew."""
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
