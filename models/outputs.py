"""What a network says of many pictures, and what the service would say of each: all that figures need.

Logits and features may lie on disk, and a few rows are read at a time: logits of 75,000 pictures and 5,337 outputs take
1.6 GB. The scores are those of all pictures, without the probabilities of all taxa.

Letters in names: N pictures, O outputs, T taxa, R ranks.
"""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec
import numpy as np
from msgspec.structs import asdict, force_setattr

from models.arrays import Columns, Flags, Integers
from models.metrics import Whole, num_rivals
from models.ranking import RANKS, Floats, Rank, name_of_taxon
from models.scoring import AnswerModel, Decisions, Scores, score

_VALUES_AT_ONCE: Final = 2**18  # 2 MB as float64, which a processor's cache holds; larger chunks are slower
_NONE: Final = np.zeros(0, np.int64)
NO_NAME: Final = -1.0
"""Score of a picture without a name of the rank, below every threshold."""

Plants = Integers
"""Number of each picture's plant, 0 or more; shape (num_pictures,)."""


class Rows(Protocol):
    """Rows of float32, in memory or on disk; indexing reads them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | Whole, /) -> Floats: ...


class ComputedRows:
    """Rows that are computed when they are read; `read` takes what an index takes."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[slice | Whole], Floats]) -> None:
        self.shape = shape
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: slice | Whole, /) -> Floats:
        return self._read(chosen)


def chosen_rows(rows: Rows, positions: Whole) -> Rows:
    """Some of the rows, in this order; they are read only when they are indexed."""
    return ComputedRows((len(positions), *rows.shape[1:]), lambda chosen: rows[positions[chosen]])


def chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Yields all rows in turn, so many at once that arrays of this width stay small."""
    step = max(_VALUES_AT_ONCE // max(width, 1), 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


class Outputs(msgspec.Struct, frozen=True, eq=False):
    """What a network file says of some pictures, and what they show."""

    logits: Rows
    """A row for each picture, not calibrated."""
    features: Rows = np.zeros((0, 0), np.float32)
    """Pooled features of the same pictures; of no width where they do not matter."""
    labels: Whole = _NONE
    """Position of each picture's output; by default any, for pictures without a label."""
    rows: Whole = _NONE
    """Where each picture stands in its manifest or list; by default in turn."""
    plants: Plants = _NONE
    """The plant that each shows; by default another one."""

    def __post_init__(self) -> None:
        every = np.arange(len(self.logits))
        for name, values in (("labels", np.zeros_like(every)), ("rows", every), ("plants", every)):
            if not len(getattr(self, name)):
                force_setattr(self, name, values)

    def choose(self, positions: Whole) -> "Outputs":
        """Returns some of the pictures, without reading them."""
        return Outputs(
            chosen_rows(self.logits, positions),
            chosen_rows(self.features, positions),
            self.labels[positions],
            self.rows[positions],
            self.plants[positions],
        )

    def score(self, model: AnswerModel) -> "Predictions":
        """Scores pictures as the service does, each alone and a few at a time.

        Without features no picture has a plant score, a familiarity or a distance, whatever tables the model has.
        """
        taxonomy = model.taxonomy
        features: Rows = self.features
        if not features.shape[1]:
            features = self.logits
            model = AnswerModel(taxonomy, model.temperature)
        names_TR = np.stack(list(name_of_taxon(taxonomy).values()), axis=1)
        found = []
        for part in chunks(len(self.logits), max(self.logits.shape[1], features.shape[1])):
            logits_NO = self.logits[part]
            labels_N = self.labels[part]
            taxa_NT, scores = score(logits_NO, features[part], model)
            taxa_N = taxonomy.taxon_of_output[labels_N]
            found.append(
                Predictions(
                    **asdict(scores),
                    rows=self.rows[part],
                    labels_N=labels_N,
                    taxon_labels_N=taxa_N,
                    plants_N=self.plants[part],
                    right_N=taxa_NT[np.arange(len(taxa_N)), taxa_N],
                    output_rivals_N=num_rivals(logits_NO, labels_N),
                    taxon_rivals_N=num_rivals(taxa_NT, taxa_N),
                    rank_right_NR=(scores.position_NR == names_TR[taxa_N]) & (scores.score_NR >= 0),
                )
            )
        return Predictions.join(found)


class RankScores(Columns, frozen=True):
    """The best name of one rank, for each picture."""

    score_N: Floats
    """Its probability, in [0, 1], or -1 if there is no name of this rank, or it leaves out a grave harm."""
    right_N: Flags
    """Whether it is the name of the labeled taxon."""


class Predictions(Scores, frozen=True):
    """The scores of each picture, and its label."""

    rows: Whole
    """Rows of the manifest, shape (N,)."""
    labels_N: Whole
    """Position of the labeled output."""
    taxon_labels_N: Whole
    """Position of the labeled taxon."""
    plants_N: Plants
    """Number of the plant that the picture shows."""
    right_N: Floats
    """Probability of the labeled taxon."""
    output_rivals_N: Whole
    """Number of other outputs that are at least as likely as the labeled one."""
    taxon_rivals_N: Whole
    """Number of other taxa that are at least as likely as the labeled one."""
    rank_right_NR: Flags
    """Whether the most likely name of each rank is that of the labeled taxon; never if that has none."""

    @property
    def hits(self) -> Flags:
        """Whether the most likely taxon is the labeled one."""
        return np.asarray(self.named_N == self.taxon_labels_N)

    def top_k_hits(self, k: int) -> Flags:
        """Whether the labeled taxon is among the k most likely; ties count as misses."""
        return np.asarray(self.taxon_rivals_N < k)

    def right_names(self, decisions: Decisions) -> Flags:
        """Whether each verdict names the labeled taxon, its genus or its family."""
        return np.asarray(((decisions.rank_N[:, None] == np.array(RANKS)) & self.rank_right_NR).any(axis=1))

    @property
    def rank_scores(self) -> dict[Rank, RankScores]:
        """The best name of each rank."""
        score_NR = np.where(self.may_name_NR, self.score_NR, NO_NAME)
        return {rank: RankScores(score_NR[:, at], self.rank_right_NR[:, at]) for at, rank in enumerate(RANKS)}
