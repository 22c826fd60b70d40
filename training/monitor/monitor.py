"""The monitor of a run: it measures every epoch and says what limits it."""

import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from training.monitor.bottleneck import Bottleneck, EpochTiming, find_bottleneck
from training.monitor.clock import DEVICE_STAGES, StepClock
from training.monitor.memory import suppress_out_of_memory
from training.monitor.replay import Ceiling, Steps, measure_ceiling, worth_replaying
from training.monitor.usage import UsageSampler
from training.recipe import Recipe

_GB: Final = 1e9
_NEWS_EVERY_S: Final = 60.0
_REPLAY_SHARE: Final = 0.02  # of an epoch, for each of two sizes of batch


class Monitor:
    """Measures where the time of a run goes, and never changes what is learned.

    The measured time of an epoch begins with its first batch; in the first epoch with the first reading, as kernels
    are looked for and compiled before.

    Args:
        recipe: What the run was told.
        device: Where it trains.
        packed: Whether the pictures lie in shards.
        is_distributed: Whether other ranks train too. Then no batch is replayed, since ranks wait for one another.
        note: Is told once, in a sentence, if something cannot be measured.
    """

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        packed: bool = False,
        is_distributed: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.clock = StepClock(device)
        self._recipe, self._device, self._packed, self._note = recipe, device, packed, note
        self._is_distributed = is_distributed
        self._sampler = UsageSampler(device, recipe.data.workers)
        self._batch: tuple[Tensor, Tensor] | None = None
        self._ceilings: dict[tuple[int, bool], Ceiling] = {}
        self._ceiling: Ceiling | None = None
        self._warm = self._runs = self._head_only = False
        self._began_epoch = self._began = self._told = 0.0
        self._pictures = self._pictures_before = 0
        self._stages: dict[str, float] = {}
        self._warming: EpochTiming | None = None

    def begin_epoch(self, *, head_only: bool = False) -> None:
        """Starts anew; the measured time begins with the first batch.

        Args:
            head_only: Whether only the classifier learns, which is another step.
        """
        self._head_only = head_only
        self._began_epoch = self._told = time.perf_counter()
        self._pictures, self._runs, self._warming = 0, False, None
        self._batch = None

    def keep_batch(self, pixels: Tensor, labels: Tensor) -> None:
        """Takes note of a batch that the loader gave; the first of an epoch is kept for the replay."""
        if not self._runs:
            self._runs, self._batch = True, (pixels, labels)
            self._ceiling = self._ceilings.get((pixels.shape[-1], self._head_only))
            self._measure_from_here()
        self._pictures += len(labels)

    def so_far(self) -> EpochTiming:
        """The epoch until now; call it where the host has just waited for the device."""
        use = self._use(final=False)
        if not self._warm:
            self._warm, self._warming = True, use
            self._measure_from_here()
        return use

    def is_news(self) -> bool:
        """Whether a minute has passed since it was last so, or since the epoch began."""
        now = time.perf_counter()
        if now - self._told < _NEWS_EVERY_S:
            return False
        self._told = now
        return True

    def end_epoch(self) -> EpochTiming:
        """The epoch, after its last step; call it where the host has just waited for the device."""
        use = self._use(final=True)
        if self._sampler.gpu_problem and self._note is not None:
            self._note(f"the GPU's use and memory are not measured: {self._sampler.gpu_problem}")
            self._note = None
        if use.pictures == 0 and self._warming is not None:
            return self._warming
        return use

    def measure_ceiling(self, steps: Steps) -> None:
        """Replays the epoch's first batch, once for each picture size; call it after `end_epoch`.

        Args:
            steps: The engine of the run.
        """
        batch, self._batch = self._batch, None
        if batch is None or self._ceiling is not None or self._is_distributed or not worth_replaying(self._step_s()):
            return
        hardware = self._recipe.hardware
        with suppress_out_of_memory():  # replays keep gradients, for which there may be no room: no ceiling then
            self._ceiling = self._ceilings[batch[0].shape[-1], self._head_only] = measure_ceiling(
                steps,
                *batch,
                with_larger=not hardware.compile,
                budget_s=_REPLAY_SHARE * (time.perf_counter() - self._began_epoch),
                memory_bytes=hardware.memory_gb * _GB if hardware.memory_gb else None,
            )

    def bottleneck(self, use: EpochTiming) -> Bottleneck:
        """What limits the run, as far as the epoch's figures show."""
        return find_bottleneck(
            use, self._ceiling, self._recipe, on_cuda=self._device.type == "cuda", packed=self._packed
        )

    def close(self) -> None:
        """Ends the sampling."""
        self._sampler.close()

    def _measure_from_here(self) -> None:
        self.clock.read()
        self._stages = {}
        self._pictures_before = self._pictures
        self._began = time.perf_counter()
        self._sampler.begin()

    def _use(self, *, final: bool) -> EpochTiming:
        for name, seconds in self.clock.read().items():
            self._stages[name] = self._stages.get(name, 0.0) + seconds
        seconds = time.perf_counter() - self._began
        pictures = self._pictures - self._pictures_before
        return EpochTiming(
            pictures=pictures,
            seconds=round(seconds, 3),
            pictures_per_s=round(pictures / seconds, 4),
            start_s=round(self._began - self._began_epoch, 3),
            stages={name: round(value, 4) for name, value in self._stages.items()},
            usage=self._sampler.end() if final else self._sampler.so_far(),
        )

    def _step_s(self) -> float:
        """Seconds that the device works for a micro-batch."""
        pictures = max(self._pictures - self._pictures_before, 1)
        return sum(self._stages.get(name, 0.0) for name in DEVICE_STAGES) * self._recipe.schedule.batch_size / pictures
