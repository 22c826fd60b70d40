"""Metrics of classification and of calibration with their intervals: pure functions over NumPy arrays.

Letters in names: N pictures, C classes (outputs or taxa).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from models.arrays import Doubles, Flags, Integers, Positions
from models.ranking import Floats

Whole = Integers | Positions
_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class Share(msgspec.Struct, frozen=True):
    """A share in [0, 1], or a difference of shares in [-1, 1], with its number of pictures and its 95 % interval."""

    value: float
    num_pictures: int
    interval_95: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval_95
        return f"{self.value:.1%} ({low:.1%} to {high:.1%}) of {self.num_pictures:,}"


class NamesOfRank(msgspec.Struct, frozen=True):
    """The verdicts that name a taxon of one rank."""

    num_named: int
    right: Share | None
    """Share of right names; None if there are none."""

    @classmethod
    def of(cls, num_right: int, num_named: int) -> "NamesOfRank":
        """Makes the record from two counts."""
        return cls(num_named, share(num_right, num_named) if num_named else None)


class Confusion(msgspec.Struct, frozen=True):
    """A frequent mistake."""

    right: str
    named: str
    count: int


def share(hits: int, total: int, num_plants: float | None = None) -> Share:
    """Returns hits / total with its Wilson score interval (Wilson 1927), valid near 0 and 1 and for few pictures.

    `num_plants` is the effective number of plants if several pictures show one; default: every picture shows another.
    """
    rate = hits / total
    num_plants = num_plants or total
    spread = _Z_95**2 / num_plants
    center = (rate + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(rate * (1 - rate) / num_plants + spread / (4 * num_plants)) / (1 + spread)
    return Share(rate, total, (min(max(center - half, 0.0), rate), max(min(center + half, 1.0), rate)))


def effective_number(plants_N: Integers, weight_N: Floats | None = None) -> float:
    """Returns the number of equal plants whose mean varies as much as that of these pictures (Kish 1965).

    Pictures of one plant count as one, as if they were all answered alike. So it is the number of plants if each has
    equally many pictures, and less if not. By default all pictures weigh the same.
    """
    weight_P = np.bincount(plants_N, weight_N)
    return float(weight_P.sum() ** 2 / (weight_P**2).sum())


def top_k_hits(scores_NC: Floats, labels_N: Whole, k: int) -> Flags:
    """Returns whether the right class is among the k best, shape (N,); ties and NaN count as misses."""
    return num_rivals(scores_NC, labels_N) < k


def num_rivals(scores_NC: Floats, labels_N: Whole) -> Positions:
    """Returns how many other classes are not below the right one, shape (N,); NaN is not below anything."""
    right = scores_NC[np.arange(len(labels_N)), labels_N][:, None]
    return np.asarray(scores_NC.shape[1] - 1 - np.count_nonzero(scores_NC < right, axis=1))


def macro_mean(hits_N: Flags, labels_N: Whole) -> float:
    """Returns the mean over the classes of each class's share of hits."""
    _, index = np.unique(labels_N, return_inverse=True)
    return float((np.bincount(index, weights=hits_N) / np.bincount(index)).mean())


def macro_top1(hits_N: Flags, labels_N: Whole, plants_N: Integers) -> tuple[float, tuple[float, float]]:
    """Returns the mean over the classes of each class's share of hits, and its 95 % interval.

    The interval is normal, from the binomial variance of every class with its effective number of plants. Two hits and
    two misses are added to each class (as by Agresti and Coull 1998), so that the variance of a class with few plants
    is never 0.
    """
    classes, index = np.unique(labels_N, return_inverse=True)
    number = np.array([effective_number(plants_N[index == at]) for at in range(len(classes))])
    rate = np.bincount(index, weights=hits_N) / np.bincount(index)
    mean = float(rate.mean())
    smoothed = (rate * number + 2) / (number + 4)
    deviation = math.sqrt(float((smoothed * (1 - smoothed) / number).sum())) / len(classes)
    return mean, (max(mean - _Z_95 * deviation, 0.0), min(mean + _Z_95 * deviation, 1.0))


def negative_log_likelihood(right_N: Floats, weight_N: Doubles | None = None) -> float:
    """Returns the mean negative log of the right class's probability, in nats; by default all weigh the same."""
    return float(-np.average(np.log(np.maximum(right_N, 1e-12)), weights=weight_N))


def confusion_pairs(predicted_N: Whole, labels_N: Whole, most: int) -> list[tuple[int, int, int]]:
    """Returns the most frequent mistakes as (right class, predicted class, count), the most frequent first."""
    wrong = predicted_N != labels_N
    pairs, counts = np.unique(np.stack([labels_N[wrong], predicted_N[wrong]], axis=1), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(int(pairs[at, 0]), int(pairs[at, 1]), int(counts[at])) for at in order]


def confusions(predicted_N: Whole, labels_N: Whole, names: Sequence[str], most: int) -> list[Confusion]:
    """Returns the most frequent mistakes in words, see `confusion_pairs`; `names` has the name of each class."""
    pairs = confusion_pairs(predicted_N, labels_N, most)
    return [Confusion(names[right], names[named], count) for right, named, count in pairs]


NUM_BINS: Final = 15  # as Guo et al. 2017
_NUM_DRAWS: Final = 1000


class ReliabilityBin(msgspec.Struct, frozen=True):
    """The pictures of one range of confidence: a point of the reliability diagram."""

    low: float
    """Least confidence of the range; its width is 1/15."""
    num_pictures: int
    confidence: float
    """Mean probability of the most likely taxon."""
    accuracy: float
    """Share of the pictures whose most likely taxon is right."""


def reliability_bins(confidence_N: Doubles, hits_N: Flags) -> list[ReliabilityBin]:
    """Returns the ranges of confidence that hold pictures, in ascending order."""
    found = []
    bins = _bin_of(confidence_N)
    for at in np.unique(bins):
        inside = bins == at
        mean = float(confidence_N[inside].mean())
        accuracy = float(hits_N[inside].mean())
        found.append(ReliabilityBin(float(at / NUM_BINS), int(inside.sum()), mean, accuracy))
    return found


def calibration_error(confidence_N: Doubles, hits_N: Flags, plants_N: Integers) -> Share:
    """Returns the expected calibration error with its 95 % interval, from 1,000 draws of plants with replacement.

    The error is the mean gap of confidence and accuracy over 15 equal bins of confidence (Guo et al. 2017). Chance
    alone makes gaps, more so in a redrawn sample: the draws lie higher than the figure by about as much as the figure
    lies above the true error. The interval is that of the draws, moved down by their mean excess. It shows how much
    the figure varies with the sample; the excess of the figure itself remains in it.

    Args:
        confidence_N: Probability of the most likely taxon.
        hits_N: Whether that taxon is right.
        plants_N: Plant of each picture; the pictures of a plant are drawn together.
    """
    value = mean_gap(confidence_N, hits_N, np.ones(len(hits_N)))
    drawn = np.array([mean_gap(confidence_N, hits_N, times_N) for times_N in draw_plants(plants_N)])
    low, high = np.quantile(drawn, [0.025, 0.975]) - max(float(drawn.mean()) - value, 0.0)
    return Share(value, len(hits_N), (float(max(min(low, value), 0.0)), float(min(max(high, value), 1.0))))


def draw_plants(plants_N: Integers) -> Iterator[Doubles]:
    """Yields how often each picture is in a draw of plants with replacement, for 1,000 draws (bootstrap)."""
    _, plant_N = np.unique(plants_N, return_inverse=True)  # numbers without gaps
    random = np.random.default_rng(0)
    num_plants = int(plant_N.max()) + 1
    for _ in range(_NUM_DRAWS):
        times = np.bincount(random.integers(num_plants, size=num_plants), minlength=num_plants).astype(np.float64)
        yield times[plant_N]


def mean_gap(confidence_N: Doubles, hits_N: Flags, weight_N: Doubles) -> float:
    """Returns the expected calibration error of weighted pictures, see `calibration_error`."""
    gaps = np.bincount(_bin_of(confidence_N), (confidence_N - hits_N) * weight_N, NUM_BINS)
    return float(np.abs(gaps).sum() / weight_N.sum())


def _bin_of(confidence_N: Doubles) -> Integers:
    return np.minimum((confidence_N * NUM_BINS).astype(np.int64), NUM_BINS - 1)
