"""Makes the network of each precision, calibrates and evaluates it, and runs its release checks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from models.bundle_record import LeftOut, Metric, NetworkFile, Precision
from models.calibration import Calibration
from models.ranking import Rank
from training.bundling.precisions.checks import (
    agreement_check,
    loss_checks,
    overflow_check,
    parity_check,
    require_parity,
    rounding_check,
    size_check,
    speed_check,
    top1_loss,
)
from training.bundling.precisions.evaluated_network import (
    CachedNetwork,
    EvaluatedNetwork,
    evaluate_network,
    predictions_on,
)
from training.bundling.precisions.fp16 import write_fp16, write_rounded
from training.bundling.precisions.fp32 import write_fp32
from training.bundling.precisions.int8 import RANGE_SHARE, write_int8
from training.bundling.precisions.paired import PairedLoss
from training.bundling.precisions.pictures import PictureSets
from training.bundling.precisions.speed import Speedup, speedup
from training.engine.checkpoint import Checkpoint
from training.machine import this_machine

PARITY_PICTURES: Final = 500
"""Validation pictures on which file and PyTorch are compared. A fault of the conversion changes every picture."""
_TIMED_PAIRS: Final = 40
_FP16_NOTE: Final = (
    "Computes in half precision. Evaluated on a CPU, with each operator's result rounded to half precision."
)


class Candidate(msgspec.Struct, frozen=True):
    """A network file that is released if it passes its checks."""

    path: Path
    """The file."""
    entry: NetworkFile
    """Its entry in `bundle.json`."""
    calibration: Calibration = Calibration()
    """Its tables."""

    @property
    def passed(self) -> bool:
        """Whether it passed all checks."""
        return all(check.passed for check in self.entry.checks)

    def left_out(self) -> LeftOut:
        """Returns the entry of `bundle.json` for a candidate that failed a check."""
        return LeftOut(self.entry.checks, self.entry.metrics, self.entry.note)


def make_fp32(
    checkpoint: Checkpoint,
    sets: PictureSets,
    folder: Path,
    thresholds: Mapping[Rank, float],
    *,
    half_storage: bool,
    parity_limit: float,
) -> tuple[Candidate, EvaluatedNetwork]:
    """Makes the fp32 network. The other precisions are made from it and compared with it.

    Args:
        checkpoint: Gives the weights.
        sets: The pictures to evaluate with.
        folder: Where to write the file.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.
        half_storage: Store the weights in half precision and compute in single precision.
        parity_limit: Largest accepted difference in probability from PyTorch.

    Raises:
        BundleError: The probabilities differ from PyTorch's by more than the limit.
    """
    network, compared = CachedNetwork(folder / "model.fp32.onnx", folder), sets.validation.sample(PARITY_PICTURES)
    exact, same_weights = write_fp32(checkpoint, compared, network.path, half_storage=half_storage)
    checks = [parity_check(network.logits(compared)[:], same_weights, parity_limit, compared.name)]
    if half_storage:
        checks.append(rounding_check(same_weights, exact, compared.name))
    require_parity(checks)
    evaluated = evaluate_network(network, sets, thresholds)
    entry = NetworkFile(
        file=network.path.name,
        temperature=evaluated.temperature,
        thresholds=evaluated.fitted.thresholds.thresholds,
        promises=evaluated.fitted.thresholds.promises,
        coverages=evaluated.coverages,
        stored_as="float16" if half_storage else "float32",
        checks=tuple(checks),
    )
    return Candidate(network.path, entry, evaluated.fitted.calibration), evaluated


def make_fp16(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the network for GPUs.

    Its temperature and figures come from a network that computes on a CPU what a GPU computes: see `write_rounded`.

    Args:
        fp32: The fp32 network.
        sets: The pictures to evaluate with.
        folder: Where to write the file.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.
    """
    path = folder / "model.fp16.onnx"
    write_fp16(fp32.network.path, path)
    network = CachedNetwork(folder / "fp16_rounded.onnx", folder)
    write_rounded(fp32.network.path, network.path)
    outputs = [
        network.outputs(pictures) for pictures in (*sets.tests, sets.validation, sets.temperature, sets.features)
    ]
    if sets.negatives is not None:
        outputs.append(network.outputs_of_files(sets.negatives)[0])
    overflow = overflow_check(outputs)
    entry = NetworkFile(
        file=path.name,
        temperature=1.0,
        stored_as="float16",
        checks=(overflow,),
        note=_FP16_NOTE,
    )
    if not overflow.passed:  # neither metrics nor tables can be computed from NaN
        return Candidate(path, entry)
    evaluated = evaluate_network(network, sets, thresholds)
    predictions = [
        (*each.predictions, predictions_on(each.network, sets.validation, each.temperature))
        for each in (evaluated, fp32)
    ]
    entry = msgspec.structs.replace(
        entry,
        temperature=evaluated.temperature,
        thresholds=evaluated.fitted.thresholds.thresholds,
        promises=evaluated.fitted.thresholds.promises,
        coverages=evaluated.coverages,
        checks=(overflow, agreement_check(*predictions)),
        metrics=(*evaluated.metrics, *_loss_metrics(_losses(evaluated, fp32, sets))),
    )
    return Candidate(path, entry, evaluated.fitted.calibration)


def make_int8(fp32: EvaluatedNetwork, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the network for CPUs.

    Args:
        fp32: The fp32 network.
        sets: The pictures to calibrate and evaluate with.
        folder: Where to write the file.
        thresholds: Thresholds of some ranks, to be used in place of fitted ones.
    """
    path = folder / "model.int8.onnx"
    write_int8(fp32.network.path, path, sets.ranges.pixels())
    evaluated = evaluate_network(CachedNetwork(path, folder), sets, thresholds)
    pixels = next(sets.tests[0].sample(1).pixels())
    measured = speedup(path, fp32.network.path, pixels, num_pairs=_TIMED_PAIRS)
    losses = _losses(evaluated, fp32, sets)
    size = size_check(path.stat().st_size, fp32.network.path.stat().st_size)
    entry = NetworkFile(
        file=path.name,
        temperature=evaluated.temperature,
        thresholds=evaluated.fitted.thresholds.thresholds,
        promises=evaluated.fitted.thresholds.promises,
        coverages=evaluated.coverages,
        stored_as="int8",
        checks=(*loss_checks(losses), speed_check(measured), size),
        metrics=(*evaluated.metrics, *_loss_metrics(losses)),
        note=_int8_note(measured, len(sets.ranges)),
    )
    return Candidate(path, entry, evaluated.fitted.calibration)


MAKERS: Final[Mapping[Precision, Callable[[EvaluatedNetwork, PictureSets, Path, Mapping[Rank, float]], Candidate]]] = {
    "fp16": make_fp16,
    "int8": make_int8,
}
"""Precision -> the function that makes it from the fp32 network."""


def _losses(evaluated: EvaluatedNetwork, fp32: EvaluatedNetwork, sets: PictureSets) -> list[tuple[str, PairedLoss]]:
    """Returns the name of each test set, and the loss in top-1 against fp32 on it."""
    pairs = zip(sets.tests, evaluated.predictions, fp32.predictions, strict=True)
    return [(pictures.name, top1_loss(found, expected)) for pictures, found, expected in pairs]


def _loss_metrics(losses: list[tuple[str, PairedLoss]]) -> list[Metric]:
    return [
        Metric("top1_taxon_lost_against_fp32", loss.value, name, loss.num_pictures, loss.interval_95)
        for name, loss in losses
    ]


def _int8_note(measured: Speedup, num_pictures: int) -> str:
    return (
        f"8-bit weights and activations, calibrated on {num_pictures} training pictures: the ranges hold the extremes "
        f"of {RANGE_SHARE:.0%} of them. {measured.fast_ms:.1f} ms a picture, {measured.slow_ms:.1f} ms for fp32, "
        f"on one thread of {this_machine().processor}."
    )
