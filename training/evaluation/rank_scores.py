"""What a network says at each rank: the score of the best species, genus and family of each picture, and whether right.

Letters in names: N pictures, T taxa.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import Rank, sum_groups
from models.taxonomy import Groups, Taxonomy

NO_NAME: Final = -1.0
"""Score of a picture without a name of the rank, below every threshold."""


class RankScores(msgspec.Struct, frozen=True):
    """The best name of one rank, for each picture."""

    score_N: npt.NDArray[np.float64]
    """Its probability, in [0, 1], or -1 if there is no name of this rank."""
    right_N: npt.NDArray[np.bool_]
    """Whether it is the name of the labeled taxon."""

    def subset(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "RankScores":
        """Returns the scores of some of the pictures."""
        return RankScores(self.score_N[chosen], self.right_N[chosen])


def named(score_N: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.bool_]:
    """Returns which pictures a verdict names at a rank; a threshold of 1 names none (`models/ranking.py`)."""
    return np.asarray((score_N >= threshold) & (threshold < 1) & (score_N > 0))


def rank_scores(
    taxa_NT: npt.NDArray[np.float64], labels_N: npt.NDArray[np.intp], taxonomy: Taxonomy
) -> dict[Rank, RankScores]:
    """Returns the best name of each rank, as a verdict would choose it (`models/ranking.py`).

    A taxon of rank genus is never named as a species. If the labeled taxon has no genus, or its family is unknown,
    every name of that rank counts as wrong.

    Args:
        taxa_NT: Calibrated probabilities of all taxa.
        labels_N: Position of each picture's taxon.
        taxonomy: Gives ranks, genera and families.
    """
    best_N = taxa_NT.argmax(axis=1)
    is_species_T = np.array([taxon.rank == "species" for taxon in taxonomy.taxa])
    species = RankScores(np.where(is_species_T[best_N], taxa_NT.max(axis=1), NO_NAME), best_N == labels_N)
    genera, families = (_group_scores(taxa_NT, labels_N, groups) for groups in (taxonomy.genera, taxonomy.families))
    return {"species": species, "genus": genera, "family": families}


def _group_scores(taxa_NT: npt.NDArray[np.float64], labels_N: npt.NDArray[np.intp], groups: Groups) -> RankScores:
    scores_NG = np.minimum(sum_groups(taxa_NT, groups.of_taxon, len(groups.names)), 1.0)
    scores_NG[:, [not name for name in groups.names]] = NO_NAME  # taxa whose genus or family is unknown
    best_N, score_N = scores_NG.argmax(axis=1), scores_NG.max(axis=1)
    return RankScores(score_N, (best_N == groups.of_taxon[labels_N]) & (score_N > NO_NAME))
