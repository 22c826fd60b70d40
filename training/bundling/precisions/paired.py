"""The difference in accuracy of two networks on the same pictures, with its 95 % interval."""

import math
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_EDGE: Final = 1e-9  # distance from the observed difference, where the test does not reject


class PairedLoss(msgspec.Struct, frozen=True):
    """Difference of the accuracies of two networks on the same pictures."""

    value: float
    """Accuracy of the first minus accuracy of the second: above 0 if the second is worse."""
    interval_95: tuple[float, float]
    num_pictures: int


def paired_loss(first_hits_N: npt.NDArray[np.bool_], second_hits_N: npt.NDArray[np.bool_]) -> PairedLoss:
    """Returns the loss in accuracy from the first network to the second, with its 95 % interval.

    The interval is Tango's (1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design"), the score interval. It was chosen by exact computation for 272 to 3,000 pictures, of which
    the two networks classify 0.5 to 5.5 % differently. If the true loss is 0.5 points, its upper end is below that in
    at most 2.5 % of all samples. With the intervals of Newcombe (1998), Agresti and Min (2005) and Bonett and Price
    (2012) this is up to 4 %, with Wald's interval and a continuity correction up to 26 %.

    Args:
        first_hits_N: Whether the first network is right, for each picture.
        second_hits_N: The same for the second.
    """
    lost, won = int((first_hits_N & ~second_hits_N).sum()), int((second_hits_N & ~first_hits_N).sum())
    total = len(first_hits_N)
    return PairedLoss((lost - won) / total, tango_interval(lost, won, total), total)


def tango_interval(lost: float, won: float, total: float) -> tuple[float, float]:
    """Returns the range of differences that a score test at the 5 % level does not reject.

    Args:
        lost: Pictures for which only the first network is right.
        won: Pictures for which only the second network is right.
        total: All pictures.

    Returns:
        Lower and upper end, each in [-1, 1].
    """
    observed = (lost - won) / total

    def excess(loss: float) -> float:
        """Above 0 where the test rejects a true loss; squared, so that a variance of 0 causes no division by 0."""
        return (total * (observed - loss)) ** 2 - _Z_95**2 * _variance(loss, lost, won, total)

    return (
        _first_rejected(excess, max(observed - _EDGE, -1.0), -1.0),
        _first_rejected(excess, min(observed + _EDGE, 1.0), 1.0),
    )


def _first_rejected(excess: Callable[[float], float], observed: float, extreme: float) -> float:
    """Returns where the test begins to reject on the way from the observed difference to the extreme one."""
    if excess(extreme) <= 0:
        return extreme
    if excess(observed) >= 0:  # the variance is 0 but for rounding, as when all pictures changed alike
        return observed
    return float(brentq(excess, extreme, observed))


def _variance(loss: float, lost: float, won: float, total: float) -> float:
    """Variance of `lost - won` for a true loss, by maximum likelihood (Tango 1998, equations 8 and 9)."""
    linear = (2 * total - lost + won) * loss - lost - won
    root = math.sqrt(max(linear**2 + 8 * total * won * loss * (1 - loss), 0.0))
    share_won = (root - linear) / (4 * total)
    return max(total * (2 * share_won + loss * (1 - loss)), 0.0)
