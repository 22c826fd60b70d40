"""Figures of the whole answer that the service gives (`models/answer.py`): verdicts, candidate sets, rejection.

Letters in names: N pictures, T taxa.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel, Question, answer_plant
from models.candidates import CoverageKind, candidate_set
from models.ranking import output_probabilities, taxon_probabilities
from models.session import NetworkOutput
from models.taxonomy import Taxon
from models.verdict import RANKS, Rank, Verdict
from training.evaluation.metrics import Share, macro_mean, share
from training.evaluation.separation import Scores, auroc, cutoff

COVERAGES: Final = (0.8, 0.9, 0.95)
KINDS: Final[tuple[CoverageKind, ...]] = ("marginal", "macro")


class NamesOfRank(msgspec.Struct, frozen=True):
    """The verdicts that name a taxon of one rank."""

    num_named: int
    right: Share | None
    """Share of right names; None if there are none."""


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


def verdicts_of(outputs: NetworkOutput, model: AnswerModel) -> list[Verdict]:
    """Asks for the verdict on each picture alone."""
    question = Question(top_k=1)
    return [
        answer_plant(logits[None], features[None], model, question).verdict
        for logits, features in zip(*outputs, strict=True)
    ]


def verdict_figures(verdicts: Sequence[Verdict], taxa: Sequence[Taxon]) -> VerdictFigures:
    """Counts the verdicts by rank, and how many names are right.

    Args:
        verdicts: The verdict on each picture.
        taxa: The taxon that it shows.
    """
    counts = Counter(verdict.rank for verdict in verdicts)
    right = Counter(verdict.rank for verdict, taxon in zip(verdicts, taxa, strict=True) if is_right(verdict, taxon))
    by_rank = {
        rank: NamesOfRank(counts[rank], share(right[rank], counts[rank]) if counts[rank] else None) for rank in RANKS
    }
    return VerdictFigures(len(verdicts), by_rank, counts["uncertain"], counts["not_a_plant"])


def is_right(verdict: Verdict, taxon: Taxon) -> bool:
    """Returns whether a verdict names the taxon, its genus or its family; a verdict without a name is not right."""
    names = {"species": taxon.scientific_name, "genus": taxon.genus, "family": taxon.family}
    return verdict.name is not None and verdict.name == names.get(verdict.rank)


def coverage_figures(
    outputs: NetworkOutput, labels_N: npt.NDArray[np.intp], model: AnswerModel
) -> list[CoverageFigures]:
    """Measures the candidate sets of single pictures; nothing without a table for them.

    Args:
        outputs: Logits of each picture.
        labels_N: Position of its taxon.
        model: Gives the table.
    """
    table = model.calibration.conformal
    if table is None:
        return []
    taxa_NT = taxon_probabilities(output_probabilities(outputs.logits, model.temperature), model.taxonomy)
    found = []
    for kind in KINDS:
        for coverage in COVERAGES:
            sets = [candidate_set(table, taxa_T[None], coverage, kind) for taxa_T in taxa_NT]
            hit_N = np.array([label in chosen for label, chosen in zip(labels_N, sets, strict=True)])
            macro = macro_mean(hit_N, labels_N)
            size = float(np.mean([len(chosen) for chosen in sets]))
            found.append(CoverageFigures(kind, coverage, share(int(hit_N.sum()), len(hit_N)), macro, size))
    return found


def thing_figures(known: NetworkOutput, things: NetworkOutput, model: AnswerModel) -> StrangerFigures:
    """Measures how well other things are told from known plants, by the plant score if the bundle has one."""
    head, features = model.calibration.plant_head, model.calibration.features
    name, scores = "largest softmax", [_confidence(outputs, model) for outputs in (known, things)]
    if head is not None and features is not None:
        name = "plant score"
        scores = [
            head.scores(outputs.features, confidence_N, features.distances(outputs.features))
            for outputs, confidence_N in zip((known, things), scores, strict=True)
        ]
    return _stranger_figures(name, scores[0], scores[1], verdicts_of(things, model))


def unknown_plant_figures(known: NetworkOutput, unknown: NetworkOutput, model: AnswerModel) -> StrangerFigures:
    """Measures how well plants of unknown species are told from known ones, by familiarity if the bundle has it."""
    table, features = model.calibration.familiarity, model.calibration.features
    name, scores = "largest softmax", [_confidence(outputs, model) for outputs in (known, unknown)]
    if table is not None and features is not None:
        name = "familiarity"
        scores = [
            table.scores(confidence_N, features.distances(outputs.features))
            for outputs, confidence_N in zip((known, unknown), scores, strict=True)
        ]
    return _stranger_figures(name, scores[0], scores[1], verdicts_of(unknown, model))


def _stranger_figures(name: str, known_N: Scores, strangers_N: Scores, verdicts: Sequence[Verdict]) -> StrangerFigures:
    num_strangers = len(verdicts)
    return StrangerFigures(
        score=name,
        auroc=auroc(known_N, strangers_N),
        fpr95=share(int((strangers_N >= cutoff(known_N)).sum()), num_strangers),
        named=share(sum(verdict.name is not None for verdict in verdicts), num_strangers),
        named_species=share(sum(verdict.rank == "species" for verdict in verdicts), num_strangers),
    )


def _confidence(outputs: NetworkOutput, model: AnswerModel) -> Scores:
    return np.asarray(
        taxon_probabilities(output_probabilities(outputs.logits, model.temperature), model.taxonomy).max(axis=1)
    )
