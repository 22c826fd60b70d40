"""Fits what needs pictures of plants alone: the table of relative Mahalanobis++ distances, and that of familiarity.

Plants of unknown species are not needed: each calibration plant is also judged as if the bundle did not know its taxon.

Letters in names: N pictures, F features, D dimensions after PCA, T taxa.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.calibration import FamiliarityTable, FeatureTable, unit_length
from models.ranking import Floats
from training.evaluation.separation import Scores, cutoff

MOST_DIMENSIONS: Final = 256
MOST_LEFT_OUT: Final = 0.10
"""Share of the plants of left-out taxa that may pass for known ones."""
LEAST_KEPT: Final = 0.85
"""Share of the known plants that stay above the cutoff, even if more plants of left-out taxa then pass."""
_SHRINKAGE: Final = 0.05
"""Share of the mean variance that is added to each variance within taxa, so that few pictures give no zeros."""
_LEAST_VARIANCE: Final = 1e-6
"""Smaller variances, of features of length 1, are raised to this: equal pictures must not give infinite scales."""


def fit_features(features_NF: Floats, labels_N: npt.NDArray[np.intp]) -> FeatureTable:
    """Fits the relative Mahalanobis++ distance (arXiv 2505.18032) to training pictures.

    PCA keeps one dimension less than there are taxa, at most 256. Late in training the features of training pictures
    lie almost entirely in that subspace (neural collapse, Papyan et al. 2020), and those of other pictures do not: in
    any further dimension every unseen picture, of a plant or not, is many deviations away from the whole, and the
    relative distance orders them wrongly. With 256 dimensions, the demonstration network of 17 taxa found things more
    familiar than unseen plants; with 16 it told them apart.

    Args:
        features_NF: Pooled features of training pictures, preprocessed as in the service.
        labels_N: Position of each picture's taxon.
    """
    unit_NF = unit_length(features_NF).astype(np.float64)
    center_F = unit_NF.mean(axis=0)
    classes, index_N = np.unique(labels_N, return_inverse=True)
    basis_FD, variance_D = _principal(unit_NF - center_F, min(max(len(classes) - 1, 1), MOST_DIMENSIONS))
    reduced_ND = (unit_NF - center_F) @ basis_FD
    means_TD = np.stack([reduced_ND[index_N == index].mean(axis=0) for index in range(len(classes))])
    whitening_DD = _whitening(reduced_ND - means_TD[index_N])
    return FeatureTable(
        center_F=center_F.astype(np.float32),
        basis_FD=basis_FD.astype(np.float32),
        whole_D=(1 / np.sqrt(variance_D)).astype(np.float32),
        within_DD=whitening_DD.astype(np.float32),
        mean_TD=(means_TD @ whitening_DD).astype(np.float32),
    )


def fit_familiarity(confidence_N: Floats, distance_N: Floats) -> FamiliarityTable:
    """Keeps the sorted scores of calibration plants."""
    return FamiliarityTable(
        confidence_N=np.sort(np.asarray(confidence_N, dtype=np.float64)),
        distance_N=np.sort(np.asarray(distance_N, dtype=np.float64)),
    )


def distances_to_others(
    table: FeatureTable, taxa_T: npt.NDArray[np.intp], features_NF: Floats, taxon_N: npt.NDArray[np.intp]
) -> Scores:
    """Returns the relative distance of each picture as if the table did not hold its taxon.

    Args:
        table: Of two taxa or more.
        taxa_T: Position of the taxon of each of its means, ascending.
        features_NF: Pooled features of the pictures.
        taxon_N: Position of each picture's taxon.
    """
    distance_N = np.empty(len(taxon_N))
    for taxon in np.unique(taxon_N):
        own_N = taxon_N == taxon
        others = msgspec.structs.replace(table, mean_TD=table.mean_TD[taxa_T != taxon])
        distance_N[own_N] = others.distances(features_NF[own_N])
    return distance_N


def familiar_cutoff(known_N: Scores, left_out_N: Scores) -> float:
    """Returns the least familiarity of a plant that may be named.

    It stops 90 % of the plants whose taxon was left out, but never more than 15 % of the known ones, and is never lower
    than the cutoff that keeps 95 % of these.

    Args:
        known_N: Familiarity of calibration plants.
        left_out_N: Their familiarity where each one's taxon was left out; empty if the bundle has one taxon.
    """
    if not len(left_out_N):
        return cutoff(known_N)
    stops = np.nextafter(np.quantile(left_out_N, 1 - MOST_LEFT_OUT, method="higher"), np.inf)
    return float(np.clip(stops, cutoff(known_N), np.quantile(known_N, 1 - LEAST_KEPT, method="lower")))


def _principal(
    centered_NF: npt.NDArray[np.float64], most: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the directions of largest variance, shape (F, D), and these variances."""
    variances, vectors_FF = np.linalg.eigh(centered_NF.T @ centered_NF / len(centered_NF))
    num_kept = min(most, len(variances))
    return vectors_FF[:, -num_kept:], np.maximum(variances[-num_kept:], _LEAST_VARIANCE)


def _whitening(residual_ND: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the matrix after which the covariance of the residuals, slightly enlarged, is the identity."""
    variances, vectors_DD = np.linalg.eigh(residual_ND.T @ residual_ND / len(residual_ND))
    floor = max(_SHRINKAGE * variances.mean(), _LEAST_VARIANCE)
    return np.asarray(vectors_DD / np.sqrt(variances.clip(0) + floor))
