"""Measures the answers that the service gives with a bundle: verdicts, candidate sets, rejection, several pictures."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel
from models.bundle import Bundle
from models.bundle_record import Precision
from models.metrics import Share
from training.bundling.precisions.pictures import PictureFiles
from training.evaluation.answer_metrics import (
    CoverageFigures,
    StrangerFigures,
    VerdictFigures,
    coverage_figures,
    thing_figures,
    unknown_plant_figures,
    verdict_figures,
)
from training.evaluation.picture_scores import PictureScores, score_pictures, verdicts_of
from training.evaluation.several_pictures import SeveralPictures, several_pictures
from training.evaluation.stored_rows import Outputs


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


def served_answers(
    bundle: Bundle,
    precision: Precision,
    known: Outputs,
    labels_N: npt.NDArray[np.int64],
    *,
    further: FurtherPictures,
    folder: Path | None = None,
) -> ServedAnswers:
    """Measures the answers of a bundle, with its tables.

    Args:
        bundle: The bundle.
        precision: Which of its networks.
        known: Outputs of that network for pictures of known plants.
        labels_N: Position of the output of each of these. The taxa of the outputs are those of the bundle: the data
            may have other names, and other taxa that share outputs.
        further: Pictures that the bundle shall not name.
        folder: Where the outputs for these are stored, see `StoredRows`.
    """

    def outputs_of(paths: tuple[Path, ...]) -> Outputs | None:
        if not paths:
            return None
        return PictureFiles(paths, bundle.record.input).outputs(bundle.network_path(precision), folder)[0]

    things, unknown = outputs_of(further.things), outputs_of(further.unknown)
    return judge_answers(bundle.answer_model(precision), known, labels_N, things=things, unknown=unknown)


def judge_answers(
    model: AnswerModel,
    known: Outputs,
    labels_N: npt.NDArray[np.int64],
    *,
    things: Outputs | None,
    unknown: Outputs | None,
) -> ServedAnswers:
    """Measures the answers to pictures of known plants, of things without a plant, and of unknown plants."""
    scores = score_pictures(known, labels_N, model)

    def scores_of(outputs: Outputs) -> PictureScores:
        return score_pictures(outputs, np.zeros(len(outputs.logits), dtype=np.int64), model)

    return ServedAnswers(
        verdicts=verdict_figures(verdicts_of(scores, model)),
        candidates=coverage_figures(known.logits, scores.found.taxon_labels_N, model),
        several_pictures=several_pictures(known.logits, scores, model),
        things=thing_figures(scores, scores_of(things), model) if things else None,
        unknown=unknown_plant_figures(scores, scores_of(unknown), model) if unknown else None,
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
