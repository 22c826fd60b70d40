"""Makes the network of each precision, calibrates and measures it, and runs its release checks.

A network is calibrated on its own outputs, and measured on pictures that were not used to calibrate it. Each check
compares a measured figure with a limit. A network that fails one is not released; fp32 ends the export.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from models.bundle_record import Check, FailedNetwork, MeasuredCoverage, Metric
from models.errors import BundleError
from models.figures import Figures, SplitMetrics, coverage_figures, measure, metric
from models.metrics import Whole
from models.outputs import Outputs, Predictions, Rows, chunks
from models.preprocess import InputSpec
from models.ranking import Rank, output_probabilities
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.engine.checkpoint import Checkpoint
from training.fit.heads import MOST_PLANTS
from training.fit.model import Fitted, TableData, fit_tables
from training.fit.names import fit_temperature
from training.fit.onnx_file import write_fp16, write_fp32, write_rounded
from training.fit.pairs import paired_loss
from training.fit.pictures import PictureFiles, Pictures, one_picture_each, pictures_of, run_once
from training.fit.place import PlaceData, place_data, place_metrics
from training.fit.unknown_plants import UnknownFiles, UnknownPlants, unknown_metrics

PARITY_LIMIT: Final = 1e-3
"""Largest accepted difference in probability from PyTorch."""
PARITY_PICTURES: Final = 500
"""Validation pictures on which file and PyTorch are compared. A fault of the conversion changes every picture."""
LEAST_AGREEMENT: Final = 0.999
"""Share of the pictures for which fp16 must name the taxon of fp32."""
MOST_LOSS: Final = 0.005
"""Half a point of top-1, which bf16 must not lose."""
_ANY: Final = 1.0  # limit of a difference that is recorded only
_BF16_NOTE: Final = "Computes the fp32 file in bfloat16 with OpenVINO, on processors that have it."
_FP16_NOTE: Final = (
    "Computes in half precision. Evaluated on a CPU, with each operator's result rounded to half precision."
)


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
    calibration: Whole
    """Positions of one picture of each plant among those for the temperature, for thresholds and tables."""
    place: PlaceData | None = None
    """Where the training pictures and these plants were photographed; None if too few have a place."""
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
    temperature = split("calibration") if manifest.has("calibration") else validation
    features = split("train")
    calibration = one_picture_each(temperature.plants)
    return PictureSets(
        validation=validation,
        temperature=temperature,
        features=features,
        test=split("test"),
        calibration=calibration,
        place=place_data(manifest, features.rows, temperature.rows[calibration]),
        negatives=negatives,
        unknown=unknown,
        other_data=other_data,
    )


class Candidate(msgspec.Struct, frozen=True):
    """A network file with what was fitted to it and its figures."""

    path: Path
    run: Callable[..., Outputs]
    """Runs the file, once on each set of pictures."""
    fitted: Fitted
    predictions: Predictions
    """On the test set."""
    figures: Figures
    metrics: tuple[Metric, ...]
    coverages: tuple[MeasuredCoverage, ...]
    """Of the candidate sets, on the test set."""
    checks: tuple[Check, ...] = ()
    note: str = ""

    def checked(self, *checks: Check) -> "Candidate | FailedNetwork":
        """Returns it with its checks; only its figures if it failed one."""
        if all(check.passed for check in checks):
            return replace(self, checks=checks)
        return FailedNetwork(checks, self.metrics, self.note)

    def predictions_on(self, pictures: Pictures) -> Predictions:
        """Returns the calibrated predictions for a set of pictures."""
        return self.run(pictures).score(self.fitted.model)


def make_fp32(checkpoint: Checkpoint, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the fp32 network in a folder. The other precisions are made from it and compared with it.

    `thresholds` are those of some ranks, to be used in place of fitted ones.

    Raises:
        BundleError: The probabilities differ from PyTorch's by more than the limit.
    """
    path = folder / "model.fp32.onnx"
    run = run_once(path, folder)
    compared = sets.validation.sample(PARITY_PICTURES)
    exact, same_weights = write_fp32(checkpoint, compared, path)
    name = f"parity: largest difference in probability from PyTorch with the same weights: {compared.name}"
    parity = difference_check(name, run(compared).logits, same_weights, PARITY_LIMIT)
    if not parity.passed:
        raise BundleError(
            f"the network file and PyTorch give different probabilities ({parity.name})",
            value=f"{parity.value:.2e} on {parity.num_pictures} pictures",
            limit=f"at most {parity.limit:.0e}",
            remedy="report this with your versions of torch and onnxruntime",
        )
    # The effect of storing the weights in half precision.
    name = f"rounding: largest difference in probability from unrounded weights: {compared.name}"
    rounding = difference_check(name, same_weights, exact, _ANY)
    return replace(evaluate_network(path, run, sets, thresholds), checks=(parity, rounding))


def make_fp16(
    fp32: Candidate, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]
) -> Candidate | FailedNetwork:
    """Makes the network for GPUs; see `make_fp32`.

    Its temperature and figures come from a network that computes on a CPU what a GPU computes: see `write_rounded`.
    """
    path = folder / "model.fp16.onnx"
    write_fp16(fp32.path, path)
    rounded = folder / "fp16_rounded.onnx"
    run = run_once(rounded, folder)
    write_rounded(fp32.path, rounded)
    further = (sets.negatives, None if sets.unknown is None else sets.unknown.files)
    pictures = [sets.test, sets.validation, sets.temperature, *filter(None, further)]
    overflow = overflow_check([run(sets.features, with_logits=False), *map(run, pictures)])
    if not overflow.passed:  # neither metrics nor tables can be computed from NaN
        return FailedNetwork((overflow,), note=_FP16_NOTE)
    made = _compared(evaluate_network(path, run, sets, thresholds), fp32, sets, _FP16_NOTE)
    half, single = ((each.predictions, each.predictions_on(sets.validation)) for each in (made, fp32))
    return made.checked(overflow, agreement_check(half, single))


def make_bf16(
    fp32: Candidate, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]
) -> Candidate | FailedNetwork:
    """Calibrates and measures the fp32 file as OpenVINO computes it in bfloat16; see `make_fp32`.

    The validation split decides whether it is released, so that the test split only reports.
    """
    data = sets.validation.name
    made = evaluate_network(fp32.path, run_once(fp32.path, folder, bf16=True), sets, thresholds)
    made = _compared(made, fp32, sets, _BF16_NOTE)
    single, half = (each.predictions_on(sets.validation) for each in (fp32, made))
    loss = paired_loss(single.top_k_hits(1), half.top_k_hits(1))
    name = f"accuracy: upper end of the 95 % interval of the loss in top-1 against fp32: {data}"
    accuracy = _at_most(name, loss.interval_95[1], MOST_LOSS, loss.num_pictures)
    one, other = (each.run(sets.validation).logits for each in (made, fp32))
    # Accuracy is what counts, so any difference passes.
    return made.checked(
        accuracy, difference_check(f"parity: largest difference in probability from fp32: {data}", one, other, _ANY)
    )


def _compared(made: Candidate, fp32: Candidate, sets: PictureSets, note: str) -> Candidate:
    loss = paired_loss(fp32.predictions.top_k_hits(1), made.predictions.top_k_hits(1))
    lost = metric("top1_taxon_lost_against_fp32", loss, sets.test.name)
    return replace(made, metrics=(*made.metrics, lost), note=note)


def evaluate_network(
    path: Path, run: Callable[..., Outputs], sets: PictureSets, thresholds: Mapping[Rank, float]
) -> Candidate:
    """Calibrates a network file, fits its tables and thresholds, and measures how accurate it is.

    `thresholds` are those of some ranks, to be used in place of fitted ones.
    """
    test = sets.test
    temperature = fit_temperature(run(sets.temperature), test.manifest.taxonomy)
    unknown_plants = None
    if sets.unknown is not None:
        outputs = run(sets.unknown.files)
        unknown_plants = UnknownPlants(outputs, sets.unknown.names.subset(outputs.rows), sets.unknown.files.name)
    fitted = fit_tables(_table_data(run, sets, unknown_plants), temperature, thresholds)
    outputs = run(test)
    model = fitted.model
    predictions = outputs.score(model)
    figures = measure(predictions, model.taxonomy, test.sources)
    metrics = [
        metric(name, getattr(figures.all, name), test.name, len(test)) for name in SplitMetrics.__struct_fields__
    ]
    metrics += fitted.metrics
    metrics += place_metrics(outputs, predictions, test, model)
    if unknown_plants is not None:
        metrics += unknown_metrics(unknown_plants.choose(unknown_plants.names.judges_M), predictions, model)
    coverages = []
    for each in coverage_figures(outputs.logits, predictions.taxon_labels_N, model):
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
    return Candidate(path, run, fitted, predictions, figures, tuple(metrics), tuple(coverages))


def _table_data(
    run: Callable[..., Outputs], sets: PictureSets, unknown_plants: UnknownPlants | None = None
) -> TableData:
    """Runs the network on what the tables are fitted on."""
    held_out = sets.temperature
    files = sets.negatives
    negatives = None
    groups = np.zeros(0, np.intp)
    if files is not None:
        negatives = run(files)
        groups = files.groups(negatives.rows)
    calibration = run(held_out).choose(sets.calibration)
    validation = None
    if held_out is not sets.validation:
        plants = replace(sets.validation, rows=sets.validation.rows[one_picture_each(sets.validation.plants)])
        validation = run(plants.sample(MOST_PLANTS))
    elif files is not None or unknown_plants is not None:
        validation = calibration
    return TableData(
        taxonomy=held_out.manifest.taxonomy,
        calibration=calibration,
        training=run(sets.features, with_logits=False),
        validation=validation,
        negatives=negatives,
        negative_groups=groups,
        data=held_out.name,
        num_pictures=len(held_out),
        proves=not sets.other_data and held_out is not sets.validation,
        negatives_data="" if files is None else files.name,
        place=sets.place,
        unknown_plants=None if unknown_plants is None else unknown_plants.choose(~unknown_plants.names.judges_M),
    )


def difference_check(name: str, one: Rows, other: Rows, limit: float) -> Check:
    """The largest difference in probability between the logits of two networks; NaN fails."""
    differences = [
        np.abs(output_probabilities(one[part], 1.0) - output_probabilities(other[part], 1.0)).max()
        for part in chunks(*one.shape)
    ]
    return _at_most(name, float(np.max(differences)), limit, len(one))


def overflow_check(outputs: Sequence[Outputs]) -> Check:
    """fp16: all logits and features are finite; a value above 65,504 is infinite in half precision."""
    num_pictures = num_lost = 0
    for each in outputs:
        num_pictures += len(each.logits)
        for part in chunks(len(each.logits), max(each.logits.shape[1], each.features.shape[1])):
            finite = np.isfinite(each.logits[part]).all(axis=1) & np.isfinite(each.features[part]).all(axis=1)
            num_lost += int((~finite).sum())
    name = "overflow: pictures with NaN or infinite outputs, every operator's result rounded to half precision"
    return _at_most(name, float(num_lost), 0.0, num_pictures)


def agreement_check(found: Sequence[Predictions], fp32: Sequence[Predictions]) -> Check:
    """fp16: the share of all pictures for which the most likely taxon is that of fp32."""
    same = np.concatenate([one.named_N == other.named_N for one, other in zip(found, fp32, strict=True)])
    name = (
        "agreement: pictures with the same likeliest taxon as fp32, every operator's result rounded to half precision"
    )
    value = float(same.mean())
    passed = value >= LEAST_AGREEMENT
    return Check(name, value, LEAST_AGREEMENT, passed=passed, num_pictures=len(same), at_least=True)


def _at_most(name: str, value: float, limit: float, num_pictures: int) -> Check:
    return Check(name, value, limit, passed=value <= limit, num_pictures=num_pictures)
