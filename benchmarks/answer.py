"""Program: measures how long an answer over 5,337 taxa takes, and what its candidate sets hold on a long tail.

python benchmarks/answer.py [--out FILE.json]

Everything is generated: the measurement needs no network and no pictures. Set
OPENBLAS_NUM_THREADS=1, so that an answer takes one core.
"""

import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import numpy.typing as npt
import tyro

from benchmarks.long_tail import NUM_TAXA, LongTail
from models.answer import AnswerModel, Question, answer_plant
from models.calibration import (
    Calibration,
    ConformalTable,
    CoverageKind,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    PlantHead,
    conformal_table,
)
from models.taxonomy import Output, Taxon, Taxonomy
from training.atomic_file import replaced
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program

_NUM_FEATURES: Final = 1792
_DIMENSIONS: Final = 256
_TIMED_PLANTS: Final = 5000
"""Calibration plants of the timed answers."""
_COVERAGES: Final = (0.80, 0.90, 0.95)
_KINDS: Final[tuple[tuple[str, CoverageKind], ...]] = (("softmax", "marginal"), ("PAS", "marginal"), ("PAS", "macro"))


class AnswerTime(msgspec.Struct, frozen=True, kw_only=True):
    """Measures the answer."""

    num_answers: int = 300
    """Number of timed answers for each number of pictures."""
    num_plants: int = 30_000
    """Number of generated plants that calibrate the candidate sets, and of those that they are judged on."""
    out: Path | None = None
    """File for the result (JSON)."""


class Timing(msgspec.Struct, frozen=True):
    """CPU time of an answer with verdict and candidate set, ms."""

    num_pictures: int
    median_ms: float
    shortest_ms: float


class SetFigures(msgspec.Struct, frozen=True):
    """What the candidate sets of fresh plants hold."""

    score: str
    """Which score the sets are made from: "softmax", or "PAS" (softmax divided by the share of training pictures)."""
    kind: CoverageKind
    coverage: float
    """The coverage that was asked for."""
    marginal: float
    """Share of plants whose set holds the right taxon."""
    macro: float
    """The same, as the mean over the taxa."""
    mean_size: float
    """Mean number of taxa in a set."""


class Result(msgspec.Struct, frozen=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    num_taxa: int
    num_answers: int
    num_plants: int
    times: list[Timing]
    sets: list[SetFigures]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(AnswerTime, description=__doc__)))


def measure(command: AnswerTime) -> Result:
    """Measures, prints the figures, and writes them if `out` is given."""
    tail = LongTail()
    times = _times(tail, command.num_answers)  # first, while little memory is in use
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        num_taxa=NUM_TAXA,
        num_answers=command.num_answers,
        num_plants=command.num_plants,
        times=times,
        sets=_sets(tail, command.num_plants),
    )
    print(markdown(result))
    if command.out is not None:
        with replaced(command.out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def _sets(tail: LongTail, num_plants: int) -> list[SetFigures]:
    calibration, fresh = (tail.draw(num_plants, seed) for seed in (1, 2))
    prior_of = {"softmax": np.full(NUM_TAXA, 1 / NUM_TAXA), "PAS": tail.share_T}
    tables = {score: conformal_table(*calibration, prior_T) for score, prior_T in prior_of.items()}
    return [
        SetFigures(score, kind, coverage, *set_figures(tables[score], *fresh, kind, coverage))
        for score, kind in _KINDS
        for coverage in _COVERAGES
    ]


def set_figures(
    conformal: ConformalTable,
    taxa_NT: npt.NDArray[np.float64],
    labels_N: npt.NDArray[np.intp],
    kind: CoverageKind,
    coverage: float,
) -> tuple[float, float, float]:
    """Measures the candidate sets of plants that did not calibrate them.

    Args:
        conformal: The calibration plants.
        taxa_NT: Probabilities of all taxa for each fresh plant.
        labels_N: Position of each right taxon.
        kind: Kind of the coverage.
        coverage: The coverage to ask for.

    Returns:
        Share of plants whose set holds the right taxon, the same as the mean over the taxa, and the mean size.
    """
    hits_N, sizes_N = np.empty(len(labels_N), bool), np.empty(len(labels_N), int)
    for row, label in enumerate(labels_N):
        held_T = conformal.p_values(taxa_NT[row : row + 1], kind) > 1 - coverage
        hits_N[row], sizes_N[row] = held_T[label], held_T.sum()
    macro = np.mean([hits_N[labels_N == taxon].mean() for taxon in np.unique(labels_N)])
    return float(hits_N.mean()), float(macro), float(sizes_N.mean())


def _times(tail: LongTail, num_answers: int) -> list[Timing]:
    model, question = _model(conformal_table(*tail.draw(_TIMED_PLANTS, 1), tail.share_T)), Question(coverage=0.9)
    taxa_NT, _ = tail.draw(num_answers + 2, 2)
    generator = np.random.default_rng(0)
    timings = []
    for num_pictures in (1, 3):
        seconds = []
        for turn in range(num_answers):
            logits = np.log(taxa_NT[turn : turn + num_pictures]).astype(np.float32)
            features = generator.normal(size=(num_pictures, _NUM_FEATURES)).astype(np.float32)
            start = time.process_time()
            answer_plant(logits, features, model, question)
            seconds.append(time.process_time() - start)
        timings.append(Timing(num_pictures, 1e3 * statistics.median(seconds), 1e3 * min(seconds)))
    return timings


def _model(conformal: ConformalTable) -> AnswerModel:
    """Returns a model of full size whose tables, but for the candidate sets, are random."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return generator.normal(size=shape).astype(np.float32)

    features = FeatureTable(
        center_F=normal(_NUM_FEATURES) / np.float32(100),
        basis_FD=normal(_NUM_FEATURES, _DIMENSIONS) / np.float32(40),
        whole_D=normal(_DIMENSIONS),
        within_DD=normal(_DIMENSIONS, _DIMENSIONS) / np.float32(16),
        mean_TD=normal(NUM_TAXA, _DIMENSIONS),
    )
    familiarity = FamiliarityTable(np.sort(generator.random(10_000)), np.sort(generator.normal(size=10_000)))
    head = PlantHead(normal(_NUM_FEATURES), weight_confidence=0.1, weight_distance=-0.01, bias=1.0)
    tables = Calibration(conformal, features, familiarity, head, Cutoffs())
    return AnswerModel(_taxonomy(), temperature=1.0, calibration=tables)


def _taxonomy() -> Taxonomy:
    taxa = [
        Taxon(f"taxon-{index}", "species", f"Genus{index // 4} s{index}", f"Genus{index // 4}", f"Family{index // 40}")
        for index in range(NUM_TAXA)
    ]
    return Taxonomy("generated", tuple(taxa), tuple(Output(f"g:{each.taxon_id}", "g", each.taxon_id) for each in taxa))


def markdown(result: Result) -> str:
    """Returns the result as Markdown: a sentence for the times, and a table for the candidate sets."""
    times = "; ".join(
        f"{timing.num_pictures} {'picture' if timing.num_pictures == 1 else 'pictures'}: "
        f"{timing.median_ms:.2f} ms (shortest {timing.shortest_ms:.2f})"
        for timing in result.times
    )
    return (
        f"{result.machine}; {result.num_taxa:,} taxa, {_NUM_FEATURES:,} features. Median CPU time of "
        f"{result.num_answers} answers. {times}.\n\nCandidate sets of {result.num_plants:,} fresh plants, calibrated "
        f"on as many:\n\n{set_table(result.sets)}"
    )


def set_table(figures: list[SetFigures]) -> str:
    """Returns the figures of the candidate sets as a Markdown table."""
    return table(
        ("score", "coverage", "asked", "marginal", "macro", "mean size"),
        [
            (
                each.score,
                each.kind,
                f"{each.coverage:.2f}",
                f"{each.marginal:.3f}",
                f"{each.macro:.3f}",
                f"{each.mean_size:.2f}",
            )
            for each in figures
        ],
    )


if __name__ == "__main__":
    main()
