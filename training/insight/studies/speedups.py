"""Speed, memory and warm-up of the arms of the optimizations study, relative to the baseline of the same round."""

import statistics
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal

from training.insight.studies.figures import Figure, epoch_s, known, memory_gb, pairs, pictures_per_s, times, warm_up_s
from training.insight.studies.intervals import Interval, mean_interval, ratio_interval
from training.insight.studies.results import ArmResult

BASELINE: Final = "baseline"
AGAIN: Final = "baseline_again"
"""The baseline once more: its difference from the baseline is noise."""
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
"""Arm -> its optimizations."""
CUDA_ONLY: Final = frozenset({"tf32", "cudnn", "amp+cudnn", "amp+cudnn+workers"})
"""Arms that a CPU does not run: it has neither TF32 nor cuDNN."""
_MIN_TOLERANCE: Final = 0.02  # clock rates vary by this much on an idle machine


class Speedups:
    """The figures of all arms; failed runs are left out.

    Args:
        results: Of all arms and rounds.
        device: The training device.
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
        """The arms that have figures, in the order of the study."""
        return [name for name in PARTS if name in self._of]

    @property
    def num_rounds(self) -> int:
        """Rounds in which the baseline was timed."""
        return len(known(pictures_per_s, self.of(BASELINE)))

    def of(self, name: str) -> list[ArmResult]:
        """The results of one arm, by round."""
        return [result for _, result in sorted(self._of.get(name, {}).items())]

    def by_round(self, name: str) -> dict[int, float]:
        """The speed-up of an arm by round."""
        both = pairs(self.of(name), self.of(BASELINE), pictures_per_s)
        return {seed: ours / theirs for seed, (ours, theirs) in both.items()}

    def times(self, name: str, against: str = BASELINE, figure: Figure = pictures_per_s) -> Interval | None:
        """Ratio of an arm's figure to that of another arm; None if no round has both."""
        return times(self.of(name), self.of(against), figure)

    def product_of_parts(self, name: str) -> dict[int, float]:
        """The product of the speed-ups of an arm's single parts, by round; empty if a part was not measured."""
        parts = [self.by_round(part) for part in _multiplied(name)]
        rounds = set.intersection(*(set(part) for part in parts)) if parts else set()
        found = dict.fromkeys(sorted(rounds), 1.0)
        for part in parts:
            found = {seed: product * part[seed] for seed, product in found.items()}
        return found

    def share_of_product(self, name: str) -> Interval | None:
        """Ratio of an arm's speed-up to the product of its parts."""
        expected, found = self.product_of_parts(name), self.by_round(name)
        shares = [found[seed] / expected[seed] for seed in expected if seed in found]
        return ratio_interval(shares) if shares else None

    def median(self, name: str, figure: Figure) -> float | None:
        """Median of an arm's figure over the rounds."""
        values = known(figure, self.of(name))
        return statistics.median(values) if values else None

    def longer_warm_up_s(self, name: str) -> Interval | None:
        """Additional duration of an arm's warm-up compared with the baseline's, s."""
        both = pairs(self.of(name), self.of(BASELINE), warm_up_s)
        return mean_interval([ours - theirs for ours, theirs in both.values()]) if both else None

    @cached_property
    def noise(self) -> Interval | None:
        """Ratio of the speeds of the two equal arms."""
        return self.times(AGAIN)

    @cached_property
    def tolerance(self) -> float:
        """Relative difference that is ignored: the difference between the two equal arms, at least 2 %."""
        return max(_MIN_TOLERANCE, abs(self.noise.mean - 1) if self.noise else 0.0)

    def is_more(self, ratio: Interval | None) -> bool:
        """Whether the interval of a ratio lies above 1 plus the tolerance; never true for one round."""
        return ratio is not None and ratio.low is not None and ratio.low > 1 + self.tolerance

    def is_less(self, ratio: Interval | None) -> bool:
        """Whether the interval of a ratio lies below 1 minus the tolerance; never true for one round."""
        return ratio is not None and ratio.high is not None and ratio.high < 1 - self.tolerance

    def is_longer(self, seconds: Interval | None) -> bool:
        """Whether an additional warm-up is significant."""
        epoch = self.median(BASELINE, epoch_s) or 0.0
        return seconds is not None and seconds.low is not None and seconds.low > self.tolerance * epoch

    def memory_times(self, name: str) -> Interval | None:
        """Ratio of an arm's GPU memory to the baseline's."""
        return self.times(name, figure=memory_gb)


def _multiplied(name: str) -> list[str]:
    """The parts whose speed-ups are multiplied: TF32 has no effect in mixed precision."""
    return [part for part in PARTS[name] if part != "tf32" or "amp" not in PARTS[name]]
