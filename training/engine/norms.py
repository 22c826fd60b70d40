"""Chooses how BatchNorm computes its statistics: per batch, over all ranks, or frozen.

Gradient accumulation does not change these statistics: only the micro-batch counts.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final, Literal

import msgspec
import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.errors import RecipeError
from training.recipe import Recipe

SUFFICIENT_BATCH: Final = 16
"""From this batch size on, BatchNorm is not changed: below it, the error grows fast (Wu and He 2018, figure 1)."""
SMALL_BATCH: Final = 8
"""Below this batch size, pretrained statistics are kept: new ones at 4 cost several points (same figure)."""
_PER_BATCH: Final = "BatchNorm uses the statistics of each batch"


class NormChoice(msgspec.Struct, frozen=True):
    """How BatchNorm computes its statistics in a run."""

    kind: Literal["leave", "sync", "frozen"]
    reestimate: bool
    """Whether running statistics are re-estimated before each validation, see `reestimate`."""
    explanation: str
    """What was chosen, and why."""


def choose_norms(network: nn.Module, recipe: Recipe, num_ranks: int, device: torch.device) -> NormChoice:
    """Chooses how BatchNorm computes its statistics; "auto" chooses by the batch size of a rank.

    Raises:
        RecipeError: The recipe asks for synchronized norms on a CPU, or for frozen norms of random weights.
    """
    norms, is_random = recipe.network.norms, recipe.network.weights == "none"
    if not _norms(network):  # such as a ViT
        return NormChoice("leave", False, "the network has no BatchNorm, so --norms changes nothing")
    if norms == "auto":
        return _by_batch_size(recipe.schedule.batch_size, is_random=is_random)
    if norms == "sync" and num_ranks == 1:
        return NormChoice("leave", False, f"{_PER_BATCH}, since there is only one rank")
    if norms == "sync" and device.type != "cuda":
        raise RecipeError(
            "synchronized BatchNorm needs CUDA",
            value=f"norms = sync on {device.type}",
            limit="CUDA",
            remedy="use --norms auto, which re-estimates the statistics before validation if batches are small",
        )
    if norms == "sync":
        return NormChoice("sync", False, f"BatchNorm uses the statistics of all {num_ranks} ranks, as requested")
    if norms == "frozen" and is_random:
        raise RecipeError(
            "BatchNorm cannot be frozen, since random weights have no statistics",
            value="norms = frozen with weights = none",
            remedy="use --weights imagenet or a file, or another --norms",
        )
    if norms == "frozen":
        return NormChoice("frozen", False, "BatchNorm keeps its pretrained statistics, as requested")
    return NormChoice("leave", False, f"{_PER_BATCH}, as requested")


def _by_batch_size(batch_size: int, *, is_random: bool) -> NormChoice:
    pictures = f"{batch_size} picture{'' if batch_size == 1 else 's'} per batch"
    if batch_size >= SUFFICIENT_BATCH:
        return NormChoice("leave", False, f"{_PER_BATCH}: {pictures} are enough")
    limit = SMALL_BATCH if batch_size < SMALL_BATCH else SUFFICIENT_BATCH
    reason = f"{pictures} {'is' if batch_size == 1 else 'are'} too few to estimate them (under {limit})"
    if batch_size < SMALL_BATCH and not is_random:
        return NormChoice("frozen", False, f"BatchNorm keeps its pretrained statistics: {reason}")
    # Not "sync": PyTorch's synchronized norms make the host wait for the device three times in each norm.
    explanation = f"BatchNorm's statistics are re-estimated before each validation: {reason}"
    if batch_size < SMALL_BATCH:
        explanation += f"; random weights train better with a --batch-size of {SMALL_BATCH} or more"
    return NormChoice("leave", True, explanation)


def synchronized(network: nn.Module) -> nn.Module:
    """The network with norms over all ranks; parameters, buffers and their names stay the same."""
    # torch's own converter drops the activation inside timm's norms.
    converted: nn.Module = convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return converted


def freeze_norms(network: nn.Module) -> None:
    """Freezes the statistics, scales and shifts of every BatchNorm; call it after each `network.train()`.

    `timm.layers.freeze_batch_norm_2d` replaces the modules, which changes their names in checkpoints.
    """
    for norm in _norms(network):
        norm.training = False  # not norm.eval(), which would switch off dropout inside timm's norms
        for parameter in norm.parameters(recurse=False):
            parameter.requires_grad_(False)


@torch.no_grad()
def reestimate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replaces the running statistics of every BatchNorm by those of the given pictures.

    Mean and variance are those of all pictures together (Wu and Johnson 2021, section 3). Each batch is normalized by
    its own statistics, as in training, but without dropout and drop path. `torch.optim.swa_utils.update_bn` applies
    both, and averages the variances of the batches, which ignores the differences between their means.

    Args:
        network: Its running statistics are replaced, except those of norms that are not run. Its modes do not change.
        batches: Network inputs of shape (B, 3, height, width), on the network's device.
    """
    moments = {norm: _Moments() for norm in _norms(network) if norm.track_running_stats}
    modes = {module: module.training for module in network.modules()}
    with ExitStack() as undo:
        for norm, of_norm in moments.items():
            undo.callback(norm.register_forward_pre_hook(of_norm.add).remove)
            undo.callback(setattr, norm, "track_running_stats", True)
            norm.track_running_stats = False  # keeps the running statistics unchanged
        for module, mode in modes.items():
            undo.callback(setattr, module, "training", mode)
            module.training = module in moments
        for pixels in batches:
            network(pixels)
    for norm, of_norm in moments.items():
        of_norm.write(norm)


class _Moments:
    """Count, sum and sum of squares of a norm's inputs, by channel."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: tuple[Tensor, Tensor] | None = None

    def add(self, _norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Adds a batch of shape (B, C, ...); a forward hook."""
        x = inputs[0]
        var_C, mean_C = torch.var_mean(x.float(), dim=[dim for dim in range(x.ndim) if dim != 1], correction=0)
        mean_C, size = mean_C.double(), x.numel() // x.shape[1]  # double, since squares of large means are subtracted
        sums = size * mean_C, size * (var_C.double() + mean_C.square())
        self._count += size
        self._sums = sums if self._sums is None else (self._sums[0] + sums[0], self._sums[1] + sums[1])

    def write(self, norm: _BatchNorm) -> None:
        """Writes the norm's running statistics, with the unbiased variance, as BatchNorm does."""
        if self._sums is None or norm.running_mean is None or norm.running_var is None:
            return
        mean_C, square_C = (of_channel / self._count for of_channel in self._sums)
        norm.running_mean.copy_(mean_C)
        norm.running_var.copy_((square_C - mean_C.square()).clamp(min=0) * self._count / max(self._count - 1, 1))


def _norms(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
