"""A network file, calibrated by its own answers and measured on pictures that nothing was chosen by."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from models.bundle import Metric
from models.preprocess import InputSpec
from training.dataset.manifest import Manifest
from training.evaluation.metrics import Share
from training.evaluation.predict import Logits
from training.evaluation.split_metrics import Answers, Figures, answers, figures
from training.release.calibration import fit_temperature
from training.release.precisions.pictures import Pictures, pictures_of


class Judges(msgspec.Struct, frozen=True):
    """The pictures by which network files are made and judged."""

    ranges: Pictures
    """Training pictures, for the ranges of int8."""
    validation: Pictures
    """To choose by."""
    temperature: Pictures
    """To calibrate by: the calibration split where there is one, since no choice was made by its pictures."""
    judged: tuple[Pictures, ...]
    """To judge by: the test split, and that of further data."""


def judges_of(judging: Sequence[Manifest], spec: InputSpec, *, calibration_pictures: int, workers: int) -> Judges:
    """Gathers them from prepared data.

    Args:
        judging: The data that the network learned from, then further data whose test split judges too.
        spec: What the networks expect.
        calibration_pictures: Training pictures that set the ranges of int8, at most.
        workers: Loader processes; 0 loads in this one.
    """
    learned = judging[0]
    return Judges(
        ranges=pictures_of(learned, "train", spec, workers).sample(calibration_pictures),
        validation=pictures_of(learned, "validation", spec, workers),
        temperature=pictures_of(learned, "calibration" if learned.has("calibration") else "validation", spec, workers),
        judged=tuple(pictures_of(each, "test", spec, workers) for each in judging),
    )


class Answering:
    """A network file that is asked about a picture only once.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logits: dict[tuple[Path, str], Logits] = {}

    def logits(self, pictures: Pictures) -> Logits:
        """What it answers on these pictures, shape (num_pictures, num_outputs)."""
        key = (pictures.manifest.folder, pictures.name)
        if key not in self._logits:
            self._logits[key] = pictures.logits(self.path)
        return self._logits[key]


class Judged(msgspec.Struct, frozen=True):
    """What a network file is worth."""

    network: Answering
    temperature: float
    """Fitted on its own logits."""
    answers: tuple[Answers, ...]
    """On each set of pictures that judge."""
    metrics: tuple[Metric, ...]
    """The figures of all of them."""


def judge_network(network: Answering, judges: Judges) -> Judged:
    """Calibrates a network file and measures how right it is."""
    taxonomy, fitted = judges.temperature.manifest.taxonomy, judges.temperature
    temperature = fit_temperature(network.logits(fitted), fitted.labels, taxonomy)
    found = tuple(answers_on(network, pictures, temperature) for pictures in judges.judged)
    metrics = [
        metric
        for pictures, answered in zip(judges.judged, found, strict=True)
        for metric in _metrics(figures(answered), pictures.name)
    ]
    return Judged(network, temperature, found, tuple(metrics))


def answers_on(network: Answering, pictures: Pictures, temperature: float) -> Answers:
    """Calibrated answers on a set of pictures."""
    logits = network.logits(pictures)
    return answers(logits, pictures.labels, pictures.rows, pictures.manifest.taxonomy, temperature)


def _metrics(measured: Figures, data: str) -> list[Metric]:
    metrics = []
    for name in Figures.__struct_fields__:
        figure: Share | float = getattr(measured, name)
        if isinstance(figure, Share):
            metrics.append(Metric(name, figure.value, data, figure.num_pictures, figure.interval_95))
        else:
            metrics.append(Metric(name, figure, data, measured.top1_taxon.num_pictures))
    return metrics
