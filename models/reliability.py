"""Calibration: how far confidence and accuracy are apart, with the interval of that figure and the reliability diagram.

Letters in names: N pictures.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.metrics import Share

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


def reliability_bins(confidence_N: npt.NDArray[np.float64], hits_N: npt.NDArray[np.bool_]) -> list[ReliabilityBin]:
    """Returns the ranges of confidence that hold pictures, in ascending order."""
    bins = _bin_of(confidence_N)
    found = []
    for at in np.unique(bins):
        inside = bins == at
        mean, accuracy = float(confidence_N[inside].mean()), float(hits_N[inside].mean())
        found.append(ReliabilityBin(float(at / NUM_BINS), int(inside.sum()), mean, accuracy))
    return found


def calibration_error(
    confidence_N: npt.NDArray[np.float64], hits_N: npt.NDArray[np.bool_], plants_N: npt.NDArray[np.int64], seed: int = 0
) -> Share:
    """Returns the expected calibration error with its 95 % interval, from 1,000 draws of plants with replacement.

    The error is the mean gap of confidence and accuracy over 15 equal bins of confidence (Guo et al. 2017). Chance
    alone makes gaps, more so in a redrawn sample: the draws lie higher than the figure by about as much as the figure
    lies above the true error. The interval is that of the draws, moved down by their mean excess. It shows how much
    the figure varies with the sample; the excess of the figure itself remains in it.

    Args:
        confidence_N: Probability of the most likely taxon.
        hits_N: Whether that taxon is right.
        plants_N: Plant of each picture; the pictures of a plant are drawn together.
        seed: Seed of the draws.
    """
    bins, gap_N = _bin_of(confidence_N), confidence_N - hits_N
    value = _mean_gap(bins, gap_N, np.ones(len(bins)))
    _, plant_N = np.unique(plants_N, return_inverse=True)  # numbers without gaps
    random, num_plants = np.random.default_rng(seed), int(plant_N.max()) + 1
    drawn = np.empty(_NUM_DRAWS)
    for draw in range(_NUM_DRAWS):
        times = np.bincount(random.integers(num_plants, size=num_plants), minlength=num_plants).astype(np.float64)
        drawn[draw] = _mean_gap(bins, gap_N, times[plant_N])
    low, high = np.quantile(drawn, [0.025, 0.975]) - max(float(drawn.mean()) - value, 0.0)
    return Share(value, len(bins), (float(max(min(low, value), 0.0)), float(min(max(high, value), 1.0))))


def _bin_of(confidence_N: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.minimum((confidence_N * NUM_BINS).astype(np.int64), NUM_BINS - 1)


def _mean_gap(bins: npt.NDArray[np.int64], gap_N: npt.NDArray[np.float64], weight_N: npt.NDArray[np.float64]) -> float:
    return float(np.abs(np.bincount(bins, gap_N * weight_N, NUM_BINS)).sum() / weight_N.sum())
