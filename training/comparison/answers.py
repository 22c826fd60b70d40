"""Runs a bundle on pictures, one on each core as in a busy service, and keeps of each answer what is counted.

Letters in names: N pictures, T taxa.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel, Question, answer_plant
from models.bundle import Bundle
from models.bundle_record import Precision
from models.calibration import candidate_set
from models.metrics import top_k_hits
from models.ranking import Verdict, output_probabilities, taxon_probabilities
from models.session import NetworkOutput
from training.bundling.precisions.ranges import Pixels
from training.bundling.side_by_side import run_side_by_side
from training.evaluation.answer_metrics import COVERAGES, is_right


class Answer(msgspec.Struct, frozen=True):
    """The answer to a picture of a known plant."""

    verdict: Verdict
    verdict_right: bool
    """Whether the verdict names the plant, its genus or its family."""
    top1: bool
    """The most likely taxon is the right one."""
    top5: bool
    """The right taxon is among the five most likely."""
    confidence: float
    """Probability of the most likely taxon."""
    right_score: float
    """Probability of the right taxon."""
    set_sizes: tuple[int, ...] = ()
    """Size of the candidate set for each coverage; empty without a table."""
    set_hits: tuple[bool, ...] = ()
    """Whether it holds the right taxon."""

    @property
    def named(self) -> bool:
        """Whether the verdict names a species, genus or family."""
        return self.verdict.name is not None


def answer_plants(
    bundle: Bundle, precision: Precision, pixels: Iterable[Pixels], taxon_ids: Sequence[str]
) -> list[Answer]:
    """Answers pictures of known plants.

    Args:
        bundle: The bundle.
        precision: Which of its networks.
        pixels: Network inputs of some pictures at a time, shape (batch, 3, height, width).
        taxon_ids: Right taxon of each picture; the bundle knows all of them.
    """
    model = bundle.answer_model(precision)
    position = {taxon.taxon_id: index for index, taxon in enumerate(bundle.taxonomy.taxa)}
    return [
        _answer(output, model, position[taxon_id])
        for output, taxon_id in zip(_outputs(bundle, precision, pixels), taxon_ids, strict=True)
    ]


def answer_things(bundle: Bundle, precision: Precision, pixels: Iterable[Pixels]) -> list[Verdict]:
    """Answers pictures that show no plant, some at a time, shape (batch, 3, height, width)."""
    model = bundle.answer_model(precision)
    return [_verdict(output, model) for output in _outputs(bundle, precision, pixels)]


def _outputs(bundle: Bundle, precision: Precision, pixels: Iterable[Pixels]) -> Iterator[NetworkOutput]:
    """Yields the outputs of each picture, which runs alone."""
    for found in run_side_by_side(bundle.open_session(precision, num_threads=1), pixels):
        for logits, features in zip(*found, strict=True):
            yield NetworkOutput(logits[None], features[None])


def _answer(output: NetworkOutput, model: AnswerModel, right: int) -> Answer:
    taxa_1T = taxon_probabilities(output_probabilities(output.logits, model.temperature), model.taxonomy)
    verdict, label_1 = _verdict(output, model), np.array([right])
    sets = _candidate_sets(taxa_1T, model)
    return Answer(
        verdict=verdict,
        verdict_right=is_right(verdict, model.taxonomy.taxa[right]),
        top1=bool(top_k_hits(taxa_1T, label_1, 1)[0]),
        top5=bool(top_k_hits(taxa_1T, label_1, 5)[0]),
        confidence=float(taxa_1T.max()),
        right_score=float(taxa_1T[0, right]),
        set_sizes=tuple(len(each) for each in sets),
        set_hits=tuple(right in each for each in sets),
    )


def _verdict(output: NetworkOutput, model: AnswerModel) -> Verdict:
    return answer_plant(output.logits, output.features, model, Question(top_k=1)).verdict


def _candidate_sets(taxa_1T: npt.NDArray[np.float64], model: AnswerModel) -> list[npt.NDArray[np.intp]]:
    table = model.calibration.conformal
    return [] if table is None else [candidate_set(table, taxa_1T, coverage) for coverage in COVERAGES]
