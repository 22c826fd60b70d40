"""Measures the answers that the service gives with a bundle: verdicts, candidate sets, rejection, several pictures."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from torch import Tensor

from models.bundle import Bundle, Precision
from models.session import NetworkOutput
from training.bundling.precisions.pictures import PictureFiles
from training.evaluation.answer_metrics import (
    CoverageFigures,
    StrangerFigures,
    VerdictFigures,
    coverage_figures,
    thing_figures,
    unknown_plant_figures,
    verdict_figures,
    verdicts_of,
)
from training.evaluation.metrics import Share
from training.evaluation.predict import Logits
from training.evaluation.several_pictures import SeveralPictures, several_pictures


class ServedAnswers(msgspec.Struct, frozen=True):
    """Figures of the answers that the service gives with a bundle."""

    verdicts: VerdictFigures
    candidates: list[CoverageFigures]
    """Empty for a bundle without a table for candidate sets."""
    several_pictures: list[SeveralPictures]
    """Empty if no taxon has five pictures."""
    things: StrangerFigures | None
    """Pictures without a plant; None if none were given."""
    unknown: StrangerFigures | None
    """Plants of species that the bundle does not know; None if none were given."""


class FurtherPictures(msgspec.Struct, frozen=True):
    """Pictures that the bundle shall not name as a species."""

    things: tuple[Path, ...] = ()
    """They show no plant."""
    unknown: tuple[Path, ...] = ()
    """They show plants whose species the bundle does not know."""


class BundleNetwork:
    """A bundle's network, run one picture at a time as the service does on a CPU. It keeps its outputs.

    Args:
        bundle: The bundle.
        precision: Which of its networks.
    """

    def __init__(self, bundle: Bundle, precision: Precision) -> None:
        self.bundle, self.precision = bundle, precision
        self._session, self._outputs = bundle.open_session(precision), list[NetworkOutput]()

    def __call__(self, pixels: Tensor) -> Logits:
        """Returns the logits of a batch, shape (batch, num_outputs)."""
        found = [self._session.run(picture[None].numpy()) for picture in pixels]
        self._outputs += found
        return np.concatenate([each.logits for each in found])

    @property
    def outputs(self) -> NetworkOutput:
        """Logits and features of all pictures so far."""
        return NetworkOutput(*(np.concatenate(each) for each in zip(*self._outputs, strict=True)))


def served_answers(network: BundleNetwork, labels_N: npt.NDArray[np.int64], further: FurtherPictures) -> ServedAnswers:
    """Measures the answers of a bundle, with its tables.

    Args:
        network: The network, after it ran on pictures of known plants.
        labels_N: Position of the output of each of these. The taxa of the outputs are those of the bundle: the data
            may have other names, and other taxa that share outputs.
        further: Pictures that the bundle shall not name.
    """
    bundle, known = network.bundle, network.outputs
    taxa_N = bundle.taxonomy.taxon_of_output[labels_N]
    model, path = bundle.answer_model(network.precision), bundle.network_path(network.precision)

    def outputs_of(paths: tuple[Path, ...]) -> NetworkOutput:
        return PictureFiles(paths, bundle.record.input).outputs(path)[0]

    return ServedAnswers(
        verdicts=verdict_figures(verdicts_of(known, model), [bundle.taxonomy.taxa[taxon] for taxon in taxa_N]),
        candidates=coverage_figures(known, taxa_N, model),
        several_pictures=several_pictures(known, taxa_N, model),
        things=thing_figures(known, outputs_of(further.things), model) if further.things else None,
        unknown=unknown_plant_figures(known, outputs_of(further.unknown), model) if further.unknown else None,
    )


def describe_answers(found: ServedAnswers) -> Iterator[str]:
    """Yields the figures as lines of text."""
    counts = found.verdicts
    yield f"verdicts on {counts.num_pictures} pictures, one at a time:"
    for rank, names in counts.by_rank.items():
        right = f", right {_share(names.right)}" if names.right else ""
        yield f"  {rank}: {names.num_named}{right}"
    yield f"  uncertain: {counts.num_uncertain}; not a plant: {counts.num_not_a_plant}"
    for each in found.candidates:
        yield (
            f"candidate sets, {each.kind} coverage {each.coverage:.2f}: {_share(each.covered)}, "
            f"mean over taxa {each.macro_covered:.1%}, {each.mean_size:.1f} taxa on average"
        )
    for several in found.several_pictures:
        yield f"{several.num_pictures} pictures of a species at once: top-1 {_share(several.top1)}"
    for name, strangers in (("other things", found.things), ("plants of unknown species", found.unknown)):
        if strangers is not None:
            yield (
                f"{name}: AUROC {strangers.auroc:.3f}, at 95 % of known plants kept {_share(strangers.fpr95)} "
                f"({strangers.score}); named at any rank {_share(strangers.named)}, as a species "
                f"{_share(strangers.named_species)}"
            )


def _share(figure: Share) -> str:
    low, high = figure.interval_95
    return f"{figure.value:.1%} [{low:.1%}, {high:.1%}] of {figure.num_pictures}"
