"""Measures how fast training would be without waiting: steps are repeated on a batch that is already loaded.

A replayed step is a micro-batch in the middle of an accumulation window. It runs forward and backward as in training,
and its gradients are discarded before the optimizer steps. BatchNorm's statistics and torch's random state are restored
afterwards, so a run with replays equals a run without, bit for bit. The optimizer's time does not depend on the batch
and is taken from the run's own clock.

Only the time inside the stages of a step counts; time between them, when the host delays the device, does not.
"""

import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec
import torch
from torch import Tensor, nn

from training.loading.negatives import num_plants
from training.monitor.clock import DEVICE_STAGES, StepClock
from training.monitor.counters import queued_s
from training.monitor.memory import suppress_out_of_memory

_MAX_S: Final = 0.5  # time to measure one batch size, but at least _MIN_GROUPS are measured
_MIN_GROUPS, _MAX_GROUPS = 3, 15
_CUDA_GROUP: Final = 5  # steps between two waits, so that the host can run ahead as it does in training
_MAX_STEP_S: Final = 1.0  # longer steps are not replayed, since the host cannot delay them by much
_FACTORS: Final = (4, 2)  # of larger batches; the first that fits into memory and time is measured
_MAX_MEMORY_SHARE: Final = 0.8
_MEMORY_MARGIN: Final = 1.2  # a larger batch needs more than in proportion while cuDNN tries its algorithms


class Replayable(Protocol):
    """The part of the engine that the replay uses."""

    clock: StepClock
    device: torch.device

    @property
    def network(self) -> nn.Module:
        """The network that is trained."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its gradients are discarded after the replay."""

    def micro_step(self, pixels: Tensor, labels: Tensor, *, step: int, index: int, window: int) -> None:
        """Adds the gradients of a micro-batch; the optimizer does not step while index + 1 < window."""

    def read(self) -> object:
        """Waits for the device, and discards the losses since the last reading."""


class Replayed(msgspec.Struct, frozen=True):
    """The speed of one batch size."""

    batch_size: int
    step_s: float
    """Seconds of copy, forward and backward of a micro-batch, without the time that the host slept in them."""
    slept_s: float
    """Seconds that the training thread slept in them; 0 on CUDA, where sleeping costs nothing."""


class Ceiling(msgspec.Struct, frozen=True):
    """The speed of steps without waiting for pictures."""

    current: Replayed
    """The run's batch size."""
    larger: Replayed | None
    """A batch of 4 or 2 times as many pictures, if memory and time allowed it."""
    sync_lines: tuple[str, ...]
    """Lines of code that make the host wait for the device inside a step; empty on a CPU."""


def measure_ceiling(
    engine: Replayable,
    pixels: Tensor,
    labels: Tensor,
    *,
    with_larger: bool,
    budget_s: float = _MAX_S,
    memory_bytes: float | None = None,
) -> Ceiling:
    """Replays a batch, and if requested a larger one made of its copies, without changing the run.

    Call it between two accumulation windows, right after a reading of the losses.

    Args:
        engine: The engine of the run.
        pixels: A batch from the loader, shape (B, 3, side, side), uint8.
        labels: Its labels, shape (B,).
        with_larger: Whether to try larger batches, too. Not with torch.compile, which compiles each size.
        budget_s: Approximate time for each batch size; a few steps are always taken.
        memory_bytes: GPU memory that may be used; None for all of it.
    """
    with _unchanged(engine):
        if engine.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(engine.device)
        current = _measure(engine, pixels, labels, budget_s)
        larger = None
        for factor in _FACTORS if with_larger else ():
            if current.step_s * factor <= _MAX_STEP_S and _fits(engine.device, factor, memory_bytes):
                larger = _measure_if_it_fits(engine, *_repeated(pixels, labels, factor), budget_s)
            if larger is not None:
                break
        return Ceiling(current, larger, _sync_lines(engine.device, lambda: _step(engine, pixels, labels)))


def is_short_enough(step_s: float) -> bool:
    """Whether a step is short enough to be replayed."""
    return step_s <= _MAX_STEP_S


def _measure_if_it_fits(engine: Replayable, pixels: Tensor, labels: Tensor, budget_s: float) -> Replayed | None:
    with suppress_out_of_memory():
        return _measure(engine, pixels, labels, budget_s)
    return None


def _measure(engine: Replayable, pixels: Tensor, labels: Tensor, budget_s: float) -> Replayed:
    on_cuda = engine.device.type == "cuda"
    per_group = _CUDA_GROUP if on_cuda else 1
    for _ in range(2 if on_cuda else 1):  # the first steps of a size choose kernels and allocate memory
        _step(engine, pixels, labels)
    engine.read()
    clock = engine.clock = StepClock(engine.device) if on_cuda else _SleepClock(engine.device)
    groups: list[float] = []
    began = time.perf_counter()
    while len(groups) < _MIN_GROUPS or (
        len(groups) < _MAX_GROUPS and time.perf_counter() - began < min(budget_s, _MAX_S)
    ):
        for _ in range(per_group):
            _step(engine, pixels, labels)
        stages = clock.read()
        groups.append(sum(stages[name] for name in DEVICE_STAGES) / per_group)
        engine.read()
    slept_s = max(clock.slept_s / len(groups), 0.0) if isinstance(clock, _SleepClock) else 0.0
    return Replayed(num_plants(labels), max(statistics.median(groups) - slept_s, 0.0), slept_s)


def _step(engine: Replayable, pixels: Tensor, labels: Tensor) -> None:
    engine.micro_step(pixels, labels, step=0, index=0, window=2)


def _repeated(pixels: Tensor, labels: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """A batch of several copies, the plants first, in pinned memory if the original is."""
    plants = num_plants(labels)
    more_pixels, more_labels = (
        torch.cat([part[:plants]] * factor + [part[plants:]] * factor) for part in (pixels, labels)
    )
    return (more_pixels.pin_memory(), more_labels.pin_memory()) if pixels.is_pinned() else (more_pixels, more_labels)


def _fits(device: torch.device, factor: int, memory_bytes: float | None) -> bool:
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    most = _MAX_MEMORY_SHARE * min(total, memory_bytes or total)
    return torch.cuda.max_memory_allocated(device) * factor * _MEMORY_MARGIN <= most


def _sync_lines(device: torch.device, take: Callable[[], None]) -> tuple[str, ...]:
    """Lines of Python that made the host wait for the device."""
    if device.type != "cuda":
        return ()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            take()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    lines = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchronizing" in str(one.message)]
    return tuple(dict.fromkeys(lines))


class _SleepClock(StepClock):
    """Measures how long the thread slept inside the stages, too; too slow for every step of a run."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.slept_s = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block whose time counts for a stage."""
        began, runnable_before = time.perf_counter(), _runnable_s()
        with super().stage(name):
            yield
        runnable = _runnable_s()
        if runnable is not None and runnable_before is not None:
            self.slept_s += time.perf_counter() - began - (runnable - runnable_before)


def _runnable_s() -> float | None:
    """Like `runnable_s` for this thread, but exact: the kernel updates a running thread only every few milliseconds."""
    queued = queued_s(os.getpid(), threading.get_native_id())
    return None if queued is None else time.thread_time() + queued


@contextmanager
def _unchanged(engine: Replayable) -> Iterator[None]:
    """Restores the clock, statistics, gradients, random state and losses of the run after the block."""
    devices = [engine.device] if engine.device.type == "cuda" else []
    before = {name: value.clone() for name, value in engine.network.named_buffers()}
    clock = engine.clock
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            engine.clock = clock
            for name, value in engine.network.named_buffers():
                value.copy_(before[name])
            engine.optimizer.zero_grad(set_to_none=True)
            engine.read()
            engine.clock.read()
            if devices:
                torch.cuda.empty_cache()  # other processes on the GPU may need the larger batch's memory
                torch.cuda.reset_peak_memory_stats(engine.device)
