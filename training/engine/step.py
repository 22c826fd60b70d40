"""One optimizer step: forward, loss, backward, optimizer, moving average.

Only `read` waits for the device. Even a step whose gradients are not finite does not: the gradient scaler marks it on
the device, the fused optimizer skips it, and a counter on the device counts it.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from types import MethodType
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR

from models.network import PlantNetwork
from training.engine.device import Ranks, allow_tf32, amp_dtype
from training.engine.losses import (
    TrainingClasses,
    TrainingLoss,
    WithPlantOutput,
    flat_loss,
    plant_figures,
    plant_loss,
)
from training.engine.weights import choose_norms, freeze_norms
from training.loading.augment import BatchMixer, Normalizer
from training.loading.negatives import RunInput, num_plants, num_unknown
from training.monitor.monitor import StepClock
from training.recipe import ScheduleRecipe, rate_factor

_PLANT_WEIGHT: Final = 0.5  # of the plant output's loss
_UNKNOWN_WEIGHT: Final = 0.5  # of the loss of unknown plants (Hendrycks et al. 2019, for pictures)
_EMA_WARMUP_POWER: Final = 3 / 4  # timm's warm-up: the decay reaches 0.999 after 10,000 steps
_WARMUP_START: Final = 0.01  # share of the peak learning rate at the first step
_STEP_DECAYS: Final = 3  # of decay = "step"
_STEP_FACTOR: Final = 0.1


class Readings(msgspec.Struct, frozen=True):
    """Values that were read from the device, on this rank."""

    losses: list[float]
    """Of each micro-batch since the last reading."""
    gradient_norms: list[float]
    """Before clipping, of each optimizer step since the last reading; empty if nothing is clipped."""
    bad_steps: int
    """Steps skipped since the start of the process because a gradient was not finite."""
    bad_in_a_row: int
    """Of those, the ones since the last step that was not skipped."""
    scale: float
    """Factor of the loss in fp16; 1 otherwise."""
    plant_figures: list[list[float]] = []
    """Of each micro-batch since the last reading: the plant output's loss, and the shares of plants and of other
    pictures that it tells right; empty if there is no plant output."""


class MovingAverage:
    """The moving average of a network's weights and statistics; integer buffers are copied.

    It has the values of `timm.utils.ModelEmaV3` with a warm-up, which collects all tensors anew in each step. The
    tensors are collected once here, so none of either network may be replaced later, only written in place.
    """

    def __init__(self, network: PlantNetwork | WithPlantOutput, decay: float) -> None:
        self.module = deepcopy(network).eval()
        self._decay = decay
        pairs = list(zip(self.module.state_dict().values(), network.state_dict().values(), strict=True))
        self._means = [mean for mean, _ in pairs if mean.is_floating_point()]
        self._values = [value for _, value in pairs if value.is_floating_point()]
        self._counts = [count for count, _ in pairs if not count.is_floating_point()]
        self._new_counts = [count for _, count in pairs if not count.is_floating_point()]

    def update(self, step: int) -> None:
        """Takes in the weights after an optimizer step; `step` is how many steps were before it."""
        warmup = 1 - max(step, 1) ** -_EMA_WARMUP_POWER  # 0 in the first two steps, whose weights are copied
        torch._foreach_lerp_(self._means, self._values, weight=1 - min(warmup, self._decay))
        if self._counts:
            torch._foreach_copy_(self._counts, self._new_counts)


class Engine:
    """Trains a network on micro-batches; `steps_per_epoch` are optimizer steps, for the learning rates."""

    def __init__(
        self,
        inputs: RunInput,
        network: PlantNetwork,
        device: torch.device,
        classes: TrainingClasses,
        *,
        steps_per_epoch: int,
        ranks: Ranks | None = None,
        clock: StepClock | None = None,
    ) -> None:
        self.recipe = recipe = inputs.recipe
        schedule = recipe.schedule
        self.inputs = inputs
        self.device = device
        self.ranks = ranks or Ranks()
        self.clock = clock or StepClock(device)
        torch.backends.cudnn.benchmark = recipe.hardware.cudnn_benchmark
        allow_tf32(device, recipe.hardware.tf32)
        self._memory_format = torch.channels_last if recipe.hardware.channels_last else torch.contiguous_format
        self.norms = choose_norms(network, recipe)
        for parameter in network.backbone_parameters() if recipe.network.frozen_stages else ():
            parameter.requires_grad_(False)
        self.network = network.to(device=device, memory_format=self._memory_format)  # type: ignore[call-overload]
        self._trained: PlantNetwork | WithPlantOutput = self.network
        self.plant_output: nn.Linear | None = None
        if recipe.negatives.negatives:
            self._trained = WithPlantOutput(self.network, recipe.run.seed).to(device)
            self.plant_output = self._trained.plant_output
        _avoid_slow_paths(self.network, device)
        self.train_mode()
        self.ema = MovingAverage(self._trained, schedule.ema_decay) if schedule.ema_decay else None
        self._ddp = self._over_ranks()
        self._forward = self._ddp
        if recipe.hardware.compile != "off":  # around DDP: the compiler then cuts the network where gradients are sent
            self._forward = torch.compile(self._ddp, dynamic=False, mode=recipe.hardware.compile)
        factor = rate_factor(schedule, self.ranks.num_ranks)
        self.optimizer = build_optimizer(self._trained, schedule, factor)
        self.optimizer.register_step_pre_hook(self._count_bad_step)
        self.scheduler = build_scheduler(self.optimizer, schedule, steps_per_epoch)
        self.amp_dtype = amp_dtype(recipe.hardware, device)
        # Only fp16 needs a loss scale. PyTorch's first one, 2 ** 16, overflows in the first steps. With a scale of 1
        # the scaler still finds gradients that are not finite.
        self._scales_loss = self.amp_dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12 if self._scales_loss else 1.0)
        self.loss = TrainingLoss(recipe.loss, classes, device)
        self._normalize = Normalizer(inputs.spec, device)
        self._mix = BatchMixer(recipe.augment, len(classes.taxon_of_output), recipe.run.seed)
        self._losses: list[Tensor] = []
        self._plant_figures: list[Tensor] = []
        self._gradient_norms: list[Tensor] = []
        self._bad_steps = torch.zeros(2, device=device)  # skipped steps: in all, in a row
        self._bad_steps_read = 0
        self._keep_statistics()

    def _over_ranks(self) -> Any:
        """The trained network; with several ranks their gradients are averaged."""
        if not self.ranks.is_distributed:
            return self._trained
        return DistributedDataParallel(
            self._trained,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )

    @property
    def eval_model(self) -> PlantNetwork:
        """The network that is validated and exported: the moving average if there is one."""
        model = self.scoring_model
        return model.network if isinstance(model, WithPlantOutput) else model

    @property
    def scoring_model(self) -> PlantNetwork | WithPlantOutput:
        """The network that is validated, with its plant output if there is one."""
        return self._trained if self.ema is None else self.ema.module

    def train_mode(self) -> None:
        """Puts every module into its training mode; frozen norms stay in eval."""
        self.network.train()
        if self.norms.kind == "frozen":
            freeze_norms(self.network)

    def micro_step(self, pixels: Tensor, labels: Tensor, *, step: int, index: int = 0, window: int = 1) -> None:
        """Adds the gradients of a micro-batch; after the last one of its window the optimizer steps.

        `pixels` have shape (B, 3, side, side), uint8. `labels` are indices of the outputs, shape (B,), on the CPU;
        then `UNKNOWN_PLANT` and last `NOT_A_PLANT` for those of no class. All randomness follows from `step` (optimizer
        steps before this one), `index` (of the micro-batch in its window) and rank. Gradients are averaged over the
        `window` micro-batches.
        """
        seed = self.recipe.run.seed
        rank = self.ranks.rank
        torch.manual_seed(int(np.random.SeedSequence([seed, step, index, rank]).generate_state(1)[0]))
        number = (step * self.recipe.schedule.accumulate + index) * self.ranks.num_ranks + rank
        with self.clock.stage("copy"):
            pixels, targets, unknown = self._prepare(pixels, labels, number)
        is_last = index + 1 == window
        # Ranks average their gradients in the last backward pass of a window only.
        with self._ddp.no_sync() if self.ranks.is_distributed and not is_last else nullcontext():
            with self.clock.stage("forward"):
                with self.precision():
                    scores = self._forward(pixels)
                loss, total = self._losses_of(scores, targets, unknown)
            with self.clock.stage("backward"):
                torch.autograd.backward(self.scaler.scale(total / window))
        self._losses.append(loss.detach())
        if not is_last:
            return
        with self.clock.stage("optimizer"):
            if (clip_norm := self.recipe.schedule.clip_norm) > 0:
                self.scaler.unscale_(self.optimizer)
                norm = torch.nn.utils.clip_grad_norm_(self._trained.parameters(), clip_norm)
                self._gradient_norms.append(norm.detach())
            self.scaler.step(self.optimizer)
            self.scaler.update(None if self._scales_loss else 1.0)
            self.optimizer.zero_grad(set_to_none=True)
            self.scheduler.step()
            if self.ema is not None:
                self.ema.update(step)

    def _prepare(self, pixels: Tensor, labels: Tensor, number: int) -> tuple[Tensor, Tensor, int]:
        """The network input of all pictures, the targets of the plants that have one, and the number of unknown plants.

        `number` seeds mixing.
        """
        of_plants = labels[: num_plants(labels)].to(self.device, non_blocking=True)
        unknown = num_unknown(labels)
        found = self.normalized(pixels)
        if found.ndim == 2:  # features of whole pictures
            return found, of_plants, unknown
        mixed, targets = self._mix(found, of_plants, number, unknown)
        return mixed.contiguous(memory_format=self._memory_format), targets, unknown  # mixup on CUDA loses the layout

    def normalized(self, pixels: Tensor) -> Tensor:
        """Network inputs on the device, from uint8 pictures; features stay as they are."""
        on_device = pixels.to(self.device, non_blocking=True)
        if pixels.ndim == 2:
            return on_device
        return self._normalize(on_device).contiguous(memory_format=self._memory_format)

    def scores(self, pixels: Tensor) -> Tensor:
        """Scores of uint8 pictures in float32, by the network that is validated; call `train_mode` afterwards."""
        model = self.scoring_model.eval()
        with torch.inference_mode(), self.precision():
            scores: Tensor = model(self.normalized(pixels)).float()
        return scores

    def precision(self) -> AbstractContextManager[Any]:
        """The autocast context of the forward pass."""
        if self.amp_dtype is None:
            return nullcontext()
        return torch.amp.autocast(self.device.type, dtype=self.amp_dtype)

    def _losses_of(self, scores: Tensor, targets: Tensor, unknown: int) -> tuple[Tensor, Tensor]:
        """The loss over the outputs, of the plants that have one, and the sum that is minimized."""
        known = len(targets)
        plants = len(targets) + unknown
        outputs = scores[:, : self.network.num_outputs]
        total = loss = self.loss(outputs[:known], targets)
        if unknown:
            total = total + _UNKNOWN_WEIGHT * flat_loss(outputs[known:plants])
        if self.plant_output is not None:
            self._plant_figures.append(plant_figures(scores[:, -1], plants))
            total = total + _PLANT_WEIGHT * plant_loss(scores[:, -1], plants)
        return loss, total

    def dry_run(self, pixels: Tensor, labels: Tensor) -> None:
        """Runs two forward and backward passes on this rank, and changes nothing.

        It needs as much memory as real steps: until the optimizer has moments, placeholders take their memory.
        """
        self.optimizer.zero_grad(set_to_none=True)
        moments = []
        if not self.optimizer.state:  # AdamW has two of each parameter
            moments = [torch.empty_like(value) for value in self.network.parameters() for _ in range(2)]
        statistics = [(value, value.clone()) for value in self.network.buffers()]
        try:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                pixels, targets, unknown = self._prepare(pixels, labels, number=0)
                for _ in range(2):
                    with self.precision():
                        scores = self._trained(pixels)
                    torch.autograd.backward(self._losses_of(scores, targets, unknown)[1])
        finally:
            for value, before in statistics:
                value.copy_(before)
        self._plant_figures.clear()
        moments.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def _count_bad_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Counts a skipped step: the scaler sets `found_inf` to 1 or 0 on the device before the optimizer steps."""
        is_bad = optimizer.found_inf.reshape(())  # type: ignore[attr-defined]
        self._bad_steps += is_bad
        self._bad_steps[1] *= is_bad

    def read(self) -> Readings:
        """Reads losses, gradient norms and counts from the device, and waits for it."""
        values = torch.stack([*self._losses, *self._gradient_norms, *self._bad_steps]).tolist()
        losses = values[: len(self._losses)]
        norms = values[len(self._losses) : -2]
        figures = torch.stack(self._plant_figures).tolist() if self._plant_figures else []
        self._losses.clear()
        self._plant_figures.clear()
        self._gradient_norms.clear()
        bad_steps, bad_in_a_row = (int(count) for count in values[-2:])
        # A forward pass with an overflow sets running statistics of BatchNorm to NaN or infinity. Training does not
        # read them, but validation and the exported network do.
        if bad_steps == self._bad_steps_read:
            self._keep_statistics()
        else:
            self._bad_steps_read = bad_steps
            for now, before in zip(self._statistics(), self._finite_statistics, strict=True):
                now.copy_(torch.where(now.isfinite(), now, before))
        return Readings(losses, norms, bad_steps, bad_in_a_row, float(self.scaler.get_scale()), figures)

    def _keep_statistics(self) -> None:
        self._finite_statistics = [value.clone() for value in self._statistics()]

    def _statistics(self) -> list[Tensor]:
        modules = dict.fromkeys((self.network, self.eval_model))  # one or two
        return [value for module in modules for value in module.buffers() if value.is_floating_point()]

    def scaler_state(self) -> dict[str, Any]:
        """The state of the loss scale; empty if the loss is not scaled."""
        return self.scaler.state_dict() if self._scales_loss else {}

    def load(
        self,
        network: dict[str, Any],
        eval_weights: dict[str, Any],
        scaler: dict[str, Any],
        plant_output: dict[str, Any] | None = None,
    ) -> None:
        """Loads saved weights. A moving average starts at `eval_weights`, also if the saved run had none."""
        self.network.load_state_dict(network)
        if self.ema is not None:
            self.eval_model.load_state_dict(eval_weights)
        if self._scales_loss and scaler:  # both runs are in fp16
            self.scaler.load_state_dict(scaler)
        if self.plant_output is not None and plant_output is not None:
            self.scoring_model.get_submodule("plant_output").load_state_dict(plant_output["averaged"])
            self.plant_output.load_state_dict(plant_output["weights"])  # last: both may be one model
        self._keep_statistics()


def _avoid_slow_paths(network: nn.Module, device: torch.device) -> None:
    """Computes each SiLU into a new tensor: timm's are in place, for which autograd first clones the input.

    On a CPU strided depthwise convolutions are in float32: their backward pass in bf16 takes 20 times as long.
    """
    for module in network.modules():
        if isinstance(module, nn.SiLU):
            module.inplace = False
        elif device.type == "cpu" and isinstance(module, nn.Conv2d) and module.groups > 1 and max(module.stride) > 1:
            module.forward = MethodType(_in_float32, module)  # type: ignore[method-assign]


def _in_float32(module: nn.Module, inputs: Tensor) -> Tensor:
    """The forward pass of a module on a CPU, in float32."""
    with torch.amp.autocast("cpu", enabled=False):
        found: Tensor = type(module).forward(module, inputs.float())
    return found.to(inputs.dtype)


def build_optimizer(
    network: PlantNetwork | WithPlantOutput, schedule: ScheduleRecipe, factor: float = 1.0
) -> torch.optim.AdamW:
    """Makes AdamW (Loshchilov and Hutter 2017) over backbone and head, each at its own rate times `factor`.

    A plant output learns at the rate of the head, in its groups. Norms and biases (one-dimensional parameters) have no
    weight decay. With the fused kernels, neither the step nor the gradient scaler waits for the device.
    """
    groups: list[dict[str, Any]] = []
    for name, parameters, lr in (
        ("backbone", list(network.backbone_parameters()), schedule.backbone_lr),
        ("head", list(network.head_parameters()), schedule.head_lr),
    ):
        decayed, spared = ([p for p in parameters if (p.ndim > 1) == is_decayed] for is_decayed in (True, False))
        groups.append(
            {"name": f"{name}, decayed", "params": decayed, "lr": factor * lr, "weight_decay": schedule.weight_decay}
        )
        groups.append({"name": f"{name}, spared", "params": spared, "lr": factor * lr, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, fused=True)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], *, with_rates: bool) -> None:
    """Loads a saved optimizer; without rates only its moments, not its learning rates and weight decay."""
    groups = state["param_groups"] if with_rates else optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:  # the fused kernels need one memory format
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def build_scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleRecipe, steps_per_epoch: int) -> LRScheduler:
    """The learning rates over all optimizer steps: an optional linear warm-up, then cosine, step or no decay."""
    total = schedule.epochs * steps_per_epoch
    warmup = min(round(schedule.warmup_epochs * steps_per_epoch), total - 1)
    decaying: LRScheduler
    if schedule.decay == "cosine":
        decaying = CosineAnnealingLR(optimizer, T_max=total - warmup)
    elif schedule.decay == "step":
        decaying = StepLR(optimizer, max(total // _STEP_DECAYS, 1), gamma=_STEP_FACTOR)
    else:
        decaying = ConstantLR(optimizer, factor=1.0)
    if warmup == 0:
        return decaying
    warming = LinearLR(optimizer, start_factor=_WARMUP_START, total_iters=warmup)
    return SequentialLR(optimizer, [warming, decaying], milestones=[warmup])


def fast_forward(scheduler: LRScheduler, steps: int) -> None:
    """Advances a new scheduler by that many optimizer steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.* before .*optimizer.step")
        for _ in range(steps):
            scheduler.step()
