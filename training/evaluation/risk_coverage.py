"""Risk against coverage: how often the named answers are wrong, if only the surest share of the pictures is named."""

from typing import Final

import msgspec
import numpy as np

from training.evaluation.rank_scores import RankScores

_MOST_POINTS: Final = 100


class RiskCoverage(msgspec.Struct, frozen=True):
    """The curve of one rank."""

    area: float
    """Area under the curve (AURC, Geifman et al. 2019): mean risk over all coverages; 0 is best."""
    coverage: list[float]
    """Shares of the pictures that are named, the surest first; at most 100 points."""
    risk: list[float]
    """Share of the names that are wrong, at each of these coverages."""


def risk_coverage(scores: RankScores) -> RiskCoverage:
    """Draws the curve of a rank over all pictures, at least one.

    Pictures of equal score are named together, so each of them has the mean risk of its score.
    """
    order = np.argsort(-scores.score_N, kind="stable")
    _, first, counts = np.unique(-scores.score_N[order], return_index=True, return_counts=True)
    wrong = np.add.reduceat(~scores.right_N[order], first, dtype=np.float64)
    wrong_N = np.cumsum(np.repeat(wrong / counts, counts))
    num_named = np.arange(1, len(order) + 1)
    risk_N = wrong_N / num_named
    shown = np.unique(np.linspace(0, len(order) - 1, _MOST_POINTS).round().astype(int))
    coverage = (num_named / len(order))[shown]
    return RiskCoverage(float(risk_N.mean()), coverage.tolist(), risk_N[shown].tolist())
