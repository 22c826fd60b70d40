"""Fits the temperature of a network file, and thresholds so that its names keep a promise; finds taxa that look alike.

With 95 % confidence, at most 5 % of the names of a rank are wrong. The thresholds of each rank are tested from the
strictest down to 0.5 in fixed order, with an exact binomial bound (hierarchical selective classification: Goren et al.
2024, arXiv 2405.11533; fixed-sequence testing). The floor is there since the promise is about the mean name: where
nearly all plants are named rightly, it would hold even if the least sure ones got a name at a score of 0.01.

Letters in names: N calibration plants, one picture each, G thresholds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from models.arrays import Flags
from models.bundle_record import MOST_LOOK_ALIKES
from models.metrics import Whole, negative_log_likelihood
from models.outputs import Outputs, Plants, Predictions, RankScores, Rows, chunks
from models.ranking import (
    NAMES_ARE_GUESSES,
    RANKS,
    Floats,
    MistakenTaxa,
    Promise,
    Promises,
    Rank,
    Thresholds,
    output_probabilities,
)
from models.taxonomy import Taxon, Taxonomy

LOWEST_TEMPERATURE: Final = 0.05
HIGHEST_TEMPERATURE: Final = 20.0
MOST_PICTURES: Final = 20_000
"""Pictures that the temperature is fitted on at most: one number needs no more, and all 89,000 take minutes."""
_TOLERANCE: Final = 1e-8  # of the logarithm; a minimum cannot be told more exactly from values in double precision
MAX_RISK: Final = 0.05
JOINT_RISK: Final = 0.025
"""For several pictures together, whose names can be surer at no cost: nearly all plants get one all the same."""
CONFIDENCE: Final = 0.95
MIN_NAMED: Final = 300
"""Named plants below which no promise is made; of 300, at most 8 (2.7 %) may be wrong."""
LEAST_NAMED: Final = 20
"""Named plants below which no threshold is fitted: where 20 names are right, up to 14 % may still be wrong."""
UNFITTED: Final = 0.9
"""The threshold where none is fitted. Calibrated scores from here on are right in 90 % of the cases or more."""
FEWEST_NAMED: Final = 0.1
"""Share of the calibration plants that get a name below which a bundle hardly names anything."""
GRID: Final = tuple(round(step / 1000, 3) for step in range(999, 499, -1))
"""Thresholds, the strictest first. From 0.5 on a name is at least as likely as all others of its rank together."""
_OFTEN: Final = 0.08
"""Share of wrong names, sure ones and others alike, from which a taxon is often mistaken."""
_PRIOR_PLANTS: Final = 10
LEAST_LOOK_ALIKES: Final = 3
"""Calibration plants that a pair needs, of both taxa together: one or two may be wrong labels or bad pictures."""
LEAST_SHARE: Final = 0.05
"""Share of the calibration plants of one of the two, which a name of rank species may have wrong by its promise. Of a
taxon with hundreds of plants, three are no habit."""


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
    """Whether the threshold is 0.9 and not fitted, since the calibration plants are too few."""


class FittedThresholds(msgspec.Struct, frozen=True):
    """The thresholds of all ranks."""

    species: FittedThreshold
    genus: FittedThreshold
    family: FittedThreshold
    num_plants: int
    """Number of calibration plants, of all ranks and none."""
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

    def of_mistaken(self, taxa: tuple[Taxon, ...], mistaken_T: Flags) -> MistakenTaxa | None:
        """Returns the taxa that are often mistaken, with their threshold, as the bundle holds them."""
        if self.mistaken is None:
            return None
        ids = tuple(taxa[position].taxon_id for position in np.flatnonzero(mistaken_T))
        return MistakenTaxa(ids, self.mistaken.threshold, self.mistaken.promise)

    @property
    def warnings(self) -> list[str]:
        """What to know about names that are not proved, few or none, in sentences."""
        found = []
        if self.promises == Promises():
            found.append(
                f"{NAMES_ARE_GUESSES} A promise needs {MIN_NAMED} of them that get a name: prepare more "
                "pictures, with --calibration-share."
            )
        named = sum(fitted.num_named for fitted in (self.species, self.genus, self.family, self.mistaken) if fitted)
        if named < FEWEST_NAMED * self.num_plants:
            found.append(
                f"Only {named:,} of {self.num_plants:,} calibration plants get a name, so the service will answer "
                "nearly every photograph with `uncertain`: add pictures, or give --thresholds species=NUMBER."
            )
        found += [
            f"The threshold of {rank} is {UNFITTED} and not fitted, since the calibration plants without a finer name "
            f"are too few: add pictures, or give --thresholds {rank}=NUMBER."
            for rank in RANKS
            if getattr(self, rank).has_few_plants
        ]
        return found


def fit_temperature(outputs: Outputs, taxonomy: Taxonomy) -> float:
    """Finds the temperature that gives the labeled taxa the highest likelihood (Brent's method), in [0.05, 20].

    Below 1 it raises the highest probability, above 1 it lowers it. The outputs of a taxon are summed, as in the
    service, and every plant weighs the same, however many pictures of it there are.
    """
    chosen = plants_drawn(outputs.plants, MOST_PICTURES)
    logits = outputs.logits[chosen]
    taxa = taxonomy.taxon_of_output[outputs.labels[chosen]]
    weights = 1.0 / np.bincount(outputs.plants)[outputs.plants[chosen]]

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(right_probabilities(logits, taxa, taxonomy, math.exp(log_temperature)), weights)

    bounds = (math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": _TOLERANCE})
    return math.exp(found.x)


def plants_drawn(plants: Plants, most: int) -> Whole:
    """Draws whole plants, at least one, while all their pictures fit in; returns their positions, ascending."""
    if len(plants) <= most:
        return np.arange(len(plants))
    _, plant_N, counts = np.unique(plants, return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(len(counts))
    num_drawn = max(int((np.cumsum(counts[order]) <= most).sum()), 1)
    return np.flatnonzero(np.isin(plant_N, order[:num_drawn]))


def right_probabilities(logits: Rows, taxa: Whole, taxonomy: Taxonomy, temperature: float) -> Floats:
    """Returns the probability of the right taxon of each picture, without those of all other taxa."""
    right = np.empty(len(taxa))
    for part in chunks(*logits.shape):
        is_right = taxonomy.taxon_of_output == taxa[part, None]
        right[part] = (output_probabilities(logits[part], temperature) * is_right).sum(axis=1)
    return right


def named(score_N: Floats, threshold: float) -> Flags:
    """Returns which pictures a verdict names at a rank; a threshold of 1 names none (`models/ranking.py`)."""
    return np.asarray((score_N >= threshold) & (threshold < 1) & (score_N > 0))


def fit_thresholds(
    scores: Mapping[Rank, RankScores],
    fixed: Mapping[Rank, float] | None = None,
    mistaken_N: Flags | None = None,
    *,
    proves: bool = True,
    max_risk: float = MAX_RISK,
) -> FittedThresholds:
    """Fits the thresholds of all ranks, each on the plants that no finer rank names.

    `mistaken_N` says which plants would be named as one of the taxa that are often mistaken. `proves` says whether the
    plants can prove a promise: the network was neither trained on them nor chosen by them.

    The species threshold was chosen with the same plants, so those left for the genus are not independent of it. The
    choice depends on the names that were tested, from the highest score to the first failure. Below that failure no
    label has been used; between it and the threshold lie the plants of one step of 0.001, among which wrong names are
    more frequent, which makes the promise of the genus harder to keep, not easier. The same holds for the family. A
    threshold without a promise uses all labels, but the names just below it are again those with more wrong ones. The
    tests check by simulation that the promise of the genus holds in both cases.

    The scores are those of all calibration plants that the cutoffs let through. A threshold in `fixed` gets no promise.
    """
    fixed = fixed or {}
    left_N = np.ones(len(scores["species"].score_N), dtype=bool)
    found: dict[str, FittedThreshold] = {}
    if mistaken_N is not None and mistaken_N.any() and "species" not in fixed:
        found["mistaken"] = fit_threshold(scores["species"].subset(mistaken_N), max_risk)
        left_N = ~mistaken_N
    for rank in RANKS:
        own = scores[rank].subset(left_N)
        found[rank] = _without_promise(own, fixed[rank]) if rank in fixed else fit_threshold(own, max_risk)
        left_N &= ~named(scores[rank].score_N, found[rank].threshold)
        if rank == "species" and mistaken_N is not None and "mistaken" in found:
            left_N |= mistaken_N & ~named(scores["species"].score_N, found["mistaken"].threshold)
    if not proves:
        found = {name: replace(each, promise=None) for name, each in found.items()}
    return FittedThresholds(num_plants=len(left_N), **found)


def fit_threshold(scores: RankScores, max_risk: float = MAX_RISK) -> FittedThreshold:
    """Finds the loosest threshold that keeps the promise, or else the empirical one.

    The tests start at the first threshold that names at least 300 plants and end with the first that fails. No
    correction for many tests is needed: an error means that the first threshold of the sequence whose risk is above
    `max_risk` passes, and one test does so in at most 5 % of all draws. For that the order must not depend on labels.
    The grid is fixed, and the start depends on scores alone: given the scores, wrong names are independent with unequal
    probabilities, and the chance of few of them is at most the binomial one with their mean (Hoeffding 1956). The test
    therefore holds for the mean risk at the scores of the calibration plants, those that no finer rank names.

    If no threshold passes, it is the loosest that names at least 20 plants, 95 % of them right, without a promise. If
    there is none, it is 0.9 where the plants are too few to tell: fewer than 20 reach 0.5, or fewer than 300 and those
    that reach 0.9 do not refute that 90 % of such names are right. Otherwise it is 1, so that the rank stays silent.
    """
    ascending = np.argsort(scores.score_N)
    thresholds = np.asarray(GRID)
    below_G = np.searchsorted(scores.score_N[ascending], thresholds, side="left")
    wrong_below = np.concatenate(([0], np.cumsum(~scores.right_N[ascending])))
    named_G = len(ascending) - below_G
    wrong_G = wrong_below[-1] - wrong_below[below_G]
    tested_G = named_G >= MIN_NAMED
    failed_G = tested_G & (binom.cdf(wrong_G, named_G, max_risk) > 1 - CONFIDENCE)
    passed = np.flatnonzero(tested_G & (np.cumsum(failed_G) == 0))
    if len(passed):
        fitted = _without_promise(scores, GRID[passed[-1]])
        return replace(fitted, promise=Promise(max_risk, CONFIDENCE, fitted.num_named, fitted.num_wrong))
    holding = np.flatnonzero((named_G >= LEAST_NAMED) & (wrong_G <= max_risk * named_G))
    if len(holding):
        return _without_promise(scores, GRID[holding[-1]])
    unfitted = _without_promise(scores, UNFITTED)
    is_refuted = binom.sf(unfitted.num_wrong - 1, unfitted.num_named, 1 - UNFITTED) < 1 - CONFIDENCE
    if named_G[-1] < LEAST_NAMED or (named_G[-1] < MIN_NAMED and not is_refuted):
        return replace(unfitted, has_few_plants=bool((scores.score_N > 0).any()))
    return _without_promise(scores, 1.0)


def _without_promise(scores: RankScores, threshold: float) -> FittedThreshold:
    named_N = named(scores.score_N, threshold)
    return FittedThreshold(threshold, None, int(named_N.sum()), int((named_N & ~scores.right_N).sum()))


def mistaken_taxa(validation: Predictions, calibration: Predictions, num_taxa: int) -> Flags:
    """Finds the taxa whose names are often wrong, from validation plants; shape (num_taxa,).

    The risk of a name is the share of wrong ones, with ten more plants of the mean risk; it must exceed 8 %, and the
    mean, so that a taxon with few plants is no such taxon by that alone. The species threshold of these taxa is fitted
    to their own calibration plants, which did not choose them, and so is that of the others: a promise about the mean
    of all says little about a group of plants that resemble each other. If one of the two groups has too few
    calibration plants, there are none.
    """
    sure = validation.subset(validation.rank_scores["species"].score_N >= GRID[-1])
    number_T = np.bincount(sure.named_N, minlength=num_taxa)
    wrong_T = np.bincount(sure.named_N[~sure.rank_right_NR[:, 0]], minlength=num_taxa)
    mean = wrong_T.sum() / max(number_T.sum(), 1)
    risk_T = (wrong_T + _PRIOR_PLANTS * mean) / (number_T + _PRIOR_PLANTS)
    found_T = np.asarray(risk_T > max(_OFTEN, mean + 1e-9))
    least = 2 * MIN_NAMED  # plants of a group; with fewer, a promise would be lost that all plants together can prove
    for position_N in (calibration.named_N, calibration.taxon_labels_N):
        if not least <= found_T[position_N].sum() <= len(position_N) - least:
            return np.zeros(num_taxa, dtype=bool)
    return found_T


def look_alikes(found: Predictions, taxonomy: Taxonomy) -> dict[int, tuple[int, ...]]:
    """Returns the look-alikes of each taxon that has some, the most frequent first, as positions of taxa.

    A pair is two taxa of which at least 3 calibration plants, one picture each, were ranked first as the other, and at
    least 5 % of those of one of the two. A genus is no look-alike of its own species.
    """
    taxa = taxonomy.taxa
    wrong_N = ~found.hits
    num_plants = Counter(found.taxon_labels_N.tolist())
    taken = Counter(zip(found.taxon_labels_N[wrong_N].tolist(), found.named_N[wrong_N].tolist(), strict=True))
    others: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for (right, named), number in taken.items():
        both = number + taken[named, right]
        ranks = {taxa[right].rank, taxa[named].rank}
        holds = "genus" in ranks and taxa[right].genus == taxa[named].genus
        if both >= LEAST_LOOK_ALIKES and number >= LEAST_SHARE * num_plants[right] and not holds:
            others[right].add((-both, named))
            others[named].add((-both, right))
    return {one: tuple(other for _, other in sorted(others[one])[:MOST_LOOK_ALIKES]) for one in sorted(others)}
