"""Figures of the answers that the service gives with a bundle: verdicts, candidate sets, rejection, several pictures.

A distance comes from a product of matrices, so that of many pictures at once may differ in its last bit.

Letters in names: N pictures, B pictures of one question, T taxa, O outputs.
"""

from collections.abc import Iterator
from typing import Final, Literal, get_args

import msgspec
import numpy as np

from models.answer import Question, answer_plant
from models.arrays import Flags
from models.calibration import CoverageKind
from models.metrics import NamesOfRank, Share, Whole, macro_mean, share
from models.ranking import RANKS, Rank
from models.scoring import AnswerModel, Decisions, decide, probabilities
from training.evaluation.predictions import Outputs, Predictions, Rows, chunks
from training.evaluation.split_metrics import auroc, cutoff

COVERAGES: Final = (0.8, 0.9, 0.95)
NUM_PICTURES: Final = (1, 2, 3, 5)
_MOST_QUESTIONS: Final = 2000


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


class RejectionFigures(msgspec.Struct, frozen=True):
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


def verdict_figures(decisions: Decisions, right_N: Flags) -> VerdictFigures:
    """Counts the verdicts by rank, and how many names are right."""
    by_rank = {
        rank: NamesOfRank.of(int(right_N[decisions.rank_N == rank].sum()), decisions.count(rank)) for rank in RANKS
    }
    return VerdictFigures(len(right_N), by_rank, decisions.count("uncertain"), decisions.count("not_a_plant"))


def coverage_figures(logits: Rows, labels_N: Whole, model: AnswerModel) -> list[CoverageFigures]:
    """Measures the candidate sets of single pictures; nothing without a table. Labels are positions of taxa."""
    if model.calibration.conformal is None:
        return []
    asked = [(kind, coverage) for kind in get_args(CoverageKind) for coverage in COVERAGES]
    sizes = np.empty((len(asked), len(logits)))
    hits = np.empty(sizes.shape, dtype=bool)
    for part in chunks(*logits.shape):
        for picture, taxa_T in enumerate(probabilities(logits[part], model), start=part.start):
            for index, (kind, coverage) in enumerate(asked):
                chosen = model.candidates(taxa_T[None], coverage, kind)
                sizes[index, picture] = len(chosen)
                hits[index, picture] = labels_N[picture] in chosen
    return [
        CoverageFigures(*how, share(int(hit.sum()), len(hit)), macro_mean(hit, labels_N), float(size.mean()))
        for how, size, hit in zip(asked, sizes, hits, strict=True)
    ]


def rejection_figures(
    score: Literal["plant score", "familiarity"], known: Predictions, strangers: Predictions, model: AnswerModel
) -> RejectionFigures:
    """Measures how well strangers are told from known plants, by a score if the bundle has it."""
    name = str(score)
    decisions = decide(strangers, model)
    num_strangers = len(strangers.rows)
    known_N = known.familiar_N
    strangers_N = strangers.familiar_N
    if score == "plant score":
        known_N = known.plant_N
        strangers_N = strangers.plant_N
    if known_N is None or strangers_N is None:
        name = "largest softmax"
        known_N = known.confidence_N
        strangers_N = strangers.confidence_N
    return RejectionFigures(
        score=name,
        auroc=auroc(known_N, strangers_N),
        fpr95=share(int((strangers_N >= cutoff(known_N)).sum()), num_strangers),
        named=share(int(decisions.named_N.sum()), num_strangers),
        named_species=share(decisions.count("species"), num_strangers),
    )


class SeveralPictures(msgspec.Struct, frozen=True):
    """Answers about a number of pictures at once."""

    num_pictures: int
    """Number of pictures in each question."""
    top1: Share
    """Questions whose most likely taxon is right."""


def several_pictures(outputs: Outputs, taxa_N: Whole, model: AnswerModel) -> list[SeveralPictures]:
    """Measures questions of 1, 2, 3 and 5 pictures, whose right taxa are at these positions.

    Every picture opens one question of each size, at most 2,000 of a size; the others are drawn from the same taxon.
    The questions of one picture nest, so that the sizes are compared on the same pictures. Taxa with fewer than 5
    pictures are left out.
    """
    questions = _questions(taxa_N)
    found = []
    for size in NUM_PICTURES if questions else ():
        hits = 0
        for chosen in (question[:size] for question in questions):
            answer = answer_plant(outputs.logits[chosen], outputs.features[chosen], model, Question(top_k=1))
            hits += answer.taxa[0].taxon is model.taxonomy.taxa[taxa_N[chosen[0]]]
        found.append(SeveralPictures(size, share(hits, len(questions))))
    return found


def _questions(labels_N: Whole) -> list[Whole]:
    """Draws the positions of 5 pictures of one taxon for each question, without repeats."""
    random = np.random.default_rng(0)
    most = max(NUM_PICTURES)
    of_taxon = {int(taxon): np.flatnonzero(labels_N == taxon) for taxon in np.unique(labels_N)}
    drawn = []
    for first in random.permutation(len(labels_N)):
        same = of_taxon[int(labels_N[first])]
        if len(same) >= most:
            others = random.choice(same[same != first], most - 1, replace=False)
            drawn.append(np.concatenate(([first], others)))
        if len(drawn) == _MOST_QUESTIONS:
            break
    return drawn


class ServedAnswers(msgspec.Struct, frozen=True):
    """Figures of the answers that the service gives with a bundle."""

    verdicts: VerdictFigures
    candidates: list[CoverageFigures]
    """Empty for a bundle without a table for candidate sets."""
    several_pictures: list[SeveralPictures]
    """Empty if no taxon has five pictures."""
    things: RejectionFigures | None
    """Pictures without a plant; None if none were given."""
    unknown: RejectionFigures | None
    """Plants of species that the bundle does not know; None if none were given."""


def judge_answers(
    model: AnswerModel,
    known: Outputs,
    labels_N: Whole,
    *,
    things: Outputs | None = None,
    unknown: Outputs | None = None,
) -> ServedAnswers:
    """Measures the answers to pictures of known plants, of things without a plant, and of unknown plants."""
    scores = known.score(model, labels_N)
    decisions = decide(scores, model)
    return ServedAnswers(
        verdicts=verdict_figures(decisions, scores.right_names(decisions)),
        candidates=coverage_figures(known.logits, scores.taxon_labels_N, model),
        several_pictures=several_pictures(known, scores.taxon_labels_N, model),
        things=rejection_figures("plant score", scores, things.score(model), model) if things else None,
        unknown=rejection_figures("familiarity", scores, unknown.score(model), model) if unknown else None,
    )


def describe_answers(found: ServedAnswers) -> Iterator[str]:
    """Yields the figures as lines of text."""
    counts = found.verdicts
    total = counts.num_pictures
    yield f"verdicts on {total} pictures, one at a time:"
    for rank, names in counts.by_rank.items():
        num_right = round(names.right.value * names.num_named) if names.right else 0
        yield f"  {rank}: {names.num_named / total:.1%} of {total}, right {share(num_right, total)}"
    yield f"  uncertain: {counts.num_uncertain / total:.1%}; not a plant: {counts.num_not_a_plant / total:.1%}"
    for each in found.candidates:
        yield (
            f"candidate sets, {each.kind} coverage {each.coverage:.2f}: {each.covered}, "
            f"mean over taxa {each.macro_covered:.1%}, {each.mean_size:.1f} taxa on average"
        )
    for several in found.several_pictures:
        yield f"{several.num_pictures} pictures of a species at once: top-1 {several.top1}"
    for name, strangers in (("other things", found.things), ("plants of unknown species", found.unknown)):
        if strangers is not None:
            yield (
                f"{name}: AUROC {strangers.auroc:.3f}, at 95 % of known plants kept {strangers.fpr95} "
                f"({strangers.score}); named at any rank {strangers.named}, as a species "
                f"{strangers.named_species}"
            )
