"""What BatchNorm takes its statistics over: the pictures of a step, of all ranks, of small groups, or none any more.

Accumulation does not enlarge a BatchNorm batch: what counts is how many pictures go forward together. Letters in names:
B pictures, G groups, C channels.
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

ENOUGH: Final = 16
"""Pictures from which on BatchNorm is left alone: below, its error grows fast (Wu and He 2018, figure 1)."""
FEW: Final = 8
"""Pictures below which statistics that came with the weights are kept: with 4, new ones cost several points (same)."""
MANY: Final = 256
"""Pictures above which "auto" takes groups. A choice: Hoffer et al. 2017 found groups to help at 4,096."""


class NormChoice(msgspec.Struct, frozen=True):
    """What BatchNorm does in a run."""

    kind: NormKind
    reestimate: bool
    """Whether the running statistics are to be estimated anew before each validation, see `reestimate`."""
    sentence: str
    """What was chosen, and why."""


def choose_norms(recipe: Recipe, num_ranks: int, device: torch.device) -> NormChoice:
    """Decides what BatchNorm takes its statistics over.

    Args:
        recipe: Its network.norms decides; "auto" goes by the pictures a step and rank.
        num_ranks: How many train together.
        device: Where.

    Raises:
        RecipeError: What the recipe asks for cannot be: statistics of all ranks on a CPU, frozen ones of random
            weights, or groups that do not divide the batch.
    """
    asked, batch_size = recipe.network.norms, recipe.schedule.batch_size
    if asked == "auto":
        return _by_batch_size(recipe, num_ranks, device)
    if asked == "sync":
        return _sync_asked(num_ranks, device)
    if asked == "frozen":
        return _frozen_asked(recipe)
    if asked == "ghost":
        return _ghost_asked(batch_size, recipe.network.ghost_size)
    return NormChoice("leave", False, f"BatchNorm takes its statistics over {_pictures(batch_size)}, as asked for")


def apply_norms(network: nn.Module, choice: NormChoice, ghost_size: int) -> nn.Module:
    """Gives a network the norms of a choice; parameters, buffers and their names stay the same.

    Frozen norms need `freeze_norms` after each `network.train()`.

    Args:
        network: Changed in place.
        choice: Of `choose_norms`.
        ghost_size: Pictures in a group of ghost batches.

    Returns:
        The network, or what takes its place if it is itself a norm.
    """
    if choice.kind == "sync":
        # torch's own converter drops the activation that timm fuses into its norms.
        converted: nn.Module = convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return converted
    return _with_ghosts(network, ghost_size) if choice.kind == "ghost" else network


def freeze_norms(network: nn.Module) -> None:
    """Keeps every BatchNorm's statistics, scales and shifts as they are.

    `timm.layers.freeze_batch_norm_2d` does the same with other modules, whose names in checkpoints are not the same.
    """
    for norm in _norms(network):
        norm.training = False  # not norm.eval(): what timm fuses into a norm may drop features, and goes on so
        for parameter in norm.parameters(recurse=False):
            parameter.requires_grad_(False)


@torch.no_grad()
def reestimate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Gives every BatchNorm the statistics of the given pictures in place of running averages.

    Mean and variance are those of all pictures together (Wu and Johnson 2021, section 3). Each batch is normalized by
    its own statistics on the way, as in training, while dropout and drop path rest:
    `torch.optim.swa_utils.update_bn` leaves these on, and averages the variances of the batches, which leaves out how
    far the batches lie apart.

    Args:
        network: Its running statistics are replaced; those of norms that no picture reaches stay. Its modes stay.
        batches: Network inputs of shape (B, 3, height, width), on the network's device.
    """
    norms = _norms(network)
    moments = {norm: _Moments() for norm in norms if norm.track_running_stats}
    modes = {module: module.training for module in network.modules()}
    with ExitStack() as undo:
        for norm, of_norm in moments.items():
            undo.callback(norm.register_forward_pre_hook(of_norm.add).remove)
            undo.callback(setattr, norm, "track_running_stats", True)
            norm.track_running_stats = False  # the running averages do not move meanwhile
        for module, mode in modes.items():
            undo.callback(setattr, module, "training", mode)
            module.training = module in moments
        for pixels in batches:
            network(pixels)
    for norm, of_norm in moments.items():
        of_norm.write(norm)


class GhostBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that normalizes each group of pictures by statistics of its own (Hoffer et al. 2017, algorithm 1).

    All groups share scale, shift and running statistics, so that checkpoints and evaluation are those of plain
    BatchNorm. `timm.layers.convert_splitbn_model` gives each group a scale and shift of its own, of which evaluation
    uses only the first's. The running statistics move as far in a step as plain ones: each of G groups moves them with
    momentum 1 - (1 - m) ** (1 / G).

    A batch that the groups do not divide is one group.

    Args:
        original: Lends its parameters, its buffers and what timm fuses into it.
        ghost_size: Pictures in a group.
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
        """Normalizes; the same shape."""
        num_groups, rest = divmod(len(x_BCHW), self.ghost_size)
        if not self.training or rest or num_groups < 2 or self.momentum is None:
            normalized_BCHW = super().forward(x_BCHW)
        else:
            momentum = 1 - (1 - self.momentum) ** (1 / num_groups)
            if self.track_running_stats and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            # One kernel a group saves nothing but its input, which is what counts where each operation is run by
            # itself. A compiler would need many minutes for that many, and fuses the plain formula.
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
        """Moves the running statistics as if group came after group."""
        groups_after = torch.arange(len(mean_GC) - 1, -1, -1, device=mean_GC.device)
        weight_G1 = (momentum * (1 - momentum) ** groups_after)[:, None]
        for running, of_groups in ((self.running_mean, mean_GC), (self.running_var, var_GC)):
            if running is not None:
                running.mul_((1 - momentum) ** len(mean_GC)).add_((weight_G1 * of_groups).sum(0))


class _Moments:
    """Count, sum and sum of squares of what goes into a norm, by channel."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: tuple[Tensor, Tensor] | None = None

    def add(self, _norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Adds a batch of shape (B, C, ...); a forward hook."""
        x = inputs[0]
        var_C, mean_C = torch.var_mean(x.float(), dim=[dim for dim in range(x.ndim) if dim != 1], correction=0)
        mean_C, size = mean_C.double(), x.numel() // x.shape[1]  # double, as squares of large means are subtracted
        sums = size * mean_C, size * (var_C.double() + mean_C.square())
        self._count += size
        self._sums = sums if self._sums is None else (self._sums[0] + sums[0], self._sums[1] + sums[1])

    def write(self, norm: _BatchNorm) -> None:
        """Makes them the norm's running statistics; the variance without bias, as BatchNorm keeps it."""
        if self._sums is None or norm.running_mean is None or norm.running_var is None:
            return
        mean_C, square_C = (of_channel / self._count for of_channel in self._sums)
        norm.running_mean.copy_(mean_C)
        norm.running_var.copy_((square_C - mean_C.square()).clamp(min=0) * self._count / max(self._count - 1, 1))


def _by_batch_size(recipe: Recipe, num_ranks: int, device: torch.device) -> NormChoice:
    batch_size, random = recipe.schedule.batch_size, recipe.network.weights == "none"
    if batch_size > MANY:
        return _ghost_for_many(batch_size, recipe.network.ghost_size)
    if batch_size >= ENOUGH:
        return NormChoice(
            "leave", False, f"BatchNorm takes its statistics over {_pictures(batch_size)}, which are enough"
        )
    limit = FEW if batch_size < FEW else ENOUGH
    few = f"{_pictures(batch_size)} {'is' if batch_size == 1 else 'are'} too few to estimate them (under {limit})"
    if batch_size < FEW and not random:
        return NormChoice("frozen", False, f"BatchNorm keeps its pretrained statistics: {few}")
    if num_ranks > 1 and device.type == "cuda":
        return NormChoice("sync", False, f"BatchNorm takes its statistics over all {num_ranks} ranks: {few}")
    sentence = f"BatchNorm's statistics are estimated anew before each validation: {few}"
    if batch_size < FEW:
        sentence += f"; random weights have none worth keeping, so take a --batch-size of {FEW} or more if it fits"
    return NormChoice("leave", True, sentence)


def _ghost_for_many(batch_size: int, ghost_size: int) -> NormChoice:
    if batch_size % ghost_size == 0:
        sentence = f"groups of {ghost_size}: {_pictures(batch_size)} are many (over {MANY})"
        return NormChoice("ghost", False, f"BatchNorm takes its statistics over {sentence}")
    sentence = f"{_pictures(batch_size)}, which are many (over {MANY}), but groups of {ghost_size} do not divide them"
    return NormChoice("leave", False, f"BatchNorm takes its statistics over {sentence}")


def _sync_asked(num_ranks: int, device: torch.device) -> NormChoice:
    if num_ranks == 1:
        return NormChoice("leave", False, "BatchNorm takes its statistics over all ranks, which is this one alone")
    if device.type != "cuda":
        raise RecipeError(
            "BatchNorm cannot take its statistics over all ranks on this device",
            value=f"norms = sync on {device.type}",
            limit="CUDA",
            remedy="take --norms auto, which estimates them anew before validation where a batch is small",
        )
    return NormChoice("sync", False, f"BatchNorm takes its statistics over all {num_ranks} ranks, as asked for")


def _frozen_asked(recipe: Recipe) -> NormChoice:
    if recipe.network.weights == "none":
        raise RecipeError(
            "BatchNorm cannot keep the statistics of random weights, which have none",
            value="norms = frozen with weights = none",
            remedy="give --weights imagenet or a file, or another --norms",
        )
    return NormChoice("frozen", False, "BatchNorm keeps its pretrained statistics, as asked for")


def _ghost_asked(batch_size: int, ghost_size: int) -> NormChoice:
    if batch_size % ghost_size:
        divisors = [size for size in range(2, batch_size + 1) if batch_size % size == 0]
        nearest = min(divisors, key=lambda size: abs(size - ghost_size), default=0)
        raise RecipeError(
            "the groups of ghost batches do not divide the batch",
            value=f"ghost_size {ghost_size}",
            limit=f"a divisor of batch_size {batch_size}",
            remedy=f"set --ghost-size {nearest} or another --batch-size" if nearest else "set a larger --batch-size",
        )
    return NormChoice("ghost", False, f"BatchNorm takes its statistics over groups of {ghost_size}, as asked for")


def _with_ghosts(module: nn.Module, ghost_size: int) -> nn.Module:
    if type(module) in (nn.BatchNorm2d, BatchNormAct2d):
        return GhostBatchNorm2d(module, ghost_size)  # type: ignore[arg-type]
    for name, child in module.named_children():
        setattr(module, name, _with_ghosts(child, ghost_size))
    return module


def _norms(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _pictures(batch_size: int) -> str:
    return f"{batch_size} picture{'' if batch_size == 1 else 's'} a step"
