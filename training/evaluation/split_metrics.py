"""The metrics of a network on a split: each share with its number of pictures and its 95 % interval.

Letters in names: N pictures, M other pictures.
"""

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from scipy.optimize import brentq
from scipy.stats import mannwhitneyu

from models.arrays import Flags
from models.bundle_record import Metric
from models.metrics import (
    Confusion,
    ReliabilityBin,
    Share,
    calibration_error,
    confusions,
    effective_number,
    macro_top1,
    negative_log_likelihood,
    reliability_bins,
    share,
)
from models.ranking import Floats, Rank
from models.taxonomy import Taxonomy
from training.dataset.manifest import Manifest
from training.evaluation.predictions import Predictions, RankScores

KEPT_SHARE: Final = 0.95
"""Share of the plants whose score reaches the cutoff."""

_MOST_POINTS: Final = 100
_Z_95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_EDGE: Final = 1e-9  # distance from the observed difference, where the test does not reject


def auroc(plants_N: Floats, others_M: Floats) -> float:
    """Returns the chance that a plant scores higher than another thing; a tie counts half, 0.5 separates nothing."""
    above = mannwhitneyu(plants_N, others_M, method="asymptotic").statistic
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


def paired_loss(first_hits_N: Flags, second_hits_N: Flags) -> Share:
    """Returns the loss in accuracy from the first network to the second, below 0 if the second is better.

    The interval is Tango's (1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design"), the score interval. It was chosen by exact computation for 272 to 3,000 pictures, of which
    the two networks classify 0.5 to 5.5 % differently. If the true loss is 0.5 points, its upper end is below that in
    at most 2.5 % of all samples. With the intervals of Newcombe (1998), Agresti and Min (2005) and Bonett and Price
    (2012) this is up to 4 %, with Wald's interval and a continuity correction up to 26 %.

    Each element says whether a network is right about a picture.
    """
    lost = int((first_hits_N & ~second_hits_N).sum())
    won = int((second_hits_N & ~first_hits_N).sum())
    total = len(first_hits_N)
    return Share((lost - won) / total, total, tango_interval(lost, won, total))


def tango_interval(lost: float, won: float, total: float) -> tuple[float, float]:
    """Returns the range of differences that a score test at the 5 % level does not reject, within [-1, 1].

    Of all pictures, only the first network is right for those that are lost, and only the second for those won.
    """
    observed = (lost - won) / total

    def excess(loss: float) -> float:
        """Above 0 where the test rejects a true loss; squared, so that a variance of 0 causes no division by 0.

        The variance of `lost - won` is that of maximum likelihood (Tango 1998, equations 8 and 9).
        """
        linear = (2 * total - lost + won) * loss - lost - won
        root = math.sqrt(max(linear**2 + 8 * total * won * loss * (1 - loss), 0.0))
        share_won = (root - linear) / (4 * total)
        variance = max(total * (2 * share_won + loss * (1 - loss)), 0.0)
        return (total * (observed - loss)) ** 2 - _Z_95**2 * variance

    def first_rejected(start: float, extreme: float) -> float:
        """Where the test begins to reject on the way to the extreme difference."""
        if excess(extreme) <= 0:
            return extreme
        if excess(start) >= 0:  # the variance is 0 but for rounding, as when all pictures changed alike
            return start
        return float(brentq(excess, extreme, start))

    return first_rejected(max(observed - _EDGE, -1.0), -1.0), first_rejected(min(observed + _EDGE, 1.0), 1.0)


_MOST_CONFUSIONS = 20


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


class Evaluation(msgspec.Struct, frozen=True):
    """The report on a network and a split."""

    network: str
    split: str
    temperature: float
    all: SplitMetrics
    by_source: dict[str, SplitMetrics]
    reliability: dict[str, list[ReliabilityBin]]
    """Reliability diagram of all pictures ("all") and of each source."""
    risk_coverage: dict[Rank, RiskCoverage]
    """Risk against coverage at each rank."""
    confusions: list[Confusion]
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with."""


def evaluate_predictions(
    predictions: Predictions,
    manifest: Manifest,
    *,
    network: str,
    split: str,
    temperature: float,
    other_data: bool = False,
) -> Evaluation:
    """Computes the metrics of all pictures and of each source."""
    by_source = predictions_by_source(predictions, manifest)
    names = [taxon.scientific_name for taxon in manifest.taxonomy.taxa]
    return Evaluation(
        network=network,
        split=split,
        temperature=temperature,
        all=split_metrics(predictions),
        by_source={source: split_metrics(each) for source, each in by_source.items()},
        reliability=reliability_diagrams(predictions, manifest),
        risk_coverage={rank: risk_coverage(scores) for rank, scores in predictions.rank_scores.items()},
        confusions=confusions(predictions.named_N, predictions.taxon_labels_N, names, _MOST_CONFUSIONS),
        other_data=other_data,
    )


def reliability_diagrams(predictions: Predictions, manifest: Manifest) -> dict[str, list[ReliabilityBin]]:
    """Returns the reliability diagram of all pictures, named "all", and of each source."""
    groups = {"all": predictions} | predictions_by_source(predictions, manifest)
    return {name: reliability_bins(each.confidence_N, each.hits) for name, each in groups.items()}


def predictions_by_source(predictions: Predictions, manifest: Manifest) -> dict[str, Predictions]:
    """Returns the predictions for the pictures of each source, by its name."""
    sources = np.asarray(manifest.table["source"].take(predictions.rows).to_pylist())
    return {str(source): predictions.subset(sources == source) for source in np.unique(sources)}


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


def metric(name: str, figure: Share | float, data: str, num_pictures: int = 0) -> Metric:
    """Makes the record of a figure for a bundle; `num_pictures` is that of a figure that is no share."""
    if isinstance(figure, Share):
        return Metric(name, figure.value, data, figure.num_pictures, figure.interval_95)
    return Metric(name, figure, data, num_pictures)
