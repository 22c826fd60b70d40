"""Candidate sets: the taxa that include the right one as often as was asked for (split conformal prediction).

The conformity of a taxon is its probability divided by its share of the training pictures (PAS, arXiv 2507.06867), so
that sets do not lack the rare taxa. The p-value of a taxon is the share of the calibration plants whose right taxon
conforms no better. The set for a coverage of 1 - alpha holds the taxa with a p-value above alpha, so a set of higher
coverage contains every set of lower coverage.

Letters in names: B pictures of one plant, T taxa, N calibration plants.
"""

from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import Floats

CoverageKind = Literal["marginal", "macro"]


class ConformalTable(msgspec.Struct, frozen=True, dict=True):
    """The calibration plants that p-values count; at least one."""

    prior_T: npt.NDArray[np.float64]
    """Share of each taxon among the training pictures, above 0."""
    conformity_N: npt.NDArray[np.float64]
    """Conformity of the right taxon of each calibration plant, ascending."""
    macro_weight_N: npt.NDArray[np.float64]
    """Weight of each of these plants for macro coverage; the plants of a taxon share 1 / (taxa with such plants)."""
    num_plants_T: npt.NDArray[np.int64]
    """Number of calibration plants of each taxon. Marginal coverage says little about a taxon without any, and macro
    coverage says nothing."""

    @cached_property
    def num_uncalibrated_taxa(self) -> int:
        """Number of taxa without calibration plants."""
        return int((self.num_plants_T == 0).sum())

    def p_values(self, taxa_BT: Floats, kind: CoverageKind) -> npt.NDArray[np.float64]:
        """Gives the p-value of each taxon being the right one.

        A single picture counts itself among the calibration plants: as one plant for marginal coverage, and with the
        largest weight for macro coverage (arXiv 2606.28598). Several pictures of one plant depend on each other, so
        their p-values are combined as twice the mean, which is valid under any dependence (Vovk and Wang 2020).

        Args:
            taxa_BT: Calibrated probabilities of all taxa, shape (num_pictures, num_taxa).
            kind: Whether the coverage holds for the mean plant ("marginal") or for the mean taxon ("macro").

        Returns:
            Values in [0, 1], shape (num_taxa,).
        """
        no_better_BT = np.searchsorted(self.conformity_N, taxa_BT / self.prior_T, side="right")
        p_values_BT = self._p_values_of(no_better_BT, kind)
        combined_T = p_values_BT[0] if len(p_values_BT) == 1 else 2 * p_values_BT.mean(axis=0)
        return np.asarray(np.minimum(combined_T, 1.0))

    def least_conformity(self, coverage: float, kind: CoverageKind) -> float:
        """Gives the conformity from which a taxon is in the set of a single picture; infinite if no p-value suffices.

        More conformity never lowers a p-value, so the set of `candidate_set` holds the taxa from here on.
        """
        enough = np.flatnonzero(self._p_values_of(np.arange(len(self.conformity_N) + 1), kind) > 1.0 - coverage)
        if not enough.size:
            return np.inf
        return float(self.conformity_N[enough[0] - 1]) if enough[0] else -np.inf

    def _p_values_of(self, no_better: npt.NDArray[np.intp], kind: CoverageKind) -> npt.NDArray[np.float64]:
        """Gives the p-values of taxa on single pictures, where so many calibration plants conform no better."""
        if kind == "marginal":
            return np.asarray((no_better + 1) / (len(self.conformity_N) + 1))
        summed = np.concatenate(([0.0], np.cumsum(self.macro_weight_N)))
        return np.asarray(summed[no_better] + self.macro_weight_N.max())


def conformal_table(taxa_NT: Floats, labels_N: npt.NDArray[np.intp], prior_T: Floats) -> ConformalTable:
    """Makes the table from calibration plants that the network was not trained on.

    Args:
        taxa_NT: Calibrated probabilities of all taxa, one picture per plant, at least one plant. Small probabilities
            must not be cut, or sets of rare taxa come out too small.
        labels_N: Position of each plant's taxon.
        prior_T: Share of each taxon among the training pictures, above 0.
    """
    return conformal_table_of(taxa_NT[np.arange(len(labels_N)), labels_N], labels_N, prior_T)


def conformal_table_of(right_N: Floats, labels_N: npt.NDArray[np.intp], prior_T: Floats) -> ConformalTable:
    """Makes the same table from the probability of each plant's taxon alone."""
    conformity_N = right_N / prior_T[labels_N]
    _, taxon_N, counts = np.unique(labels_N, return_inverse=True, return_counts=True)
    order = np.argsort(conformity_N, kind="stable")
    return ConformalTable(
        prior_T=np.asarray(prior_T, dtype=np.float64),
        conformity_N=np.asarray(conformity_N[order], dtype=np.float64),
        macro_weight_N=1.0 / (len(counts) * counts[taxon_N[order]]),
        num_plants_T=np.bincount(labels_N, minlength=len(prior_T)),
    )


def candidate_set(
    table: ConformalTable, taxa_BT: Floats, coverage: float, kind: CoverageKind = "marginal"
) -> npt.NDArray[np.intp]:
    """Finds the taxa that may be the right one.

    Args:
        table: The calibration plants.
        taxa_BT: Calibrated probabilities of all taxa on each picture of one plant, shape (num_pictures, num_taxa).
        coverage: How often the set shall include the right taxon, in (0, 1).
        kind: Whether that holds for the mean plant ("marginal") or for the mean taxon ("macro").

    Returns:
        Positions of taxa, ascending. If no p-value is high enough, the set holds the taxon that conforms best.
    """
    p_values_T, limit = table.p_values(taxa_BT, kind), 1.0 - coverage
    chosen = np.flatnonzero(p_values_T > limit)
    if chosen.size:
        return chosen
    conformity_T = (taxa_BT / table.prior_T).mean(axis=0)
    return np.array([np.lexsort((-conformity_T, -p_values_T))[0]])
