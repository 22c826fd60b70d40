"""The monitor of a run: measures where the time of each epoch goes, and says what limits the run."""

import time
from typing import Final

import torch
from torch import Tensor

from training.loading.negatives import num_plants
from training.monitor.bottleneck import Bottleneck, EpochTiming, find_bottleneck
from training.monitor.clock import DEVICE_STAGES, StepClock
from training.monitor.memory import suppress_out_of_memory
from training.monitor.replay import Ceiling, Replayable, is_short_enough, measure_ceiling
from training.monitor.usage import UsageSampler
from training.recipe import Recipe

_REPORT_INTERVAL_S: Final = 60.0
_REPLAY_SHARE: Final = 0.02  # of an epoch, for each of two batch sizes


class Monitor:
    """Measures a run without changing what it learns.

    The measured time of an epoch starts with its first batch. In the first epoch it starts with the first reading of
    the losses, since kernels are compiled and cuDNN tries its algorithms before.

    Args:
        recipe: The run's settings.
        device: Where it trains.
        packed: Whether the pictures are in shards.
        is_distributed: Whether other ranks train too. Then no batch is replayed, since ranks wait for one another.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, *, packed: bool = False, is_distributed: bool = False
    ) -> None:
        self.clock = StepClock(device)
        self._recipe, self._device, self._packed, self._is_distributed = recipe, device, packed, is_distributed
        self._sampler = UsageSampler(device, recipe.data.workers)
        self._batch: tuple[Tensor, Tensor] | None = None
        self._ceilings: dict[int, Ceiling] = {}
        self._ceiling: Ceiling | None = None
        self._is_warm = self._has_batch = False
        self._epoch_began = self._began = self._reported = 0.0
        self._pictures = self._pictures_before = 0
        self._stages: dict[str, float] = {}
        self._warmup: EpochTiming | None = None

    @property
    def gpu_problem(self) -> str:
        """Why GPU utilization and memory cannot be measured; empty if they can, or if there is no GPU."""
        return self._sampler.gpu_problem

    def begin_epoch(self) -> None:
        """Resets the figures."""
        self._epoch_began = self._began = self._reported = time.perf_counter()
        self._pictures, self._has_batch, self._warmup = 0, False, None
        self._batch = None

    def keep_batch(self, pixels: Tensor, labels: Tensor) -> None:
        """Counts a batch from the loader, and keeps the first one of an epoch for the replay."""
        if not self._has_batch:
            self._has_batch, self._batch = True, (pixels, labels)
            self._ceiling = self._ceilings.get(pixels.shape[-1])
            self._restart()
        self._pictures += num_plants(labels)

    def so_far(self) -> EpochTiming:
        """The epoch until now. Call it right after a reading of the losses, which waits for the device."""
        timing = self._timing(final=False)
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
        timing = self._timing(final=True)
        return self._warmup if timing.pictures == 0 and self._warmup is not None else timing

    def measure_ceiling(self, engine: Replayable) -> None:
        """Replays the epoch's first batch, once for each picture size. Call it after `end_epoch`."""
        batch, self._batch = self._batch, None
        if batch is None or self._ceiling is not None or self._is_distributed or not is_short_enough(self._step_s()):
            return
        with suppress_out_of_memory():  # a replay needs memory for gradients; without it there is no ceiling
            self._ceiling = self._ceilings[batch[0].shape[-1]] = measure_ceiling(
                engine,
                *batch,
                with_larger=not self._recipe.hardware.compile,
                budget_s=_REPLAY_SHARE * (time.perf_counter() - self._epoch_began),
            )

    def bottleneck(self, timing: EpochTiming) -> Bottleneck:
        """What limits the run, according to the figures of an epoch."""
        on_cuda = self._device.type == "cuda"
        return find_bottleneck(timing, self._ceiling, self._recipe, on_cuda=on_cuda, packed=self._packed)

    def close(self) -> None:
        """Ends the sampling thread."""
        self._sampler.close()

    def _restart(self) -> None:
        """Starts the measured time."""
        self.clock.read()
        self._stages = {}
        self._pictures_before = self._pictures
        self._began = time.perf_counter()
        self._sampler.begin()

    def _collect_stages(self) -> None:
        for name, seconds in self.clock.read().items():
            self._stages[name] = self._stages.get(name, 0.0) + seconds

    def _timing(self, *, final: bool) -> EpochTiming:
        self._collect_stages()
        seconds = time.perf_counter() - self._began
        pictures = self._pictures - self._pictures_before
        return EpochTiming(
            pictures=pictures,
            seconds=round(seconds, 3),
            pictures_per_s=round(pictures / seconds, 4),
            start_s=round(self._began - self._epoch_began, 3),
            stages={name: round(value, 4) for name, value in self._stages.items()},
            usage=self._sampler.end() if final else self._sampler.so_far(),
        )

    def _step_s(self) -> float:
        """Seconds of a micro-batch on the device."""
        pictures = max(self._pictures - self._pictures_before, 1)
        return sum(self._stages.get(name, 0.0) for name in DEVICE_STAGES) * self._recipe.schedule.batch_size / pictures
