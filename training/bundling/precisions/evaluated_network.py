"""Calibrates a network file on its own logits, and measures it on pictures that were not used to calibrate it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from models.bundle import Metric
from training.bundling.calibration import fit_temperature
from training.bundling.precisions.pictures import Pictures, PictureSets
from training.bundling.thresholds import FittedThresholds, fit_thresholds
from training.evaluation.metrics import Share
from training.evaluation.plants import one_picture_each
from training.evaluation.predict import Logits
from training.evaluation.predictions import Predictions, calibrated_predictions
from training.evaluation.rank_scores import Rank, rank_scores
from training.evaluation.split_metrics import SplitMetrics, split_metrics


class CachedNetwork:
    """A network file that runs only once for a set of pictures.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logits: dict[tuple[Path, str], Logits] = {}

    def logits(self, pictures: Pictures) -> Logits:
        """Returns the logits for these pictures, shape (num_pictures, num_outputs)."""
        key = (pictures.manifest.folder, pictures.name)
        if key not in self._logits:
            self._logits[key] = pictures.logits(self.path)
        return self._logits[key]


class EvaluatedNetwork(msgspec.Struct, frozen=True):
    """A network file with what was fitted to it and its metrics."""

    network: CachedNetwork
    temperature: float
    """Fitted on its own logits."""
    fitted: FittedThresholds
    """Fitted on its own calibrated probabilities."""
    predictions: tuple[Predictions, ...]
    """On each test set."""
    metrics: tuple[Metric, ...]
    """On all test sets."""


def evaluate_network(
    network: CachedNetwork, sets: PictureSets, thresholds: Mapping[Rank, float] = MappingProxyType({})
) -> EvaluatedNetwork:
    """Calibrates a network file, fits its thresholds, and measures how accurate it is.

    Args:
        network: The file.
        sets: The pictures to fit and measure with.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.
    """
    held_out = sets.temperature
    temperature = fit_temperature(
        network.logits(held_out), held_out.labels, held_out.manifest.taxonomy, held_out.plants
    )
    predictions = tuple(predictions_on(network, pictures, temperature) for pictures in sets.tests)
    metrics = [
        metric
        for pictures, found in zip(sets.tests, predictions, strict=True)
        for metric in _metrics(split_metrics(found), pictures.name)
    ]
    fitted = _fit_thresholds(predictions_on(network, held_out, temperature), held_out, thresholds)
    return EvaluatedNetwork(network, temperature, fitted, predictions, tuple(metrics))


def _fit_thresholds(found: Predictions, held_out: Pictures, fixed: Mapping[Rank, float]) -> FittedThresholds:
    """Fits the thresholds on one picture of each plant, as if each were sent to the service."""
    chosen = one_picture_each(found.plants_N)
    taxonomy = held_out.manifest.taxonomy
    return fit_thresholds(rank_scores(found.taxa_NT[chosen], found.taxon_labels_N[chosen], taxonomy), fixed)


def predictions_on(network: CachedNetwork, pictures: Pictures, temperature: float) -> Predictions:
    """Returns the calibrated predictions for a set of pictures."""
    taxonomy = pictures.manifest.taxonomy
    logits = network.logits(pictures)
    return calibrated_predictions(logits, pictures.labels, pictures.rows, taxonomy, temperature, plants=pictures.plants)


def _metrics(measured: SplitMetrics, data: str) -> list[Metric]:
    metrics = []
    for name in SplitMetrics.__struct_fields__:
        figure: Share | float = getattr(measured, name)
        if isinstance(figure, Share):
            metrics.append(Metric(name, figure.value, data, figure.num_pictures, figure.interval_95))
        else:
            metrics.append(Metric(name, figure, data, measured.top1_taxon.num_pictures))
    return metrics
