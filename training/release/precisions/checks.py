"""What a network file must reach before it is released, each a measured figure with its bound."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from models.bundle import Gate
from models.errors import BundleError
from models.ranking import output_probabilities
from training.evaluation.metrics import top_k_hits
from training.evaluation.predict import Logits
from training.evaluation.split_metrics import Answers
from training.release.precisions.paired import PairedLoss, paired_loss
from training.release.precisions.speed import Speedup

MOST_LOSS: Final = 0.005  # int8: half a point of top-1
LEAST_SPEEDUP: Final = 1.25  # int8: less is not worth a second file
LEAST_AGREEMENT: Final = 0.999  # fp16


def parity_gate(file_logits: Logits, torch_logits: Logits, limit: float) -> Gate:
    """fp32: the file answers as PyTorch does with the same weights."""
    name = "parity: largest difference in probability from PyTorch with the same weights"
    return _at_most(name, _largest_difference(file_logits, torch_logits), limit, len(file_logits))


def rounding_gate(rounded_logits: Logits, exact_logits: Logits) -> Gate:
    """fp32 in half storage: what storing the weights in half precision costs; told, not judged."""
    name = "rounding: largest difference in probability from unrounded weights"
    return _at_most(name, _largest_difference(rounded_logits, exact_logits), 1.0, len(exact_logits))


def overflow_gate(logits: Sequence[Logits]) -> Gate:
    """fp16: every answer is a number; what is larger than 65,504 is none in half precision."""
    finite = np.concatenate([np.isfinite(found).all(axis=1) for found in logits])
    name = "overflow: pictures whose answer is no number, every operator's result rounded to half precision"
    return _at_most(name, float((~finite).sum()), 0.0, len(finite))


def agreement_gate(found: Sequence[Answers], single: Sequence[Answers]) -> Gate:
    """fp16: the share of all pictures on which the same taxon is likeliest as in fp32."""
    pairs = zip(found, single, strict=True)
    same = np.concatenate([here.taxa_NT.argmax(axis=1) == there.taxa_NT.argmax(axis=1) for here, there in pairs])
    name = (
        "agreement: pictures whose likeliest taxon is that of fp32, every operator's result rounded to half precision"
    )
    return _at_least(name, float(same.mean()), LEAST_AGREEMENT, len(same))


def loss_gates(losses: Sequence[tuple[str, PairedLoss]]) -> list[Gate]:
    """int8: the loss in top-1 against fp32, judged on the set with the most pictures and not contradicted by another.

    Under 0.5 points must lie the upper end of the paired interval on the largest set. Where there are several, the
    lower end must on each of the others: a few hundred photographs cannot show that a loss is small, but they can show
    that it is not.

    Args:
        losses: Name of the pictures and the loss on them.
    """
    largest = max(range(len(losses)), key=lambda which: losses[which][1].num_pictures)
    gates = []
    for which, (name, loss) in enumerate(losses):
        end = "upper" if which == largest else "lower"
        told = f"loss: top-1 by taxon lost against fp32, {end} end of the paired 95 % interval (Tango 1998): {name}"
        gates.append(_under(told, loss.interval_95[end == "upper"], MOST_LOSS, loss.num_pictures))
    return gates


def speed_gate(measured: Speedup) -> Gate:
    """int8: times as fast as fp32 on one thread, measured where the bundle is exported."""
    name = "speed: times as fast as fp32, one thread, one picture at a time, median of interleaved pairs of runs"
    return _at_least(name, measured.ratio, LEAST_SPEEDUP, measured.num_pairs)


def size_gate(num_bytes: int, single_bytes: int) -> Gate:
    """int8: the file is smaller than the fp32 file."""
    return _at_most("size: bytes by those of the fp32 file", num_bytes / single_bytes, 1.0, 0)


def top1_loss(found: Answers, single: Answers) -> PairedLoss:
    """How many right answers a network loses against fp32 on the same pictures, by taxon."""
    first, second = (top_k_hits(each.taxa_NT, each.taxon_labels_N, 1) for each in (single, found))
    return paired_loss(first, second)


def require_parity(gates: Sequence[Gate]) -> None:
    """Refuses an fp32 file that does not answer as PyTorch does.

    Raises:
        BundleError: A gate did not pass.
    """
    for gate in gates:
        if not gate.passed:
            raise BundleError(
                f"the network file does not answer as PyTorch does ({gate.name})",
                value=f"{gate.value:.2e} on {gate.num_pictures} pictures",
                limit=f"at most {gate.limit:.0e}",
                remedy="export with --no-half-storage, and report this with your versions of torch and onnxruntime",
            )


def gate_in_words(gate: Gate) -> str:
    """One line for people."""
    bound = f"at {'least' if gate.at_least else 'most'} {gate.limit:g}"
    on = f", {gate.num_pictures} pictures" if gate.num_pictures else ""
    return f"{'passed' if gate.passed else 'FAILED'} {gate.name}: {gate.value:.3g} ({bound}{on})"


def _largest_difference(first: Logits, second: Logits) -> float:
    return float(np.abs(output_probabilities(first, 1.0) - output_probabilities(second, 1.0)).max())


def _at_most(name: str, value: float, limit: float, num_pictures: int) -> Gate:
    return Gate(name, value, limit, passed=value <= limit, num_pictures=num_pictures)


def _under(name: str, value: float, limit: float, num_pictures: int) -> Gate:
    return Gate(name, value, limit, passed=value < limit, num_pictures=num_pictures)


def _at_least(name: str, value: float, limit: float, num_pictures: int) -> Gate:
    return Gate(name, value, limit, passed=value >= limit, num_pictures=num_pictures, at_least=True)
