"""Finds what limits a run, and says how to fix it and what that would gain.

Each cause is rated by the seconds it costs. The time in the device's stages counts as work. The rest is lost to the
loader (while a step waits for it), to checkpoints, or to the host. Only a replay detects a batch that is too small, or
a host that sleeps inside a stage. The most expensive cause is reported, if it costs enough.
"""

import math
from typing import Final, Literal, NamedTuple

import msgspec

from training.monitor.clock import DEVICE_STAGES
from training.monitor.replay import Ceiling, Replayed
from training.monitor.usage import Usage
from training.recipe import Recipe, RunRecipe

Kind = Literal[
    "balanced",
    "slow storage",
    "too few workers",
    "too few cores",
    "host synchronization",
    "small batch",
    "checkpoints",
]

_MIN_SHARE: Final = 0.1  # of the time; causes that cost less are not reported
_MIN_BATCH_SHARE: Final = 0.25  # for a larger batch, which also changes what is learned
_MOSTLY_BUSY: Final = 0.5  # of the time; a loader below it waits for storage longer than it works
_MIN_SLEEP_SHARE: Final = 0.3  # of the stages; below it, threads of a step wait for one another
_DEFAULT_LOG_EVERY_STEPS: Final = RunRecipe().log_every_steps
_SHORT_SIDE_RATIO: Final = 8 / 7  # of stored to cropped pictures: 256 to 224 in timm and torchvision


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

    kind: Kind
    sentence: str
    """The cause, with the figures that show it."""
    fix: str
    """What to change; empty if nothing needs to change."""
    gain: float
    """Upper bound of the speed-up by the fix; 1 if there is none or if it is unknown."""
    pictures_per_s: float
    """Speed after the fix."""

    def __str__(self) -> str:
        if not self.fix:
            return f"{self.sentence}."
        gain = f" (up to {self.gain:.1f} times as fast: {self.pictures_per_s:.0f} pictures/s)" if self.gain > 1 else ""
        return f"{self.sentence}: {self.fix}{gain}."


def find_bottleneck(
    timing: EpochTiming, ceiling: Ceiling | None, recipe: Recipe, *, on_cuda: bool, packed: bool
) -> Bottleneck:
    """Finds the most expensive cause.

    Args:
        timing: The measured times.
        ceiling: The speed of steps without waiting, if it was measured.
        recipe: The run's settings.
        on_cuda: Whether the device is a GPU, which works in parallel with the host.
        packed: Whether the pictures are in shards.
    """
    if timing.pictures_per_s == 0:
        return Bottleneck("balanced", "no step was measured", "", 1.0, 0.0)
    costs = _costs(timing, ceiling, recipe, on_cuda=on_cuda)
    largest = max(costs[:3])
    if largest < _MIN_SHARE * timing.seconds and costs.batch < _MIN_BATCH_SHARE * timing.seconds:
        return _balanced(timing, ceiling)
    if costs.batch >= max(largest, _MIN_BATCH_SHARE * timing.seconds) and ceiling is not None and ceiling.larger:
        return _small_batch(timing, ceiling.current, ceiling.larger, costs, recipe)
    if costs.loader == largest:
        return _loader(timing, ceiling, costs, recipe, packed=packed)
    if costs.host == largest:
        return _host(timing, ceiling, costs, recipe)
    return _checkpoints(timing, costs, recipe)


class _Costs(NamedTuple):
    """Seconds of the measured time by cause."""

    loader: float
    checkpoints: float
    host: float
    batch: float


def _costs(timing: EpochTiming, ceiling: Ceiling | None, recipe: Recipe, *, on_cuda: bool) -> _Costs:
    device_s = _device_s(timing)
    # On CUDA the host runs ahead, so waits of the host cost nothing while the device works: only its gaps count.
    gap = max(timing.seconds - device_s, 0.0)
    checkpoints = min(timing.stages.get("save", 0.0), gap)
    loader = min(timing.stages.get("wait", 0.0), gap - checkpoints)
    host, batch = gap - checkpoints - loader, 0.0
    if ceiling is not None:
        steps = timing.pictures / recipe.schedule.batch_size
        slept_s = min(ceiling.current.slept_s * steps, device_s)
        if slept_s >= _MIN_SLEEP_SHARE * device_s:
            host += slept_s
            device_s -= slept_s
        elif on_cuda and loader < _MIN_SHARE * timing.seconds:
            # Stages that take longer than in the replay: the host does not run ahead, and the device idles in them.
            idle = max(device_s - timing.stages["optimizer"] - ceiling.current.step_s * steps, 0.0)
            host += idle
            device_s -= idle
        batch = max(device_s, 0.0) * (1 - 1 / _larger_batch_gain(timing, ceiling, recipe))
    return _Costs(loader, checkpoints, host, batch)


def _larger_batch_gain(timing: EpochTiming, ceiling: Ceiling, recipe: Recipe) -> float:
    """Speed of the larger batch divided by the current one's; at least 1."""
    if ceiling.larger is None:
        return 1.0
    return max(_speed(timing, ceiling.larger, recipe) / _speed(timing, ceiling.current, recipe), 1.0)


def _balanced(timing: EpochTiming, ceiling: Ceiling | None) -> Bottleneck:
    stages = ", ".join(f"{name} {_share(timing.stages.get(name, 0.0), timing)}" for name in DEVICE_STAGES)
    if ceiling is not None and ceiling.sync_lines:
        lines = ", ".join(ceiling.sync_lines)
        sentence = f"the host waits for the device in every step, at {lines}"
        fix = "keep such values on the device until the losses are read; the cost is unknown"
        return Bottleneck("host synchronization", sentence, fix, 1.0, timing.pictures_per_s)
    if timing.usage.gpu_use_mean is not None:
        stages += f"; GPU in use {timing.usage.gpu_use_mean:.0%}"
    return Bottleneck("balanced", f"the network limits the run ({stages})", "", 1.0, timing.pictures_per_s)


def _small_batch(timing: EpochTiming, current: Replayed, larger: Replayed, costs: _Costs, recipe: Recipe) -> Bottleneck:
    faster = _speed(timing, larger, recipe) / _speed(timing, current, recipe)
    sentence = (
        f"the batch is too small for the device: steps with {larger.batch_size} pictures were tried and train "
        f"{faster:.1f} times as many per second as steps with {current.batch_size}"
    )
    accumulate = recipe.schedule.accumulate
    factor = larger.batch_size // current.batch_size
    flags = f"--batch-size {larger.batch_size}"
    if accumulate > 1:
        flags += f" --accumulate {max(accumulate // factor, 1)}"
    fix = f"{flags}; --tune finds the best batch size and its learning rates"
    if not recipe.hardware.compile:
        fix += ", and --compile may help if the batch size must not change"
    return Bottleneck("small batch", sentence, fix, *_without(costs.batch, timing))


def _host(timing: EpochTiming, ceiling: Ceiling | None, costs: _Costs, recipe: Recipe) -> Bottleneck:
    sentence = f"the device waits for the host {_share(costs.host, timing)} of the time"
    gain, speed = _without(costs.host, timing, _ceiling_speed(timing, ceiling, recipe))
    every = recipe.run.log_every_steps
    if ceiling is not None and ceiling.sync_lines:
        fix = f"keep the values that {', '.join(ceiling.sync_lines)} reads on the device until the losses are read"
    elif every < _DEFAULT_LOG_EVERY_STEPS and timing.stages.get("read", 0.0) > costs.host / 2:
        sentence += f", since the losses are read every {'step' if every == 1 else f'{every} steps'}"
        fix = f"--log-every-steps {_DEFAULT_LOG_EVERY_STEPS}"
    else:
        fix = "remove calls that wait from the step (.item(), .cpu(), printing, sleeping)"
    return Bottleneck("host synchronization", sentence, fix, gain, speed)


def _checkpoints(timing: EpochTiming, costs: _Costs, recipe: Recipe) -> Bottleneck:
    sentence = f"writing checkpoints takes {_share(costs.checkpoints, timing)} of the time"
    run, factor = recipe.run, math.ceil(costs.checkpoints / timing.seconds / (_MIN_SHARE / 5))
    every = run.checkpoint_every_steps
    fix = f"--checkpoint-every-steps {every * factor:g} instead of {every:g}" if every else "a faster disk"
    return Bottleneck("checkpoints", sentence, fix, *_without(costs.checkpoints * (1 - 1 / factor), timing))


def _loader(timing: EpochTiming, ceiling: Ceiling | None, costs: _Costs, recipe: Recipe, *, packed: bool) -> Bottleneck:
    sentence = f"the loader limits the run: steps wait for pictures {_share(costs.loader, timing)} of the time"
    limit = _ceiling_speed(timing, ceiling, recipe)
    busy = _loader_busy(timing, costs, recipe)
    if busy is not None and busy < _MOSTLY_BUSY:
        return _slow_storage(timing, sentence, busy, limit, recipe, packed=packed)
    if busy is not None:
        sentence += f", and {_loaders(recipe)} {busy:.0%} busy"
    workers, cores = recipe.data.workers, timing.usage.cores
    if workers >= cores:
        return _too_few_cores(timing, sentence, limit, recipe, packed=packed)
    per_worker = timing.pictures_per_s / workers if workers else timing.pictures / costs.loader
    more = max(min(math.ceil(limit / per_worker), cores), workers + 1)
    speed = min(limit, per_worker * more)
    fix = f"--workers {more} (one prepares {per_worker:.1f} pictures/s, and there are {_cores(cores)})"
    return Bottleneck("too few workers", sentence, fix, round(speed / timing.pictures_per_s, 2), round(speed, 1))


def _loader_busy(timing: EpochTiming, costs: _Costs, recipe: Recipe) -> float | None:
    """Share of the loading time that is work, in loader processes or in the training thread."""
    if recipe.data.workers:
        return timing.usage.loader_busy
    slept_s = timing.usage.host_slept_s  # only loading makes the training thread sleep that long
    return None if slept_s is None else max(1 - slept_s / costs.loader, 0.0)


def _too_few_cores(timing: EpochTiming, sentence: str, limit: float, recipe: Recipe, *, packed: bool) -> Bottleneck:
    short_side = math.ceil(recipe.pictures.picture_px * _SHORT_SIDE_RATIO / 8) * 8
    fix = "use a machine with more cores, or --randaugment-magnitude 0"
    if not packed:
        fix = f"store smaller pictures (training/prepare.py pack --short-side-px {short_side}), or {fix}"
    sentence = f"{sentence} on {_cores(timing.usage.cores)}"
    return Bottleneck("too few cores", sentence, fix, round(limit / timing.pictures_per_s, 2), round(limit, 1))


def _slow_storage(
    timing: EpochTiming, sentence: str, busy: float, limit: float, recipe: Recipe, *, packed: bool
) -> Bottleneck:
    read = timing.usage.read_mb_per_s
    rate = f" ({read:.1f} MB/s from disk)" if read else ""
    sentence += f", but {_loaders(recipe)} only {busy:.0%} busy: the storage is slow{rate}"
    more = max(2 * recipe.data.workers, 4)
    if packed:
        fix = "--order blocks reads neighbors together" if recipe.data.order != "blocks" else "a faster disk"
        fix += f"; until then --workers {more} keeps more reads in flight"
    else:
        fix = f"pack the pictures (training/prepare.py pack); until then --workers {more} keeps more reads in flight"
    return Bottleneck("slow storage", sentence, fix, round(limit / timing.pictures_per_s, 2), round(limit, 1))


def _loaders(recipe: Recipe) -> str:
    workers = recipe.data.workers
    if workers == 0:
        return "the training process, which loads them itself, is"
    return "its one process is" if workers == 1 else f"its {workers} processes are"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _ceiling_speed(timing: EpochTiming, ceiling: Ceiling | None, recipe: Recipe) -> float:
    """Pictures per second of steps without waiting, on this rank."""
    if ceiling is None:
        return timing.pictures / max(_device_s(timing), 1e-9)
    return max(_speed(timing, ceiling.current, recipe), timing.pictures_per_s)


def _speed(timing: EpochTiming, replayed: Replayed, recipe: Recipe) -> float:
    """Pictures per second of replayed steps, plus the run's own time in the optimizer."""
    optimizer_s = timing.stages["optimizer"] / max(timing.pictures / recipe.schedule.batch_size, 1)
    return replayed.batch_size / max(replayed.step_s + optimizer_s, 1e-9)


def _device_s(timing: EpochTiming) -> float:
    return sum(timing.stages.get(name, 0.0) for name in DEVICE_STAGES)


def _without(cost: float, timing: EpochTiming, limit: float = math.inf) -> tuple[float, float]:
    """Speed-up and pictures per second without a cost, up to `limit` per second."""
    gain = min(timing.seconds / max(timing.seconds - cost, 1e-9), limit / timing.pictures_per_s)
    return round(gain, 2), round(timing.pictures_per_s * gain, 1)


def _share(seconds: float, timing: EpochTiming) -> str:
    return f"{seconds / timing.seconds:.0%}"
