"""Figures of the optimizations: speed, memory and warm-up of every arm, beside those of the same round's baseline."""

import statistics
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal

from training.insight.studies.figures import Figure, epoch_s, known, memory_gb, pairs, pictures_per_s, times
from training.insight.studies.intervals import Interval, mean_interval, ratio_interval
from training.insight.studies.results import ArmResult

BASELINE: Final = "baseline"
AGAIN: Final = "baseline_again"
"""The baseline once more: what it differs by from itself has no cause."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    BASELINE: (),
    AGAIN: (),
    "amp": ("amp",),
    "workers": ("workers",),
    "cudnn": ("cudnn",),
    "amp+cudnn": ("amp", "cudnn"),
    "amp+cudnn+workers": ("amp", "cudnn", "workers"),
    "channels_last": ("channels_last",),
    "compile": ("compile",),
    "tf32": ("tf32",),
    "all": ("amp", "workers", "cudnn", "channels_last", "compile", "tf32"),
}
"""Arm -> the optimizations that it has."""
CUDA_ONLY: Final = frozenset({AGAIN, "tf32"})
"""Arms that a CPU need not run: it has no TF32, and its arms with cudnn.benchmark repeat others already."""
_LEAST_TOLERANCE: Final = 0.02  # clocks of processors and cards move by this much on an idle machine


class Measured:
    """What the arms gave.

    Args:
        results: Of all arms and rounds; those that failed are left out of every figure.
        device: Where they were trained.
    """

    def __init__(self, results: Iterable[ArmResult], device: Literal["cuda", "cpu"]) -> None:
        self.device = device
        self.failed: list[ArmResult] = []
        self._of: dict[str, dict[int, ArmResult]] = {}
        for result in results:
            if result.error or not result.epochs:
                self.failed.append(result)
            else:
                self._of.setdefault(result.arm.name, {})[result.seed] = result

    @property
    def names(self) -> list[str]:
        """The arms that gave figures, in the study's order."""
        return [name for name in PARTS if name in self._of]

    @property
    def num_rounds(self) -> int:
        """Rounds in which the baseline was timed."""
        return len(self.speeds(BASELINE))

    def of(self, name: str) -> list[ArmResult]:
        """The results of one arm, by round."""
        return [result for _, result in sorted(self._of.get(name, {}).items())]

    def speeds(self, name: str) -> list[float]:
        """Pictures/s after the warm-up, by round."""
        return known(pictures_per_s, self.of(name))

    def speedups(self, name: str, against: str = BASELINE) -> dict[int, float]:
        """Round -> how many times as fast an arm is as another in the same round."""
        both = pairs(self.of(name), self.of(against), pictures_per_s)
        return {seed: ours / theirs for seed, (ours, theirs) in both.items()}

    def times(self, name: str, against: str = BASELINE, figure: Figure = pictures_per_s) -> Interval | None:
        """How many times another arm's figure an arm has, over the rounds; None where no round has both."""
        return times(self.of(name), self.of(against), figure)

    def product_of_parts(self, name: str) -> dict[int, float]:
        """Round -> the speed-up of an arm if its parts' single ones multiplied; empty where a part was not measured."""
        parts = [self.speedups(part) for part in _multiplied(name)]
        rounds = set.intersection(*(set(part) for part in parts)) if parts else set()
        found = dict.fromkeys(sorted(rounds), 1.0)
        for part in parts:
            found = {seed: product * part[seed] for seed, product in found.items()}
        return found

    def interplay(self, name: str) -> Interval | None:
        """The speed-up of an arm as a share of what its parts multiply to, over the rounds."""
        expected, found = self.product_of_parts(name), self.speedups(name)
        shares = [found[seed] / expected[seed] for seed in expected if seed in found]
        return ratio_interval(shares) if shares else None

    def memory_gb(self, name: str) -> float | None:
        """Most GPU memory held, median of the rounds, GB; None where it was not measured."""
        return _median(known(memory_gb, self.of(name)))

    def epoch_s(self, name: str) -> float | None:
        """How long an epoch takes after the warm-up, median, s."""
        return _median(known(epoch_s, self.of(name)))

    def warm_up_s(self, name: str) -> float | None:
        """What the first epoch takes longer than those after it, median of the rounds, s."""
        return _median(known(_warm_up_s, self.of(name)))

    def longer_warm_up_s(self, name: str) -> Interval | None:
        """How many seconds longer than the baseline's an arm's warm-up is, over the rounds."""
        both = pairs(self.of(name), self.of(BASELINE), _warm_up_s)
        return mean_interval([ours - theirs for ours, theirs in both.values()]) if both else None

    @cached_property
    def same_arms(self) -> dict[tuple[str, str], Interval]:
        """Pairs of arms that are the same to this device -> how many times as fast the one is as the other.

        On CUDA that is the baseline and the baseline again. cuDNN does not run on a CPU, so its arms repeat others.
        """
        same = [(AGAIN, BASELINE)] if self.device == "cuda" else [("cudnn", BASELINE), ("amp+cudnn", "amp")]
        return {(name, against): found for name, against in same if (found := self.times(name, against)) is not None}

    @cached_property
    def tolerance(self) -> float:
        """Differences up to this share count for nothing: what arms that are the same differ by, at least 2 %."""
        return max([_LEAST_TOLERANCE, *(abs(each.mean - 1) for each in self.same_arms.values())])

    def is_more(self, ratio: Interval | None) -> bool:
        """Whether the rounds tell that a ratio is above 1, beyond the tolerance; one round tells nothing."""
        return ratio is not None and ratio.low is not None and ratio.low > 1 + self.tolerance

    def is_less(self, ratio: Interval | None) -> bool:
        """Whether the rounds tell that a ratio is below 1, beyond the tolerance."""
        return ratio is not None and ratio.high is not None and ratio.high < 1 - self.tolerance


def _multiplied(name: str) -> list[str]:
    """The parts whose speed-ups may multiply: mixed precision leaves next to nothing for TF32 to speed up."""
    return [part for part in PARTS[name] if part != "tf32" or "amp" not in PARTS[name]]


def _warm_up_s(result: ArmResult) -> float | None:
    """What the first epoch takes longer than the later ones, s; unknown where the run was interrupted."""
    steady_s = epoch_s(result)
    return None if steady_s is None or result.num_starts > 1 else result.epochs[0].seconds - steady_s


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
