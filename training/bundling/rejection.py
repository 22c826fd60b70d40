"""Fits what tells known plants from other plants and from other things: distances, familiarity and the plant head.

The tables of distances and of familiarity need pictures of plants alone: each calibration plant is also judged as if
the bundle did not know its taxon.

The plant head, a logistic regression (`PlantHead` in `models/calibration.py`), is fitted on training pictures and
pictures without a plant. How strongly its weights are penalized, and how well it separates, comes from
cross-validation: of each fifth of the pictures without a plant, the scores are those of a regression fitted without it.
Its cutoff is where 99 % of these are stopped, but at least 0.5, and never so high that it stops more than 5 % of the
calibration plants, which it was not fitted on. Where the two kinds are far apart, plants of an unknown age or species,
which lie between them, stay plants.

Letters in names: N plants, M pictures without a plant, F features, D dimensions after PCA, T taxa, I inputs
of the head.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from models.calibration import FamiliarityTable, FeatureTable, PlantHead, log_odds, unit_length
from models.ranking import Floats
from training.evaluation.split_metrics import Scores, auroc, cutoff

MOST_DIMENSIONS: Final = 256
MOST_LEFT_OUT: Final = 0.10
"""Share of the plants of left-out taxa that may pass for known ones."""
LEAST_KEPT: Final = 0.85
"""Share of the known plants that stay above the cutoff, even if more plants of left-out taxa then pass."""
_SHRINKAGE: Final = 0.05
"""Share of the mean variance that is added to each variance within taxa, so that few pictures give no zeros."""
_LEAST_VARIANCE: Final = 1e-6
"""Smaller variances, of features of length 1, are raised to this: equal pictures must not give infinite scales."""
_STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0)
"""Weights of the data against the squared weights to choose from, named C in scikit-learn."""
_NUM_FOLDS: Final = 5
_MOST_ACCEPTED: Final = 0.01
"""Share of the pictures without a plant that may reach the cutoff."""
_LIKELIER_A_PLANT: Final = 0.5
_MOST_PLANTS: Final = 5000
"""Training pictures that are used at most; more take minutes and hardly change the weights."""


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


class HeadInputs(msgspec.Struct, frozen=True):
    """What the regression knows of some pictures."""

    features: Floats
    """Pooled features, shape (num_pictures, num_features)."""
    confidence: Floats
    """Calibrated probability of the most likely taxon."""
    distance: Floats
    """Relative Mahalanobis++ distance."""

    def __len__(self) -> int:
        return len(self.confidence)

    def subset(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "HeadInputs":
        """Returns some of the pictures."""
        return HeadInputs(self.features[chosen], self.confidence[chosen], self.distance[chosen])

    def scores(self, head: PlantHead) -> npt.NDArray[np.float64]:
        """Returns the plant score of each picture."""
        return head.scores(self.features, self.confidence, self.distance)


class FittedHead(msgspec.Struct, frozen=True):
    """The regression, and what cross-validation says of it."""

    head: PlantHead
    cutoff: float
    """Least score of a plant."""
    auroc: float
    """Chance that a calibration plant scores higher than a picture without a plant that was left out of the fit."""
    accepted_M: npt.NDArray[np.bool_]
    """Whether each picture without a plant reaches the cutoff by the fit that left it out."""


def fit_plant_head(
    training: HeadInputs, calibration: HeadInputs, negatives: HeadInputs, groups_M: npt.NDArray[np.intp]
) -> FittedHead:
    """Fits the regression with the penalty that separates best.

    Args:
        training: Training pictures of plants.
        calibration: One picture of each calibration plant.
        negatives: Pictures without a plant.
        groups_M: Group of each of these; a group is left out as a whole. At least two groups.
    """
    random = np.random.default_rng(0)
    training = training.subset(random.permutation(len(training))[:_MOST_PLANTS])
    fold_M = _folds(groups_M)
    tried = [_cross_validate(training, calibration, negatives, fold_M, strength) for strength in _STRENGTHS]
    separation, score_M, strength = max(tried, key=lambda each: each[0])
    head = fit_logistic(training, negatives, strength)
    stops = max(float(np.quantile(score_M, 1 - _MOST_ACCEPTED)), _LIKELIER_A_PLANT)
    least = min(stops, cutoff(calibration.scores(head)))
    return FittedHead(head, least, separation, score_M >= least)


def fit_logistic(plants: HeadInputs, negatives: HeadInputs, strength: float) -> PlantHead:
    """Fits a logistic regression with a squared penalty; all plants together weigh as much as all other pictures."""
    inputs_NI = np.concatenate([_inputs(plants), _inputs(negatives)])
    is_plant_N = np.repeat([1.0, 0.0], [len(plants), len(negatives)])
    offset_I = inputs_NI.mean(axis=0)
    scale_I = np.ones_like(offset_I)
    scale_I[-2:] = 2 * inputs_NI[:, -2:].std(axis=0) + 1e-9  # brings the two scores to the scale of the features
    scaled_I, bias = _minimize((inputs_NI - offset_I) / scale_I, is_plant_N, strength)
    weight_I = scaled_I / scale_I
    return PlantHead(
        weight_F=weight_I[:-2].astype(np.float32),
        weight_confidence=float(weight_I[-2]),
        weight_distance=float(weight_I[-1]),
        bias=float(bias - weight_I @ offset_I),
    )


def _cross_validate(
    training: HeadInputs,
    calibration: HeadInputs,
    negatives: HeadInputs,
    fold_M: npt.NDArray[np.intp],
    strength: float,
) -> tuple[float, npt.NDArray[np.float64], float]:
    """Returns the AUROC, the score of each negative by the fit that left it out, and the strength."""
    score_M, separation = np.zeros(len(negatives)), 0.0
    for fold in np.unique(fold_M):
        out_M = fold_M == fold
        head = fit_logistic(training, negatives.subset(~out_M), strength)
        score_M[out_M] = negatives.subset(out_M).scores(head)
        separation += auroc(calibration.scores(head), score_M[out_M]) * out_M.mean()
    return float(separation), score_M, strength


def _folds(groups_M: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Deals the groups to at most five folds, in random order with a fixed seed."""
    groups, index_M = np.unique(groups_M, return_inverse=True)
    fold_of_group = np.random.default_rng(0).permutation(len(groups)) % _NUM_FOLDS
    return np.asarray(fold_of_group[index_M], dtype=np.intp)


def _inputs(pictures: HeadInputs) -> npt.NDArray[np.float64]:
    return np.column_stack([unit_length(pictures.features), log_odds(pictures.confidence), pictures.distance])


def _minimize(
    inputs_NI: npt.NDArray[np.float64], is_plant_N: npt.NDArray[np.float64], strength: float
) -> tuple[npt.NDArray[np.float64], float]:
    """Minimizes the penalized log loss with L-BFGS; returns the weights and the bias, which is not penalized."""
    weight_N = np.where(is_plant_N == 1, 0.5 / is_plant_N.mean(), 0.5 / (1 - is_plant_N).mean())
    sign_N = 2 * is_plant_N - 1

    def loss(parameters: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        weights_I, bias = parameters[:-1], parameters[-1]
        margin_N = sign_N * (inputs_NI @ weights_I + bias)
        pull_N = -weight_N * sign_N / (1 + np.exp(np.clip(margin_N, -500, 500)))
        value = weights_I @ weights_I / 2 + strength * (weight_N * np.logaddexp(0, -margin_N)).sum()
        gradient_I = weights_I + strength * (inputs_NI.T @ pull_N)
        return float(value), np.append(gradient_I, strength * pull_N.sum())

    found = minimize(loss, np.zeros(inputs_NI.shape[1] + 1), jac=True, method="L-BFGS-B")
    return found.x[:-1], float(found.x[-1])
