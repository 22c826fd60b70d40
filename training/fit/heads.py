"""Fits what tells known plants from other plants and from other things: distances, familiarity and the heads.

The tables of distances and of familiarity need pictures of plants alone: each calibration plant is also judged as if
the bundle did not know its taxon.

The plant head, a logistic regression (`LogisticHead` in `models/calibration.py`), is fitted on validation plants and
pictures without a plant, the known head on the same plants and on plants that the network does not know. Training
pictures would not do: the network has learned them, and each lies near the mean of its taxon as it is a part of that
mean. How strongly the weights are penalized, and how well they separate, comes from cross-validation: of each fifth of
both kinds the scores are those of a regression fitted without it. The cutoff of the plant head is where 99 % of the
pictures without a plant are stopped, but at least 0.5, and never so high that it stops more than 5 % of the plants.
Where the two kinds are far apart, plants of an unknown age or species, which lie between them, stay plants.

Letters in names: N plants, M pictures without a plant, F features, D dimensions after PCA, T taxa, G genera, I inputs
of the head.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import astuple, replace
from scipy.optimize import minimize
from scipy.special import expit

from models.arrays import Columns, Doubles
from models.calibration import Calibration, FeatureTable, LogisticHead, log_odds, unit_length
from models.figures import auroc, cutoff
from models.metrics import Whole
from models.outputs import Outputs, Predictions, Rows, chunks
from models.ranking import Floats
from models.taxonomy import Groups

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
MOST_PLANTS: Final = 5000
"""Plants that are used at most; more take minutes and hardly change the weights."""


def fit_features(features: Rows, labels_N: Whole, genera: Groups | None = None) -> FeatureTable:
    """Fits the relative Mahalanobis++ distance (arXiv 2505.18032) to training pictures, which it reads in turn.

    PCA keeps one dimension less than there are taxa, at most 256. Late in training the features of training pictures
    lie almost entirely in that subspace (neural collapse, Papyan et al. 2020), and those of other pictures do not: in
    any further dimension every unseen picture, of a plant or not, is many deviations away from the whole, and the
    relative distance orders them wrongly. With 256 dimensions, the demonstration network of 17 taxa found things more
    familiar than unseen plants; with 16 it told them apart.

    The means of N pictures of T taxa take up T degrees of freedom, so the covariance within taxa is the sum over the
    pictures divided by N - T. Means of few pictures are drawn towards their genus; by default none is known.

    The pictures are preprocessed as in the service. The labels are positions of taxa.
    """
    classes, index_N, counts_T = np.unique(labels_N, return_inverse=True, return_counts=True)
    sum_TF = np.zeros((len(classes), features.shape[1]))
    square_FF = np.zeros(2 * features.shape[1:])
    for part in chunks(*features.shape):
        unit_NF = unit_length(features[part]).astype(np.float64)
        np.add.at(sum_TF, index_N[part], unit_NF)
        square_FF += unit_NF.T @ unit_NF
    center_F = sum_TF.sum(axis=0) / len(labels_N)
    total_FF = square_FF - len(labels_N) * np.outer(center_F, center_F)
    variance_F, directions_FF = np.linalg.eigh(total_FF / len(labels_N))  # ascending
    num_kept = min(max(len(classes) - 1, 1), MOST_DIMENSIONS)
    basis_FD = directions_FF[:, -num_kept:]
    variance_D = np.maximum(variance_F[-num_kept:], _LEAST_VARIANCE)
    mean_TD = (sum_TF / counts_T[:, None] - center_F) @ basis_FD
    within_DD = basis_FD.T @ total_FF @ basis_FD - (mean_TD.T * counts_T) @ mean_TD
    within_D, vectors_DD = np.linalg.eigh(within_DD / max(len(labels_N) - len(classes), 1))
    whitening_DD = vectors_DD / np.sqrt(within_D.clip(0) + max(_SHRINKAGE * within_D.clip(0).mean(), _LEAST_VARIANCE))
    mean_TD = mean_TD @ whitening_DD
    if genera is not None:
        known_T = np.array([genera.names[genus] != "" for genus in genera.of_taxon])[classes]
        genus_T = np.where(known_T, genera.of_taxon[classes], -1 - classes)
        mean_TD = towards_genera(mean_TD, counts_T, genus_T)
    return FeatureTable(
        center_F=center_F.astype(np.float32),
        basis_FD=basis_FD.astype(np.float32),
        whole_D=(1 / np.sqrt(variance_D)).astype(np.float32),
        within_DD=whitening_DD.astype(np.float32),
        mean_TD=mean_TD.astype(np.float32),
    )


def towards_genera(mean_TD: Floats, counts_T: Whole, genus_T: Whole) -> Floats:
    """Returns the means of taxa, each drawn towards its genus, the more the fewer pictures it rests on.

    This is the empirical Bayes estimate (Efron and Morris 1975) where pictures vary by 1 around their taxon, and taxa
    by one variance around their genus. That variance comes from the taxa of genera with several (method of moments).
    A taxon that is alone in its genus stays where it is.
    """
    _, index_T, size_G = np.unique(genus_T, return_inverse=True, return_counts=True)
    noise_T = 1 / counts_T

    def of_genus(weight_T: Floats) -> Floats:
        sum_GD = np.zeros((len(size_G), mean_TD.shape[1]))
        np.add.at(sum_GD, index_T, mean_TD * weight_T[:, None])
        return (sum_GD / np.bincount(index_T, weight_T)[:, None])[index_T]

    spread_T = ((mean_TD - of_genus(np.ones(len(mean_TD)))) ** 2).mean(axis=1)
    explained = float((noise_T * (1 - 1 / size_G[index_T])).sum())
    variance = max((float(spread_T.sum()) - explained) / max(len(mean_TD) - len(size_G), 1), 1e-9)
    own_T = (variance / (variance + noise_T))[:, None]
    return np.asarray(own_T * mean_TD + (1 - own_T) * of_genus(1 / (variance + noise_T)))


def distances_to_others(table: FeatureTable, taxa_T: Whole, features_NF: Floats, taxon_N: Whole) -> Doubles:
    """Returns the relative distance of each picture as if the table, of two taxa or more, did not hold its taxon.

    `taxa_T` are the positions of the table's taxa, ascending, and `taxon_N` those of the pictures' taxa.
    """
    distance_N = np.empty(len(taxon_N))
    for taxon in np.unique(taxon_N):
        own_N = taxon_N == taxon
        others = replace(table, mean_TD=table.mean_TD[taxa_T != taxon])
        distance_N[own_N] = others.distances(features_NF[own_N])
    return distance_N


def familiar_cutoff(known_N: Floats, left_out_N: Floats) -> float:
    """Returns the least familiarity of a plant that may be named.

    It stops 90 % of the plants whose taxon was left out, but never more than 15 % of the known ones, and is never lower
    than the cutoff that keeps 95 % of these. With one taxon only, no plant can be left out.
    """
    if not len(left_out_N):
        return cutoff(known_N)
    most = np.quantile(known_N, 1 - LEAST_KEPT, method="lower")
    return float(np.clip(left_out_cutoff(left_out_N), cutoff(known_N), most))


def left_out_cutoff(left_out_N: Floats) -> float:
    """Returns the least familiarity that stops 90 % of the plants whose taxon was left out."""
    return float(np.nextafter(np.quantile(left_out_N, 1 - MOST_LEFT_OUT, method="higher"), np.inf))


class HeadInputs(Columns, frozen=True):
    """What the regression knows of some pictures."""

    features: Floats
    """Pooled features, shape (num_pictures, num_features)."""
    confidence: Doubles
    """Calibrated probability of the most likely taxon."""
    distance: Doubles
    """Relative Mahalanobis++ distance."""

    @classmethod
    def of(cls, found: Predictions, outputs: Outputs) -> "HeadInputs":
        """Takes them from the outputs for some pictures, and from their scores, which have a distance."""
        assert found.distance_N is not None
        return cls(outputs.features[:], found.confidence_N, found.distance_N)

    def __len__(self) -> int:
        return len(self.confidence)

    def judge(self, found: Predictions, tables: Calibration) -> Predictions:
        """Returns the scores with how sure it is that each picture shows a plant, and one that the network knows."""
        parts = chunks(*self.features.shape)
        judged = [tables.scores(*astuple(self.subset(part)))[:2] for part in parts]
        plant_N, familiar_N = (None if each[0] is None else np.concatenate(each) for each in zip(*judged, strict=True))
        return replace(found, plant_N=plant_N, familiar_N=familiar_N)

    def scores(self, head: LogisticHead) -> Floats:
        """Returns the score of each picture."""
        parts = chunks(*self.features.shape)
        return np.concatenate(
            [head.scores(self.features[part], self.confidence[part], self.distance[part]) for part in parts]
        )


class FittedHead(msgspec.Struct, frozen=True):
    """The regression, and what cross-validation says of it."""

    head: LogisticHead
    cutoff: float
    """Least score of a plant."""
    auroc: float
    """Chance that a plant scores higher than another picture, if both were left out of the fit."""
    other_M: Floats
    """Score of each of the others by the fit that left it out."""


def fit_head(plants: HeadInputs, negatives: HeadInputs, groups_M: Whole, sources_M: Whole | None = None) -> FittedHead:
    """Fits the regression with the penalty that separates best.

    `plants` are at least two that the network was not trained on. `negatives` are pictures without a plant, or plants
    that the network does not know. A group of them, of at least two, is left out as a whole. A source weighs as the
    square root of its pictures, so that a large one does not decide alone what the others look like.
    """
    random = np.random.default_rng(0)
    plants = plants.subset(random.permutation(len(plants))[:MOST_PLANTS])
    groups, group_M = np.unique(groups_M, return_inverse=True)
    # Plants and groups are dealt to at most five folds, in random order with a fixed seed.
    num_folds = min(_NUM_FOLDS, len(groups), len(plants))
    fold_N = np.arange(len(plants)) % num_folds
    fold_M = (np.random.default_rng(0).permutation(len(groups)) % num_folds)[group_M]
    weight_M: Floats = np.ones(len(negatives))
    if sources_M is not None:
        weight_M = 1 / np.sqrt(np.bincount(sources_M)[sources_M])
    # AUROC, scores of the plants and of the negatives by the fits that left them out, strength
    tried: list[tuple[float, Floats, Floats, float]] = []
    for strength in _STRENGTHS:
        plant_N: Floats = np.zeros(len(plants))
        other_M: Floats = np.zeros(len(negatives))
        separation = 0.0
        for fold in range(num_folds):
            out_N = fold_N == fold
            out_M = fold_M == fold
            head = fit_logistic(plants.subset(~out_N), negatives.subset(~out_M), strength, weight_M[~out_M])
            plant_N[out_N] = plants.subset(out_N).scores(head)
            other_M[out_M] = negatives.subset(out_M).scores(head)
            separation += float(auroc(plant_N[out_N], other_M[out_M]) * out_M.mean())
        tried.append((separation, plant_N, other_M, strength))
    separation, plant_N, other_M, strength = max(tried, key=lambda each: each[0])
    stops = max(float(np.quantile(other_M, 1 - _MOST_ACCEPTED)), _LIKELIER_A_PLANT)
    least = min(stops, cutoff(plant_N))
    return FittedHead(fit_logistic(plants, negatives, strength, weight_M), least, separation, other_M)


def fit_logistic(plants: HeadInputs, negatives: HeadInputs, strength: float, weight_M: Floats) -> LogisticHead:
    """Fits a logistic regression by L-BFGS; the squared weights are penalized, but not the bias.

    All plants together weigh as much as all other pictures, which weigh as `weight_M` says.
    """
    kinds = [
        np.column_stack([unit_length(each.features), log_odds(each.confidence), each.distance])
        for each in (plants, negatives)
    ]
    inputs_NI = np.concatenate(kinds)
    counts = [len(plants), len(negatives)]
    total = len(inputs_NI)
    sign_N = np.repeat([1.0, -1.0], counts)
    weight_N = np.concatenate([np.full(len(plants), total / 2 / len(plants)), total / 2 * weight_M / weight_M.sum()])
    offset_I = inputs_NI.mean(axis=0)
    scale_I = np.ones_like(offset_I)
    scale_I[-2:] = 2 * inputs_NI[:, -2:].std(axis=0) + 1e-9  # brings the two scores to the scale of the features
    scaled_NI = (inputs_NI - offset_I) / scale_I

    def loss(parameters: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        weights_I = parameters[:-1]
        bias = parameters[-1]
        margin_N = sign_N * (scaled_NI @ weights_I + bias)
        pull_N = -weight_N * sign_N * expit(-margin_N)
        value = weights_I @ weights_I / 2 + strength * (weight_N * np.logaddexp(0, -margin_N)).sum()
        gradient_I = weights_I + strength * (scaled_NI.T @ pull_N)
        return float(value), np.append(gradient_I, strength * pull_N.sum())

    found = minimize(loss, np.zeros(len(offset_I) + 1), jac=True, method="L-BFGS-B").x
    weight_I = found[:-1] / scale_I
    return LogisticHead(
        weight_F=weight_I[:-2].astype(np.float32),
        weight_confidence=float(weight_I[-2]),
        weight_distance=float(weight_I[-1]),
        bias=float(found[-1] - weight_I @ offset_I),
    )
