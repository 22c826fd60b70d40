"""Calibrates a network file on its own outputs, and measures it on pictures that were not used to calibrate it."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from models.answer import AnswerModel
from models.bundle_record import MeasuredCoverage, Metric
from models.metrics import Share, Whole
from models.preprocess import InputSpec
from models.ranking import Rank
from training.bundling.place import LEAST_RECORDS, FittedPlace, PlaceData, fit_prior, placed_rows, ratios, records_of
from training.bundling.rejection import MOST_PLANTS
from training.bundling.strangers import JudgedStrangers, StrangerNames, Strangers, judge_strangers
from training.bundling.tables import FittedTables, LabeledOutputs, TableData, fit_tables, training_prior
from training.bundling.temperature import fit_temperature
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.answers import coverage_figures
from training.evaluation.pictures import PictureFiles, Pictures, pictures_of
from training.evaluation.predictions import (
    Outputs,
    Predictions,
    Rows,
    chosen_rows,
    one_picture_each,
    score_pictures,
)
from training.evaluation.split_metrics import SplitMetrics, split_metrics


class UnknownFiles(msgspec.Struct, frozen=True):
    """Photographs of plants that the bundle does not know."""

    files: PictureFiles
    names: StrangerNames


class PictureSets(msgspec.Struct, frozen=True):
    """The pictures for each step of a release."""

    validation: Pictures
    """For parity with PyTorch (a sample), and for the agreement of fp16 with fp32."""
    temperature: Pictures
    """For the temperature: the calibration split, or validation if the data has none."""
    features: Pictures
    """All training pictures, from which the bundle learns where plants lie among the features."""
    test: Pictures
    """For the metrics."""
    negatives: PictureFiles | None = None
    """Pictures without a plant, for the plant head."""
    unknown: UnknownFiles | None = None
    """Plants that the bundle does not know."""
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with; then each name says so."""


def picture_sets(
    manifest: Manifest,
    spec: InputSpec,
    workers: int,
    *,
    negatives: PictureFiles | None = None,
    unknown: UnknownFiles | None = None,
    other_data: bool = False,
) -> PictureSets:
    """Chooses the pictures from prepared data."""

    def split(name: Split) -> Pictures:
        return pictures_of(manifest, name, spec, workers, other_data=other_data)

    validation = split("validation")
    return PictureSets(
        validation=validation,
        temperature=split("calibration") if manifest.has("calibration") else validation,
        features=split("train"),
        test=split("test"),
        negatives=negatives,
        unknown=unknown,
        other_data=other_data,
    )


class CachedNetwork:
    """A network file that runs only once for a set of pictures; its outputs are stored in the folder."""

    def __init__(self, path: Path, folder: Path, *, bf16: bool = False) -> None:
        self.path = path
        self.outputs: Callable[[Pictures], Outputs] = cache(
            partial(Pictures.outputs, network=path, folder=folder, bf16=bf16)
        )
        """Gives the logits and features of pictures."""
        self.features: Callable[[Pictures], Rows] = cache(
            partial(Pictures.features, network=path, folder=folder, bf16=bf16)
        )
        """Gives the features alone: the logits of a million training pictures do not fit on a disk."""
        self.outputs_of_files: Callable[[PictureFiles], tuple[Outputs, Whole]] = cache(
            partial(PictureFiles.outputs, network=path, folder=folder, bf16=bf16)
        )
        """Gives logits and features of the pictures that can be read, and their positions."""


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
    strangers: JudgedStrangers | None = None
    """Plants that the bundle does not know, of genera that no fit has seen."""


def evaluate_network(network: CachedNetwork, sets: PictureSets, thresholds: Mapping[Rank, float]) -> EvaluatedNetwork:
    """Calibrates a network file, fits its tables and thresholds, and measures how accurate it is.

    `thresholds` are those of some ranks, to be used in place of fitted ones.
    """
    held_out, test, taxonomy = sets.temperature, sets.test, sets.test.manifest.taxonomy
    temperature = fit_temperature(network.outputs(held_out).logits, held_out.labels, taxonomy, held_out.plants)
    predictions = test.predictions(network.outputs(test).logits, temperature)
    strangers = None if sets.unknown is None else _strangers(network, sets.unknown)
    fitted = fit_tables(_table_data(network, sets, strangers), temperature, thresholds)
    measured = split_metrics(predictions)
    metrics = (
        *(metric(name, getattr(measured, name), test.name, len(test)) for name in SplitMetrics.__struct_fields__),
        *_rejection_metrics(fitted),
        *_place_metrics(network, test, temperature, fitted.place),
    )
    model = AnswerModel(
        taxonomy,
        temperature,
        fitted.thresholds.thresholds,
        calibration=fitted.calibration,
        mistaken=fitted.mistaken,
    )
    judged = None
    if strangers is not None:
        known = network.outputs(test).score(model, test.labels)
        judged = judge_strangers(strangers.choose(strangers.names.judges_M), known, model)
        metrics += _stranger_metrics(judged)
    coverages = []
    for each in coverage_figures(network.outputs(test).logits, predictions.taxon_labels_N, model):
        of_pictures = each.kind == "marginal"
        coverages.append(
            MeasuredCoverage(
                each.kind,
                each.coverage,
                each.covered.value if of_pictures else each.macro_covered,
                each.covered.num_pictures,
                test.name,
                each.covered.interval_95 if of_pictures else None,
            )
        )
    return EvaluatedNetwork(network, temperature, fitted, predictions, metrics, tuple(coverages), judged)


def metric(name: str, figure: Share | float, data: str, num_pictures: int = 0) -> Metric:
    """Makes the record of a figure; `num_pictures` is that of a figure that is no share."""
    if isinstance(figure, Share):
        return Metric(name, figure.value, data, figure.num_pictures, figure.interval_95)
    return Metric(name, figure, data, num_pictures)


def predictions_on(evaluated: EvaluatedNetwork, pictures: Pictures) -> Predictions:
    """Returns the calibrated predictions for a set of pictures."""
    return pictures.predictions(evaluated.network.outputs(pictures).logits, evaluated.temperature)


def _strangers(network: CachedNetwork, unknown: UnknownFiles) -> Strangers:
    """Runs the network on plants that the bundle does not know; pictures that cannot be read are left out."""
    outputs, readable = network.outputs_of_files(unknown.files)
    return Strangers(outputs, unknown.names.subset(readable), unknown.files.name)


def _table_data(network: CachedNetwork, sets: PictureSets, strangers: Strangers | None = None) -> TableData:
    """Runs the network on what the tables are fitted on; of each calibration plant one picture is used."""
    held_out, taxonomy, files = sets.temperature, sets.temperature.manifest.taxonomy, sets.negatives
    outputs, chosen = network.outputs(held_out), one_picture_each(held_out.plants)
    negatives, groups = None, np.zeros(0, np.intp)
    if files is not None:
        negatives, readable = network.outputs_of_files(files)
        groups = files.groups(readable)
    calibration = LabeledOutputs(outputs.choose(chosen), held_out.labels[chosen])
    validation = None
    if held_out is sets.validation:
        validation = calibration if files is not None or strangers is not None else None
    else:
        plants = replace(sets.validation, rows=sets.validation.rows[one_picture_each(sets.validation.plants)])
        plants = plants.sample(MOST_PLANTS)
        validation = LabeledOutputs(network.outputs(plants), plants.labels)
    trained_on = sets.features.manifest
    rows = trained_on.rows_of("train")
    records, _ = records_of(trained_on, rows)
    place = None
    if len(records) >= LEAST_RECORDS:
        prior = fit_prior(records, len(taxonomy.taxa))
        place = PlaceData(prior, *records_of(held_out.manifest, held_out.rows[chosen]))
    return TableData(
        taxonomy=taxonomy,
        calibration=calibration,
        training_features=network.features(sets.features),
        training_labels=sets.features.labels,
        validation=validation,
        negatives=negatives,
        negative_groups=groups,
        prior_T=training_prior(trained_on.labels[rows], taxonomy),
        data=held_out.name,
        num_pictures=len(held_out),
        other_data=sets.other_data,
        is_validation=held_out is sets.validation,
        negatives_data="" if files is None else files.name,
        place=place,
        strangers=None if strangers is None else strangers.choose(~strangers.names.judges_M),
    )


def _place_metrics(
    network: CachedNetwork, test: Pictures, temperature: float, place: FittedPlace | None
) -> list[Metric]:
    """Measures the test pictures that have a place, with and without it."""
    records, has_place = records_of(test.manifest, test.rows)
    if place is None or not len(records):
        return []
    chosen, data = np.flatnonzero(has_place), f"{test.name}, those with a place"
    models = [AnswerModel(test.manifest.taxonomy, divisor) for divisor in (temperature, place.rule.temperature)]
    rows, labels = chosen_rows(network.outputs(test).logits, chosen), test.labels[chosen]
    placed = placed_rows(rows, ratios(place.prior, records), place.rule, models[0])
    metrics = []
    for name, logits, model in zip(("off", "on"), (rows, placed), models, strict=True):
        found = split_metrics(score_pictures(logits, labels, model))
        metrics.append(metric(f"top1_taxon_place_{name}", found.top1_taxon, data))
        metrics.append(metric(f"ece_place_{name}", found.ece, data))
    return metrics


def _stranger_metrics(judged: JudgedStrangers) -> tuple[Metric, ...]:
    data = f"{judged.data}, of genera that no fit has seen"
    metrics = [
        metric("strangers_auroc", judged.auroc, data, judged.named.num_pictures),
        metric("strangers_named_species", judged.named_species, data),
        metric("strangers_named", judged.named, data),
    ]
    if judged.near_wrong is not None:
        metrics.append(
            metric("near_strangers_named_wrong", judged.near_wrong, f"{data}, other species of known genera")
        )
    return tuple(metrics)


def _rejection_metrics(fitted: FittedTables) -> list[Metric]:
    unknown, found, metrics = fitted.left_out, fitted.rejection, []
    if unknown is not None:
        named, data = unknown.named_species, f"{unknown.data}, each plant as if its taxon were unknown"
        metrics.append(metric("left_out_auroc", unknown.auroc, data, named.num_pictures))
        metrics.append(metric("left_out_named_species", named, data))
    if found is not None:
        data = f"{found.data}, each left out of the fit that judges it"
        metrics.append(metric("things_auroc", found.auroc, data, found.accepted.num_pictures))
        metrics.append(metric("things_accepted", found.accepted, data))
        metrics.append(metric("things_named", found.named, data))
    return metrics
