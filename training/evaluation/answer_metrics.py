"""Figures of the whole answer that the service gives (`models/answer.py`): verdicts, candidate sets, rejection.

Letters in names: N pictures, T taxa.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel
from models.calibration import CoverageKind
from models.metrics import NamesOfRank, Share, macro_mean, share
from models.ranking import RANKS, Rank, Verdict, output_probabilities, taxon_probabilities
from models.taxonomy import Taxon
from training.evaluation.picture_scores import PictureScores, Verdicts, verdicts_of
from training.evaluation.separation import Scores, auroc, cutoff
from training.evaluation.stored_rows import Rows, chunks

COVERAGES: Final = (0.8, 0.9, 0.95)
KINDS: Final[tuple[CoverageKind, ...]] = ("marginal", "macro")


class VerdictFigures(msgspec.Struct, frozen=True):
    """The verdicts on pictures of known plants, one picture at a time."""

    num_pictures: int
    by_rank: dict[Rank, NamesOfRank]
    num_uncertain: int
    num_not_a_plant: int


class CoverageFigures(msgspec.Struct, frozen=True):
    """The candidate sets for one coverage."""

    kind: CoverageKind
    coverage: float
    """The coverage that was asked for."""
    covered: Share
    """Pictures whose set holds the right taxon."""
    macro_covered: float
    """Mean of the taxa's shares."""
    mean_size: float


class StrangerFigures(msgspec.Struct, frozen=True):
    """What becomes of pictures that shall not be named as a species: other things, or plants that are not known."""

    score: str
    """The score that tells them from known plants: "plant score", "familiarity" or "largest softmax"."""
    auroc: float
    """Chance that a known plant scores higher."""
    fpr95: Share
    """Those that score as high as 95 % of the known plants."""
    named: Share
    """Those that the verdict names at any rank."""
    named_species: Share
    """Those that it names as a species."""


def verdict_figures(verdicts: Verdicts) -> VerdictFigures:
    """Counts the verdicts by rank, and how many names are right."""
    by_rank = {}
    for rank in RANKS:
        named = verdicts.count(rank)
        right = int(verdicts.right_N[verdicts.rank_N == rank].sum())
        by_rank[rank] = NamesOfRank.of(right, named)
    num_pictures = len(verdicts.rank_N)
    return VerdictFigures(num_pictures, by_rank, verdicts.count("uncertain"), verdicts.count("not_a_plant"))


def is_right(verdict: Verdict, taxon: Taxon) -> bool:
    """Returns whether a verdict names the taxon, its genus or its family; a verdict without a name is not right."""
    names = {"species": taxon.scientific_name, "genus": taxon.genus, "family": taxon.family}
    return verdict.name is not None and verdict.name == names.get(verdict.rank)


def coverage_figures(logits: Rows, labels_N: npt.NDArray[np.intp], model: AnswerModel) -> list[CoverageFigures]:
    """Measures the candidate sets of single pictures; nothing without a table for them.

    Args:
        logits: A row for each picture.
        labels_N: Position of its taxon.
        model: Gives the table.
    """
    table = model.calibration.conformal
    if table is None:
        return []
    asked = [(kind, coverage) for kind in KINDS for coverage in COVERAGES]
    least = [table.least_conformity(coverage, kind) for kind, coverage in asked]
    sizes, hits = np.empty((len(asked), len(logits))), np.empty((len(asked), len(logits)), dtype=bool)
    for part in chunks(*logits.shape):
        taxa_NT = taxon_probabilities(output_probabilities(logits[part], model.temperature), model.taxonomy)
        conformity_NT = taxa_NT / table.prior_T
        for index, each in enumerate(least):
            sizes[index, part], hits[index, part] = _sets(conformity_NT, labels_N[part], each)
    return [
        CoverageFigures(*how, share(int(hit.sum()), len(hit)), macro_mean(hit, labels_N), float(size.mean()))
        for how, size, hit in zip(asked, sizes, hits, strict=True)
    ]


def _sets(
    conformity_NT: Scores, labels_N: npt.NDArray[np.intp], least: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Returns the size of each picture's candidate set, and whether it holds the right taxon."""
    size_N = np.count_nonzero(conformity_NT >= least, axis=1)
    held_N = conformity_NT[np.arange(len(labels_N)), labels_N] >= least
    best_N = conformity_NT.argmax(axis=1)  # the only candidate where no p-value is high enough
    return np.maximum(size_N, 1), np.where(size_N == 0, best_N == labels_N, held_N)


def thing_figures(known: PictureScores, things: PictureScores, model: AnswerModel) -> StrangerFigures:
    """Measures how well other things are told from known plants, by the plant score if the bundle has one."""
    if known.plant_N is None or things.plant_N is None:
        return _by_confidence(known, things, model)
    return _stranger_figures("plant score", known.plant_N, things.plant_N, verdicts_of(things, model))


def unknown_plant_figures(known: PictureScores, unknown: PictureScores, model: AnswerModel) -> StrangerFigures:
    """Measures how well plants of unknown species are told from known ones, by familiarity if the bundle has it."""
    if known.familiar_N is None or unknown.familiar_N is None:
        return _by_confidence(known, unknown, model)
    return _stranger_figures("familiarity", known.familiar_N, unknown.familiar_N, verdicts_of(unknown, model))


def _by_confidence(known: PictureScores, strangers: PictureScores, model: AnswerModel) -> StrangerFigures:
    known_N, strangers_N = known.found.confidence_N, strangers.found.confidence_N
    return _stranger_figures("largest softmax", known_N, strangers_N, verdicts_of(strangers, model))


def _stranger_figures(name: str, known_N: Scores, strangers_N: Scores, verdicts: Verdicts) -> StrangerFigures:
    num_strangers = len(strangers_N)
    return StrangerFigures(
        score=name,
        auroc=auroc(known_N, strangers_N),
        fpr95=share(int((strangers_N >= cutoff(known_N)).sum()), num_strangers),
        named=share(sum(verdicts.count(rank) for rank in RANKS), num_strangers),
        named_species=share(verdicts.count("species"), num_strangers),
    )
