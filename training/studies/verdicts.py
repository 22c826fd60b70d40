"""Claims, what was measured about them, and the verdict that follows by rule.

The rule, from a claimed range, the value that means "no effect" (0 points, or 1 time), the mean of the differences
between two arms over the seeds, and its 95 % interval:

* confirmed: the mean lies in the claimed range, and the whole interval lies between half and twice the claimed effect;
* larger: the whole interval lies above the claimed range;
* smaller: the whole interval lies below the claimed range and above no effect;
* refuted: the whole interval lies below the claimed range, and no effect is in it or above it;
* undecided: anything else, and whatever was run with a single seed.

The interval is that of the seeds. Points are widened by what the number of validation pictures leaves open at the
least; which pictures changed is not known, so another set of pictures may move them further.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from scipy import stats

Word = Literal["confirmed", "smaller", "larger", "refuted", "undecided", "not measured"]
Unit = Literal["points", "times", "times less"]

_CONFIDENCE: Final = 0.95
_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class Interval(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval."""

    mean: float
    low: float | None
    """None where there is one value only."""
    high: float | None
    num_values: int


class Claim(msgspec.Struct, frozen=True):
    """Something that was said about the recipe."""

    name: str
    said: str
    low: float
    high: float
    unit: Unit

    @property
    def no_effect(self) -> float:
        """What would be measured if nothing were true of the claim."""
        return 0.0 if self.unit == "points" else 1.0


class Verdict(msgspec.Struct, frozen=True):
    """What became of a claim."""

    claim: Claim
    word: Word
    measured: Interval | None
    reason: str
    """What was compared, or why nothing was measured."""


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of paired differences with its 95 % interval by Student's t (Student 1908).

    A bootstrap over three seeds has only ten different samples and is too narrow; t knows how few they are.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    quantile = float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1))
    half = quantile * math.sqrt(variance / len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def points_interval(points: Sequence[float], num_pictures: int) -> Interval:
    """Mean of paired differences of top-1, in points, with an interval for other seeds and other pictures.

    Three pictures that all seeds name alike would else give certainty. Of two networks on the same pictures the error
    depends on how many answers changed (Agresti and Min 2005, with half a picture added to each of the four cells); the
    least that a difference needs is taken.
    """
    seeds = mean_interval(points)
    if seeds.low is None or seeds.high is None:
        return seeds
    better, worse = abs(seeds.mean) / 100 * num_pictures + 0.5, 0.5
    total = num_pictures + 2
    error = math.sqrt(better + worse - (better - worse) ** 2 / total) / total
    half = math.hypot(seeds.high - seeds.mean, 100 * _Z_95 * error)
    return Interval(seeds.mean, seeds.mean - half, seeds.mean + half, seeds.num_values)


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Geometric mean of paired ratios with its 95 % interval, by Student's t over their logarithms."""
    logs = mean_interval([math.log(ratio) for ratio in ratios])
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.mean), low, high, logs.num_values)


def judge(claim: Claim, measured: Interval) -> Word:
    """The verdict, by the rule at the head of this file."""
    low, high, none = measured.low, measured.high, claim.no_effect
    if low is None or high is None:
        return "undecided"
    half, twice = none + (claim.low - none) / 2, none + 2 * (claim.high - none)
    if claim.low <= measured.mean <= claim.high and low >= half and high <= twice:
        return "confirmed"
    if low > claim.high:
        return "larger"
    if high < claim.low:
        return "smaller" if low > none else "refuted"
    return "undecided"
