"""Calibrates a network file on its own outputs, and measures it on pictures that were not used to calibrate it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel
from models.bundle_record import MeasuredCoverage, Metric
from models.metrics import Share
from models.preprocess import InputSpec
from models.ranking import Rank
from training.bundling.place import LEAST_RECORDS, FittedPlace, PlacedRows, Ratios, fit_prior, records_of
from training.bundling.tables import (
    FittedTables,
    LabeledOutputs,
    PlaceData,
    TableData,
    fit_tables,
    training_prior,
)
from training.bundling.temperature import fit_temperature
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.answers import coverage_figures
from training.evaluation.pictures import PictureFiles, Pictures, pictures_of
from training.evaluation.predictions import (
    ChosenRows,
    Outputs,
    Predictions,
    Rows,
    calibrated_predictions,
    one_picture_each,
)
from training.evaluation.split_metrics import SplitMetrics, split_metrics


class PictureSets(msgspec.Struct, frozen=True):
    """The pictures for each step of a release."""

    validation: Pictures
    """For parity with PyTorch (a sample), and for the agreement of fp16 with fp32."""
    temperature: Pictures
    """For the temperature: the calibration split, or validation if the data has none."""
    features: Pictures
    """Training pictures for the table of distances and for the plant head."""
    test: Pictures
    """For the metrics."""
    negatives: PictureFiles | None = None
    """Pictures without a plant, for the plant head."""
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with; then each name says so."""


def picture_sets(
    manifest: Manifest,
    spec: InputSpec,
    *,
    feature_pictures: int,
    workers: int,
    negatives: PictureFiles | None = None,
    other_data: bool = False,
) -> PictureSets:
    """Chooses the pictures from prepared data.

    Args:
        manifest: The data.
        spec: Input of the networks.
        feature_pictures: Maximum number of training pictures for the table of distances and the plant head.
        workers: Loader processes; 0 loads in this process.
        negatives: Pictures without a plant; None for no plant head.
        other_data: Whether the network was trained with other data.
    """

    def split(name: Split) -> Pictures:
        return pictures_of(manifest, name, spec, workers, other_data=other_data)

    return PictureSets(
        validation=split("validation"),
        temperature=split("calibration" if manifest.has("calibration") else "validation"),
        features=split("train").sample_evenly(feature_pictures),
        test=split("test"),
        negatives=negatives,
        other_data=other_data,
    )


class CachedNetwork:
    """A network file that runs only once for a set of pictures.

    Args:
        path: The file.
        folder: Where its outputs are stored, see `StoredRows`.
        bf16: Compute in bfloat16 with OpenVINO, rather than with ONNX Runtime.
    """

    def __init__(self, path: Path, folder: Path | None = None, *, bf16: bool = False) -> None:
        self.path, self._folder, self._bf16 = path, folder, bf16
        self._outputs: dict[tuple[Path, bytes], Outputs] = {}
        self._of_files: dict[tuple[Path, ...], tuple[Outputs, npt.NDArray[np.intp]]] = {}

    def outputs(self, pictures: Pictures) -> Outputs:
        """Returns the logits and features of these pictures."""
        key = (pictures.manifest.folder, pictures.rows.tobytes())
        if key not in self._outputs:
            self._outputs[key] = pictures.outputs(self.path, self._folder, bf16=self._bf16)
        return self._outputs[key]

    def outputs_of_files(self, files: PictureFiles) -> tuple[Outputs, npt.NDArray[np.intp]]:
        """Returns logits and features of the pictures that can be read, and the group of each."""
        if files.paths not in self._of_files:
            self._of_files[files.paths] = files.outputs(self.path, self._folder, bf16=self._bf16)
        return self._of_files[files.paths]

    def logits(self, pictures: Pictures) -> Rows:
        """Returns the logits for these pictures, shape (num_pictures, num_outputs)."""
        return self.outputs(pictures).logits


class EvaluatedNetwork(msgspec.Struct, frozen=True):
    """A network file with what was fitted to it and its metrics."""

    network: CachedNetwork
    temperature: float
    """Fitted on its own logits."""
    fitted: FittedTables
    """Its tables and thresholds, fitted on its own outputs."""
    predictions: Predictions
    """On the test set."""
    metrics: tuple[Metric, ...]
    coverages: tuple[MeasuredCoverage, ...]
    """Of the candidate sets, on the test set."""


def evaluate_network(
    network: CachedNetwork, sets: PictureSets, thresholds: Mapping[Rank, float] = MappingProxyType({})
) -> EvaluatedNetwork:
    """Calibrates a network file, fits its tables and thresholds, and measures how accurate it is.

    Args:
        network: The file.
        sets: The pictures to fit and measure with.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.
    """
    held_out = sets.temperature
    temperature = fit_temperature(
        network.logits(held_out), held_out.labels, held_out.manifest.taxonomy, held_out.plants
    )
    predictions = predictions_on(network, sets.test, temperature)
    fitted = fit_tables(_table_data(network, sets), temperature, thresholds)
    metrics = (
        *_metrics(split_metrics(predictions), sets.test.name),
        *_rejection_metrics(fitted),
        *_place_metrics(network, sets.test, temperature, fitted.place),
    )
    model = AnswerModel(sets.test.manifest.taxonomy, temperature, calibration=fitted.calibration)
    coverages = tuple(
        MeasuredCoverage(
            each.kind,
            each.coverage,
            each.covered.value if each.kind == "marginal" else each.macro_covered,
            each.covered.num_pictures,
            sets.test.name,
            each.covered.interval_95 if each.kind == "marginal" else None,
        )
        for each in coverage_figures(network.logits(sets.test), predictions.taxon_labels_N, model)
    )
    return EvaluatedNetwork(network, temperature, fitted, predictions, metrics, coverages)


def predictions_on(network: CachedNetwork, pictures: Pictures, temperature: float) -> Predictions:
    """Returns the calibrated predictions for a set of pictures."""
    taxonomy, logits = pictures.manifest.taxonomy, network.logits(pictures)
    return calibrated_predictions(logits, pictures.labels, pictures.rows, taxonomy, temperature, plants=pictures.plants)


def _table_data(network: CachedNetwork, sets: PictureSets) -> TableData:
    """Runs the network on what the tables are fitted on; of each calibration plant one picture is used."""
    held_out, taxonomy = sets.temperature, sets.temperature.manifest.taxonomy
    outputs, chosen = network.outputs(held_out), one_picture_each(held_out.plants)
    files, no_groups = sets.negatives, np.zeros(0, dtype=np.intp)
    negatives, groups = (None, no_groups) if files is None else network.outputs_of_files(files)
    trained_on = sets.features.manifest
    return TableData(
        taxonomy=taxonomy,
        calibration=LabeledOutputs(outputs.choose(chosen), held_out.labels[chosen]),
        training=LabeledOutputs(network.outputs(sets.features), sets.features.labels),
        negatives=negatives,
        negative_groups=groups,
        prior_T=training_prior(trained_on.labels[trained_on.rows_of("train")], taxonomy),
        data=held_out.name,
        num_pictures=len(held_out),
        other_data=sets.other_data,
        negatives_data="" if files is None else files.name,
        place=_place_data(sets, held_out.rows[chosen]),
    )


def _place_data(sets: PictureSets, calibration_rows: npt.NDArray[np.int64]) -> PlaceData | None:
    trained_on = sets.features.manifest
    records, _ = records_of(trained_on, trained_on.rows_of("train"))
    if len(records) < LEAST_RECORDS:
        return None
    prior = fit_prior(records, len(trained_on.taxonomy.taxa))
    return PlaceData(prior, *records_of(sets.temperature.manifest, calibration_rows))


def _metrics(measured: SplitMetrics, data: str) -> list[Metric]:
    metrics = []
    for name in SplitMetrics.__struct_fields__:
        figure: Share | float = getattr(measured, name)
        if isinstance(figure, Share):
            metrics.append(Metric(name, figure.value, data, figure.num_pictures, figure.interval_95))
        else:
            metrics.append(Metric(name, figure, data, measured.top1_taxon.num_pictures))
    return metrics


def _place_metrics(
    network: CachedNetwork, test: Pictures, temperature: float, place: FittedPlace | None
) -> list[Metric]:
    """Measures the test pictures that have a place, with and without it."""
    if place is None:
        return []
    records, has_place = records_of(test.manifest, test.rows)
    if not len(records):
        return []
    chosen, taxonomy, data = np.flatnonzero(has_place), test.manifest.taxonomy, f"{test.name}, those with a place"
    rows, labels = ChosenRows(network.logits(test), chosen), test.labels[chosen]
    metrics = []
    placed = PlacedRows(rows, Ratios(place.prior, records), place.rule, taxonomy, temperature)
    for name, logits, divisor in (("off", rows, temperature), ("on", placed, place.rule.temperature)):
        found = split_metrics(calibrated_predictions(logits, labels, chosen, taxonomy, divisor))
        for figure, share in (("top1_taxon", found.top1_taxon), ("ece", found.ece)):
            metrics.append(Metric(f"{figure}_place_{name}", share.value, data, len(chosen), share.interval_95))
    return metrics


def _rejection_metrics(fitted: FittedTables) -> list[Metric]:
    unknown, found, metrics = fitted.left_out, fitted.rejection, []
    if unknown is not None:
        named, data = unknown.named_species, f"{unknown.data}, each plant as if its taxon were unknown"
        metrics += [
            Metric("left_out_auroc", unknown.auroc, data, named.num_pictures),
            Metric("left_out_named_species", named.value, data, named.num_pictures, named.interval_95),
        ]
    if found is not None:
        data = f"{found.data}, each left out of the fit that judges it"
        metrics.append(Metric("things_auroc", found.auroc, data, found.accepted.num_pictures))
        for name, each in (("things_accepted", found.accepted), ("things_named", found.named)):
            metrics.append(Metric(name, each.value, data, each.num_pictures, each.interval_95))
    return metrics
