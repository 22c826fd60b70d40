"""What a network says of each picture of a manifest: all that figures need, without the probabilities of all taxa.

Logits and features lie on disk, and a few rows are read at a time: logits of 75,000 pictures and 5,337 outputs take
1.6 GB.

Letters in names: N pictures, O outputs, T taxa, R ranks.
"""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from msgspec.structs import asdict

from models.arrays import Columns, Flags
from models.metrics import Whole, num_rivals
from models.ranking import RANKS, Floats, Rank, name_of_taxon
from models.scoring import AnswerModel, Decisions, Scores, score
from models.session import NetworkOutput
from training.dataset.manifest import Manifest

_VALUES_AT_ONCE: Final = 2**18  # 2 MB as float64, which a processor's cache holds; larger chunks are slower
NO_NAME: Final = -1.0
"""Score of a picture without a name of the rank, below every threshold."""


class Rows(Protocol):
    """Rows of float32, in memory or on disk; indexing reads them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | Whole, /) -> Floats: ...


class StoredRows:
    """Rows in a file without a name, which the system removes as soon as this process ends, however it ends.

    By default it lies in the system's folder for temporary files, which may be in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  closed with this object
        weakref.finalize(self, self._file.close)
        self.shape: tuple[int, ...] = (0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def append(self, rows: Floats) -> None:
        """Adds rows at the end, all of one width.

        Raises:
            OSError: They could not be written, for example as the disk is full.
        """
        try:
            left = memoryview(rows.astype(np.float32, copy=False).tobytes())
            while left:  # a full disk takes a part first
                left = left[self._file.write(left) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder or tempfile.gettempdir())) from error
        self.shape = (len(self) + len(rows), rows.shape[1])

    def __getitem__(self, chosen: slice | Whole, /) -> Floats:
        """Copies rows into memory. The file is mapped for this moment only, so that pages read earlier do not stay."""
        return np.array(np.memmap(self._file, np.float32, mode="r", shape=self.shape)[chosen])


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


class Outputs(NamedTuple):
    """What a network file says of some pictures; a `NetworkOutput` is one that lies in memory."""

    logits: Rows
    """A row for each picture, not calibrated."""
    features: Rows
    """Pooled features of the same pictures."""

    def score(self, model: AnswerModel, labels: Whole | None = None) -> "Predictions":
        """Returns the scores of the pictures; labels are positions of outputs, by default any."""
        labels = np.zeros(len(self.logits), np.int64) if labels is None else labels
        return score_pictures(self.logits, labels, model, self.features)

    def choose(self, positions: Whole) -> "Outputs":
        """Returns some of the pictures, without reading them."""
        return Outputs(chosen_rows(self.logits, positions), chosen_rows(self.features, positions))


def store_outputs(batches: Iterable[NetworkOutput], folder: Path | None = None, *, with_logits: bool = True) -> Outputs:
    """Writes the outputs of a network, one batch or more, to a folder, which is made; without logits, theirs are empty.

    Raises:
        OSError: They could not be written.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    logits = StoredRows(folder)
    features = StoredRows(folder)
    for batch in batches:
        logits.append(batch.logits if with_logits else batch.logits[:, :0])
        features.append(batch.features)
    return Outputs(logits, features)


def chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Yields all rows in turn, so many at once that arrays of this width stay small."""
    step = max(_VALUES_AT_ONCE // max(width, 1), 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


Plants = npt.NDArray[np.int64]
"""Number of each picture's plant, 0 or more; shape (num_pictures,)."""


def plants_of(manifest: Manifest, rows: Whole) -> Plants:
    """Returns the plant of each of these rows."""
    codes = pc.dictionary_encode(manifest.table["group"].take(rows).combine_chunks())
    return np.asarray(codes.indices.to_numpy(), dtype=np.int64)


def weights_by_plant(plants_N: Plants) -> npt.NDArray[np.float64]:
    """Returns the weight of each picture: the pictures of a plant share a weight of 1."""
    return np.asarray(1.0 / np.bincount(plants_N)[plants_N])


def one_picture_each(plants_N: Plants, seed: int = 0) -> Whole:
    """Returns the positions of one picture of each plant, drawn with a fixed seed, in ascending order."""
    order = np.random.default_rng(seed).permutation(len(plants_N))
    _, first = np.unique(plants_N[order], return_index=True)
    return np.sort(order[first])


class RankScores(Columns, frozen=True):
    """The best name of one rank, for each picture."""

    score_N: Floats
    """Its probability, in [0, 1], or -1 if there is no name of this rank, or it leaves out a harmful genus."""
    right_N: Flags
    """Whether it is the name of the labeled taxon."""


def named(score_N: Floats, threshold: float | Floats) -> Flags:
    """Returns which pictures a verdict names at a rank; a threshold of 1 names none (`models/ranking.py`).

    The threshold may be another one for each picture.
    """
    return np.asarray((score_N >= threshold) & (np.asarray(threshold) < 1) & (score_N > 0))


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


def score_pictures(
    logits: Rows,
    labels: Whole,
    model: AnswerModel,
    features: Rows | None = None,
    *,
    rows: Whole | None = None,
    plants: Plants | None = None,
) -> Predictions:
    """Scores pictures as the service does, each alone and a few at a time.

    Without features no picture has a plant score, a familiarity or a distance, whatever tables the model has. Labels
    are positions of outputs, and rows those of the manifest. By default every picture shows another plant.
    """
    taxonomy = model.taxonomy
    width = logits.shape[1]
    if features is None:
        model = AnswerModel(taxonomy, model.temperature)
    else:
        width = max(width, features.shape[1])
    every = np.arange(len(labels))
    rows = every if rows is None else rows
    plants = every if plants is None else plants
    names_TR = np.stack(list(name_of_taxon(taxonomy).values()), axis=1)
    found = []
    for part in chunks(len(logits), width):
        logits_NO = logits[part]
        taxa_NT, scores = score(logits_NO, logits_NO if features is None else features[part], model)
        taxa_N = taxonomy.taxon_of_output[labels[part]]
        found.append(
            Predictions(
                **asdict(scores),
                rows=rows[part],
                labels_N=labels[part],
                taxon_labels_N=taxa_N,
                plants_N=plants[part],
                right_N=taxa_NT[np.arange(len(taxa_N)), taxa_N],
                output_rivals_N=num_rivals(logits_NO, labels[part]),
                taxon_rivals_N=num_rivals(taxa_NT, taxa_N),
                rank_right_NR=(scores.position_NR == names_TR[taxa_N]) & (scores.score_NR >= 0),
            )
        )
    return Predictions.join(found)
