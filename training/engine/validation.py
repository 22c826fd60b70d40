"""Accuracy and loss on the validation split, computed by all ranks together."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from models.metrics import Share, share
from training.dataset.manifest import Manifest
from training.engine.step import Engine
from training.engine.weights import batch_norms
from training.loading.data import EVALUATION_BATCH, still_loader, training_loader

_REESTIMATION_PICTURES: Final = 2000  # on each rank; Wu and Johnson 2021 recommend 1,000 or more


class Validation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of a validation."""

    top1: Share
    top5: Share
    loss: float
    """Mean cross entropy, nats."""
    plants_told: Share | None = None
    """Share of the pictures that the plant output takes for plants; None without one."""


def validate(engine: Engine, manifest: Manifest, epoch: int, side_px: int) -> Validation:
    """Evaluates the network that would be exported on the classes of the loss, outputs or taxa.

    Every rank evaluates its share of the pictures. If batches are too small for good running statistics of BatchNorm,
    the statistics are re-estimated first, on training pictures of the epoch, of that size.
    """
    recipe = engine.recipe
    ranks = engine.ranks
    pin = engine.device.type == "cuda"
    if engine.norms.reestimate:
        training, batches = training_loader(manifest, engine.inputs, pin, ranks.rank, ranks.num_ranks, persistent=False)
        batches.epoch = epoch
        batches.side_px = side_px
        some = islice(training, math.ceil(_REESTIMATION_PICTURES / recipe.schedule.batch_size))
        reestimate(engine.eval_model, (engine.normalized(pixels) for pixels, _ in some))
    ranks.mean_statistics(engine.eval_model)
    rows = manifest.rows_of("validation")[ranks.rank :: ranks.num_ranks]
    features = engine.inputs.features
    loader: Iterable[tuple[Tensor, Tensor]] = (
        still_loader(manifest, rows, engine.inputs.spec, recipe.data.workers, pin=pin)
        if features is None
        else features.in_order(rows)
    )
    sums = torch.zeros(4, dtype=torch.float64, device=engine.device)  # read once: the host never waits in between
    for pixels, labels in loader:
        sums += _figures(engine, pixels, labels)
    total, hits1, hits5, loss, told = ranks.sum([len(rows), *sums.tolist()])
    plants_told = share(round(told), round(total)) if engine.plant_output is not None else None
    return Validation(share(round(hits1), round(total)), share(round(hits5), round(total)), loss / total, plants_told)


@torch.inference_mode()
def _figures(engine: Engine, pixels: Tensor, labels: Tensor) -> Tensor:
    """Hits among the first and among the first five, summed loss, and plants told of a batch; ties count as misses."""
    num_pictures = len(labels)
    num_outputs = engine.network.num_outputs
    # For the size of the last batch cuDNN would time its kernels again.
    if engine.device.type == "cuda" and pixels.ndim > 2:
        pixels = pad(pixels.to(engine.device, non_blocking=True), (0,) * 7 + (EVALUATION_BATCH - num_pictures,))
    found = engine.scores(pixels)[:num_pictures]
    on_device = labels.to(engine.device, non_blocking=True)
    scores, targets = engine.loss.class_logits(found[:, :num_outputs], on_device)
    rivals = scores.shape[1] - 1 - (scores < scores.gather(1, targets[:, None])).sum(dim=1)
    figures = (rivals < 1, rivals < 5, cross_entropy(scores, targets, reduction="none"), found[:, num_outputs:] > 0)
    return torch.stack([each.sum(dtype=torch.float64) for each in figures])


@torch.no_grad()
def reestimate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replaces the running statistics of every BatchNorm by those of the given pictures.

    Mean and variance are those of all pictures together (Wu and Johnson 2021, section 3). Each batch is normalized by
    its own statistics, as in training, but without dropout and drop path. `torch.optim.swa_utils.update_bn` applies
    both, and averages the variances of the batches, which ignores the differences between their means.

    Norms that are not run keep theirs; modes do not change. `batches` are inputs of shape (B, 3, height, width), on the
    network's device.
    """
    moments: dict[nn.Module, Tensor | float] = {}  # count, sum and sum of squares of the inputs, by channel: (3, C)
    modes = {module: module.training for module in network.modules()}

    def collect(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0]
        var_C, mean_C = torch.var_mean(x.float(), dim=[dim for dim in range(x.ndim) if dim != 1], correction=0)
        mean_C = mean_C.double()  # since squares of large means are subtracted
        of_batch = torch.stack([torch.ones_like(mean_C), mean_C, var_C.double() + mean_C.square()])
        moments[norm] += of_batch * (x.numel() // x.shape[1])

    with ExitStack() as undo:
        for norm in batch_norms(network):
            if norm.track_running_stats:
                moments[norm] = 0.0
                undo.callback(norm.register_forward_pre_hook(collect).remove)
                undo.callback(setattr, norm, "track_running_stats", True)
                norm.track_running_stats = False  # keeps the running statistics unchanged
        for module, mode in modes.items():
            undo.callback(setattr, module, "training", mode)
            module.training = module in moments
        for pixels in batches:
            network(pixels)
    for norm in batch_norms(network):
        found = moments.get(norm)
        if not isinstance(found, Tensor) or norm.running_mean is None or norm.running_var is None:
            continue
        total_C, sum_C, square_C = found
        mean_C = sum_C / total_C
        norm.running_mean.copy_(mean_C)
        # The variance is unbiased, as BatchNorm's.
        var_C = (square_C / total_C - mean_C.square()).clamp(min=0)
        norm.running_var.copy_(var_C * total_C / (total_C - 1).clamp(min=1))
