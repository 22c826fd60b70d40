"""Makes the network of each precision, calibrates and evaluates it, and runs its release checks.

Each check compares a measured figure with a limit. A network that fails one is not released; fp32 ends the export.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from models.bundle_record import Check, LeftOut, Metric, NetworkFile
from models.calibration import Calibration
from models.errors import BundleError
from models.ranking import Rank, output_probabilities
from training.bundling.evaluated_network import (
    CachedNetwork,
    EvaluatedNetwork,
    PictureSets,
    evaluate_network,
    metric,
    predictions_on,
)
from training.bundling.onnx_file import write_fp16, write_fp32, write_rounded
from training.bundling.place import FittedPlace
from training.engine.checkpoint import Checkpoint
from training.evaluation.predictions import Outputs, Predictions, Rows, chunks
from training.evaluation.split_metrics import paired_loss

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


class Candidate(msgspec.Struct, frozen=True):
    """A network file that is released if it passes its checks."""

    path: Path
    entry: NetworkFile
    """Its entry in `bundle.json`."""
    calibration: Calibration = Calibration()
    """Its tables."""
    place: FittedPlace | None = None
    """How place changes its answers, and the tables for them."""

    @property
    def passed(self) -> bool:
        """Whether it passed all checks."""
        return all(check.passed for check in self.entry.checks)

    def left_out(self) -> LeftOut:
        """Returns the entry of `bundle.json` for a candidate that failed a check."""
        return LeftOut(self.entry.checks, self.entry.metrics, self.entry.note)


def make_fp32(
    checkpoint: Checkpoint, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]
) -> tuple[Candidate, EvaluatedNetwork]:
    """Makes the fp32 network in a folder. The other precisions are made from it and compared with it.

    `thresholds` are those of some ranks, to be used in place of fitted ones.

    Raises:
        BundleError: The probabilities differ from PyTorch's by more than the limit.
    """
    network, compared = CachedNetwork(folder / "model.fp32.onnx", folder), sets.validation.sample(PARITY_PICTURES)
    exact, same_weights = write_fp32(checkpoint, compared, network.path)
    name = f"parity: largest difference in probability from PyTorch with the same weights: {compared.name}"
    parity = difference_check(name, network.outputs(compared).logits, same_weights, PARITY_LIMIT)
    require_parity(parity)
    # The effect of storing the weights in half precision.
    name = f"rounding: largest difference in probability from unrounded weights: {compared.name}"
    rounding = difference_check(name, same_weights, exact, _ANY)
    evaluated = evaluate_network(network, sets, thresholds)
    return _candidate(network.path, evaluated, (parity, rounding)), evaluated


def make_fp16(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the network for GPUs; see `make_fp32`.

    Its temperature and figures come from a network that computes on a CPU what a GPU computes: see `write_rounded`.
    """
    path = folder / "model.fp16.onnx"
    write_fp16(fp32.network.path, path)
    network = CachedNetwork(folder / "fp16_rounded.onnx", folder)
    write_rounded(fp32.network.path, network.path)
    outputs = [network.outputs(pictures) for pictures in (sets.test, sets.validation, sets.temperature)]
    outputs.append(Outputs(*[network.features(sets.features)] * 2))
    further = (sets.negatives, None if sets.unknown is None else sets.unknown.files)
    outputs += [network.outputs_of_files(files)[0] for files in further if files is not None]
    overflow = overflow_check(outputs)
    if not overflow.passed:  # neither metrics nor tables can be computed from NaN
        failed = NetworkFile(path.name, temperature=1.0, stored_as="float16", checks=(overflow,), note=_FP16_NOTE)
        return Candidate(path, failed)
    evaluated = evaluate_network(network, sets, thresholds)
    half, single = ((each.predictions, predictions_on(each, sets.validation)) for each in (evaluated, fp32))
    lost = _lost(fp32, evaluated, sets)
    return _candidate(path, evaluated, (overflow, agreement_check(half, single)), lost, note=_FP16_NOTE)


def make_bf16(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Calibrates and measures the fp32 file as OpenVINO computes it in bfloat16; see `make_fp32`.

    The validation split decides whether it is released, so that the test split only reports.
    """
    path, data = fp32.network.path, sets.validation.name
    evaluated = evaluate_network(CachedNetwork(path, folder, bf16=True), sets, thresholds)
    single, half = (predictions_on(each, sets.validation) for each in (fp32, evaluated))
    loss = paired_loss(single.top_k_hits(1), half.top_k_hits(1))
    name = f"accuracy: upper end of the 95 % interval of the loss in top-1 against fp32: {data}"
    accuracy = _at_most(name, loss.interval_95[1], MOST_LOSS, loss.num_pictures)
    one, other = (each.network.outputs(sets.validation).logits for each in (evaluated, fp32))
    # Accuracy is what counts, so any difference passes.
    parity = difference_check(f"parity: largest difference in probability from fp32: {data}", one, other, _ANY)
    return _candidate(path, evaluated, (accuracy, parity), _lost(fp32, evaluated, sets), note=_BF16_NOTE)


def _lost(fp32: EvaluatedNetwork, other: EvaluatedNetwork, sets: PictureSets) -> Metric:
    loss = paired_loss(fp32.predictions.top_k_hits(1), other.predictions.top_k_hits(1))
    return metric("top1_taxon_lost_against_fp32", loss, sets.test.name)


def _candidate(
    path: Path, evaluated: EvaluatedNetwork, checks: tuple[Check, ...], *lost: Metric, note: str = ""
) -> Candidate:
    """The file at a path with what was fitted to it; without `lost` it is fp32, whose metrics the record has."""
    fitted, place = evaluated.fitted.thresholds, evaluated.fitted.place
    entry = NetworkFile(
        file=path.name,
        temperature=evaluated.temperature,
        thresholds=fitted.thresholds,
        promises=fitted.promises,
        coverages=evaluated.coverages,
        place=None if place is None else place.rule,
        mistaken=evaluated.fitted.mistaken,
        stored_as="float16",
        checks=checks,
        metrics=(*evaluated.metrics, *lost) if lost else (),
        note=note,
    )
    return Candidate(path, entry, evaluated.fitted.calibration, place)


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
    for logits, features in outputs:
        num_pictures += len(logits)
        for part in chunks(len(logits), max(logits.shape[1], features.shape[1])):
            finite = np.isfinite(logits[part]).all(axis=1) & np.isfinite(features[part]).all(axis=1)
            num_lost += int((~finite).sum())
    name = "overflow: pictures with NaN or infinite outputs, every operator's result rounded to half precision"
    return _at_most(name, float(num_lost), 0.0, num_pictures)


def agreement_check(found: Sequence[Predictions], fp32: Sequence[Predictions]) -> Check:
    """fp16: the share of all pictures for which the most likely taxon is that of fp32."""
    same = np.concatenate([one.named_N == other.named_N for one, other in zip(found, fp32, strict=True)])
    name = (
        "agreement: pictures with the same likeliest taxon as fp32, every operator's result rounded to half precision"
    )
    value, limit = float(same.mean()), LEAST_AGREEMENT
    return Check(name, value, limit, passed=value >= limit, num_pictures=len(same), at_least=True)


def require_parity(check: Check) -> None:
    """Refuses an fp32 file whose probabilities differ from PyTorch's.

    Raises:
        BundleError: The check failed.
    """
    if not check.passed:
        raise BundleError(
            f"the network file and PyTorch give different probabilities ({check.name})",
            value=f"{check.value:.2e} on {check.num_pictures} pictures",
            limit=f"at most {check.limit:.0e}",
            remedy="report this with your versions of torch and onnxruntime",
        )


def describe_check(check: Check) -> str:
    """Returns a check and its result as one line of text."""
    bound = f"at {'least' if check.at_least else 'most'} {check.limit:g}"
    on = f", {check.num_pictures} pictures" if check.num_pictures else ""
    return f"{'passed' if check.passed else 'FAILED'} {check.name}: {check.value:.3g} ({bound}{on})"


def _at_most(name: str, value: float, limit: float, num_pictures: int) -> Check:
    return Check(name, value, limit, passed=value <= limit, num_pictures=num_pictures)
