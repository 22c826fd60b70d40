"""Finds training pictures whose label is probably wrong: features of other plants contradict it.

A network has learned its training pictures with their labels, so its own answers cannot judge them. Its features can:
half of the plants of each taxon fit a linear classifier, which judges the other half, and the other way round. The
classifier is the discriminant analysis behind the table of distances (`training/fit/heads.py`): the taxon with
the nearest mean under one shared covariance. All taxa count as equally likely, so that no plant is suspected for being
rare.

The rule is that of confident learning (Northcutt et al. 2021, arXiv 1911.00068). A taxon's self-confidence is the mean
probability of the label over the pictures with that label. A picture is suspected if another taxon is the most likely
one, with at least the self-confidence of that taxon, and the label has less than its own. Taxa that resemble each other
have a low one, taxa that are never mistaken a high one, so no fixed probability would suit both.

The network learned its features from the wrong labels too, so the list is a help and no proof.

Letters in names: N pictures, P plants, F features, T taxa.
"""

from typing import Final

import numpy as np
from msgspec.structs import replace

from models.calibration import FeatureTable, unit_length
from models.errors import DataError
from models.metrics import Whole
from models.outputs import ComputedRows, Outputs, Plants, Predictions
from models.ranking import Floats
from models.scoring import AnswerModel
from models.taxonomy import Output, Taxonomy
from models.text_table import as_csv
from training.dataset.manifest import Manifest
from training.fit.heads import fit_features
from training.fit.names import fit_temperature

COLUMNS: Final = ("path", "taxon_id", "suggested_taxon_id", "score", "suggested_score", "name", "suggested_name")
_NOT_JUDGED: Final = -1


def judge_labels(trained: Outputs, taxonomy: Taxonomy) -> Predictions:
    """Predicts the taxon of each training picture by a classifier that was fitted without its plant.

    Taxa with pictures of only one plant are left out: nothing could speak for their label.

    Raises:
        DataError: Fewer than two taxa remain.
    """
    taxa_N = taxonomy.taxon_of_output[trained.labels]
    fold_N = two_folds(trained.plants, taxa_N)
    rows = np.flatnonzero(fold_N != _NOT_JUDGED)
    judged_T = np.unique(taxa_N[rows])
    if len(judged_T) < 2:
        raise DataError(
            "labels cannot be judged, since too few taxa have training pictures of several plants",
            value=len(judged_T),
            limit="at least 2",
            remedy="add pictures of other plants, or leave out --suspects",
        )
    tables: list[FeatureTable] = []
    for fold in (0, 1):
        others = np.flatnonzero(fold_N == 1 - fold)
        tables.append(fit_features(trained.choose(others).features, taxa_N[others], taxonomy.genera))

    def read(chosen: slice | Whole) -> Floats:
        """Log-likelihoods but for a constant; minus infinity for taxa that are left out."""
        some = rows[chosen]
        some_NF = unit_length(trained.features[some])
        logits_NT = np.full((len(some), len(taxonomy.taxa)), -np.inf, np.float32)
        for fold, table in enumerate(tables):
            own = np.flatnonzero(fold_N[some] == fold)
            whitened = (some_NF[own] - table.center_F) @ table.basis_FD @ table.within_DD
            logits_NT[np.ix_(own, judged_T)] = whitened @ table.mean_TD.T - (table.mean_TD**2).sum(axis=1) / 2
        return logits_NT

    each_its_output = tuple(
        Output(key=taxon.taxon_id, source="taxa", taxon_id=taxon.taxon_id) for taxon in taxonomy.taxa
    )
    by_taxon = replace(taxonomy, outputs=each_its_output)
    judged = Outputs(
        ComputedRows((len(rows), len(taxonomy.taxa)), read),
        labels=taxa_N[rows],
        rows=trained.rows[rows],
        plants=trained.plants[rows],
    )
    return judged.score(AnswerModel(by_taxon, fit_temperature(judged, by_taxon)))


def two_folds(plants_N: Plants, taxa_N: Whole) -> Whole:
    """Deals the plants of each taxon to the folds 0 and 1, in random order with a fixed seed.

    Returns the fold of each picture; -1 for the pictures of a taxon that is not in both.
    """
    _, first, plant_N = np.unique(plants_N, return_index=True, return_inverse=True)
    by_taxon = np.lexsort((np.random.default_rng(0).permutation(len(first)), taxa_N[first]))
    fold_P = np.empty(len(first), dtype=np.int64)
    fold_P[by_taxon] = np.arange(len(first)) % 2
    fold_N = fold_P[plant_N]
    in_both = np.intersect1d(taxa_N[fold_N == 0], taxa_N[fold_N == 1])
    return np.where(np.isin(taxa_N, in_both), fold_N, _NOT_JUDGED)


def suspects_of(found: Predictions) -> Predictions:
    """Returns the pictures that are suspected, the one whose label is contradicted most first."""
    labels_N = found.taxon_labels_N
    named_N = found.named_N
    sum_T = np.bincount(labels_N, found.right_N)
    count_T = np.bincount(labels_N)
    typical_T = sum_T / count_T.clip(1)
    suspected = ~found.hits & (found.confidence_N >= typical_T[named_N]) & (found.right_N < typical_T[labels_N])
    chosen = np.flatnonzero(suspected)
    return found.subset(chosen[np.argsort((found.right_N - found.confidence_N)[chosen], kind="stable")])


def suspects_table(suspects: Predictions, manifest: Manifest) -> bytes:
    """Writes a CSV line for each suspect: its file, and id, score and name of the label and of the suggestion."""
    taxa = manifest.taxonomy.taxa
    columns = suspects.rows, suspects.taxon_labels_N, suspects.named_N, suspects.right_N, suspects.confidence_N
    rows = []
    for row, label, named, score, suggested in zip(*columns, strict=True):
        right = taxa[label]
        other = taxa[named]
        scores = f"{score:.6f}", f"{suggested:.6f}"
        names = right.scientific_name, other.scientific_name
        rows.append((manifest.name(int(row)), right.taxon_id, other.taxon_id, *scores, *names))
    return as_csv(COLUMNS, rows)
