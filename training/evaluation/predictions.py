"""What a network says of each picture of a manifest: all that figures need, without the probabilities of all taxa.

Logits and features lie on disk, and a few rows are read at a time: logits of 75,000 pictures and 5,337 outputs take
1.6 GB.

Letters in names: N pictures, O outputs, T taxa, G genera or families, R ranks.
"""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from models.metrics import Whole, num_rivals
from models.ranking import (
    RANKS,
    Floats,
    Rank,
    group_scores,
    harm_left_out,
    name_of_taxon,
    output_probabilities,
    taxon_probabilities,
)
from models.session import NetworkOutput
from models.taxonomy import Groups, Taxonomy
from training.dataset.manifest import Manifest

_VALUES_AT_ONCE: Final = 2**18  # 2 MB as float64, which a processor's cache holds; larger chunks are slower
NO_NAME: Final = -1.0
"""Score of a picture without a name of the rank, below every threshold."""


Flags = npt.NDArray[np.bool_]


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
        self.shape, self._read = shape, read

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

    def choose(self, positions: Whole) -> "Outputs":
        """Returns some of the pictures, without reading them."""
        return Outputs(chosen_rows(self.logits, positions), chosen_rows(self.features, positions))


def store_outputs(batches: Iterable[NetworkOutput], folder: Path | None = None, *, with_logits: bool = True) -> Outputs:
    """Writes the outputs of a network, one batch or more, to disk; see `StoredRows`. Without logits, theirs are empty.

    Raises:
        OSError: They could not be written.
    """
    logits, features = StoredRows(folder), StoredRows(folder)
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


def picture_weights(plants_N: Plants) -> npt.NDArray[np.float64]:
    """Returns the weight of each picture: the pictures of a plant share a weight of 1."""
    return np.asarray(1.0 / np.bincount(plants_N)[plants_N])


def one_picture_each(plants_N: Plants, seed: int = 0) -> Whole:
    """Returns the positions of one picture of each plant, drawn with a fixed seed, in ascending order."""
    order = np.random.default_rng(seed).permutation(len(plants_N))
    _, first = np.unique(plants_N[order], return_index=True)
    return np.sort(order[first])


class Columns(msgspec.Struct, frozen=True):
    """Arrays with a row for each picture."""

    def subset(self, chosen: Flags | Whole) -> Self:
        """Returns the rows of some of the pictures."""
        return type(self)(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


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


def rank_scores(taxa_NT: Floats, labels_N: Whole, taxonomy: Taxonomy) -> dict[Rank, RankScores]:
    """Returns the best name of each rank, as a verdict would choose it (`models/ranking.py`).

    Neither a taxon of rank genus as a species nor a name that leaves out a harmful genus is ever named. If the labeled
    taxon has no genus, or its family is unknown, every name of that rank counts as wrong.
    """
    is_species_T = np.array([taxon.rank == "species" for taxon in taxonomy.taxa])
    genera, families = (_named_groups(taxa_NT, groups) for groups in (taxonomy.genera, taxonomy.families))
    scores: dict[Rank, Floats] = {"species": taxa_NT, "genus": genera, "family": families}
    found = {}
    for rank, name_T in name_of_taxon(taxonomy).items():
        best_N, score_N = scores[rank].argmax(axis=1), scores[rank].max(axis=1)
        right_N = (best_N == name_T[labels_N]) & (score_N > NO_NAME)
        if rank == "species":
            score_N = np.where(is_species_T[best_N], score_N, NO_NAME)
        for _, _, left_out_N in harm_left_out(genera, rank, best_N, taxonomy):
            score_N = np.where(left_out_N, NO_NAME, score_N)
        found[rank] = RankScores(score_N, right_N)
    return found


def _named_groups(taxa_NT: Floats, groups: Groups) -> Floats:
    scores_NG = group_scores(taxa_NT, groups)
    scores_NG[:, [not name for name in groups.names]] = NO_NAME  # taxa whose genus or family is unknown
    return scores_NG


class Predictions(Columns, frozen=True):
    """The calibrated prediction for each picture, and its label."""

    rows: Whole
    """Rows of the manifest, shape (N,)."""
    labels_N: Whole
    """Position of the labeled output."""
    taxon_labels_N: Whole
    """Position of the labeled taxon."""
    plants_N: Plants
    """Number of the plant that the picture shows."""
    named_N: Whole
    """Position of the most likely taxon."""
    confidence_N: npt.NDArray[np.float64]
    """Its probability."""
    right_N: Floats
    """Probability of the labeled taxon."""
    output_rivals_N: Whole
    """Number of other outputs that are at least as likely as the labeled one."""
    taxon_rivals_N: Whole
    """Number of other taxa that are at least as likely as the labeled one."""
    rank_score_NR: Floats
    """Probability of the best species, genus and family, as in `RankScores`."""
    rank_right_NR: Flags
    """Whether each of these is the name of the labeled taxon."""

    @property
    def hits(self) -> Flags:
        """Whether the most likely taxon is the labeled one."""
        return np.asarray(self.named_N == self.taxon_labels_N)

    def top_k_hits(self, k: int) -> Flags:
        """Whether the labeled taxon is among the k most likely; ties count as misses."""
        return np.asarray(self.taxon_rivals_N < k)

    @property
    def rank_scores(self) -> dict[Rank, RankScores]:
        """The best name of each rank."""
        return {
            rank: RankScores(self.rank_score_NR[:, index], self.rank_right_NR[:, index])
            for index, rank in enumerate(RANKS)
        }


def calibrated_predictions(
    logits: Rows,
    labels: Whole,
    taxonomy: Taxonomy,
    temperature: float,
    *,
    rows: Whole | None = None,
    plants: Plants | None = None,
) -> Predictions:
    """Converts logits to probabilities with the functions that the service uses, a few pictures at a time.

    Labels are positions of outputs, and rows those of the manifest. By default every picture shows another plant.
    """
    taxa = taxonomy.taxon_of_output[labels]
    found = []
    for part in chunks(*logits.shape):
        outputs_NO = output_probabilities(logits[part], temperature)
        taxa_NT, taxa_N = taxon_probabilities(outputs_NO, taxonomy), taxa[part]
        ranks = rank_scores(taxa_NT, taxa_N, taxonomy)
        of_part = (
            taxa_NT.argmax(axis=1),
            taxa_NT.max(axis=1),
            taxa_NT[np.arange(len(taxa_N)), taxa_N],
            num_rivals(outputs_NO, labels[part]),
            num_rivals(taxa_NT, taxa_N),
            np.stack([ranks[rank].score_N for rank in RANKS], axis=1),
            np.stack([ranks[rank].right_N for rank in RANKS], axis=1),
        )  # the last fields of `Predictions`
        found.append(of_part)
    columns = (np.concatenate(column) for column in zip(*found, strict=True))
    every = np.arange(len(labels))
    return Predictions(every if rows is None else rows, labels, taxa, every if plants is None else plants, *columns)
