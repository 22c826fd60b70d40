"""Means of a few values with 95 % intervals."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from scipy import special

_CONFIDENCE: Final = 0.95
_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class Interval(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval."""

    mean: float
    low: float | None
    """None if there is only one value."""
    high: float | None
    num_values: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of paired differences with its 95 % interval by Student's t (Student 1908).

    A bootstrap over three seeds has only ten different samples, and its interval is too narrow.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    quantile = float(special.stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2))  # of Student's t
    half = quantile * math.sqrt(variance / len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def points_interval(points: Sequence[float], num_pictures: int) -> Interval:
    """Mean of paired differences of top-1, percentage points, with an interval over seeds and pictures.

    The interval over seeds alone would have width zero if all seeds agree on a few pictures. The standard error over
    pictures depends on how many answers changed (Agresti and Min 2005, with half a picture added to each of the four
    cells). That number is not recorded, so the least number that explains the difference is used.
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
    """Geometric mean of paired ratios with its 95 % interval by Student's t over their logarithms."""
    logs = mean_interval([math.log(ratio) for ratio in ratios])
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.mean), low, high, logs.num_values)
