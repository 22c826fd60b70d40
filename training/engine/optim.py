"""AdamW with two learning rates, and their schedules."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR

from models.network import PlantNetwork
from training.engine.plant_output import WithPlantOutput
from training.recipe import ScheduleRecipe

_STEPS_OF_DECAY = 3
_STEP_FACTOR = 0.1
_WARMUP_START = 0.01  # share of the peak learning rate at the first step


def build_optimizer(network: PlantNetwork | WithPlantOutput, schedule: ScheduleRecipe) -> torch.optim.AdamW:
    """Makes AdamW (Loshchilov and Hutter 2017) over backbone and head, each at its own rate.

    A plant output learns at the rate of the head, in its groups.

    Norms and biases (one-dimensional parameters) have no weight decay. With the fused kernels, neither the step nor the
    gradient scaler waits for the device.
    """
    groups = [
        *_groups("backbone", network.backbone_parameters(), schedule.backbone_lr, schedule.weight_decay),
        *_groups("head", network.head_parameters(), schedule.head_lr, schedule.weight_decay),
    ]
    return torch.optim.AdamW(groups, fused=True)


def build_scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleRecipe, steps_per_epoch: int) -> LRScheduler:
    """The learning rates over all optimizer steps: an optional linear warm-up, then cosine, step or no decay."""
    total = schedule.epochs * steps_per_epoch
    warmup = min(round(schedule.warmup_epochs * steps_per_epoch), total - 1)
    decaying = _decay(optimizer, schedule, total - warmup, steps_per_epoch)
    if warmup == 0:
        return decaying
    warming = LinearLR(optimizer, start_factor=_WARMUP_START, total_iters=warmup)
    return SequentialLR(optimizer, [warming, decaying], milestones=[warmup])


def load_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the moments of a saved optimizer, but not its learning rates and weight decay."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})


def match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Gives loaded moments the memory format of their parameters, which the fused kernels require."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def fast_forward(scheduler: LRScheduler, steps: int) -> None:
    """Advances a new scheduler by that many optimizer steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.* before .*optimizer.step")
        for _ in range(steps):
            scheduler.step()


def _decay(
    optimizer: torch.optim.Optimizer, schedule: ScheduleRecipe, num_steps: int, steps_per_epoch: int
) -> LRScheduler:
    if schedule.decay == "cosine":
        return CosineAnnealingLR(optimizer, T_max=num_steps)
    if schedule.decay == "step":
        third = max(schedule.epochs * steps_per_epoch // _STEPS_OF_DECAY, 1)
        return StepLR(optimizer, third, gamma=_STEP_FACTOR)
    return ConstantLR(optimizer, factor=1.0)


def _groups(name: str, parameters: Iterable[nn.Parameter], lr: float, decay: float) -> list[dict[str, Any]]:
    kept = list(parameters)
    return [
        {"name": f"{name}, decayed", "params": [p for p in kept if p.ndim > 1], "lr": lr, "weight_decay": decay},
        {"name": f"{name}, spared", "params": [p for p in kept if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
    ]
