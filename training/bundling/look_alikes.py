"""Finds taxa that are often taken for each other, from what a network says of the calibration plants."""

from collections import Counter, defaultdict
from typing import Final

from models.taxonomy import Taxonomy
from training.evaluation.predictions import Predictions

LEAST_PLANTS: Final = 3
"""Calibration plants that a pair needs, of both taxa together: one or two may be wrong labels or bad pictures."""
LEAST_SHARE: Final = 0.05
"""Share of the calibration plants of one of the two, which a name of rank species may have wrong by its promise. Of a
taxon with hundreds of plants, three are no habit."""
MOST_LOOK_ALIKES: Final = 3
"""Look-alikes of each taxon: with the plant itself as many as stand side by side on a page."""


def look_alikes(found: Predictions, taxonomy: Taxonomy) -> dict[str, tuple[str, ...]]:
    """Returns the look-alikes of each taxon that has some, by their ids, the most frequent first.

    A pair is two taxa of which at least 3 calibration plants, one picture each, were ranked first as the other, and at
    least 5 % of those of one of the two. A genus is no look-alike of its own species.
    """
    taxa, wrong_N = taxonomy.taxa, ~found.hits
    num_plants = Counter(found.taxon_labels_N.tolist())
    taken = Counter(zip(found.taxon_labels_N[wrong_N].tolist(), found.named_N[wrong_N].tolist(), strict=True))
    others: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for (right, named), number in taken.items():
        both, ranks = number + taken[named, right], {taxa[right].rank, taxa[named].rank}
        holds = "genus" in ranks and taxa[right].genus == taxa[named].genus
        if both >= LEAST_PLANTS and number >= LEAST_SHARE * num_plants[right] and not holds:
            others[right].add((-both, named))
            others[named].add((-both, right))
    return {
        taxa[one].taxon_id: tuple(taxa[other].taxon_id for _, other in sorted(others[one])[:MOST_LOOK_ALIKES])
        for one in sorted(others)
    }
