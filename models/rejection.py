"""Two scores from the features of a picture: whether it shows a plant, and whether it shows a plant the network knows.

Both rest on the relative Mahalanobis++ distance (arXiv 2505.18032): features divided by their length, reduced by PCA;
the distance to the nearest taxon under one shared covariance, minus the distance to the whole under its own.

Letters in names: B pictures, F features, D dimensions after PCA, T taxa, N calibration pictures.
"""

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import Floats

_LEAST_LENGTH = 1e-12


class FeatureTable(msgspec.Struct, frozen=True, dict=True):
    """Where the pictures of each known taxon lie among the features."""

    center_F: npt.NDArray[np.float32]
    """Mean of the features of length 1."""
    basis_FD: npt.NDArray[np.float32]
    """Principal components."""
    whole_D: npt.NDArray[np.float32]
    """Scale of each component after which the covariance of all pictures is the identity."""
    within_DD: npt.NDArray[np.float32]
    """Projection of the components after which the covariance within taxa is the identity."""
    mean_TD: npt.NDArray[np.float32]
    """Mean of each taxon after `within_DD`; taxa without pictures are left out, so T may be smaller."""

    def distances(self, features_BF: Floats) -> npt.NDArray[np.float64]:
        """Relative Mahalanobis++ distance of each picture; shape (num_pictures,), larger is stranger."""
        reduced_BD = (unit_length(features_BF) - self.center_F) @ self.basis_FD
        within_BD = reduced_BD @ self.within_DD
        to_taxa_BT = self._squared_lengths - np.float32(2) * (within_BD @ self.mean_TD.T)
        to_nearest_B = to_taxa_BT.min(axis=1) + (within_BD**2).sum(axis=1)
        return np.asarray(to_nearest_B - ((reduced_BD * self.whole_D) ** 2).sum(axis=1), dtype=np.float64)

    @cached_property
    def _squared_lengths(self) -> npt.NDArray[np.float32]:
        """Squared length of each mean; cached, since it takes longer than everything else."""
        return np.asarray((self.mean_TD**2).sum(axis=1))


class PlantHead(msgspec.Struct, frozen=True):
    """A logistic regression that tells plants from everything else."""

    weight_F: npt.NDArray[np.float32]
    """Weights of the features of length 1."""
    weight_confidence: float
    """Weight of the log-odds of the likeliest taxon."""
    weight_distance: float
    """Weight of the relative distance."""
    bias: float

    def scores(self, features_BF: Floats, confidence_B: Floats, distance_B: Floats) -> npt.NDArray[np.float64]:
        """Probability that each picture shows a plant, in [0, 1]; shape (num_pictures,)."""
        odds_B = (
            unit_length(features_BF) @ self.weight_F
            + self.weight_confidence * log_odds(confidence_B)
            + self.weight_distance * np.asarray(distance_B, dtype=np.float64)
            + self.bias
        )
        return np.asarray(1 / (1 + np.exp(-np.clip(odds_B, -500, 500))), dtype=np.float64)


class FamiliarityTable(msgspec.Struct, frozen=True):
    """How confident and how near the pictures of known plants are; fitted on calibration pictures."""

    confidence_N: npt.NDArray[np.float64]
    """Probability of the likeliest taxon, ascending."""
    distance_N: npt.NDArray[np.float64]
    """Relative distance, ascending."""

    def scores(self, confidence_B: Floats, distance_B: Floats) -> npt.NDArray[np.float64]:
        """Gives how familiar each picture is: the mean of two ranks among the calibration pictures, in [0, 1]."""
        surer = np.searchsorted(self.confidence_N, confidence_B, side="right") / len(self.confidence_N)
        nearer = 1 - np.searchsorted(self.distance_N, distance_B, side="left") / len(self.distance_N)
        return np.asarray((surer + nearer) / 2)


def unit_length(features_BF: Floats) -> npt.NDArray[np.float32]:
    """Divides each picture's features by their length; float32, since the tables are, and twice as fast."""
    features = np.asarray(features_BF, dtype=np.float32)
    return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), _LEAST_LENGTH))


def log_odds(probability: Floats) -> npt.NDArray[np.float64]:
    """Log-odds of probabilities, kept within those of 1e-6 and 1 - 1e-6."""
    kept = np.clip(np.asarray(probability, dtype=np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(kept / (1 - kept)))
