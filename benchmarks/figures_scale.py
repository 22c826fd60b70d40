"""Program: measures time and memory of judging the outputs of a network for 75,000 pictures and 5,337 outputs.

python benchmarks/figures_scale.py [--pictures 75000] [--out FILE.json]

Logits and features are drawn and written to disk as a network's would be. Then the temperature, the tables and the
thresholds are fitted, and every figure of `evaluate.py` is computed: metrics, verdicts, candidate sets, several
pictures, things without a plant and plants of unknown species.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tyro

from benchmarks.scale import timed
from models.answer import AnswerModel
from models.session import NetworkOutput
from models.taxonomy import Output, Taxon, Taxonomy
from training.atomic_file import replaced
from training.bundling.calibration import fit_temperature
from training.bundling.served import judge_answers
from training.bundling.tables import FittedTables, LabeledOutputs, TableData, fit_tables, training_prior
from training.dataset.manifest import Manifest
from training.evaluation.plants import one_picture_each
from training.evaluation.predictions import Predictions, calibrated_predictions
from training.evaluation.split_metrics import Evaluation, class_metrics, evaluate_predictions
from training.evaluation.stored_rows import Outputs, store_outputs
from training.machine import Machine, this_machine
from training.program import run_program
from training.recipe import Count

_SHARED: Final = 0.06  # share of the outputs whose taxon has another output, as where data sets share a plant
_BATCH: Final = 256
_NUM_FOLDERS: Final = 10  # of pictures without a plant


class FiguresScale(msgspec.Struct, frozen=True, kw_only=True):
    """Measures time and memory of fitting and judging, on drawn outputs of a network."""

    pictures: Count = 75_000
    """Pictures of the test split."""
    calibration: Count = 30_000
    """Pictures of the calibration split, of two thirds as many plants."""
    training: Count = 20_000
    """Training pictures for the table of distances, as `export.py` takes by default."""
    strangers: Count = 2000
    """Pictures of other things, and as many of unknown plants."""
    outputs: Count = 5337
    """Outputs of the network."""
    features: Count = 1792
    """Features of the network."""
    folder: Path | None = None
    """Where the outputs are stored; default: the system's folder for temporary files."""
    out: Path | None = None
    """File for the result, JSON."""


class Result(msgspec.Struct, frozen=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    load: tuple[float, float]
    """Mean number of running processes of the last minute, when the first and the last step ended."""
    num_pictures: int
    num_outputs: int
    num_calibration: int
    seconds: dict[str, float]
    """Step -> wall seconds; the first draws the outputs and writes them to disk."""
    cpu_s: float
    """Processor time of all threads in the steps after the drawing. Where other programs run too, the wall time is
    longer than on a quiet machine and this time is not."""
    drawing_gb: float
    """Peak resident memory of the process when everything was drawn, GB."""
    peak_gb: float
    """Peak resident memory at the end, GB."""
    temperature: float
    top1: float


class Drawn(msgspec.Struct, frozen=True):
    """The outputs of a network that does not exist."""

    taxonomy: Taxonomy
    test: LabeledOutputs
    calibration: LabeledOutputs
    training: LabeledOutputs
    things: Outputs
    unknown: Outputs


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(FiguresScale, description=__doc__)))


def measure(command: FiguresScale) -> Result:
    """Runs all steps and measures each."""
    seconds: dict[str, float] = {}
    with timed("draw", seconds):
        drawn = draw(command)
    drawing_gb, load, cpu_s = _peak_gb(), os.getloadavg()[0], time.process_time()
    plants = np.arange(command.calibration) * 2 // 3
    with timed("temperature", seconds):
        labels, taxonomy = drawn.calibration.labels, drawn.taxonomy
        temperature = fit_temperature(drawn.calibration.outputs.logits, labels, taxonomy, plants)
    with timed("tables and thresholds", seconds):
        fitted = _fit(drawn, plants, temperature)
    with timed("metrics of the split", seconds):
        evaluation = _evaluate(drawn, temperature)
    with timed("answers", seconds):
        limits = fitted.thresholds
        model = AnswerModel(taxonomy, temperature, limits.thresholds, limits.promises, fitted.calibration)
        judge_answers(model, drawn.test.outputs, drawn.test.labels, things=drawn.things, unknown=drawn.unknown)
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        num_pictures=command.pictures,
        num_outputs=command.outputs,
        num_calibration=command.calibration,
        seconds=seconds,
        cpu_s=round(time.process_time() - cpu_s, 1),
        drawing_gb=drawing_gb,
        peak_gb=_peak_gb(),
        temperature=round(temperature, 4),
        top1=round(evaluation.all.top1_taxon.value, 4),
    )
    _write(result, command.out)
    return result


def judging_seconds(result: Result) -> float:
    """Returns the time of all steps after the drawing."""
    return sum(result.seconds.values()) - result.seconds["draw"]


def draw(command: FiguresScale, seed: int = 0) -> Drawn:
    """Draws a network's outputs for all sets of pictures, and writes them to disk."""
    random = np.random.default_rng(seed)
    taxonomy = _taxonomy(command.outputs)
    directions = random.standard_normal((command.outputs, command.features), dtype=np.float32)

    def labeled(num_pictures: int) -> LabeledOutputs:
        labels = (command.outputs * random.random(num_pictures) ** 2).astype(np.int64)  # common and rare plants
        return LabeledOutputs(store_outputs(_batches(labels, directions, random), command.folder), labels)

    def strangers(strength: float) -> Outputs:
        labels = random.integers(command.outputs, size=command.strangers)
        return store_outputs(_batches(labels, strength * directions, random, strength), command.folder)

    return Drawn(
        taxonomy,
        labeled(command.pictures),
        labeled(command.calibration),
        labeled(command.training),
        things=strangers(0.2),
        unknown=strangers(0.6),
    )


def _batches(
    labels: npt.NDArray[np.int64],
    directions: npt.NDArray[np.float32],
    random: np.random.Generator,
    strength: float = 1.0,
) -> Iterator[NetworkOutput]:
    """Draws logits with a margin of the right output that varies, and features around its direction."""
    num_outputs, num_features = directions.shape
    for start in range(0, len(labels), _BATCH):
        some = labels[start : start + _BATCH]
        logits = random.standard_normal((len(some), num_outputs), dtype=np.float32)
        logits[np.arange(len(some)), some] += strength * random.normal(9, 4, len(some)).astype(np.float32)
        noise = random.standard_normal((len(some), num_features), dtype=np.float32)
        yield NetworkOutput(logits, directions[some] + 2 * noise)


def _taxonomy(num_outputs: int) -> Taxonomy:
    """Ten species to a genus and ten genera to a family; some outputs share a taxon."""
    num_taxa = num_outputs - int(_SHARED * num_outputs / 2)
    taxa = tuple(
        Taxon(
            taxon_id=str(number),
            rank="species",
            scientific_name=f"Genus{number // 10} species{number}",
            genus=f"Genus{number // 10}",
            family=f"Family{number // 100}",
        )
        for number in range(num_taxa)
    )
    outputs = tuple(
        Output(key=f"{'ab'[at // num_taxa]}:{at % num_taxa}", source="ab"[at // num_taxa], taxon_id=str(at % num_taxa))
        for at in range(num_outputs)
    )
    return Taxonomy(taxonomy_version="drawn", taxa=taxa, outputs=outputs)


def _fit(drawn: Drawn, plants: npt.NDArray[np.int64], temperature: float) -> FittedTables:
    chosen, num_things = one_picture_each(plants), len(drawn.things.logits)
    calibration = LabeledOutputs(drawn.calibration.outputs.choose(chosen), drawn.calibration.labels[chosen])
    data = TableData(
        taxonomy=drawn.taxonomy,
        calibration=calibration,
        training=drawn.training,
        negatives=drawn.things,
        negative_groups=np.arange(num_things) % _NUM_FOLDERS,
        prior_T=training_prior(drawn.training.labels, drawn.taxonomy),
        data="drawn",
        num_pictures=len(plants),
    )
    return fit_tables(data, temperature, {})


def _evaluate(drawn: Drawn, temperature: float) -> Evaluation:
    labels, rows = drawn.test.labels, np.arange(len(drawn.test.labels))
    found: Predictions = calibrated_predictions(drawn.test.outputs.logits, labels, rows, drawn.taxonomy, temperature)
    table = pa.table({"source": np.where(rows % 4 == 0, "b", "a")})
    manifest = cast("Manifest", SimpleNamespace(table=table, taxonomy=drawn.taxonomy))
    list(class_metrics(found, drawn.taxonomy))
    return evaluate_predictions(found, manifest, network="drawn", split="test", temperature=temperature)


def _peak_gb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def _write(result: Result, out: Path | None) -> None:
    print(f"judged in {judging_seconds(result):.0f} s, peak {result.peak_gb:.2f} GB, {result.cpu_s} s of CPU time")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced(out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


if __name__ == "__main__":
    main()
