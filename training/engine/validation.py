"""Accuracy and loss on the validation split, computed by all ranks together."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.metrics import Share, share, top_k_hits
from training.dataset.manifest import Manifest
from training.engine.norms import reestimate
from training.engine.step import Engine
from training.evaluation.predict import torch_runner
from training.loading.data import evaluation_loader, training_loader
from training.network_input import input_spec

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
    the statistics are re-estimated first.

    Args:
        engine: Holds the network.
        manifest: The data.
        epoch: The statistics are estimated on training pictures of this epoch.
        side_px: Size of those pictures.
    """
    ranks = engine.ranks
    if engine.norms.reestimate:
        reestimate(engine.eval_model, _training_pictures(engine, manifest, epoch, side_px))
    ranks.mean_statistics(engine.eval_model)
    rows = manifest.rows_of("validation")[ranks.rank :: ranks.num_ranks]
    loader = evaluation_loader(manifest, rows, input_spec(engine.recipe), engine.recipe.data)
    run = torch_runner(engine.scoring_model, engine.device, engine.amp_dtype)
    hits1 = hits5 = loss = told = 0.0
    num_outputs = engine.network.num_outputs
    for pixels, labels in loader:
        found = torch.from_numpy(run(pixels)).to(engine.device)
        logits, plant_logits = found[:, :num_outputs], found[:, num_outputs:]
        told += float((plant_logits > 0).sum())
        scores, targets = (part.cpu() for part in engine.loss.class_logits(logits, labels.to(engine.device)))
        hits1 += float(top_k_hits(scores.numpy(), targets.numpy(), 1).sum())
        hits5 += float(top_k_hits(scores.numpy(), targets.numpy(), 5).sum())
        loss += float(cross_entropy(scores, targets, reduction="sum"))
    total, hits1, hits5, loss, told = ranks.sum([len(rows), hits1, hits5, loss, told])
    plants_told = share(round(told), round(total)) if engine.with_plant_output is not None else None
    return Validation(share(round(hits1), round(total)), share(round(hits5), round(total)), loss / total, plants_told)


def _training_pictures(engine: Engine, manifest: Manifest, epoch: int, side_px: int) -> Iterator[Tensor]:
    """Network inputs of the first batches of an epoch."""
    recipe, ranks = engine.recipe, engine.ranks
    pin = engine.device.type == "cuda"
    loader, batches = training_loader(manifest, recipe, pin, ranks.rank, ranks.num_ranks, persistent=False)
    batches.epoch, batches.side_px = epoch, side_px
    for pixels, _ in islice(loader, math.ceil(_REESTIMATION_PICTURES / recipe.schedule.batch_size)):
        yield engine.normalized(pixels)
