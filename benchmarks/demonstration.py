"""Program: measures how far the answers of the demonstration bundle can be believed.

python benchmarks/demonstration.py --data DATA --negatives DIR --unknown DIR [--out FILE.json]

It runs training/evaluate.py once, on the test split of the data that the bundle was trained with.
"""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from benchmarks.answer_tables import answer_tables
from benchmarks.serving.flags import DEMONSTRATION, Network, network_of, write_result
from models.bundle import load_bundle
from models.verdict import Promises, Thresholds
from training.actions.evaluate import evaluate
from training.bundling.served import ServedAnswers
from training.commands.evaluate import Evaluate
from training.evaluation.split_metrics import SplitMetrics
from training.machine import Machine, this_machine
from training.program import run_program

_SERVED_FILE: Final = "bundle-test-served.json"


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """Measures the answers of a bundle, with its tables."""

    bundle: Path = DEMONSTRATION
    """The bundle."""
    data: Path
    """Prepared data that it was trained with."""
    negatives: Path
    """Pictures that show no plant, see training/evaluate.py."""
    unknown: Path
    """Plants of other species, see training/evaluate.py."""
    workers: int = 2
    """Loader processes; 0 loads in the main process."""
    out: Path | None = None
    """File for the result (JSON)."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    network: Network
    thresholds: Thresholds
    promises: Promises
    metrics: SplitMetrics
    """The figures of `evaluate.py` on the test split."""
    served: ServedAnswers
    """Its figures of the answers as they are served."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Demonstration, description=__doc__)))


def measure(command: Demonstration) -> Result:
    """Measures, prints the tables, and writes the result if `out` is given."""
    bundle = load_bundle(command.bundle)
    with tempfile.TemporaryDirectory(prefix="demonstration-") as folder:
        (evaluation,) = evaluate(
            Evaluate(
                data=command.data,
                bundle=command.bundle,
                negatives=command.negatives,
                unknown=command.unknown,
                out=Path(folder),
                workers=command.workers,
            )
        )
        served = msgspec.json.decode((Path(folder) / _SERVED_FILE).read_bytes(), type=ServedAnswers)
    network = bundle.network("fp32")
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        network=network_of(bundle),
        thresholds=network.thresholds,
        promises=network.promises,
        metrics=evaluation.all,
        served=served,
    )
    print(markdown(result))
    write_result(result, command.out)
    return result


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""
    return f"{result.machine}: {result.network}.\n\n{answer_tables(result.metrics, result.served, result.promises)}"


if __name__ == "__main__":
    main()
