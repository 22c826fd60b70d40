"""How fast the steps alone would be: batches that are already loaded go through the real step again.

A replayed step is a micro-batch in the middle of an accumulation window: it goes forward and backward exactly as in
training (compiled, mixed, in the same arithmetic) and its gradients are thrown away before any optimizer moves. What it
touches besides, BatchNorm's statistics and torch's random state, is put back. So weights, moments, rates and averages
never change, and a run with replays equals one without, bit for bit. The optimizer's share of a step does not depend on
the pictures; it is taken from the clock of the run itself.

Only the time inside the step's stages counts, so that what holds the host up between them does not lower the ceiling.
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

from training.monitor.clock import DEVICE_STAGES, StepClock
from training.monitor.counters import waited_s
from training.monitor.memory import suppress_out_of_memory

_LONGEST_S: Final = 0.5  # of measuring one size of batch; fewer than _FEWEST_GROUPS are never trusted
_FEWEST_GROUPS, _MOST_GROUPS = 3, 15
_CUDA_GROUP: Final = 5  # steps between two waits, so that the host can run ahead as it does in training
_LONGEST_STEP_S: Final = 1.0  # a step that takes longer is no mystery: the clock tells enough
_LARGER: Final = (4, 2)  # times the batch, the first that memory and patience allow
_MOST_MEMORY: Final = 0.8
_NEW_MEMORY: Final = 1.2  # a larger batch takes somewhat more than its share while cuDNN looks for kernels


class Replayable(Protocol):
    """What the replay needs of an engine."""

    clock: StepClock
    device: torch.device

    @property
    def network(self) -> nn.Module:
        """What learns."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Holds what learns."""

    def micro_step(self, pixels: Tensor, labels: Tensor, *, step: int, index: int, window: int) -> None:
        """Adds the gradients of a micro-batch; moves nothing while index + 1 < window."""

    def read(self) -> object:
        """Waits for the device, and forgets the losses since the last reading."""


class Replayed(msgspec.Struct, frozen=True):
    """One size of batch."""

    batch_size: int
    step_s: float
    """Copy, forward and backward of a micro-batch, seconds; the time that the host slept in them is left out."""
    slept_s: float
    """Of the same, what the training thread slept; on CUDA, where it may well sleep, 0."""


class Ceiling(msgspec.Struct, frozen=True):
    """What the steps alone can do."""

    own: Replayed
    """The batch that the run has."""
    larger: Replayed | None
    """A batch of 4 or 2 times as many pictures, where memory and time allowed it."""
    sync_lines: tuple[str, ...]
    """Lines that make the host wait for the device inside a step, as far as CUDA tells."""


def measure_ceiling(
    engine: Replayable,
    pixels: Tensor,
    labels: Tensor,
    *,
    with_larger: bool,
    budget_s: float = _LONGEST_S,
    memory_bytes: float | None = None,
) -> Ceiling:
    """Replays a batch, and if asked a larger one made of its copies; the run goes on as if nothing had been.

    Call it between two windows, after a reading, where no gradient waits for the optimizer.

    Args:
        engine: The engine of the run.
        pixels: A batch as the loader gave it, shape (B, 3, side, side), uint8.
        labels: Its labels, shape (B,).
        with_larger: Whether to try larger batches; not where each size is compiled anew.
        budget_s: About how long to measure each size; a few steps are always taken.
        memory_bytes: GPU memory that may be used; unlimited if None.
    """
    with _unchanged(engine):
        if engine.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(engine.device)
        own = _measure(engine, pixels, labels, budget_s)
        larger = None
        for times in _LARGER if with_larger else ():
            if own.step_s * times <= _LONGEST_STEP_S and _fits(engine.device, times, memory_bytes):
                larger = _measure_if_it_fits(engine, *_repeated(pixels, labels, times), budget_s)
            if larger is not None:
                break
        return Ceiling(own, larger, _sync_lines(engine.device, lambda: _take(engine, pixels, labels)))


def is_short_enough(step_s: float) -> bool:
    """Whether a step is short enough to be taken a few times more."""
    return step_s <= _LONGEST_STEP_S


def _take(engine: Replayable, pixels: Tensor, labels: Tensor) -> None:
    engine.micro_step(pixels, labels, step=0, index=0, window=2)


def _measure(engine: Replayable, pixels: Tensor, labels: Tensor, budget_s: float) -> Replayed:
    on_cuda = engine.device.type == "cuda"
    per_group = _CUDA_GROUP if on_cuda else 1
    for _ in range(2 if on_cuda else 1):  # the first of a size looks for kernels and memory
        _take(engine, pixels, labels)
    engine.read()
    clock = engine.clock = StepClock(engine.device) if on_cuda else _SleepClock(engine.device)
    groups: list[float] = []
    began = time.perf_counter()
    while len(groups) < _FEWEST_GROUPS or (
        len(groups) < _MOST_GROUPS and time.perf_counter() - began < min(budget_s, _LONGEST_S)
    ):
        for _ in range(per_group):
            _take(engine, pixels, labels)
        stages = clock.read()
        groups.append(sum(stages[name] for name in DEVICE_STAGES) / per_group)
        engine.read()
    slept_s = max(clock.slept_s / len(groups), 0.0) if isinstance(clock, _SleepClock) else 0.0
    return Replayed(len(labels), max(statistics.median(groups) - slept_s, 0.0), slept_s)


def _measure_if_it_fits(engine: Replayable, pixels: Tensor, labels: Tensor, budget_s: float) -> Replayed | None:
    with suppress_out_of_memory():
        return _measure(engine, pixels, labels, budget_s)
    return None


def _repeated(pixels: Tensor, labels: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """Copies side by side, in the layout and the kind of memory that the loader gives."""
    pair = torch.cat([pixels] * times), torch.cat([labels] * times)
    return (pair[0].pin_memory(), pair[1].pin_memory()) if pixels.is_pinned() else pair


def _fits(device: torch.device, times: int, memory_bytes: float | None) -> bool:
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    most = _MOST_MEMORY * min(total, memory_bytes or total)
    return torch.cuda.max_memory_allocated(device) * times * _NEW_MEMORY <= most


def _sync_lines(device: torch.device, take: Callable[[], None]) -> tuple[str, ...]:
    """Lines of Python from which torch waited for the device."""
    if device.type != "cuda":
        return ()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            take()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    lines = [f"{Path(one.filename).name}:{one.lineno}" for one in told if "synchronizing" in str(one.message)]
    return tuple(dict.fromkeys(lines))


class _SleepClock(StepClock):
    """Tells beside how long the thread slept inside the stages; too slow for every step of a run."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.slept_s = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block whose time counts for a stage."""
        began, wanted_before = time.perf_counter(), _wanted_s()
        with super().stage(name):
            yield
        wanted = _wanted_s()
        if wanted is not None and wanted_before is not None:
            self.slept_s += time.perf_counter() - began - (wanted - wanted_before)


def _wanted_s() -> float | None:
    """As `wanted_s` for this thread, whose run time the kernel else only brings up to date every few milliseconds."""
    waited = waited_s(os.getpid(), threading.get_native_id())
    return None if waited is None else time.thread_time() + waited


@contextmanager
def _unchanged(engine: Replayable) -> Iterator[None]:
    """Leaves the run as it was: its clock, statistics, gradients, random state and losses."""
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
                torch.cuda.empty_cache()  # the larger batch's share, which others on the card may need
                torch.cuda.reset_peak_memory_stats(engine.device)
