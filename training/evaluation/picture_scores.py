"""What the service computes of a single picture, for many pictures: probabilities, plant score, familiarity, verdict.

`models/answer.py` answers one question at a time, which takes minutes for 75,000 pictures. Here the same formulas run
over a few hundred kilobytes at a time. A distance comes from a product of matrices, so it may differ in its last bit.

Letters in names: N pictures.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel
from models.calibration import FeatureTable, PlantHead
from models.ranking import RANKS, VerdictRank
from training.evaluation.predictions import Predictions, calibrated_predictions
from training.evaluation.rank_scores import named
from training.evaluation.separation import Scores
from training.evaluation.stored_rows import Outputs, Rows, chunks


class PictureScores(msgspec.Struct, frozen=True):
    """The scores of some pictures, each alone."""

    found: Predictions
    plant_N: Scores | None
    """Plant scores; None without a plant head."""
    familiar_N: Scores | None
    """None without a table of familiarity."""


class Verdicts(msgspec.Struct, frozen=True):
    """The verdict on each picture alone."""

    rank_N: npt.NDArray[np.str_]
    """A `VerdictRank`."""
    right_N: npt.NDArray[np.bool_]
    """Whether the verdict names the labeled taxon, its genus or its family; a verdict without a name is not right."""

    def count(self, rank: VerdictRank) -> int:
        """Returns the number of verdicts of this rank."""
        return int((self.rank_N == rank).sum())


def score_pictures(outputs: Outputs, labels_N: npt.NDArray[np.int64], model: AnswerModel) -> PictureScores:
    """Computes the scores of each picture.

    Args:
        outputs: Logits and features.
        labels_N: Position of the labeled output; any for pictures without a label.
        model: Taxonomy, temperature and tables.
    """
    rows, tables = np.arange(len(labels_N)), model.calibration
    found = calibrated_predictions(outputs.logits, labels_N, rows, model.taxonomy, model.temperature)
    if tables.features is None:
        return PictureScores(found, None, None)
    distance_N, head, known = distances(tables.features, outputs.features), tables.plant_head, tables.familiarity
    return PictureScores(
        found,
        plant_N=None if head is None else plant_scores(head, outputs.features, found.confidence_N, distance_N),
        familiar_N=None if known is None else known.scores(found.confidence_N, distance_N),
    )


def verdicts_of(scores: PictureScores, model: AnswerModel) -> Verdicts:
    """Finds the verdict on each picture, by the rules of `models/answer.py` and `models/ranking.py`."""
    num_pictures, cutoffs = len(scores.found.rows), model.calibration.cutoffs
    rank_N, right_N = np.full(num_pictures, "uncertain", dtype="<U12"), np.zeros(num_pictures, dtype=bool)
    open_N = np.ones(num_pictures, dtype=bool)
    if cutoffs is not None and scores.plant_N is not None:
        open_N &= scores.plant_N >= cutoffs.plant
        rank_N[~open_N] = "not_a_plant"
    if cutoffs is not None and scores.familiar_N is not None:
        open_N &= scores.familiar_N >= cutoffs.familiar
    for rank in RANKS:
        best = scores.found.rank_scores[rank]
        named_N = open_N & named(best.score_N, getattr(model.thresholds, rank))
        rank_N[named_N], right_N[named_N] = rank, best.right_N[named_N]
        open_N &= ~named_N
    return Verdicts(rank_N, right_N)


def distances(table: FeatureTable, features: Rows) -> Scores:
    """Returns the relative Mahalanobis++ distance of each picture, a few at a time."""
    return np.concatenate([table.distances(features[part]) for part in chunks(len(features), _width(table, features))])


def plant_scores(head: PlantHead, features: Rows, confidence_N: Scores, distance_N: Scores) -> Scores:
    """Returns the plant score of each picture, a few at a time."""
    parts = chunks(*features.shape)
    return np.concatenate([head.scores(features[part], confidence_N[part], distance_N[part]) for part in parts])


def _width(table: FeatureTable, features: Rows) -> int:
    return max(features.shape[1], len(table.mean_TD))
