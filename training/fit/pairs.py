"""The loss in accuracy from one network to another on the same pictures, with its 95 % interval.

Letters in names: N pictures.
"""

import math
from typing import Final

from scipy.optimize import brentq

from models.arrays import Flags
from models.metrics import Share

_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_EDGE: Final = 1e-9  # distance from the observed difference, where the test does not reject


def paired_loss(first_hits_N: Flags, second_hits_N: Flags) -> Share:
    """Returns the loss in accuracy from the first network to the second, below 0 if the second is better.

    The interval is Tango's (1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design"), the score interval. It was chosen by exact computation for 272 to 3,000 pictures, of which
    the two networks classify 0.5 to 5.5 % differently. If the true loss is 0.5 points, its upper end is below that in
    at most 2.5 % of all samples. With the intervals of Newcombe (1998), Agresti and Min (2005) and Bonett and Price
    (2012) this is up to 4 %, with Wald's interval and a continuity correction up to 26 %.

    Each element says whether a network is right about a picture.
    """
    lost = int((first_hits_N & ~second_hits_N).sum())
    won = int((second_hits_N & ~first_hits_N).sum())
    total = len(first_hits_N)
    return Share((lost - won) / total, total, tango_interval(lost, won, total))


def tango_interval(lost: float, won: float, total: float) -> tuple[float, float]:
    """Returns the range of differences that a score test at the 5 % level does not reject, within [-1, 1].

    Of all pictures, only the first network is right for those that are lost, and only the second for those won.
    """
    observed = (lost - won) / total

    def excess(loss: float) -> float:
        """Above 0 where the test rejects a true loss; squared, so that a variance of 0 causes no division by 0.

        The variance of `lost - won` is that of maximum likelihood (Tango 1998, equations 8 and 9).
        """
        linear = (2 * total - lost + won) * loss - lost - won
        root = math.sqrt(max(linear**2 + 8 * total * won * loss * (1 - loss), 0.0))
        share_won = (root - linear) / (4 * total)
        variance = max(total * (2 * share_won + loss * (1 - loss)), 0.0)
        return (total * (observed - loss)) ** 2 - _Z_95**2 * variance

    def first_rejected(start: float, extreme: float) -> float:
        """Where the test begins to reject on the way to the extreme difference."""
        if excess(extreme) <= 0:
            return extreme
        if excess(start) >= 0:  # the variance is 0 but for rounding, as when all pictures changed alike
            return start
        return float(brentq(excess, extreme, start))

    return first_rejected(max(observed - _EDGE, -1.0), -1.0), first_rejected(min(observed + _EDGE, 1.0), 1.0)
