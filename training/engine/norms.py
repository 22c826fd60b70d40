"""Chooses how BatchNorm computes its statistics: per batch, over all ranks, per ghost batch, or frozen.

Gradient accumulation does not change these statistics: only the micro-batch counts. Shape suffixes: B pictures, G
groups, C channels.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final, Literal

import msgspec
import torch
from timm.layers.norm_act import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from models.errors import RecipeError
from training.recipe import Recipe

NormKind = Literal["leave", "sync", "frozen", "ghost"]

SUFFICIENT_BATCH: Final = 16
"""From this batch size on, BatchNorm is not changed: below it, the error grows fast (Wu and He 2018, figure 1)."""
SMALL_BATCH: Final = 8
"""Below this batch size, pretrained statistics are kept: new ones at 4 cost several points (same figure)."""
LARGE_BATCH: Final = 256
"""Above this batch size, "auto" uses ghost batches. Our choice; Hoffer et al. 2017 measured a gain at 4,096."""
_PER_BATCH: Final = "BatchNorm uses the statistics of each batch"


class NormChoice(msgspec.Struct, frozen=True):
    """How BatchNorm computes its statistics in a run."""

    kind: NormKind
    reestimate: bool
    """Whether running statistics are re-estimated before each validation, see `reestimate`."""
    explanation: str
    """What was chosen, and why."""


NO_NORMS: Final = NormChoice("leave", False, "the network has no BatchNorm, so --norms changes nothing")
"""The choice for networks such as a ViT: there are no statistics to re-estimate before each validation."""


def has_norms(network: nn.Module) -> bool:
    """Whether a network has BatchNorm."""
    return bool(_norms(network))


def choose_norms(recipe: Recipe, num_ranks: int, device: torch.device) -> NormChoice:
    """Chooses how BatchNorm computes its statistics.

    Args:
        recipe: Its network.norms decides; "auto" chooses by the batch size of a rank.
        num_ranks: Number of ranks.
        device: Where to train.

    Raises:
        RecipeError: The recipe asks for synchronized norms on a CPU, for frozen norms of random weights, or for ghost
            batches that do not divide the batch.
    """
    norms, batch_size = recipe.network.norms, recipe.schedule.batch_size
    if norms == "auto":
        return _by_batch_size(recipe)
    if norms == "sync":
        return _sync_requested(num_ranks, device)
    if norms == "frozen":
        return _frozen_requested(recipe)
    if norms == "ghost":
        return _ghost_requested(batch_size, recipe.network.ghost_size)
    return NormChoice("leave", False, f"{_PER_BATCH}, as requested")


def apply_norms(network: nn.Module, choice: NormChoice, ghost_size: int) -> nn.Module:
    """Replaces the norms of a network; parameters, buffers and their names stay the same.

    Frozen norms need a call of `freeze_norms` after each `network.train()`.

    Args:
        network: Changed in place.
        choice: From `choose_norms`.
        ghost_size: Pictures in a ghost batch.

    Returns:
        The network, or its replacement if it is itself a norm.
    """
    if choice.kind == "sync":
        # torch's own converter drops the activation inside timm's norms.
        converted: nn.Module = convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return converted
    return _with_ghosts(network, ghost_size) if choice.kind == "ghost" else network


def freeze_norms(network: nn.Module) -> None:
    """Freezes the statistics, scales and shifts of every BatchNorm.

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
    norms = _norms(network)
    moments = {norm: _Moments() for norm in norms if norm.track_running_stats}
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


class GhostBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that normalizes each ghost batch by its own statistics (Hoffer et al. 2017, algorithm 1).

    All ghost batches share scale, shift and running statistics, so checkpoints and evaluation are those of plain
    BatchNorm. (`timm.layers.convert_splitbn_model` gives each group its own scale and shift, and evaluation uses only
    the first's.) A step moves the running statistics as far as in plain BatchNorm: each of G groups moves them with
    momentum 1 - (1 - m) ** (1 / G).

    A batch whose size is not a multiple of `ghost_size` is normalized as one group.

    Args:
        original: Its parameters, buffers, dropout and activation are used.
        ghost_size: Pictures in a ghost batch.
    """

    def __init__(self, original: nn.BatchNorm2d, ghost_size: int) -> None:
        super().__init__(original.num_features, original.eps, original.momentum, original.affine)
        self.ghost_size = ghost_size
        self.track_running_stats, self.training = original.track_running_stats, original.training
        self.weight, self.bias = original.weight, original.bias
        self.running_mean, self.running_var = original.running_mean, original.running_var
        self.num_batches_tracked = original.num_batches_tracked
        self.drop: nn.Module = getattr(original, "drop", nn.Identity())
        self.act: nn.Module = getattr(original, "act", nn.Identity())

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Returns the normalized input, of the same shape."""
        num_groups, rest = divmod(len(x_BCHW), self.ghost_size)
        if not self.training or rest or num_groups < 2 or self.momentum is None:
            normalized_BCHW = super().forward(x_BCHW)
        else:
            momentum = 1 - (1 - self.momentum) ** (1 / num_groups)
            if self.track_running_stats and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            # In eager mode one kernel per group saves memory: it keeps only its input for the backward pass. Compiling
            # that many kernels takes minutes, so a compiler gets the plain formula, which it fuses.
            in_groups = self._traced if torch.compiler.is_compiling() else self._group_by_group
            normalized_BCHW = in_groups(x_BCHW, momentum, num_groups)
        activated_BCHW: Tensor = self.act(self.drop(normalized_BCHW))
        return activated_BCHW

    def _group_by_group(self, x_BCHW: Tensor, momentum: float, num_groups: int) -> Tensor:
        mean, var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return torch.cat(
            [
                F.batch_norm(group, mean, var, self.weight, self.bias, True, momentum, self.eps)
                for group in x_BCHW.chunk(num_groups)
            ]
        )

    def _traced(self, x_BCHW: Tensor, momentum: float, num_groups: int) -> Tensor:
        x_GBCHW = x_BCHW.float().view(num_groups, self.ghost_size, *x_BCHW.shape[1:])
        var, mean = torch.var_mean(x_GBCHW, dim=(1, 3, 4), correction=0, keepdim=True)
        if self.track_running_stats:
            size = x_BCHW.numel() // (num_groups * self.num_features)
            self._move_statistics(mean.detach().flatten(1), var.detach().flatten(1) * size / (size - 1), momentum)
        normalized_BCHW = ((x_GBCHW - mean) * torch.rsqrt(var + self.eps)).view(x_BCHW.shape)
        if self.affine:
            normalized_BCHW = normalized_BCHW * self.weight[:, None, None] + self.bias[:, None, None]
        return normalized_BCHW.to(x_BCHW.dtype)

    def _move_statistics(self, mean_GC: Tensor, var_GC: Tensor, momentum: float) -> None:
        """Updates the running statistics as if the groups came one after the other."""
        groups_after = torch.arange(len(mean_GC) - 1, -1, -1, device=mean_GC.device)
        weight_G1 = (momentum * (1 - momentum) ** groups_after)[:, None]
        for running, of_groups in ((self.running_mean, mean_GC), (self.running_var, var_GC)):
            if running is not None:
                running.mul_((1 - momentum) ** len(mean_GC)).add_((weight_G1 * of_groups).sum(0))


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


def _by_batch_size(recipe: Recipe) -> NormChoice:
    batch_size, is_random = recipe.schedule.batch_size, recipe.network.weights == "none"
    if batch_size > LARGE_BATCH:
        return _ghost_for_large_batch(batch_size, recipe.network.ghost_size)
    if batch_size >= SUFFICIENT_BATCH:
        return NormChoice("leave", False, f"{_PER_BATCH}: {_pictures(batch_size)} are enough")
    limit = SMALL_BATCH if batch_size < SMALL_BATCH else SUFFICIENT_BATCH
    reason = f"{_pictures(batch_size)} {'is' if batch_size == 1 else 'are'} too few to estimate them (under {limit})"
    if batch_size < SMALL_BATCH and not is_random:
        return NormChoice("frozen", False, f"BatchNorm keeps its pretrained statistics: {reason}")
    # Not "sync": PyTorch's synchronized norms make the host wait for the device three times in each norm.
    explanation = f"BatchNorm's statistics are re-estimated before each validation: {reason}"
    if batch_size < SMALL_BATCH:
        explanation += f"; random weights train better with a --batch-size of {SMALL_BATCH} or more"
    return NormChoice("leave", True, explanation)


def _ghost_for_large_batch(batch_size: int, ghost_size: int) -> NormChoice:
    pictures = f"{_pictures(batch_size)} are many (over {LARGE_BATCH})"
    if batch_size % ghost_size == 0:
        return NormChoice("ghost", False, f"BatchNorm uses the statistics of ghost batches of {ghost_size}: {pictures}")
    return NormChoice("leave", False, f"{_PER_BATCH}: {pictures}, but ghost batches of {ghost_size} do not divide them")


def _sync_requested(num_ranks: int, device: torch.device) -> NormChoice:
    if num_ranks == 1:
        return NormChoice("leave", False, f"{_PER_BATCH}, since there is only one rank")
    if device.type != "cuda":
        raise RecipeError(
            "synchronized BatchNorm needs CUDA",
            value=f"norms = sync on {device.type}",
            limit="CUDA",
            remedy="use --norms auto, which re-estimates the statistics before validation if batches are small",
        )
    return NormChoice("sync", False, f"BatchNorm uses the statistics of all {num_ranks} ranks, as requested")


def _frozen_requested(recipe: Recipe) -> NormChoice:
    if recipe.network.weights == "none":
        raise RecipeError(
            "BatchNorm cannot be frozen, since random weights have no statistics",
            value="norms = frozen with weights = none",
            remedy="use --weights imagenet or a file, or another --norms",
        )
    return NormChoice("frozen", False, "BatchNorm keeps its pretrained statistics, as requested")


def _ghost_requested(batch_size: int, ghost_size: int) -> NormChoice:
    if batch_size % ghost_size:
        divisors = [size for size in range(2, batch_size + 1) if batch_size % size == 0]
        nearest = min(divisors, key=lambda size: abs(size - ghost_size), default=0)
        raise RecipeError(
            "ghost batches do not divide the batch",
            value=f"ghost_size {ghost_size}",
            limit=f"a divisor of batch_size {batch_size}",
            remedy=f"set --ghost-size {nearest} or another --batch-size" if nearest else "set a larger --batch-size",
        )
    return NormChoice("ghost", False, f"BatchNorm uses the statistics of ghost batches of {ghost_size}, as requested")


def _with_ghosts(module: nn.Module, ghost_size: int) -> nn.Module:
    if type(module) in (nn.BatchNorm2d, BatchNormAct2d):
        return GhostBatchNorm2d(module, ghost_size)  # type: ignore[arg-type]
    for name, child in module.named_children():
        setattr(module, name, _with_ghosts(child, ghost_size))
    return module


def _norms(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _pictures(batch_size: int) -> str:
    return f"{batch_size} picture{'' if batch_size == 1 else 's'} per batch"
