"""Fits the thresholds of a verdict so that its names keep a promise (hierarchical selective classification).

With 95 % confidence, at most 5 % of the names of a rank are wrong. The thresholds of each rank are tested from the
strictest down to 0.5 in fixed order, with an exact binomial bound (Goren et al. 2024, arXiv 2405.11533; fixed-sequence
testing). The floor is there since the promise is about the mean name: where nearly all plants are named rightly, it
would hold even if the least sure ones got a name at a score of 0.01.

Letters in names: N calibration plants, one picture each, G thresholds.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from scipy.stats import binom

from models.arrays import Flags
from models.metrics import Whole
from models.ranking import RANKS, Promise, Promises, Rank, Thresholds
from training.evaluation.predictions import RankScores, named

MAX_RISK: Final = 0.05
CONFIDENCE: Final = 0.95
MIN_NAMED: Final = 300
"""Named plants below which no promise is made; of 300, at most 8 (2.7 %) may be wrong."""
LEAST_NAMED: Final = 20
"""Named plants below which no threshold is fitted: where 20 names are right, up to 14 % may still be wrong."""
UNFITTED: Final = 0.9
"""The threshold where none is fitted. Calibrated scores from here on are right in 90 % of the cases or more."""
GRID: Final = tuple(round(step / 1000, 3) for step in range(999, 499, -1))
"""Thresholds, the strictest first. From 0.5 on a name is at least as likely as all others of its rank together."""

_OFTEN: Final = 0.08
"""Share of wrong names, sure ones and others alike, from which a taxon is often mistaken."""
_PRIOR_PLANTS: Final = 10


class FittedThreshold(msgspec.Struct, frozen=True):
    """The threshold of one rank."""

    threshold: float
    promise: Promise | None
    """What the calibration plants prove of it; None if they prove nothing."""
    num_named: int
    """Number of calibration plants that reach it."""
    num_wrong: int
    """Number of these whose name is wrong."""
    has_few_plants: bool = False
    """Whether the threshold is 0.9 and not fitted, since fewer than 20 of the calibration plants reach 0.5."""


class FittedThresholds(msgspec.Struct, frozen=True):
    """The thresholds of all ranks."""

    species: FittedThreshold
    genus: FittedThreshold
    family: FittedThreshold
    mistaken: FittedThreshold | None = None
    """That of the species that are often mistaken; None if there are none, or if the species threshold was given."""

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds as the bundle holds them."""
        return Thresholds(self.species.threshold, self.genus.threshold, self.family.threshold)

    @property
    def promises(self) -> Promises:
        """The promises as the bundle holds them."""
        return Promises(self.species.promise, self.genus.promise, self.family.promise)

    def without_promises(self) -> "FittedThresholds":
        """Returns the same thresholds, for plants that prove nothing."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return FittedThresholds(**{name: each and replace(each, promise=None) for name, each in found.items()})

    @property
    def warnings(self) -> list[str]:
        """What to know about the ranks whose threshold is not fitted, in sentences."""
        return [
            f"The threshold of {rank} is {UNFITTED} and not fitted, since fewer than {LEAST_NAMED} calibration plants "
            f"without a finer name score {GRID[-1]} or more: add pictures, or give --thresholds {rank}=NUMBER."
            for rank in RANKS
            if getattr(self, rank).has_few_plants
        ]


def mistaken_taxa(named_N: Whole, scores: RankScores, num_taxa: int) -> Flags:
    """Finds the taxa whose names are often wrong, from validation plants; shape (num_taxa,).

    The risk of a name is the share of wrong ones, with ten more plants of the mean risk; it must exceed 8 %, and the
    mean, so that a taxon with few plants is no such taxon by that alone. The species threshold of these
    taxa is fitted to their own calibration plants, which did not choose them, and so is that of the others: a promise
    about the mean of all says little about a group of plants that resemble each other.
    """
    sure_N = scores.score_N >= GRID[-1]
    number_T, wrong_T = (
        np.bincount(named_N[chosen_N], minlength=num_taxa) for chosen_N in (sure_N, sure_N & ~scores.right_N)
    )
    mean = wrong_T.sum() / max(number_T.sum(), 1)
    return np.asarray((wrong_T + _PRIOR_PLANTS * mean) / (number_T + _PRIOR_PLANTS) > max(_OFTEN, mean + 1e-9))


def fit_thresholds(
    scores: Mapping[Rank, RankScores],
    fixed: Mapping[Rank, float] | None = None,
    mistaken_N: Flags | None = None,
) -> FittedThresholds:
    """Fits the thresholds of all ranks, each on the plants that no finer rank names.

    `mistaken_N` says which plants would be named as one of the taxa that are often mistaken.

    The species threshold was chosen with the same plants, so those left for the genus are not independent of it. The
    choice depends on the names that were tested, from the highest score to the first failure. Below that failure no
    label has been used; between it and the threshold lie the plants of one step of 0.001, among which wrong names are
    more frequent, which makes the promise of the genus harder to keep, not easier. The same holds for the family. A
    threshold without a promise uses all labels, but the names just below it are again those with more wrong ones. The
    tests check by simulation that the promise of the genus holds in both cases.

    The scores are those of all calibration plants that the cutoffs let through. A threshold in `fixed` gets no promise.
    """
    left_N = np.ones(len(scores["species"].score_N), dtype=bool)
    found: dict[str, FittedThreshold] = {}
    if mistaken_N is not None and mistaken_N.any() and "species" not in (fixed or {}):
        found["mistaken"] = fit_threshold(scores["species"].subset(mistaken_N))
        left_N = ~mistaken_N
    for rank in RANKS:
        chosen = (fixed or {}).get(rank)
        own = scores[rank].subset(left_N)
        found[rank] = fit_threshold(own) if chosen is None else _without_promise(own, chosen)
        left_N &= ~named(scores[rank].score_N, found[rank].threshold)
        if rank == "species" and mistaken_N is not None and "mistaken" in found:
            left_N |= mistaken_N & ~named(scores["species"].score_N, found["mistaken"].threshold)
    return FittedThresholds(**found)


def fit_threshold(scores: RankScores) -> FittedThreshold:
    """Finds the loosest threshold that keeps the promise, or else the empirical one.

    The tests start at the first threshold that names at least 300 plants and end with the first that fails. No
    correction for many tests is needed: an error means that the first threshold of the sequence whose risk is above
    5 % passes, and one test does so in at most 5 % of all draws. For that the order must not depend on labels. The
    grid is fixed, and the start depends on scores alone: given the scores, wrong names are independent with unequal
    probabilities, and the chance of few of them is at most the binomial one with their mean (Hoeffding 1956). The test
    therefore holds for the mean risk at the scores of the calibration plants, those that no finer rank names.

    If no threshold passes, it is the loosest that names at least 20 plants, 95 % of them right, without a promise; or 1
    if there is none, so that the rank stays silent. If fewer than 20 plants reach 0.5, they say nothing: it is 0.9.
    """
    ascending, thresholds = np.argsort(scores.score_N), np.asarray(GRID)
    below_G = np.searchsorted(scores.score_N[ascending], thresholds, side="left")
    wrong_below = np.concatenate(([0], np.cumsum(~scores.right_N[ascending])))
    named_G, wrong_G = len(ascending) - below_G, wrong_below[-1] - wrong_below[below_G]
    tested_G = named_G >= MIN_NAMED
    failed_G = tested_G & (binom.cdf(wrong_G, named_G, MAX_RISK) > 1 - CONFIDENCE)
    passed = np.flatnonzero(tested_G & (np.cumsum(failed_G) == 0))
    if len(passed):
        named, wrong = int(named_G[passed[-1]]), int(wrong_G[passed[-1]])
        promise = Promise(max_risk=MAX_RISK, confidence=CONFIDENCE, num_named=named, num_wrong=wrong)
        return FittedThreshold(GRID[passed[-1]], promise, named, wrong)
    if named_G[-1] < LEAST_NAMED:
        return replace(_without_promise(scores, UNFITTED), has_few_plants=bool((scores.score_N > 0).any()))
    holding = np.flatnonzero((named_G >= LEAST_NAMED) & (wrong_G <= MAX_RISK * named_G))
    return _without_promise(scores, GRID[holding[-1]] if len(holding) else 1.0)


def _without_promise(scores: RankScores, threshold: float) -> FittedThreshold:
    named_N = named(scores.score_N, threshold)
    return FittedThreshold(threshold, None, int(named_N.sum()), int((named_N & ~scores.right_N).sum()))
