"""One optimizer step, as fast as the device allows: forward, loss, backward, optimizer, moving average.

Nothing here waits for the device but `read`. Even a gradient that is no number is noticed there: the fused optimizer
skips such a step by itself, as the scaler tells it on the device, and the device counts.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, cast

import msgspec
import numpy as np
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.parallel import DistributedDataParallel

from models.network import PlantNetwork
from training.engine.device import amp_dtype
from training.engine.distributed import Ranks
from training.engine.losses import TrainingClasses, TrainingLoss
from training.engine.norms import NormChoice, apply_norms, choose_norms, freeze_norms
from training.engine.optim import build_optimizer, build_scheduler
from training.loading.augment import BatchMixer, Normalizer
from training.loading.data import input_spec
from training.monitor.clock import StepClock
from training.recipe import Recipe

_EMA_WARMUP_POWER: Final = 3 / 4  # timm's schedule: decay reaches 0.999 after 10,000 steps, sooner averages forget


class Readings(msgspec.Struct, frozen=True):
    """What the device has to tell since the last reading."""

    losses: list[float]
    """One a micro-batch; of several ranks this rank's."""
    gradient_norms: list[float]
    """One an optimizer step, before clipping; none where nothing is clipped."""
    bad_steps: int
    """Steps skipped so far because a gradient was no number."""
    bad_in_a_row: int
    """Of those, the ones since the last good step."""
    scale: float
    """What the loss is multiplied with in fp16; 1 otherwise."""


class Engine:
    """Moves a network by micro-batches.

    Args:
        recipe: Decides everything.
        network: Already holds its first weights; it is moved to the device and its norms become the recipe's.
        device: Where to train.
        classes: What the outputs mean, and how often each comes.
        steps_per_epoch: Optimizer steps of one epoch, for the rates.
        ranks: Who trains together.
        clock: Measures the stages of each step.
    """

    def __init__(
        self,
        recipe: Recipe,
        network: PlantNetwork,
        device: torch.device,
        classes: TrainingClasses,
        *,
        steps_per_epoch: int,
        ranks: Ranks | None = None,
        clock: StepClock | None = None,
    ) -> None:
        hardware, schedule = recipe.hardware, recipe.schedule
        self.recipe, self.device, self.ranks = recipe, device, ranks or Ranks()
        self.clock = clock or StepClock(device)
        torch.backends.cudnn.benchmark = hardware.cudnn_benchmark
        _allow_tf32(device, hardware.tf32)
        self._format = torch.channels_last if hardware.channels_last else torch.contiguous_format
        self.norms: NormChoice = choose_norms(recipe, self.ranks.num_ranks, device)
        apply_norms(network, self.norms, recipe.network.ghost_size)
        self.network = network.to(device=device, memory_format=self._format)  # type: ignore[call-overload]
        self.head_only = False
        self.train_mode()
        self.ema = _moving_average(self.network, schedule.ema_decay)
        self._forward = self._wrap_ddp(torch.compile(self.network, dynamic=False) if hardware.compile else self.network)
        self.optimizer = build_optimizer(self.network, schedule)
        self.optimizer.register_step_pre_hook(self._count_bad)
        self.scheduler = build_scheduler(self.optimizer, schedule, steps_per_epoch)
        self.amp_dtype = amp_dtype(hardware, device)
        # Only fp16 needs a scale. A scale of 1 still finds gradients that are no numbers, without a word to the host.
        self._scales = self.amp_dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16 if self._scales else 1.0)
        self.loss = TrainingLoss(recipe.loss, classes, device)
        self._normalize = Normalizer(input_spec(recipe), device)
        self._mix = BatchMixer(recipe.augment, len(classes.taxon_of_output), recipe.run.seed)
        self._losses: list[Tensor] = []
        self._norms_of_gradients: list[Tensor] = []
        self._bad = torch.zeros(2, device=device)  # steps skipped: in all, in a row
        self._known_bad = 0
        self._good_statistics = self._copy_of_statistics()

    @property
    def eval_model(self) -> PlantNetwork:
        """The weights that are validated and exported: the moving average where there is one."""
        return self.network if self.ema is None else cast(PlantNetwork, self.ema.module)

    def train_mode(self) -> None:
        """Puts every part in the mode in which it trains: norms that keep their statistics stay in evaluation mode."""
        self.network.train(not self.head_only)
        self.network.head.train()
        if self.norms.kind == "frozen":
            freeze_norms(self.network)

    def take(self, pixels: Tensor, labels: Tensor, *, step: int, index: int = 0, window: int = 1) -> None:
        """Adds the gradients of a micro-batch; the last of a window moves the weights.

        Args:
            pixels: Shape (B, 3, side, side), uint8.
            labels: Positions of the outputs, shape (B,).
            step: Optimizer steps before this one; decides everything random together with index and rank.
            index: Place in the accumulation window.
            window: Micro-batches whose gradients are averaged.
        """
        number = (step * self.recipe.schedule.accumulate + index) * self.ranks.num_ranks + self.ranks.rank
        torch.manual_seed(_seed(self.recipe.run.seed, step, index, self.ranks.rank))
        with self.clock.stage("copy"):
            pixels, targets = self._on_device(pixels, labels, number)
        moves = index + 1 == window
        with self._no_sync(moves):
            with self.clock.stage("forward"):
                loss = self.loss(self._logits(pixels), targets)
            with self.clock.stage("backward"):
                torch.autograd.backward(self.scaler.scale(loss / window))
        self._losses.append(loss.detach())
        if moves:
            with self.clock.stage("optimizer"):
                self._move(step)

    def dry_run(self, pixels: Tensor, labels: Tensor) -> None:
        """Goes forward and backward with a batch twice, as in a window, without moving anything; on this rank alone.

        Holds as much memory as steps would: before the first one, the optimizer's moments are still to come.
        """
        self.optimizer.zero_grad(set_to_none=True)
        moments = [] if self.optimizer.state else [torch.empty_like(p) for p in self.network.parameters() for _ in "12"]
        with torch.random.fork_rng(self._own_devices()), _restored(self.network):
            pixels, targets = self._on_device(pixels, labels, number=0)
            for _ in range(2):
                with self.precision():
                    logits = self.network(pixels)
                torch.autograd.backward(self.loss(logits, targets))
        moments.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def normalized(self, pixels: Tensor) -> Tensor:
        """Training pictures as the network takes them, on the device."""
        on_device = pixels.to(self.device, non_blocking=True)
        return self._normalize(on_device).contiguous(memory_format=self._format)

    def precision(self) -> AbstractContextManager[Any]:
        """The arithmetic of the forward pass."""
        if self.amp_dtype is None:
            return nullcontext()
        return torch.amp.autocast(self.device.type, dtype=self.amp_dtype)

    def load(self, network: dict[str, Any], judged: dict[str, Any], scaler: dict[str, Any]) -> None:
        """Goes on from saved weights; a moving average that is new begins at those that were judged."""
        self.network.load_state_dict(network)
        if self.ema is not None:
            self.ema.module.load_state_dict(judged)
        if self._scales and scaler:  # both then and now there is a scale
            self.scaler.load_state_dict(scaler)
        self._good_statistics = self._copy_of_statistics()

    def scale_state(self) -> dict[str, Any]:
        """What to save of the loss's scale; nothing where there is none."""
        return self.scaler.state_dict() if self._scales else {}

    def read(self) -> Readings:
        """Fetches what the device has to tell: the one place where the host waits for it."""
        together = torch.stack([*self._losses, *self._norms_of_gradients, *self._bad]).tolist()
        losses, norms = together[: len(self._losses)], together[len(self._losses) : -2]
        self._losses.clear()
        self._norms_of_gradients.clear()
        bad_steps, bad_in_a_row = (int(count) for count in together[-2:])
        self._mend_statistics(bad_steps)
        return Readings(losses, norms, bad_steps, bad_in_a_row, float(self.scaler.get_scale()))

    def _on_device(self, pixels: Tensor, labels: Tensor, number: int) -> tuple[Tensor, Tensor]:
        mixed, targets = self._mix(self.normalized(pixels), labels.to(self.device, non_blocking=True), number)
        return mixed.contiguous(memory_format=self._format), targets  # mixup on CUDA loses the layout

    def _logits(self, pixels: Tensor) -> Any:
        with self.precision():
            if not self.head_only:
                return self._forward(pixels)
            with torch.no_grad():
                features = self.network.features(pixels)  # in evaluation mode, so dropout is still to come
            return self.network.head(dropout(features, self.recipe.network.dropout))

    def _move(self, step: int) -> None:
        clip_norm = self.recipe.schedule.clip_norm
        if self.head_only:  # its gradients do not pass through what averages them otherwise
            self.ranks.mean_([value.grad for value in self.network.head_parameters() if value.grad is not None])
        if clip_norm > 0:
            self.scaler.unscale_(self.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), clip_norm)
            self._norms_of_gradients.append(norm.detach())
        self.scaler.step(self.optimizer)
        self.scaler.update(None if self._scales else 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.ema is not None:
            self.ema.update(self.network, step=step)

    def _count_bad(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """The scaler hands the fused optimizer, just before it moves, whether it is to skip: 1 or 0, on the device."""
        bad = optimizer.found_inf.reshape(())  # type: ignore[attr-defined]
        self._bad += bad
        self._bad[1] *= bad

    def _mend_statistics(self, bad_steps: int) -> None:
        """A forward pass that overflowed leaves BatchNorm's running statistics no numbers for ever: puts back old ones.

        Training never reads them; without this, validation and the exported network would.
        """
        if bad_steps == self._known_bad:
            self._good_statistics = self._copy_of_statistics()
            return
        self._known_bad = bad_steps
        for now, before in zip(self._statistics(), self._good_statistics, strict=True):
            now.copy_(torch.where(now.isfinite(), now, before))

    def _statistics(self) -> list[Tensor]:
        modules = [self.network] if self.ema is None else [self.network, self.ema.module]
        return [value for module in modules for value in module.buffers() if value.is_floating_point()]

    def _copy_of_statistics(self) -> list[Tensor]:
        return [value.clone() for value in self._statistics()]

    def _wrap_ddp(self, module: Any) -> Any:
        """Averages gradients over the ranks; a compiled module is wrapped, never a wrapped one compiled."""
        if not self.ranks.is_distributed:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(
            module, device_ids=devices, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def _no_sync(self, moves: bool) -> AbstractContextManager[Any]:
        """Ranks exchange gradients once a window."""
        if moves or self.head_only or not self.ranks.is_distributed:
            return nullcontext()
        shared: AbstractContextManager[Any] = self._forward.no_sync()
        return shared

    def _own_devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []


def _allow_tf32(device: torch.device, allowed: bool) -> None:
    """Lets FP32 on a GPU be TF32, or holds it to FP32.

    PyTorch knows this by an old name and by a new one, and its compiler reads both up to 2.15 and fails where only the
    new one was set. These two setters keep them in step.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed


def _moving_average(network: PlantNetwork, decay: float) -> ModelEmaV3 | None:
    if decay == 0:
        return None
    return ModelEmaV3(network, decay=decay, use_warmup=True, warmup_power=_EMA_WARMUP_POWER)


def _seed(seed: int, step: int, index: int, rank: int) -> int:
    """Seed of a micro-batch's dropout and drop path: distinct for every one of a run, on every rank."""
    return int(np.random.SeedSequence([seed, step, index, rank]).generate_state(1)[0])


@contextmanager
def _restored(network: nn.Module) -> Iterator[None]:
    """Puts the buffers back as they were, BatchNorm's statistics among them."""
    before = {name: value.clone() for name, value in network.named_buffers()}
    try:
        yield
    finally:
        for name, value in network.named_buffers():
            value.copy_(before[name])
