"""How much worse one network is than another on the same pictures, and how sure that is."""

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_EDGE: Final = 1e-9  # beside the difference that was found: there the test accepts


class PairedLoss(msgspec.Struct, frozen=True):
    """Difference of two shares of right answers on the same pictures."""

    value: float
    """Share of the first minus that of the second: above 0 where the second is worse."""
    interval_95: tuple[float, float]
    num_pictures: int
    num_lost: int
    """Pictures that only the first answers rightly."""
    num_won: int
    """Pictures that only the second answers rightly."""


def paired_loss(first_hits_N: npt.NDArray[np.bool_], second_hits_N: npt.NDArray[np.bool_]) -> PairedLoss:
    """The loss in right answers from the first network to the second, with its 95 % interval.

    The interval is Tango's (1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design"), the score interval. It was chosen by exact computation for 272 to 3,000 pictures of which
    0.5 to 5.5 % change: where the true loss is 0.5 points, its upper end lies below that in at most 2.5 % of all draws.
    With the intervals of Newcombe (1998), Agresti and Min (2005) and Bonett and Price (2012) it is up to 4 %, with
    Wald's and a continuity correction up to 26 %.

    Args:
        first_hits_N: Whether the first network is right, one for each picture.
        second_hits_N: The same for the second.
    """
    lost, won = int((first_hits_N & ~second_hits_N).sum()), int((second_hits_N & ~first_hits_N).sum())
    total = len(first_hits_N)
    return PairedLoss((lost - won) / total, tango_interval(lost, won, total), total, lost, won)


def tango_interval(lost: int, won: int, total: int) -> tuple[float, float]:
    """The differences that a score test at the 5 % level does not reject.

    Args:
        lost: Pairs of which only the first is a hit.
        won: Pairs of which only the second is a hit.
        total: All pairs.

    Returns:
        Lower and upper end, each in [-1, 1].
    """
    found = (lost - won) / total

    def excess(loss: float) -> float:
        """Above 0 where the test rejects a true loss: squared, so that a variance of nothing does no harm."""
        return (total * (found - loss)) ** 2 - _Z_95**2 * _variance(loss, lost, won, total)

    low = brentq(excess, -1, found - _EDGE) if excess(-1) > 0 and found > -1 else -1.0
    high = brentq(excess, found + _EDGE, 1) if excess(1) > 0 and found < 1 else 1.0
    return float(low), float(high)


def _variance(loss: float, lost: int, won: int, total: int) -> float:
    """Of `lost - won`, if the true loss is as given and all else likeliest (Tango 1998, equations 8 and 9)."""
    linear = (2 * total - lost + won) * loss - lost - won
    root = math.sqrt(max(linear**2 + 8 * total * won * loss * (1 - loss), 0.0))
    share_won = (root - linear) / (4 * total)
    return max(total * (2 * share_won + loss * (1 - loss)), 0.0)
