"""The metrics of a network on a split: each share with its number of pictures and its 95 % interval."""

from collections.abc import Iterator

import msgspec
import numpy as np

from models.metrics import (
    Confusion,
    ReliabilityBin,
    Share,
    calibration_error,
    confusions,
    macro_top1,
    negative_log_likelihood,
    reliability_bins,
    share,
)
from models.ranking import Rank
from models.taxonomy import Taxonomy
from training.dataset.manifest import Manifest
from training.evaluation.predictions import Predictions
from training.evaluation.risk_coverage import RiskCoverage, risk_coverage

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
    """Computes the metrics of a set of pictures."""
    num_pictures = len(predictions.rows)
    hits = {k: predictions.top_k_hits(k) for k in (1, 5)}
    macro, interval = macro_top1(hits[1], predictions.taxon_labels_N)
    return SplitMetrics(
        top1_output=share(int((predictions.output_rivals_N < 1).sum()), num_pictures),
        top1_taxon=share(int(hits[1].sum()), num_pictures),
        top5_taxon=share(int(hits[5].sum()), num_pictures),
        macro_top1_taxon=Share(macro, num_pictures, interval),
        ece=calibration_error(predictions.confidence_N, predictions.hits, predictions.plants_N),
        nll=negative_log_likelihood(predictions.right_N),
    )


def class_metrics(predictions: Predictions, taxonomy: Taxonomy) -> Iterator[ClassMetrics]:
    """Yields a row for each taxon of the pictures, the one with the lowest accuracy first."""
    hits = {k: predictions.top_k_hits(k) for k in (1, 5)}
    rows = []
    for index in np.unique(predictions.taxon_labels_N):
        own = predictions.taxon_labels_N == index
        taxon = taxonomy.taxa[index]
        tops = [float(hits[k][own].mean()) for k in (1, 5)]
        rows.append(ClassMetrics(taxon.taxon_id, taxon.scientific_name, int(own.sum()), *tops))
    yield from sorted(rows, key=lambda row: (row.top1, row.top5, row.scientific_name))
