"""What limits a run, in words: the cause, the fix and what the fix would bring.

Every cause is weighed by the seconds that it costs. The device's stages are work; what is left of the time is the
loader (as far as the step waited for it), checkpoints, and the host itself. A batch too small and a host that sleeps
inside a stage are only seen by replaying batches. The cause that costs most is told, if it is worth mending.
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

_WORTH_MENDING: Final = 0.1  # of the time; below, the device sets the pace
_WORTH_A_LARGER_BATCH: Final = 0.25  # which also changes what is learned
_MOSTLY_BUSY: Final = 0.5  # of a loader's time; a loader that waits for storage longer than it works is held up by it
_SLEEPS: Final = 0.3  # of a stage; threads of a step wait for one another now and then
_FEW_STEPS_A_READING: Final = RunRecipe().log_every_steps
_SHORT_SIDE: Final = 8 / 7  # timm's and torchvision's usual ratio of what is stored to what is cropped: 256 to 224


class EpochTiming(msgspec.Struct, frozen=True):
    """Where the time of an epoch went, from its first batch on."""

    pictures: int
    """On this rank."""
    seconds: float
    pictures_per_s: float
    start_s: float
    """Before the measured time: loader processes start; in the first epoch kernels are looked for and compiled, too."""
    stages: dict[str, float]
    """Seconds by stage: "wait" for the loader, copy, forward, backward, optimizer; and others of the host."""
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
    """What to change; empty where nothing is to be mended."""
    gain: float
    """How many times as fast the run becomes at most; 1 where nothing is to be gained, or where that is unknown."""
    pictures_per_s: float
    """What it comes to then."""

    def __str__(self) -> str:
        if not self.fix:
            return f"{self.sentence}."
        gain = f" (at most {self.gain:.1f} times: {self.pictures_per_s:.0f} pictures/s)" if self.gain > 1 else ""
        return f"{self.sentence}: {self.fix}{gain}."


class _Costs(NamedTuple):
    """Seconds of the measured time that each cause takes."""

    loader: float
    checkpoints: float
    host: float
    batch: float


def find_bottleneck(
    use: EpochTiming, ceiling: Ceiling | None, recipe: Recipe, *, on_cuda: bool, packed: bool
) -> Bottleneck:
    """Weighs what an epoch's figures say.

    Args:
        use: What was measured.
        ceiling: What the steps alone can do, if it has been measured.
        recipe: What the run was told.
        on_cuda: Whether the device works beside the host.
        packed: Whether the pictures lie in shards.
    """
    if use.pictures_per_s == 0:
        return Bottleneck("balanced", "no step was measured", "", 1.0, 0.0)
    costs = _costs(use, ceiling, recipe, on_cuda=on_cuda)
    largest = max(costs[:3])
    if largest < _WORTH_MENDING * use.seconds and costs.batch < _WORTH_A_LARGER_BATCH * use.seconds:
        return _balanced(use, ceiling)
    if costs.batch >= max(largest, _WORTH_A_LARGER_BATCH * use.seconds) and ceiling is not None and ceiling.larger:
        return _small_batch(use, ceiling.own, ceiling.larger, costs, recipe)
    if costs.loader == largest:
        return _loader(use, ceiling, costs, recipe, packed=packed)
    if costs.host == largest:
        return _host(use, ceiling, costs, recipe)
    return _checkpoints(use, costs, recipe)


def _costs(use: EpochTiming, ceiling: Ceiling | None, recipe: Recipe, *, on_cuda: bool) -> _Costs:
    device_s = _device_s(use)
    # On CUDA the host runs ahead: what it waits while the device still works costs nothing, so gaps are the device's.
    gap = max(use.seconds - device_s, 0.0)
    checkpoints = min(use.stages.get("save", 0.0), gap)
    loader = min(use.stages.get("wait", 0.0), gap - checkpoints)
    host, batch = gap - checkpoints - loader, 0.0
    if ceiling is not None:
        steps = use.pictures / recipe.schedule.batch_size
        slept_s = min(ceiling.own.slept_s * steps, device_s)
        if slept_s >= _SLEEPS * device_s:
            host += slept_s
            device_s -= slept_s
        elif on_cuda and loader < _WORTH_MENDING * use.seconds:
            # Stages that take longer than when the host runs ahead: it is held back, and the device idles within them.
            held = max(device_s - use.stages["optimizer"] - ceiling.own.step_s * steps, 0.0)
            host += held
            device_s -= held
        batch = max(device_s, 0.0) * (1 - 1 / _ratio(use, ceiling, recipe))
    return _Costs(loader, checkpoints, host, batch)


def _device_s(use: EpochTiming) -> float:
    return sum(use.stages.get(name, 0.0) for name in DEVICE_STAGES)


def _ratio(use: EpochTiming, ceiling: Ceiling, recipe: Recipe) -> float:
    """How many times as many pictures a second a larger batch trains; at least 1."""
    if ceiling.larger is None:
        return 1.0
    return max(_speed(use, ceiling.larger, recipe) / _speed(use, ceiling.own, recipe), 1.0)


def _speed(use: EpochTiming, replayed: Replayed, recipe: Recipe) -> float:
    """Pictures a second of steps alone, with the optimizer's share of each as the run has it."""
    optimizer_s = use.stages["optimizer"] / max(use.pictures / recipe.schedule.batch_size, 1)
    return replayed.batch_size / max(replayed.step_s + optimizer_s, 1e-9)


def _ceiling_speed(use: EpochTiming, ceiling: Ceiling | None, recipe: Recipe) -> float:
    """Pictures a second of steps alone, on this rank."""
    if ceiling is None:
        return use.pictures / max(_device_s(use), 1e-9)
    return max(_speed(use, ceiling.own, recipe), use.pictures_per_s)


def _share(seconds: float, use: EpochTiming) -> str:
    return f"{seconds / use.seconds:.0%}"


def _without(cost: float, use: EpochTiming, most: float = math.inf) -> tuple[float, float]:
    """Gain and pictures a second once a cost is gone; never more than `most` a second."""
    gain = min(use.seconds / max(use.seconds - cost, 1e-9), most / use.pictures_per_s)
    return round(gain, 2), round(use.pictures_per_s * gain, 1)


def _balanced(use: EpochTiming, ceiling: Ceiling | None) -> Bottleneck:
    stages = ", ".join(f"{name} {_share(use.stages.get(name, 0.0), use)}" for name in DEVICE_STAGES)
    if ceiling is not None and ceiling.sync_lines:
        lines = ", ".join(ceiling.sync_lines)
        sentence = f"the host waits for the device inside every step, at {lines}"
        fix = "keep such values on the device until the losses are read; what it costs is not known"
        return Bottleneck("host synchronization", sentence, fix, 1.0, use.pictures_per_s)
    if use.usage.gpu_use_mean is not None:
        stages += f"; GPU in use {use.usage.gpu_use_mean:.0%}"
    return Bottleneck("balanced", f"the network sets the pace ({stages})", "", 1.0, use.pictures_per_s)


def _small_batch(use: EpochTiming, own: Replayed, larger: Replayed, costs: _Costs, recipe: Recipe) -> Bottleneck:
    faster = _speed(use, larger, recipe) / _speed(use, own, recipe)
    sentence = (
        f"the batch is too small for the device: a step of {larger.batch_size} pictures, which was tried, trains "
        f"{faster:.1f} times as many a second as one of {own.batch_size}"
    )
    accumulate = recipe.schedule.accumulate
    times = larger.batch_size // own.batch_size
    flags = f"--batch-size {larger.batch_size}"
    if accumulate > 1:
        flags += f" --accumulate {max(accumulate // times, 1)}"
    fix = f"{flags}; --tune finds the best size and its rates"
    if not recipe.hardware.compile:
        fix += ", and --compile helps where the batch must stay"
    return Bottleneck("small batch", sentence, fix, *_without(costs.batch, use))


def _host(use: EpochTiming, ceiling: Ceiling | None, costs: _Costs, recipe: Recipe) -> Bottleneck:
    held = f"for {_share(costs.host, use)} of the time"
    sentence = f"the host holds the device up {held}, between or inside the stages"
    gain, speed = _without(costs.host, use, _ceiling_speed(use, ceiling, recipe))
    every = recipe.run.log_every_steps
    if ceiling is not None and ceiling.sync_lines:
        fix = f"keep on the device what {', '.join(ceiling.sync_lines)} asks of it until the losses are read"
    elif every < _FEW_STEPS_A_READING and use.stages.get("read", 0.0) > costs.host / 2:
        sentence = f"the host holds the device up {held} to read the losses every {_steps(every)}"
        fix = f"--log-every-steps {_FEW_STEPS_A_READING}"
    else:
        fix = "take what waits out of the step (.item(), .cpu(), printing, sleeping)"
    return Bottleneck("host synchronization", sentence, fix, gain, speed)


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _checkpoints(use: EpochTiming, costs: _Costs, recipe: Recipe) -> Bottleneck:
    sentence = f"writing checkpoints takes {_share(costs.checkpoints, use)} of the time"
    every = recipe.run.checkpoint_every_steps
    times = math.ceil(costs.checkpoints / use.seconds / (_WORTH_MENDING / 5))
    fix = f"--checkpoint-every-steps {every * times} instead of {every}"
    return Bottleneck("checkpoints", sentence, fix, *_without(costs.checkpoints * (1 - 1 / times), use))


def _loader(use: EpochTiming, ceiling: Ceiling | None, costs: _Costs, recipe: Recipe, *, packed: bool) -> Bottleneck:
    waits = f"the loader limits the run: steps wait {_share(costs.loader, use)} of the time for pictures"
    most = _ceiling_speed(use, ceiling, recipe)
    busy = _loader_busy(use, costs, recipe)
    if busy is not None and busy < _MOSTLY_BUSY:
        return _slow_storage(use, waits, busy, most, recipe, packed=packed)
    working = "" if busy is None else f", and {_loaders(recipe)} {busy:.0%} busy"
    workers, cores = recipe.data.workers, use.usage.cores
    if workers >= cores:
        return _too_few_cores(use, waits + working, most, recipe, packed=packed)
    of_one = use.pictures_per_s / workers if workers else use.pictures / costs.loader
    more = max(min(math.ceil(most / of_one), cores), workers + 1)
    speed = min(most, of_one * more)
    fix = f"--workers {more} (one prepares {of_one:.1f} pictures/s, and there are {_cores(cores)})"
    return Bottleneck("too few workers", waits + working, fix, round(speed / use.pictures_per_s, 2), round(speed, 1))


def _loader_busy(use: EpochTiming, costs: _Costs, recipe: Recipe) -> float | None:
    """Share of the time that loading is work, whoever loads."""
    if recipe.data.workers:
        return use.usage.loader_busy
    slept_s = use.usage.host_slept_s  # nothing but loading makes the training thread sleep so long
    return None if slept_s is None else max(1 - slept_s / costs.loader, 0.0)


def _loaders(recipe: Recipe) -> str:
    workers = recipe.data.workers
    if workers == 0:
        return "the training process, which loads them itself, is"
    return "its one process is" if workers == 1 else f"its {workers} processes are"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _too_few_cores(use: EpochTiming, sentence: str, most: float, recipe: Recipe, *, packed: bool) -> Bottleneck:
    short_side = math.ceil(recipe.pictures.picture_px * _SHORT_SIDE / 8) * 8
    fix = "a machine with more cores, or fewer --randaugment-ops"
    if not packed:
        fix = f"smaller stored pictures (training/prepare.py pack --short-side-px {short_side}), or {fix}"
    return Bottleneck(
        "too few cores",
        f"{sentence} on {_cores(use.usage.cores)}",
        fix,
        round(most / use.pictures_per_s, 2),
        round(most, 1),
    )


def _slow_storage(
    use: EpochTiming, sentence: str, busy: float, most: float, recipe: Recipe, *, packed: bool
) -> Bottleneck:
    read = use.usage.read_mb_per_s
    rate = f" (disks gave {read:.1f} MB/s)" if read else ""
    sentence += f", but {_loaders(recipe)} only {busy:.0%} busy: the storage is slow{rate}"
    more = max(2 * recipe.data.workers, 4)
    if packed:
        fix = "--order blocks reads neighbors together" if recipe.data.order != "blocks" else "a faster disk"
        fix += f"; until then --workers {more} keeps more reads under way"
    else:
        fix = f"pack the pictures (training/prepare.py pack); until then --workers {more} keeps more reads under way"
    return Bottleneck("slow storage", sentence, fix, round(most / use.pictures_per_s, 2), round(most, 1))
