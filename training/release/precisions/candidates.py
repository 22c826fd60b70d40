"""The networks of a bundle, one function a precision: made, calibrated and judged, with their gates."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from models.bundle import Gate, LeftOut, Metric, NetworkFile, Precision
from models.ranking import Thresholds
from training.engine.checkpoint import Checkpoint
from training.machine import this_machine
from training.release.precisions.checks import (
    agreement_gate,
    loss_gates,
    overflow_gate,
    parity_gate,
    require_parity,
    rounding_gate,
    size_gate,
    speed_gate,
    top1_loss,
)
from training.release.precisions.evaluated_network import Answering, Judged, Judges, answers_on, judge_network
from training.release.precisions.fp16 import write_half, write_rounded
from training.release.precisions.fp32 import write_single
from training.release.precisions.int8 import RANGE_SHARE, write_int8
from training.release.precisions.paired import PairedLoss
from training.release.precisions.speed import Speedup, speedup

_TIMED_PAIRS: Final = 40
_HALF_NOTE: Final = "Computes in half precision. Judged on a CPU, each operator's result rounded to half precision."


class Candidate(msgspec.Struct, frozen=True):
    """A network file that is released if all its gates passed."""

    path: Path
    """Where its file lies now."""
    entry: NetworkFile
    """What the bundle will say of it."""

    @property
    def passed(self) -> bool:
        """Whether every gate did."""
        return all(gate.passed for gate in self.entry.gates)

    def left_out(self) -> LeftOut:
        """What is kept of it where it is not released."""
        return LeftOut(self.entry.gates, self.entry.metrics, self.entry.note)


def make_fp32(
    checkpoint: Checkpoint,
    judges: Judges,
    folder: Path,
    thresholds: Thresholds,
    *,
    half_storage: bool,
    parity_limit: float,
) -> tuple[Candidate, Judged]:
    """Makes the network that all others are made from and held against.

    Args:
        checkpoint: Whose judged weights are written.
        judges: The pictures.
        folder: To write to.
        thresholds: When a verdict may name a rank.
        half_storage: Store the weights in half precision and compute in single.
        parity_limit: Largest difference in probability from PyTorch that is accepted.

    Raises:
        BundleError: The file does not answer as PyTorch does.
    """
    network = Answering(folder / "model.fp32.onnx")
    exact, same_weights = write_single(checkpoint, judges.validation, network.path, half_storage=half_storage)
    gates = [parity_gate(network.logits(judges.validation), same_weights, parity_limit)]
    if half_storage:
        gates.append(rounding_gate(same_weights, exact))
    require_parity(gates)
    judged = judge_network(network, judges)
    entry = NetworkFile(
        file=network.path.name,
        temperature=judged.temperature,
        thresholds=thresholds,
        stored_as="float16" if half_storage else "float32",
        gates=tuple(gates),
    )
    return Candidate(network.path, entry), judged


def make_fp16(single: Judged, judges: Judges, folder: Path, thresholds: Thresholds) -> Candidate:
    """Makes the network for GPUs.

    It is judged, and its temperature fitted, with what a GPU computes: see `write_rounded`.

    Args:
        single: The fp32 network.
        judges: The pictures.
        folder: To write to.
        thresholds: When a verdict may name a rank.
    """
    path, rounded = folder / "model.fp16.onnx", folder / "rounded.onnx"
    write_half(single.network.path, path)
    write_rounded(single.network.path, rounded)
    network = Answering(rounded)
    overflow = overflow_gate([network.logits(each) for each in (judges.validation, judges.temperature, *judges.judged)])
    entry = NetworkFile(path.name, 1.0, thresholds, "float16", gates=(overflow,), note=_HALF_NOTE)
    if not overflow.passed:  # without numbers there are no figures
        return Candidate(path, entry)
    judged = judge_network(network, judges)
    everywhere = [
        (*each.answers, answers_on(each.network, judges.validation, each.temperature)) for each in (judged, single)
    ]
    entry = msgspec.structs.replace(
        entry,
        temperature=judged.temperature,
        gates=(overflow, agreement_gate(*everywhere)),
        metrics=(*judged.metrics, *_losses_told(_losses(judged, single, judges))),
    )
    return Candidate(path, entry)


def make_int8(single: Judged, judges: Judges, folder: Path, thresholds: Thresholds) -> Candidate:
    """Makes the network for CPUs.

    Args:
        single: The fp32 network.
        judges: The pictures.
        folder: To write to.
        thresholds: When a verdict may name a rank.
    """
    path = folder / "model.int8.onnx"
    write_int8(single.network.path, path, judges.ranges.pixels())
    judged = judge_network(Answering(path), judges)
    pixels = next(judges.judged[0].sample(1).pixels())
    measured = speedup(path, single.network.path, pixels, num_pairs=_TIMED_PAIRS)
    losses = _losses(judged, single, judges)
    entry = NetworkFile(
        file=path.name,
        temperature=judged.temperature,
        thresholds=thresholds,
        stored_as="int8",
        gates=(*loss_gates(losses), speed_gate(measured), _size(path, single.network.path)),
        metrics=(*judged.metrics, *_losses_told(losses)),
        note=_int8_note(measured, len(judges.ranges)),
    )
    return Candidate(path, entry)


MAKERS: Final[Mapping[Precision, Callable[[Judged, Judges, Path, Thresholds], Candidate]]] = {
    "fp16": make_fp16,
    "int8": make_int8,
}
"""What makes a precision out of the fp32 network."""


def _losses(judged: Judged, single: Judged, judges: Judges) -> list[tuple[str, PairedLoss]]:
    """Name of each set of pictures that judge, and the right answers lost on it."""
    pairs = zip(judges.judged, judged.answers, single.answers, strict=True)
    return [(pictures.name, top1_loss(found, expected)) for pictures, found, expected in pairs]


def _losses_told(losses: list[tuple[str, PairedLoss]]) -> list[Metric]:
    return [
        Metric("top1_taxon_lost_against_fp32", loss.value, name, loss.num_pictures, loss.interval_95)
        for name, loss in losses
    ]


def _size(path: Path, single: Path) -> Gate:
    return size_gate(path.stat().st_size, single.stat().st_size)


def _int8_note(measured: Speedup, num_pictures: int) -> str:
    return (
        f"8-bit weights and activations, calibrated on {num_pictures} training pictures: the ranges hold the extremes "
        f"of {RANGE_SHARE:.0%} of them. {measured.fast_ms:.1f} ms a picture, {measured.slow_ms:.1f} ms for fp32, "
        f"on one thread of {this_machine().processor}."
    )
