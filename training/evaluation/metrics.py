"""How often the answers are right, and how sure that figure is. Pure functions over NumPy arrays.

Letters in names: N pictures, C classes (outputs or taxa).
"""

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64] | npt.NDArray[np.intp]
_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_ECE_BINS: Final = 15  # as Guo et al. 2017


class Share(msgspec.Struct, frozen=True):
    """A measured share with its number of pictures and 95 % interval."""

    value: float
    num_pictures: int
    interval_95: tuple[float, float]


def share(hits: int, total: int) -> Share:
    """Hits of total with the Wilson score interval (Wilson 1927), which holds near 0 and 1 and for few pictures."""
    rate = hits / total
    spread = _Z_95**2 / total
    center = (rate + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(rate * (1 - rate) / total + spread / (4 * total)) / (1 + spread)
    return Share(rate, total, (max(center - half, 0.0), min(center + half, 1.0)))


def top_k_hits(scores_NC: Floats, labels_N: Whole, k: int) -> npt.NDArray[np.bool_]:
    """Whether the right class is among the k best; ties and scores that are no numbers count against it. Shape (N,)."""
    right = scores_NC[np.arange(len(labels_N)), labels_N][:, None]
    rivals = scores_NC.shape[1] - 1 - (scores_NC < right).sum(axis=1)
    return np.asarray(rivals < k)


def macro_top1(hits_N: npt.NDArray[np.bool_], labels_N: Whole) -> tuple[float, tuple[float, float]]:
    """Mean over the classes of each class's share of hits, with its 95 % interval.

    The interval is normal, from the binomial variance of every class; two added hits and misses (as Agresti and Coull
    1998) keep a class of few pictures from claiming certainty.
    """
    classes, index = np.unique(labels_N, return_inverse=True)
    counts = np.bincount(index)
    hits = np.bincount(index, weights=hits_N)
    mean = float((hits / counts).mean())
    smoothed = (hits + 2) / (counts + 4)
    deviation = math.sqrt(float((smoothed * (1 - smoothed) / counts).sum())) / len(classes)
    return mean, (max(mean - _Z_95 * deviation, 0.0), min(mean + _Z_95 * deviation, 1.0))


def expected_calibration_error(probabilities_NC: Floats, labels_N: Whole) -> float:
    """Mean distance between confidence and accuracy over 15 equal bins of confidence (Guo et al. 2017), in [0, 1]."""
    confidence = probabilities_NC.max(axis=1)
    hits = probabilities_NC.argmax(axis=1) == labels_N
    bins = np.minimum((confidence * _ECE_BINS).astype(np.int64), _ECE_BINS - 1)
    gaps = np.abs(np.bincount(bins, confidence, _ECE_BINS) - np.bincount(bins, hits, _ECE_BINS))
    return float(gaps.sum() / len(labels_N))


def negative_log_likelihood(probabilities_NC: Floats, labels_N: Whole) -> float:
    """Mean of minus the log of the right class's probability, in nats."""
    right = probabilities_NC[np.arange(len(labels_N)), labels_N]
    return float(-np.log(np.maximum(right, 1e-12)).mean())


def confusion_pairs(predicted_N: Whole, labels_N: Whole, most: int) -> list[tuple[int, int, int]]:
    """The commonest mistakes: (right class, named class, how often), most frequent first."""
    wrong = predicted_N != labels_N
    pairs, counts = np.unique(np.stack([labels_N[wrong], predicted_N[wrong]], axis=1), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(int(pairs[at, 0]), int(pairs[at, 1]), int(counts[at])) for at in order]
