"""Calibrates a network file on its own logits, and measures it on pictures that were not used to calibrate it."""

from pathlib import Path

import msgspec

from models.bundle import Metric
from training.bundling.calibration import fit_temperature
from training.bundling.precisions.pictures import Pictures, PictureSets
from training.evaluation.metrics import Share
from training.evaluation.predict import Logits
from training.evaluation.predictions import Predictions, calibrated_predictions
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
    """A network file with its temperature and its metrics."""

    network: CachedNetwork
    temperature: float
    """Fitted on its own logits."""
    predictions: tuple[Predictions, ...]
    """On each test set."""
    metrics: tuple[Metric, ...]
    """On all test sets."""


def evaluate_network(network: CachedNetwork, sets: PictureSets) -> EvaluatedNetwork:
    """Calibrates a network file and measures how accurate it is."""
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
    return EvaluatedNetwork(network, temperature, predictions, tuple(metrics))


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
