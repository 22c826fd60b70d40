"""How well a score separates two kinds of pictures, such as plants from other things."""

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

KEPT_SHARE: Final = 0.95
"""Share of the plants whose score reaches the cutoff."""

Scores = npt.NDArray[np.float64]


def auroc(plants_N: Scores, others_M: Scores) -> float:
    """Returns the chance that a plant scores higher than another thing; a tie counts half, 0.5 separates nothing."""
    ranks = rankdata(np.concatenate([plants_N, others_M]))
    num_plants, num_others = len(plants_N), len(others_M)
    above = ranks[:num_plants].sum() - num_plants * (num_plants + 1) / 2
    return float(above / (num_plants * num_others))


def cutoff(plants_N: Scores) -> float:
    """Returns the largest score that at least 95 % of the plants reach."""
    return float(np.quantile(plants_N, 1 - KEPT_SHARE, method="lower"))
