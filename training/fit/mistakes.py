"""Finds the taxa that are often taken for others: those that need a threshold of their own, and look-alikes."""

from collections import Counter, defaultdict
from typing import Final

import numpy as np

from models.arrays import Flags
from models.bundle_record import MOST_LOOK_ALIKES
from models.outputs import Predictions
from models.taxonomy import Taxonomy
from training.fit.names import GRID, MIN_NAMED

_OFTEN: Final = 0.08
"""Share of wrong names, sure ones and others alike, from which a taxon is often mistaken."""
_PRIOR_PLANTS: Final = 10
LEAST_PLANTS: Final = 3
"""Calibration plants that a pair needs, of both taxa together: one or two may be wrong labels or bad pictures."""
LEAST_SHARE: Final = 0.05
"""Share of the calibration plants of one of the two, which a name of rank species may have wrong by its promise. Of a
taxon with hundreds of plants, three are no habit."""


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
        if both >= LEAST_PLANTS and number >= LEAST_SHARE * num_plants[right] and not holds:
            others[right].add((-both, named))
            others[named].add((-both, right))
    return {one: tuple(other for _, other in sorted(others[one])[:MOST_LOOK_ALIKES]) for one in sorted(others)}
