"""int8: tries ranges and exclusions on validation pictures and keeps the best network that is fast enough."""

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from models.ranking import output_probabilities
from training.evaluation.predict import Logits
from training.release.precisions.checks import LEAST_SPEEDUP
from training.release.precisions.graph import fold_constants, keep_promises, pool_means
from training.release.precisions.int8 import quantize
from training.release.precisions.pictures import Pictures
from training.release.precisions.ranges import Extremes, picture_extremes, write_ranges
from training.release.precisions.speed import speedup
from training.release.precisions.tensor_errors import nodes_around, tensor_errors

RANGE_SHARES: Final = (1.0, 0.99, 0.95, 0.9, 0.75)
ENOUGH_AGREEMENT: Final = 0.99  # of the likeliest outputs on validation: then no node is excluded
_SPARED_BY_ROUND: Final = (4, 12, 36)  # worst tensors kept in float32; each round costs speed
_MOST_VALIDATION: Final = 500
_ERROR_PICTURES: Final = 8
_TIMED_PAIRS: Final = 20


class Attempt(msgspec.Struct, frozen=True):
    """An int8 file and what it was worth on validation pictures."""

    path: Path
    range_share: float
    """Share of the calibration pictures whose extremes the ranges keep."""
    excluded: tuple[str, ...]
    """Nodes that stayed in float32."""
    distance: float
    """Mean total variation distance from fp32's probabilities, in [0, 1]."""
    agreement: float
    """Share of the pictures whose likeliest output is that of fp32."""
    speedup: float
    """Times as fast as fp32; 0 where it was not worth timing."""


def search_int8(single: Path, folder: Path, calibration: Pictures, validation: Pictures) -> Attempt:
    """Quantizes a network and says what came of it.

    Ranges first: those that move the answers least. Then, as long as too few answers agree with fp32, the nodes around
    the tensors with the largest measured error are left in float32, more in each round, until it is no longer 1.25
    times as fast. Of all these the one that moves the answers least is kept, if it is fast enough; else the fastest.

    Args:
        single: The fp32 file.
        folder: To write to.
        calibration: Training pictures.
        validation: Pictures to choose by; at most 500 are used.
    """
    trial = _Trial(single, folder, validation.sample(_MOST_VALIDATION))
    extremes = picture_extremes(trial.prepared, calibration.pixels())
    first = min((trial.run(extremes, share) for share in RANGE_SHARES), key=lambda attempt: attempt.distance)
    attempts = [trial.time(first)]
    if _may_improve(attempts[-1]):
        errors = tensor_errors(trial.prepared, first.path, calibration.sample(_ERROR_PICTURES).pixels())
        for spared in _SPARED_BY_ROUND:
            excluded = nodes_around(trial.prepared, [error.tensor for error in errors[:spared]])
            attempts.append(trial.time(trial.run(extremes, first.range_share, excluded)))
            if not _may_improve(attempts[-1]):
                break
    return choose(attempts)


def choose(attempts: list[Attempt]) -> Attempt:
    """The attempt that moves the answers least among those that are fast enough; else the fastest."""
    fast = [attempt for attempt in attempts if attempt.speedup >= LEAST_SPEEDUP]
    if not fast:
        return max(attempts, key=lambda attempt: attempt.speedup)
    return min(fast, key=lambda attempt: attempt.distance)


def _may_improve(last: Attempt) -> bool:
    return last.agreement < ENOUGH_AGREEMENT and last.speedup >= LEAST_SPEEDUP


class _Trial:
    """What all attempts share: the prepared network, the pictures to choose by, and fp32's answers on them."""

    def __init__(self, single: Path, folder: Path, validation: Pictures) -> None:
        self._single, self._folder, self._validation = single, folder, validation
        self._logits = validation.logits(single)
        self._num_files = 0
        self.prepared = folder / "int8_prepared.onnx"
        fold_constants(single, self.prepared)
        pool_means(self.prepared)

    def run(self, extremes: Extremes, range_share: float, excluded: tuple[str, ...] = ()) -> Attempt:
        """Quantizes once and compares the answers with fp32's."""
        self._num_files += 1
        path, ranges = self._folder / f"int8_attempt{self._num_files}.onnx", self._folder / "int8_ranges.json"
        write_ranges(extremes, range_share, ranges)
        quantize(self.prepared, ranges, path, excluded)
        keep_promises(path, like=self._single)
        logits = self._validation.logits(path)
        same = logits.argmax(axis=1) == self._logits.argmax(axis=1)
        return Attempt(path, range_share, excluded, _distance(logits, self._logits), float(same.mean()), speedup=0.0)

    def time(self, attempt: Attempt) -> Attempt:
        """Adds how much faster it is than fp32."""
        pixels = next(self._validation.sample(1).pixels())
        measured = speedup(attempt.path, self._single, pixels, num_pairs=_TIMED_PAIRS)
        return msgspec.structs.replace(attempt, speedup=measured.ratio)


def _distance(logits: Logits, single: Logits) -> float:
    """Mean total variation distance: bounded, so that a picture on which fp32 itself goes astray does not decide."""
    difference = output_probabilities(logits, 1.0) - output_probabilities(single, 1.0)
    return float(np.abs(difference).sum(axis=1).mean() / 2)
