"""The training loss: cross entropy over outputs or taxa, and the auxiliary output that tells plants.

Nothing here waits for the device. Shape suffixes: B pictures, O outputs, T taxa, K outputs of a taxon, C classes
(outputs or taxa, whichever the loss is over), F features, S scores, which are the outputs and then the plant output.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.network import PlantNetwork
from training.dataset.manifest import Manifest
from training.loading.augment import seeded
from training.loading.sampler import expected_samples
from training.recipe import LossRecipe, Recipe

SAMPLES_OF_UNSEEN: Final = 0.5
"""Samples per epoch that logit adjustment assumes for a class without training pictures, since log(0) is not finite:
half as many as for a class with one picture."""
_PLANT_STD: Final = 0.01  # as the classifier's
_PLANT_STREAM: Final = 1  # its random numbers are not the network's, which is made from the seed alone


class TrainingClasses(msgspec.Struct, frozen=True):
    """The taxon of each output, and how often each output is sampled."""

    taxon_of_output: tuple[int, ...]
    """Taxon of each output, in [0, num_taxa)."""
    num_taxa: int
    """Taxa with at least one output."""
    samples_of_output: tuple[float, ...]
    """Expected samples of each output per epoch."""


def training_classes(manifest: Manifest, recipe: Recipe) -> TrainingClasses:
    """The classes of a run and how often they are sampled.

    Taxa are numbered in the order of the taxonomy, without those that have no output.

    Raises:
        DataError: The data has no training pictures.
    """
    rows = manifest.rows_of("train")
    num_outputs = len(manifest.taxonomy.outputs)
    taxa, taxon_of_output = np.unique(manifest.taxonomy.taxon_of_output, return_inverse=True)
    class_of_output = taxon_of_output if recipe.loss.target == "taxon" else np.arange(num_outputs)
    sizes_O = np.bincount(manifest.labels[rows], minlength=num_outputs)
    sizes_C = np.bincount(class_of_output, weights=sizes_O).astype(np.int64)
    # All pictures of a class are equally likely, whatever their output.
    samples_per_picture_C = expected_samples(sizes_C, recipe.data.sampling) / np.maximum(sizes_C, 1)
    return TrainingClasses(
        taxon_of_output=tuple(taxon_of_output.tolist()),
        num_taxa=len(taxa),
        samples_of_output=tuple((sizes_O * samples_per_picture_C[class_of_output]).tolist()),
    )


class TrainingLoss:
    """The mean loss of a batch, in float32 (or float64, if the logits are).

    Over outputs it is cross entropy with label smoothing (Szegedy et al. 2015). Over taxa it is the negative log of the
    summed probability of a taxon's outputs, and smoothing is over taxa, so the outputs of a taxon are interchangeable.
    Logit adjustment (Menon et al. 2021, equation 10) adds the log frequencies of the classes to the logits, in training
    only.

    Raises:
        ValueError: A taxon has no output.
    """

    def __init__(self, recipe: LossRecipe, classes: TrainingClasses, device: torch.device) -> None:
        self._smoothing = recipe.label_smoothing
        grouped = recipe.target == "taxon" and classes.num_taxa < len(classes.taxon_of_output)
        self._taxa = _TaxonSums(classes, device) if grouped else None
        self._adjustment_C: Tensor | None = None
        if recipe.logit_adjustment > 0:
            samples_C = np.array(classes.samples_of_output)
            if grouped:
                samples_C = np.bincount(classes.taxon_of_output, samples_C, classes.num_taxa)
            counted_C = np.where(samples_C > 0, samples_C, SAMPLES_OF_UNSEEN)
            log_prior_C = torch.from_numpy(np.log(counted_C / counted_C.sum())).float().to(device)
            self._adjustment_C = recipe.logit_adjustment * log_prior_C

    def __call__(self, logits_BO: Tensor, targets: Tensor) -> Tensor:
        """The loss, a scalar; targets are indices of outputs, shape (B,), or their probabilities, shape (B, O)."""
        logits_BC = logits_BO if logits_BO.dtype == torch.float64 else logits_BO.float()
        if targets.is_floating_point():
            targets = targets.to(logits_BC.dtype)
        logits_BC, targets = self.class_logits(logits_BC, targets)
        if self._adjustment_C is not None:
            logits_BC = logits_BC + self._adjustment_C
        return F.cross_entropy(logits_BC, targets, label_smoothing=self._smoothing)

    def class_logits(self, logits_BO: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits_BC and targets over the classes of the loss, without logit adjustment."""
        if self._taxa is None:
            return logits_BO, targets
        return self._taxa.logits(logits_BO), self._taxa.targets(targets)


def flat_loss(logits_BO: Tensor) -> Tensor:
    """The mean cross entropy, nats, to equal probabilities of all outputs, for pictures that show none of them.

    It is the loss of outlier exposure (Hendrycks et al. 2019).
    """
    log_shares_BO = logits_BO.float().log_softmax(dim=1)
    return -log_shares_BO.mean()


class _TaxonSums:
    """Sums probabilities and targets over the outputs of each taxon.

    The outputs of each taxon are gathered into a padded row. Unlike scatter-add this is deterministic on CUDA, and each
    row's log-sum-exp is stable.
    """

    def __init__(self, classes: TrainingClasses, device: torch.device) -> None:
        taxon_of_output = np.array(classes.taxon_of_output)
        sizes = np.bincount(taxon_of_output, minlength=classes.num_taxa)
        if sizes.min() == 0:
            raise ValueError(f"taxon {int(sizes.argmin())} has no output")
        by_taxon = np.argsort(taxon_of_output, kind="stable")
        place_TK = np.arange(sizes.max()) + np.zeros((classes.num_taxa, 1), np.int64)
        padding_TK = place_TK >= sizes[:, None]
        # The padding repeats the first output of its row: one output for all padding would collect all their gradients.
        outputs_TK = by_taxon[(sizes.cumsum() - sizes)[:, None] + np.where(padding_TK, 0, place_TK)]
        self._outputs = torch.from_numpy(outputs_TK.ravel()).to(device)
        self._padding_TK = torch.from_numpy(padding_TK).to(device)
        self._taxon_of_output = torch.from_numpy(taxon_of_output).to(device)

    def logits(self, logits_BO: Tensor) -> Tensor:
        """Returns logits_BT; the softmax of a taxon is the sum of the softmax of its outputs."""
        return self._gathered(logits_BO, filler=-torch.inf).logsumexp(dim=2)

    def targets(self, targets: Tensor) -> Tensor:
        """Returns indices or probabilities of taxa, from those of outputs."""
        if targets.is_floating_point():
            return self._gathered(targets, filler=0.0).sum(dim=2)
        return self._taxon_of_output[targets]

    def _gathered(self, values_BO: Tensor, filler: float) -> Tensor:
        values_BTK = values_BO.index_select(1, self._outputs).view(-1, *self._padding_TK.shape)
        return values_BTK.masked_fill(self._padding_TK, filler)


class WithPlantOutput(nn.Module):
    """A network and one more linear layer on its pooled features, after the same dropout, which tells plants.

    The layer is there if pictures without a plant are given. It shapes the features, and is not exported.
    """

    def __init__(self, network: PlantNetwork, seed: int) -> None:
        super().__init__()
        self.network = network
        with seeded(seed, _PLANT_STREAM):
            self.plant_output = nn.Linear(network.num_features, 1)
            nn.init.normal_(self.plant_output.weight, std=_PLANT_STD)
            nn.init.zeros_(self.plant_output.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns scores_BS for normalized pictures of shape (B, 3, height, width)."""
        features_BF = self.network.features(pixels)
        return torch.cat([self.network.head(features_BF), self.plant_output(features_BF)], dim=1)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the classifier and of the plant output."""
        yield from self.network.head_parameters()
        yield from self.plant_output.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters outside of both."""
        yield from self.network.backbone_parameters()


def plant_loss(logits_B: Tensor, num_plants: int) -> Tensor:
    """Binary cross entropy, nats: the mean of its mean over the plants, which come first, and its mean over the rest.

    Both halves have equal weights, so that logit 0 is the border whatever their sizes. There is at least one plant.
    """
    plants_B = logits_B[:num_plants].float()
    negatives_B = logits_B[num_plants:].float()
    of_plants = F.softplus(-plants_B).mean()
    return of_plants if len(negatives_B) == 0 else (of_plants + F.softplus(negatives_B).mean()) / 2


def plant_figures(logits_B: Tensor, num_plants: int) -> Tensor:
    """The loss, the share of the plants told right, and the share of the rest told right; shape (3,)."""
    told_B = torch.cat([logits_B[:num_plants] > 0, logits_B[num_plants:] <= 0]).float()
    negatives = told_B[num_plants:]
    shares = told_B[:num_plants].mean(), negatives.mean() if len(negatives) else told_B.new_ones(())
    return torch.stack([plant_loss(logits_B, num_plants), *shares]).detach()
