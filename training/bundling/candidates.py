"""Makes the network of each precision, calibrates and evaluates it, and runs its release checks.

Each check compares a measured figure with a limit. A network that fails one is not released; fp32 ends the export.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle_record import Check, LeftOut, Metric, NetworkFile
from models.calibration import Calibration
from models.errors import BundleError
from models.ranking import Rank, output_probabilities
from training.bundling.evaluated_network import (
    CachedNetwork,
    EvaluatedNetwork,
    PictureSets,
    evaluate_network,
    predictions_on,
)
from training.bundling.fp16 import write_fp16, write_rounded
from training.bundling.onnx_file import write_fp32
from training.bundling.place import FittedPlace
from training.engine.checkpoint import Checkpoint
from training.evaluation.predict import Logits
from training.evaluation.predictions import Outputs, Predictions, chunks
from training.evaluation.split_metrics import paired_loss

PARITY_LIMIT: Final = 1e-3
"""Largest accepted difference in probability from PyTorch."""
PARITY_PICTURES: Final = 500
"""Validation pictures on which file and PyTorch are compared. A fault of the conversion changes every picture."""
LEAST_AGREEMENT: Final = 0.999
"""Share of the pictures for which fp16 must name the taxon of fp32."""
MOST_LOSS: Final = 0.005
"""Half a point of top-1, which bf16 must not lose."""
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
    """Makes the fp32 network. The other precisions are made from it and compared with it.

    Args:
        checkpoint: Gives the weights.
        sets: The pictures to evaluate with.
        folder: Where to write the file.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.

    Raises:
        BundleError: The probabilities differ from PyTorch's by more than the limit.
    """
    network, compared = CachedNetwork(folder / "model.fp32.onnx", folder), sets.validation.sample(PARITY_PICTURES)
    exact, same_weights = write_fp32(checkpoint, compared, network.path)
    parity = parity_check(network.logits(compared)[:], same_weights, compared.name)
    require_parity(parity)
    evaluated = evaluate_network(network, sets, thresholds)
    entry = _entry(evaluated, network.path, parity, rounding_check(same_weights, exact, compared.name))
    return Candidate(network.path, entry, evaluated.fitted.calibration, evaluated.fitted.place), evaluated


def make_fp16(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the network for GPUs; see `make_fp32`.

    Its temperature and figures come from a network that computes on a CPU what a GPU computes: see `write_rounded`.
    """
    path = folder / "model.fp16.onnx"
    write_fp16(fp32.network.path, path)
    network = CachedNetwork(folder / "fp16_rounded.onnx", folder)
    write_rounded(fp32.network.path, network.path)
    outputs = [network.outputs(pictures) for pictures in (sets.test, sets.validation, sets.temperature, sets.features)]
    if sets.negatives is not None:
        outputs.append(network.outputs_of_files(sets.negatives)[0])
    overflow = overflow_check(outputs)
    if not overflow.passed:  # neither metrics nor tables can be computed from NaN
        failed = NetworkFile(path.name, temperature=1.0, stored_as="float16", checks=(overflow,), note=_FP16_NOTE)
        return Candidate(path, failed)
    evaluated = evaluate_network(network, sets, thresholds)
    agreement = agreement_check(
        *(
            (each.predictions, predictions_on(each.network, sets.validation, each.temperature))
            for each in (evaluated, fp32)
        )
    )
    entry = msgspec.structs.replace(
        _entry(evaluated, path, overflow, agreement),
        metrics=(*evaluated.metrics, _lost(fp32, evaluated, sets)),
        note=_FP16_NOTE,
    )
    return Candidate(path, entry, evaluated.fitted.calibration, evaluated.fitted.place)


def make_bf16(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Calibrates and measures the fp32 file as OpenVINO computes it in bfloat16; see `make_fp32`.

    The validation split decides whether it is released, so that the test split only reports.
    """
    path = fp32.network.path
    evaluated = evaluate_network(CachedNetwork(path, folder, bf16=True), sets, thresholds)
    single, half = (predictions_on(each.network, sets.validation, each.temperature) for each in (fp32, evaluated))
    one, other = (each.network.logits(sets.validation) for each in (evaluated, fp32))
    difference = max(_largest_difference(one[part], other[part]) for part in chunks(*one.shape))
    name = f"parity: largest difference in probability from fp32: {sets.validation.name}"
    parity = _at_most(name, difference, 1.0, len(one))  # recorded, and always passes: accuracy is what counts
    entry = msgspec.structs.replace(
        _entry(evaluated, path, loss_check(single, half, sets.validation.name), parity),
        metrics=(*evaluated.metrics, _lost(fp32, evaluated, sets)),
        note=_BF16_NOTE,
    )
    return Candidate(path, entry, evaluated.fitted.calibration, evaluated.fitted.place)


def _lost(fp32: EvaluatedNetwork, other: EvaluatedNetwork, sets: PictureSets) -> Metric:
    loss = paired_loss(fp32.predictions.top_k_hits(1), other.predictions.top_k_hits(1))
    return Metric("top1_taxon_lost_against_fp32", loss.value, sets.test.name, loss.num_pictures, loss.interval_95)


def _entry(evaluated: EvaluatedNetwork, path: Path, *checks: Check) -> NetworkFile:
    fitted, place = evaluated.fitted.thresholds, evaluated.fitted.place
    return NetworkFile(
        file=path.name,
        temperature=evaluated.temperature,
        thresholds=fitted.thresholds,
        promises=fitted.promises,
        coverages=evaluated.coverages,
        place=None if place is None else place.rule,
        stored_as="float16",
        checks=checks,
    )


def parity_check(file_logits: Logits, torch_logits: Logits, data: str) -> Check:
    """fp32: the file gives the same probabilities as PyTorch with the same weights, on this data (in words)."""
    name = f"parity: largest difference in probability from PyTorch with the same weights: {data}"
    return _at_most(name, _largest_difference(file_logits, torch_logits), PARITY_LIMIT, len(file_logits))


def rounding_check(rounded_logits: Logits, exact_logits: Logits, data: str) -> Check:
    """fp32: the effect of storing the weights in half precision. It is recorded and always passes."""
    name = f"rounding: largest difference in probability from unrounded weights: {data}"
    return _at_most(name, _largest_difference(rounded_logits, exact_logits), 1.0, len(exact_logits))


def overflow_check(outputs: Sequence[Outputs]) -> Check:
    """fp16: all logits and features are finite; a value above 65,504 is infinite in half precision."""
    finite = np.concatenate([_finite(each) for each in outputs])
    name = "overflow: pictures with NaN or infinite outputs, every operator's result rounded to half precision"
    return _at_most(name, float((~finite).sum()), 0.0, len(finite))


def agreement_check(found: Sequence[Predictions], fp32: Sequence[Predictions]) -> Check:
    """fp16: the share of all pictures for which the most likely taxon is that of fp32."""
    pairs = zip(found, fp32, strict=True)
    same = np.concatenate([one.named_N == other.named_N for one, other in pairs])
    name = (
        "agreement: pictures with the same likeliest taxon as fp32, every operator's result rounded to half precision"
    )
    value, limit = float(same.mean()), LEAST_AGREEMENT
    return Check(name, value, limit, passed=value >= limit, num_pictures=len(same), at_least=True)


def loss_check(fp32: Predictions, other: Predictions, data: str) -> Check:
    """bf16: the upper end of the 95 % interval of the loss in top-1, on this data (in words)."""
    loss = paired_loss(fp32.top_k_hits(1), other.top_k_hits(1))
    name = f"accuracy: upper end of the 95 % interval of the loss in top-1 against fp32: {data}"
    return _at_most(name, loss.interval_95[1], MOST_LOSS, loss.num_pictures)


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


def _finite(outputs: Outputs) -> npt.NDArray[np.bool_]:
    """Returns whether all outputs of each picture are finite."""
    finite_N = np.ones(len(outputs.logits), dtype=bool)
    for rows in outputs:
        for part in chunks(*rows.shape):
            finite_N[part] &= np.isfinite(rows[part]).all(axis=1)
    return finite_N


def _largest_difference(first: Logits, second: Logits) -> float:
    return float(np.abs(output_probabilities(first, 1.0) - output_probabilities(second, 1.0)).max())


def _at_most(name: str, value: float, limit: float, num_pictures: int) -> Check:
    return Check(name, value, limit, passed=value <= limit, num_pictures=num_pictures)
