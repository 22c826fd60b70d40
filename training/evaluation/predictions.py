"""What a network says of each picture of a manifest: all that figures need, without the probabilities of all taxa.

Letters in names: N pictures, O outputs, T taxa, R ranks.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from models.metrics import num_rivals
from models.ranking import RANKS, Rank, output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.evaluation.plants import Plants
from training.evaluation.rank_scores import RankScores, rank_scores
from training.evaluation.stored_rows import Rows, chunks


class Predictions(msgspec.Struct, frozen=True):
    """The calibrated prediction for each picture, and its label."""

    rows: npt.NDArray[np.int64]
    """Rows of the manifest, shape (N,)."""
    labels_N: npt.NDArray[np.int64]
    """Position of the labeled output."""
    taxon_labels_N: npt.NDArray[np.intp]
    """Position of the labeled taxon."""
    plants_N: Plants
    """Number of the plant that the picture shows."""
    named_N: npt.NDArray[np.intp]
    """Position of the most likely taxon."""
    confidence_N: npt.NDArray[np.float64]
    """Its probability."""
    right_N: npt.NDArray[np.float64]
    """Probability of the labeled taxon."""
    output_rivals_N: npt.NDArray[np.intp]
    """Number of other outputs that are at least as likely as the labeled one."""
    taxon_rivals_N: npt.NDArray[np.intp]
    """Number of other taxa that are at least as likely as the labeled one."""
    rank_score_NR: npt.NDArray[np.float64]
    """Probability of the best species, genus and family, as in `RankScores`."""
    rank_right_NR: npt.NDArray[np.bool_]
    """Whether each of these is the name of the labeled taxon."""

    @property
    def hits(self) -> npt.NDArray[np.bool_]:
        """Whether the most likely taxon is the labeled one."""
        return np.asarray(self.named_N == self.taxon_labels_N)

    def top_k_hits(self, k: int) -> npt.NDArray[np.bool_]:
        """Whether the labeled taxon is among the k most likely; ties count as misses."""
        return np.asarray(self.taxon_rivals_N < k)

    @property
    def rank_scores(self) -> dict[Rank, RankScores]:
        """The best name of each rank."""
        return {
            rank: RankScores(self.rank_score_NR[:, index], self.rank_right_NR[:, index])
            for index, rank in enumerate(RANKS)
        }

    def subset(self, chosen: npt.NDArray[np.bool_]) -> "Predictions":
        """Returns the predictions for some of the pictures."""
        return Predictions(*(getattr(self, field)[chosen] for field in self.__struct_fields__))


def calibrated_predictions(
    logits: Rows,
    labels: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    taxonomy: Taxonomy,
    temperature: float,
    *,
    plants: Plants | None = None,
) -> Predictions:
    """Converts logits to probabilities with the functions that the service uses, a few pictures at a time.

    Args:
        logits: Shape (num_pictures, num_outputs).
        labels: Position of each picture's output.
        rows: Rows of the manifest.
        taxonomy: Gives the taxon of each output.
        temperature: Divides the logits.
        plants: The plant of each picture; default: every picture shows another plant.
    """
    found = [_predict(logits[part], labels[part], taxonomy, temperature) for part in chunks(*logits.shape)]
    plants = np.arange(len(rows)) if plants is None else plants
    columns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Predictions(rows, labels, taxonomy.taxon_of_output[labels], plants, *columns)


def _predict(
    logits_NO: npt.NDArray[np.float32], labels_N: npt.NDArray[np.int64], taxonomy: Taxonomy, temperature: float
) -> tuple[npt.NDArray[Any], ...]:
    """Returns the last fields of `Predictions`, in their order."""
    outputs_NO = output_probabilities(logits_NO, temperature)
    taxa_NT, taxa_N = taxon_probabilities(outputs_NO, taxonomy), taxonomy.taxon_of_output[labels_N]
    ranks = rank_scores(taxa_NT, taxa_N, taxonomy)
    return (
        taxa_NT.argmax(axis=1),
        taxa_NT.max(axis=1),
        taxa_NT[np.arange(len(taxa_N)), taxa_N],
        num_rivals(outputs_NO, labels_N),
        num_rivals(taxa_NT, taxa_N),
        np.stack([ranks[rank].score_N for rank in RANKS], axis=1),
        np.stack([ranks[rank].right_N for rank in RANKS], axis=1),
    )
