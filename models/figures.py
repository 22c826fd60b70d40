"""The figures of a network and of the answers that the service gives with it, each share with its 95 % interval.

`measure` takes what a network says of a split, and `judge_answers` what a bundle answers: verdicts, candidate sets,
other things, several pictures. A distance comes from a product of matrices, so that of many pictures at once may differ
in its last bit.

Letters in names: N pictures, M other pictures, B pictures of one question, T taxa, O outputs.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import msgspec
import numpy as np

from models.answer import Question, answer_plant
from models.arrays import Flags
from models.bundle_record import Metric
from models.calibration import CoverageKind
from models.metrics import (
    Confusion,
    NamesOfRank,
    ReliabilityBin,
    Share,
    Whole,
    calibration_error,
    confusions,
    effective_number,
    macro_mean,
    macro_top1,
    negative_log_likelihood,
    reliability_bins,
    share,
)
from models.outputs import Outputs, Predictions, RankScores, Rows, chunks
from models.ranking import RANKS, Floats, Rank
from models.scoring import AnswerModel, Decisions, decide, probabilities
from models.taxonomy import Taxonomy

KEPT_SHARE: Final = 0.95
"""Share of the plants whose score reaches the cutoff."""

_MOST_POINTS: Final = 100
_MOST_CONFUSIONS: Final = 20
COVERAGES: Final = (0.8, 0.9, 0.95)
NUM_PICTURES: Final = (1, 2, 3, 5)
_MOST_QUESTIONS: Final = 2000


def metric(name: str, figure: Share | float, data: str, num_pictures: int = 0) -> Metric:
    """Makes the record of a figure for a bundle; `num_pictures` is that of a figure that is no share."""
    if isinstance(figure, Share):
        return Metric(name, figure.value, data, figure.num_pictures, figure.interval_95)
    return Metric(name, figure, data, num_pictures)


def auroc(plants_N: Floats, others_M: Floats) -> float:
    """Returns the chance that a plant scores higher than another thing; a tie counts half, 0.5 separates nothing."""
    ascending_M = np.sort(others_M)
    above = sum(np.searchsorted(ascending_M, plants_N, side).sum() for side in ("left", "right")) / 2
    return float(above / (len(plants_N) * len(others_M)))


def cutoff(plants_N: Floats) -> float:
    """Returns the largest score that at least 95 % of the plants reach."""
    return float(np.quantile(plants_N, 1 - KEPT_SHARE, method="lower"))


class RiskCoverage(msgspec.Struct, frozen=True):
    """The curve of one rank."""

    area: float
    """Area under the curve (AURC, Geifman et al. 2019): mean risk over all coverages; 0 is best."""
    coverage: list[float]
    """Shares of the pictures that are named, the surest first; at most 100 points."""
    risk: list[float]
    """Share of the names that are wrong, at each of these coverages."""


def risk_coverage(scores: RankScores) -> RiskCoverage:
    """Draws the curve of a rank over all pictures, at least one.

    Pictures of equal score are named together, so each of them has the mean risk of its score.
    """
    _, score_of_N, counts = np.unique(-scores.score_N, return_inverse=True, return_counts=True)
    wrong = np.bincount(score_of_N, ~scores.right_N) / counts
    wrong_N = np.cumsum(np.repeat(wrong, counts))
    num_named = np.arange(1, len(wrong_N) + 1)
    risk_N = wrong_N / num_named
    shown = np.unique(np.linspace(0, len(wrong_N) - 1, _MOST_POINTS).round().astype(int))
    coverage = (num_named / len(wrong_N))[shown]
    return RiskCoverage(float(risk_N.mean()), coverage.tolist(), risk_N[shown].tolist())


class SplitMetrics(msgspec.Struct, frozen=True):
    """The metrics of one set of pictures."""

    top1_output: Share
    """The most likely output is the labeled one."""
    top1_taxon: Share
    """The most likely taxon, its outputs summed, is the labeled one: the accuracy that users see."""
    top5_taxon: Share
    """The labeled taxon is among the five most likely."""
    macro_top1_taxon: Share
    """Mean of the top-1 of every taxon, so that rare plants count as much as common ones."""
    ece: Share
    """Expected calibration error of the most likely taxon's probability; its interval is from draws of plants."""
    nll: float
    """Mean negative log-likelihood of the labeled taxon, nats."""


class ClassMetrics(msgspec.Struct, frozen=True):
    """A taxon's row of the per-class table."""

    taxon_id: str
    scientific_name: str
    num_pictures: int
    top1: float
    top5: float


class Figures(msgspec.Struct, frozen=True):
    """The figures of a network on a split."""

    all: SplitMetrics
    by_source: dict[str, SplitMetrics]
    reliability: dict[str, list[ReliabilityBin]]
    """Reliability diagram of all pictures ("all") and of each source."""
    risk_coverage: dict[Rank, RiskCoverage]
    """Risk against coverage at each rank."""
    confusions: list[Confusion]


def measure(found: Predictions, taxonomy: Taxonomy, source_N: Sequence[str]) -> Figures:
    """Computes the figures of all pictures and of each source."""
    sources = np.asarray(source_N)
    by_source = {str(each): found.subset(sources == each) for each in np.unique(sources)}
    groups = {"all": found} | by_source
    names = [taxon.scientific_name for taxon in taxonomy.taxa]
    return Figures(
        all=split_metrics(found),
        by_source={name: split_metrics(each) for name, each in by_source.items()},
        reliability={name: reliability_bins(each.confidence_N, each.hits) for name, each in groups.items()},
        risk_coverage={rank: risk_coverage(scores) for rank, scores in found.rank_scores.items()},
        confusions=confusions(found.named_N, found.taxon_labels_N, names, _MOST_CONFUSIONS),
    )


def split_metrics(predictions: Predictions) -> SplitMetrics:
    """Computes the metrics of a set of pictures.

    Pictures of one plant are answered much alike, so an interval rests on the effective number of plants.
    """
    num_pictures = len(predictions.rows)
    num_plants = effective_number(predictions.plants_N)
    top1 = predictions.top_k_hits(1)
    top5 = predictions.top_k_hits(5)
    macro, interval = macro_top1(top1, predictions.taxon_labels_N, predictions.plants_N)
    return SplitMetrics(
        top1_output=share(int((predictions.output_rivals_N < 1).sum()), num_pictures, num_plants),
        top1_taxon=share(int(top1.sum()), num_pictures, num_plants),
        top5_taxon=share(int(top5.sum()), num_pictures, num_plants),
        macro_top1_taxon=Share(macro, num_pictures, interval),
        ece=calibration_error(predictions.confidence_N, predictions.hits, predictions.plants_N),
        nll=negative_log_likelihood(predictions.right_N),
    )


def class_metrics(predictions: Predictions, taxonomy: Taxonomy) -> Iterator[ClassMetrics]:
    """Yields a row for each taxon of the pictures, the one with the lowest accuracy first."""
    rows = []
    hits = [predictions.top_k_hits(k) for k in (1, 5)]
    for index in np.unique(predictions.taxon_labels_N):
        own = predictions.taxon_labels_N == index
        taxon = taxonomy.taxa[index]
        tops = [float(hits_N[own].mean()) for hits_N in hits]
        rows.append(ClassMetrics(taxon.taxon_id, taxon.scientific_name, int(own.sum()), *tops))
    yield from sorted(rows, key=lambda row: (row.top1, row.top5, row.scientific_name))


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
    named: Share
    """Questions that get the name of a species or genus."""
    right: Share | None
    """Those of them whose name is right; None without a name."""


def several_pictures(outputs: Outputs, taxa_N: Whole, model: AnswerModel) -> list[SeveralPictures]:
    """Measures questions of 1, 2, 3 and 5 pictures, whose right taxa are at these positions.

    Every picture opens one question of each size, at most 2,000 of a size; the others are drawn from the same taxon.
    The questions of one picture nest, so that the sizes are compared on the same pictures. Taxa with fewer than 5
    pictures are left out.
    """
    questions = _questions(taxa_N)
    found = []
    for size in NUM_PICTURES if questions else ():
        hits = num_named = num_right = 0
        for chosen in (question[:size] for question in questions):
            answer = answer_plant(outputs.logits[chosen], outputs.features[chosen], model, Question(top_k=1))
            taxon = model.taxonomy.taxa[taxa_N[chosen[0]]]
            hits += answer.taxa[0].taxon is taxon
            names = {"species": taxon.scientific_name, "genus": taxon.genus}
            num_named += answer.verdict.rank in names
            num_right += names.get(answer.verdict.rank, "") == answer.verdict.name
        right = NamesOfRank.of(num_right, num_named).right
        found.append(SeveralPictures(size, share(hits, len(questions)), share(num_named, len(questions)), right))
    return found


def several_metrics(found: Sequence[SeveralPictures], data: str) -> Iterator[Metric]:
    """Yields the figures of answers about several pictures for a bundle."""
    for each in found:
        about = f"{data}, drawn of one taxon" if each.num_pictures > 1 else data
        yield metric(f"named_{each.num_pictures}_pictures", each.named, about)
        if each.right is not None:
            yield metric(f"right_{each.num_pictures}_pictures", each.right, about)


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
    *,
    things: Outputs | None = None,
    unknown: Outputs | None = None,
) -> ServedAnswers:
    """Measures the answers to pictures of known plants, of things without a plant, and of unknown plants."""
    scores = known.score(model)
    decisions = decide(scores, model)
    return ServedAnswers(
        verdicts=verdict_figures(decisions, scores.right_names(decisions)),
        candidates=coverage_figures(known.logits, scores.taxon_labels_N, model),
        several_pictures=several_pictures(known, scores.taxon_labels_N, model),
        things=rejection_figures("plant score", scores, things.score(model), model) if things else None,
        unknown=rejection_figures("familiarity", scores, unknown.score(model), model) if unknown else None,
    )
