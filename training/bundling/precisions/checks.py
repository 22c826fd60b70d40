"""Release checks of a network file: each compares a measured figure with a limit. A file that fails is not released."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from models.bundle_record import Check
from models.errors import BundleError
from models.ranking import output_probabilities
from training.bundling.precisions.paired import PairedLoss, paired_loss
from training.bundling.precisions.speed import Speedup
from training.evaluation.predict import Logits
from training.evaluation.predictions import Predictions
from training.evaluation.stored_rows import Outputs, chunks

MOST_LOSS: Final = 0.005  # int8: half a point of top-1
LEAST_SPEEDUP: Final = 1.25  # int8: a smaller gain is not worth a second file
LEAST_AGREEMENT: Final = 0.999  # fp16


def parity_check(file_logits: Logits, torch_logits: Logits, limit: float, data: str) -> Check:
    """fp32: the file gives the same probabilities as PyTorch with the same weights, on this data (in words)."""
    name = f"parity: largest difference in probability from PyTorch with the same weights: {data}"
    return _at_most(name, _largest_difference(file_logits, torch_logits), limit, len(file_logits))


def rounding_check(rounded_logits: Logits, exact_logits: Logits, data: str) -> Check:
    """fp32 with half storage: the effect of storing the weights in half precision. It is recorded and always passes."""
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
    return _at_least(name, float(same.mean()), LEAST_AGREEMENT, len(same))


def loss_checks(losses: Sequence[tuple[str, PairedLoss]]) -> list[Check]:
    """int8: the loss in top-1 against fp32 is below 0.5 points.

    On the largest data set, the upper end of the paired interval must be below 0.5 points. On every other data set,
    only the lower end must be: a few hundred photographs cannot show that a loss is small, but they can show that it is
    large.

    Args:
        losses: Name of each data set, and the loss on it.
    """
    largest = max(range(len(losses)), key=lambda index: losses[index][1].num_pictures)
    checks = []
    for index, (data, loss) in enumerate(losses):
        end = "upper" if index == largest else "lower"
        name = f"loss: top-1 by taxon lost against fp32, {end} end of the paired 95 % interval (Tango 1998): {data}"
        value = loss.interval_95[end == "upper"]
        checks.append(Check(name, value, MOST_LOSS, passed=value < MOST_LOSS, num_pictures=loss.num_pictures))
    return checks


def speed_check(measured: Speedup) -> Check:
    """int8: the speed relative to fp32 on one thread, measured on the machine that exports the bundle."""
    name = "speed: times as fast as fp32, one thread, one picture at a time, median of interleaved pairs of runs"
    return _at_least(name, measured.ratio, LEAST_SPEEDUP, measured.num_pairs)


def size_check(num_bytes: int, fp32_bytes: int) -> Check:
    """int8: the file is not larger than the fp32 file."""
    return _at_most("size: bytes divided by those of the fp32 file", num_bytes / fp32_bytes, 1.0, 0)


def top1_loss(found: Predictions, fp32: Predictions) -> PairedLoss:
    """Measures how many right predictions, by taxon, a network loses against fp32 on the same pictures."""
    return paired_loss(fp32.top_k_hits(1), found.top_k_hits(1))


def require_parity(checks: Sequence[Check]) -> None:
    """Refuses an fp32 file whose probabilities differ from PyTorch's.

    Raises:
        BundleError: A check failed.
    """
    for check in checks:
        if not check.passed:
            raise BundleError(
                f"the network file and PyTorch give different probabilities ({check.name})",
                value=f"{check.value:.2e} on {check.num_pictures} pictures",
                limit=f"at most {check.limit:.0e}",
                remedy="export with --no-half-storage, and report this with your versions of torch and onnxruntime",
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


def _at_least(name: str, value: float, limit: float, num_pictures: int) -> Check:
    return Check(name, value, limit, passed=value >= limit, num_pictures=num_pictures, at_least=True)
