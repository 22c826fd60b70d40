"""The training loss: cross entropy over outputs or taxa, with label smoothing and logit adjustment.

Nothing here waits for the device. Shape suffixes: B pictures, O outputs, T taxa, K outputs of a taxon, C classes
(outputs or taxa, whichever the loss is over).
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from training.dataset.manifest import Manifest
from training.loading.sampler import expected_samples
from training.recipe import LossRecipe, Recipe

SAMPLES_OF_UNSEEN: Final = 0.5
"""Samples per epoch that logit adjustment assumes for a class without training pictures, since log(0) is not finite:
half as many as for a class with one picture."""


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

    Args:
        recipe: Target, smoothing and adjustment.
        classes: The taxon of each output, and how often it is sampled.
        device: The device of the logits.

    Raises:
        ValueError: A taxon has no output.
    """

    def __init__(self, recipe: LossRecipe, classes: TrainingClasses, device: torch.device) -> None:
        self._smoothing = recipe.label_smoothing
        grouped = recipe.target == "taxon" and classes.num_taxa < len(classes.taxon_of_output)
        self._taxa = _TaxonSums(classes, device) if grouped else None
        self._adjustment_C: Tensor | None = None
        if recipe.logit_adjustment > 0:
            samples_C = _samples_of_taxa(classes) if grouped else np.array(classes.samples_of_output)
            log_prior_C = torch.from_numpy(_log_prior(samples_C)).float().to(device)
            self._adjustment_C = recipe.logit_adjustment * log_prior_C

    def __call__(self, logits_BO: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss, a scalar.

        Args:
            logits_BO: Logits of any float dtype.
            targets: Indices of outputs, shape (B,), or their probabilities, shape (B, O).
        """
        logits_BC = logits_BO if logits_BO.dtype == torch.float64 else logits_BO.float()
        if targets.is_floating_point():
            targets = targets.to(logits_BC.dtype)
        if self._taxa is not None:
            logits_BC, targets = self._taxa.logits(logits_BC), self._taxa.targets(targets)
        if self._adjustment_C is not None:
            logits_BC = logits_BC + self._adjustment_C
        return F.cross_entropy(logits_BC, targets, label_smoothing=self._smoothing)

    def class_logits(self, logits_BO: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits_BC, labels_B) over the classes of the loss, without logit adjustment, for validation."""
        if self._taxa is None:
            return logits_BO, labels_B
        return self._taxa.logits(logits_BO), self._taxa.targets(labels_B)


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


def _samples_of_taxa(classes: TrainingClasses) -> npt.NDArray[np.float64]:
    return np.bincount(classes.taxon_of_output, classes.samples_of_output, classes.num_taxa).astype(np.float64)


def _log_prior(samples_C: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The log of each class's share of the samples."""
    counted = np.where(samples_C > 0, samples_C, SAMPLES_OF_UNSEEN)
    log_prior: npt.NDArray[np.float64] = np.log(counted / counted.sum())
    return log_prior
