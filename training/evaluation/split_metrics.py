"""What a network's answers on a split are worth: every figure with its number of pictures and 95 % interval."""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.dataset.manifest import Manifest
from training.evaluation.metrics import (
    Share,
    confusion_pairs,
    expected_calibration_error,
    macro_top1,
    negative_log_likelihood,
    share,
    top_k_hits,
)

_MOST_CONFUSIONS = 20


class Figures(msgspec.Struct, frozen=True):
    """The figures of one set of pictures."""

    top1_output: Share
    """The likeliest output is the labelled one."""
    top1_taxon: Share
    """The likeliest taxon, outputs summed, is the labelled one: what a user sees."""
    top5_taxon: Share
    """The labelled taxon is among the five likeliest."""
    macro_top1_taxon: Share
    """Mean of the taxa's own top-1, so that rare plants count as much as common ones."""
    ece: float
    """Expected calibration error of the likeliest taxon's probability, in [0, 1]."""
    nll: float
    """Mean negative log-likelihood of the labelled taxon, nats."""


class Confusion(msgspec.Struct, frozen=True):
    """A mistake that is made often."""

    right: str
    named: str
    count: int


class ClassFigures(msgspec.Struct, frozen=True):
    """One taxon's row of the per-class table."""

    taxon_id: str
    scientific_name: str
    num_pictures: int
    top1: float
    top5: float


class Judgment(msgspec.Struct, frozen=True):
    """Everything that is reported about a network on a split."""

    network: str
    split: str
    temperature: float
    all: Figures
    by_source: dict[str, Figures]
    confusions: list[Confusion]


class Answers(msgspec.Struct, frozen=True):
    """A network's calibrated answers on pictures of a manifest. N pictures, O outputs, T taxa."""

    rows: npt.NDArray[np.int64]
    """Rows of the manifest, shape (N,)."""
    outputs_NO: npt.NDArray[np.float64]
    """Probability of every output."""
    taxa_NT: npt.NDArray[np.float64]
    """Probability of every taxon."""
    labels_N: npt.NDArray[np.int64]
    """Position of the labelled output."""
    taxon_labels_N: npt.NDArray[np.intp]
    """Position of the labelled taxon."""

    def subset(self, chosen: npt.NDArray[np.bool_]) -> "Answers":
        """The answers on some of the pictures."""
        return Answers(*(getattr(self, field)[chosen] for field in self.__struct_fields__))


def answers(
    logits: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    taxonomy: Taxonomy,
    temperature: float,
) -> Answers:
    """Turns logits into calibrated answers, by the same functions that the service uses."""
    outputs = output_probabilities(logits, temperature)
    taxa = taxon_probabilities(outputs, taxonomy)
    return Answers(rows, outputs, taxa, labels, taxonomy.taxon_of_output[labels])


def judge(found: Answers, manifest: Manifest, *, network: str, split: str, temperature: float) -> Judgment:
    """Computes every figure, over all pictures and by source."""
    sources = np.asarray(manifest.table["source"].take(found.rows).to_pylist())
    return Judgment(
        network=network,
        split=split,
        temperature=temperature,
        all=figures(found),
        by_source={str(source): figures(found.subset(sources == source)) for source in np.unique(sources)},
        confusions=_confusions(found, manifest.taxonomy),
    )


def figures(found: Answers) -> Figures:
    """The figures of a set of answers."""
    num_pictures = len(found.rows)
    hits = {k: top_k_hits(found.taxa_NT, found.taxon_labels_N, k) for k in (1, 5)}
    output_hits = top_k_hits(found.outputs_NO, found.labels_N, 1)
    macro, interval = macro_top1(hits[1], found.taxon_labels_N)
    return Figures(
        top1_output=share(int(output_hits.sum()), num_pictures),
        top1_taxon=share(int(hits[1].sum()), num_pictures),
        top5_taxon=share(int(hits[5].sum()), num_pictures),
        macro_top1_taxon=Share(macro, num_pictures, interval),
        ece=expected_calibration_error(found.taxa_NT, found.taxon_labels_N),
        nll=negative_log_likelihood(found.taxa_NT, found.taxon_labels_N),
    )


def class_figures(found: Answers, taxonomy: Taxonomy) -> Iterator[ClassFigures]:
    """A row for each taxon that the pictures show, hardest first."""
    hits = {k: top_k_hits(found.taxa_NT, found.taxon_labels_N, k) for k in (1, 5)}
    rows = []
    for index in np.unique(found.taxon_labels_N):
        shown = found.taxon_labels_N == index
        taxon = taxonomy.taxa[index]
        tops = [float(hits[k][shown].mean()) for k in (1, 5)]
        rows.append(ClassFigures(taxon.taxon_id, taxon.scientific_name, int(shown.sum()), *tops))
    yield from sorted(rows, key=lambda row: (row.top1, row.top5, row.scientific_name))


def _confusions(found: Answers, taxonomy: Taxonomy) -> list[Confusion]:
    pairs = confusion_pairs(found.taxa_NT.argmax(axis=1), found.taxon_labels_N, _MOST_CONFUSIONS)
    names = [taxon.scientific_name for taxon in taxonomy.taxa]
    return [Confusion(names[right], names[named], count) for right, named, count in pairs]
