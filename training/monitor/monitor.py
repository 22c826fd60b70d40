"""The monitor of a run: measures where the time of each epoch goes, and says what limits the run and how to fix that.

The time in the device's stages counts as work. The rest is lost to the loader (while a step waits for it), to
checkpoints, or to the host. The most expensive of these is reported, if it costs enough.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import torch
from torch import Tensor

from training.loading.negatives import num_plants
from training.monitor.usage import Usage, UsageSampler
from training.recipe import Recipe, RunRecipe

STAGES: Final = ("wait", "copy", "forward", "backward", "optimizer")
"""The stages of a step, in order; in "wait" the step waits for the loader."""
DEVICE_STAGES: Final = STAGES[1:]
"""The stages on the device; all others are measured with the host's clock."""
_MAX_PAIRS = 1024  # of unread events; above, those that have completed are summed up
PROFILE_WARMUP: Final = 3
"""Optimizer steps before those that are profiled: kernels are chosen in the first ones."""
_REPORT_INTERVAL_S: Final = 60.0
_MIN_SHARE: Final = 0.1  # of the time; causes that cost less are not reported
_MOSTLY_BUSY: Final = 0.5  # of the time; loader processes below it wait for storage longer than they work
_GPU_IN_USE: Final = 0.7  # of the time; below it, and with no other cause, the kernels are too short
_SHORT_SIDE_RATIO: Final = 8 / 7  # of stored to cropped pictures: 256 to 224 in timm and torchvision


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


class EpochTiming(msgspec.Struct, frozen=True):
    """Where the time of an epoch went, from its first batch on."""

    pictures: int
    """On this rank."""
    seconds: float
    pictures_per_s: float
    start_s: float
    """Before the measured time: starting loader processes and, in the first epoch, compiling and choosing kernels."""
    stages: dict[str, float]
    """Seconds by stage: "wait" for the loader, copy, forward, backward, optimizer, and other stages of the host."""
    usage: Usage

    @property
    def waiting(self) -> float:
        """Share of the time in which steps waited for the loader."""
        return self.stages.get("wait", 0.0) / self.seconds if self.seconds else 0.0


class Bottleneck(msgspec.Struct, frozen=True):
    """What limits a run."""

    kind: Literal[
        "balanced",
        "slow storage",
        "too few workers",
        "too few cores",
        "host synchronization",
        "small batch",
        "checkpoints",
    ]
    sentence: str
    """The cause, with the figures that show it."""
    fix: str = ""
    """What to change; empty if nothing needs to change."""
    gain: float = 1.0
    """Upper bound of the speed-up by the fix; 1 if there is none or if it is unknown."""

    def __str__(self) -> str:
        gain = f" (up to {self.gain:.1f} times as fast)" if self.gain > 1 else ""
        return f"{self.sentence}: {self.fix}{gain}." if self.fix else f"{self.sentence}."


class Monitor:
    """Measures a run without changing what it learns.

    The measured time of an epoch starts with its first batch. In the first epoch it starts with the first reading of
    the losses, since kernels are compiled and cuDNN tries its algorithms before.

    Args:
        recipe: The run's settings.
        device: Where it trains.
        packed: Whether the pictures are in shards.
    """

    def __init__(self, recipe: Recipe, device: torch.device, *, packed: bool = False) -> None:
        self.clock = StepClock(device)
        self._recipe, self._device, self._packed = recipe, device, packed
        self._sampler = UsageSampler(device, recipe.data.workers)
        self._is_warm = self._has_begun = False
        self._epoch_began = self._began = self._reported = 0.0
        self._pictures = 0
        self._stages: dict[str, float] = {}
        self._warmup: EpochTiming | None = None

    @property
    def gpu_problem(self) -> str:
        """Why GPU utilization and memory cannot be measured; empty if they can, or if there is no GPU."""
        return self._sampler.gpu_problem

    def begin_epoch(self) -> None:
        """Resets the figures."""
        self._epoch_began = self._began = self._reported = time.perf_counter()
        self._has_begun, self._warmup = False, None

    def count(self, labels: Tensor) -> None:
        """Counts a batch from the loader; the first one of an epoch starts the measured time."""
        if not self._has_begun:
            self._has_begun = True
            self._restart()
        self._pictures += num_plants(labels)

    def so_far(self) -> EpochTiming:
        """The epoch until now. Call it right after a reading of the losses, which waits for the device."""
        timing = self._timing(self._sampler.so_far())
        if not self._is_warm:
            self._is_warm, self._warmup = True, timing
            self._restart()
        return timing

    def report_is_due(self) -> bool:
        """Whether a minute has passed since the last report or since the epoch began; starts the next minute if so."""
        now = time.perf_counter()
        if now - self._reported < _REPORT_INTERVAL_S:
            return False
        self._reported = now
        return True

    def end_epoch(self) -> EpochTiming:
        """The whole epoch. Call it right after a reading of the losses, which waits for the device."""
        timing = self._timing(self._sampler.end())
        return self._warmup if timing.pictures == 0 and self._warmup is not None else timing

    def bottleneck(self, timing: EpochTiming) -> Bottleneck:
        """What limits the run, according to the figures of an epoch."""
        return find_bottleneck(timing, self._recipe, on_cuda=self._device.type == "cuda", packed=self._packed)

    def close(self) -> None:
        """Ends the sampling thread."""
        self._sampler.close()

    def _restart(self) -> None:
        """Starts the measured time."""
        self.clock.read()
        self._stages, self._pictures = {}, 0
        self._began = time.perf_counter()
        self._sampler.begin()

    def _timing(self, usage: Usage) -> EpochTiming:
        for name, value in self.clock.read().items():
            self._stages[name] = self._stages.get(name, 0.0) + value
        seconds = time.perf_counter() - self._began
        return EpochTiming(
            pictures=self._pictures,
            seconds=round(seconds, 3),
            pictures_per_s=round(self._pictures / seconds, 4),
            start_s=round(self._began - self._epoch_began, 3),
            stages={name: round(value, 4) for name, value in self._stages.items()},
            usage=usage,
        )


def find_bottleneck(timing: EpochTiming, recipe: Recipe, *, on_cuda: bool, packed: bool) -> Bottleneck:
    """Finds the most expensive cause.

    Args:
        timing: The measured times.
        recipe: The run's settings.
        on_cuda: Whether the device is a GPU, which works in parallel with the host.
        packed: Whether the pictures are in shards.
    """
    if timing.pictures_per_s == 0:
        return Bottleneck("balanced", "no step was measured")
    # On CUDA the host runs ahead, so waits of the host cost nothing while the device works: only its gaps count.
    device_s = sum(timing.stages.get(name, 0.0) for name in DEVICE_STAGES)
    gap_s = max(timing.seconds - device_s, 0.0)
    save_s = min(timing.stages.get("save", 0.0), gap_s)
    wait_s = min(timing.stages.get("wait", 0.0), gap_s - save_s)
    host_s = gap_s - save_s - wait_s
    largest = max(save_s, wait_s, host_s)
    if largest < _MIN_SHARE * timing.seconds:
        return _network_limits(timing, on_cuda=on_cuda)
    share = min(largest / timing.seconds, 0.99)
    gain = round(1 / (1 - share), 2)
    if wait_s == largest:
        return _loader(timing, recipe, share, gain, packed=packed)
    if save_s == largest:
        every = recipe.run.checkpoint_every_steps
        less = every * math.ceil(share / (_MIN_SHARE / 5))
        fix = f"--checkpoint-every-steps {less} instead of {every}" if every else "a faster disk"
        return Bottleneck("checkpoints", f"writing checkpoints takes {share:.0%} of the time", fix, gain)
    sentence = f"the device waits for the host {share:.0%} of the time"
    every, default = recipe.run.log_every_steps, RunRecipe().log_every_steps
    if every < default and timing.stages.get("read", 0.0) > host_s / 2:
        sentence += f", since the losses are read every {'step' if every == 1 else f'{every} steps'}"
        return Bottleneck("host synchronization", sentence, f"--log-every-steps {default}", gain)
    fix = "remove calls that wait from the step (.item(), .cpu(), printing, sleeping); --profile 20 shows them"
    return Bottleneck("host synchronization", sentence, fix, gain)


def _network_limits(timing: EpochTiming, *, on_cuda: bool) -> Bottleneck:
    used = timing.usage.gpu_use_mean
    if on_cuda and used is not None and used < _GPU_IN_USE:
        sentence = f"the GPU is in use {used:.0%} of the time, and nothing else waits: its kernels are too short"
        return Bottleneck("small batch", sentence, "a larger batch (--tune finds it), or --compile reduce-overhead")
    stages = ", ".join(f"{name} {timing.stages.get(name, 0.0) / timing.seconds:.0%}" for name in DEVICE_STAGES)
    gpu = "" if used is None else f"; GPU in use {used:.0%}"
    return Bottleneck("balanced", f"the network limits the run ({stages}{gpu})")


def _loader(timing: EpochTiming, recipe: Recipe, share: float, gain: float, *, packed: bool) -> Bottleneck:
    workers, cores, busy = recipe.data.workers, timing.usage.cores, timing.usage.loader_busy
    sentence = f"the loader limits the run: steps wait for pictures {share:.0%} of the time"
    if workers == 0:
        fix = f"--workers {min(4, cores)} loads beside the training"
        return Bottleneck("too few workers", f"{sentence}, which the training process loads itself", fix, gain)
    if busy is not None:
        processes = "its one process is" if workers == 1 else f"its {workers} processes are"
        sentence += f", and {processes} {busy:.0%} busy"
    if busy is not None and busy < _MOSTLY_BUSY:
        fix = "pack the pictures (training/prepare.py pack)"
        if packed:
            fix = "a faster disk" if recipe.data.order == "blocks" else "--order blocks reads neighbors together"
        fix += f"; until then --workers {max(2 * workers, 4)} keeps more reads in flight"
        return Bottleneck("slow storage", f"{sentence}: the storage is slow", fix, gain)
    if workers < cores:
        more = min(max(math.ceil(workers * gain), workers + 1), cores)
        return Bottleneck("too few workers", f"{sentence} on {cores} cores", f"--workers {more}", gain)
    short_side_px = math.ceil(recipe.pictures.picture_px * _SHORT_SIDE_RATIO / 8) * 8
    fix = "use a machine with more cores, or --randaugment-magnitude 0"
    if not packed:
        fix = f"store smaller pictures (training/prepare.py pack --short-side-px {short_side_px}), or {fix}"
    return Bottleneck("too few cores", f"{sentence} on {'1 core' if cores == 1 else f'{cores} cores'}", fix, gain)


@contextmanager
def profile_steps(optimizer: torch.optim.Optimizer, folder: Path, num_steps: int) -> Iterator[None]:
    """Profiles optimizer steps of the block, after `PROFILE_WARMUP` others; none if the number is 0.

    Writes `profile.json`, a trace for Perfetto or chrome://tracing, and `profile.txt`, the operators that take longest.
    """
    if not num_steps:
        yield
        return
    on_cuda = torch.cuda.is_available()

    def write(profiler: Any) -> None:
        profiler.export_chrome_trace(str(folder / "profile.json"))
        order = "self_device_time_total" if on_cuda else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=60)
        (folder / "profile.txt").write_text(table)

    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[activity.CPU, activity.CUDA] if on_cuda else [activity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=PROFILE_WARMUP, active=num_steps, repeat=1),
        on_trace_ready=write,
    ) as profiler:
        hook = optimizer.register_step_post_hook(lambda *_: profiler.step())
        try:
            yield
        finally:
            hook.remove()
