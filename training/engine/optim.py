"""AdamW with two learning rates, and how they fall."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR

from models.network import PlantNetwork
from training.recipe import ScheduleRecipe

_WARMUP_START = 0.01  # share of the peak rate at the first step of a warm-up


def build_optimizer(network: PlantNetwork, schedule: ScheduleRecipe) -> torch.optim.AdamW:
    """Makes AdamW (Loshchilov and Hutter 2017) over backbone and head, each at its own rate.

    Norms and biases (one-dimensional parameters) are not decayed. The fused kernels keep the step, and the gradient
    scaler with it, from waiting for the device.
    """
    groups = [
        *_groups("backbone", network.backbone_parameters(), schedule.backbone_lr, schedule.weight_decay),
        *_groups("head", network.head_parameters(), schedule.head_lr, schedule.weight_decay),
    ]
    return torch.optim.AdamW(groups, fused=True)


def build_scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleRecipe, steps_per_epoch: int) -> LRScheduler:
    """The rates over all optimizer steps: a linear warm-up if the recipe has one, then cosine, steps or none."""
    total = schedule.epochs * steps_per_epoch
    warmup = min(round(schedule.warmup_epochs * steps_per_epoch), total - 1)
    falling = _falling(optimizer, schedule, total - warmup, steps_per_epoch)
    if warmup == 0:
        return falling
    rising = LinearLR(optimizer, start_factor=_WARMUP_START, total_iters=warmup)
    return SequentialLR(optimizer, [rising, falling], milestones=[warmup])


def load_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes the moments of a saved optimizer and keeps the rates and the decay that this one was made with."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})


def match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Gives loaded moments the memory layout of their parameters: fused kernels walk through both side by side."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def fast_forward(scheduler: LRScheduler, steps: int) -> None:
    """Brings a new scheduler to where it would stand after that many optimizer steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.* before .*optimizer.step")
        for _ in range(steps):
            scheduler.step()


def _falling(
    optimizer: torch.optim.Optimizer, schedule: ScheduleRecipe, num_steps: int, steps_per_epoch: int
) -> LRScheduler:
    if schedule.decay == "cosine":
        return CosineAnnealingLR(optimizer, T_max=num_steps)
    if schedule.decay == "step":
        return StepLR(optimizer, schedule.step_epochs * steps_per_epoch, gamma=schedule.step_factor)
    return ConstantLR(optimizer, factor=1.0)


def _groups(name: str, parameters: Iterable[nn.Parameter], lr: float, decay: float) -> list[dict[str, Any]]:
    kept = list(parameters)
    return [
        {"name": f"{name}, decayed", "params": [p for p in kept if p.ndim > 1], "lr": lr, "weight_decay": decay},
        {"name": f"{name}, spared", "params": [p for p in kept if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
    ]
