"""Program: the accuracy of runs on the test split, by arm, from their evaluations.

python benchmarks/gpu/transfer.py FOLDER --out FILE.json     FOLDER/ARM/SEED/evaluation/checkpoint-test.json
"""

import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro

from models.errors import DataError
from training.atomic_file import replaced
from training.evaluation.split_metrics import Evaluation
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program

_EVALUATION = "evaluation/checkpoint-test.json"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy of runs on the test split, by arm."""

    folder: tyro.conf.Positional[Path]
    """Folder with a folder for each arm, and in it one for each seed."""
    out: Path
    """File for the result, JSON."""


class Arm(msgspec.Struct, frozen=True):
    """The runs of an arm, in the order of their seeds."""

    name: str
    seeds: list[str]
    num_pictures: int
    """Pictures of the test split."""
    top1: list[float]
    nll: list[float]

    @property
    def mean_top1(self) -> float:
        """Mean of its runs."""
        return statistics.fmean(self.top1)


class Result(msgspec.Struct, frozen=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    arms: list[Arm]
    """The best one first."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: summarize(tyro.cli(Transfer, description=__doc__)))


def summarize(command: Transfer) -> Result:
    """Reads the evaluations, prints a table and writes the result.

    Raises:
        DataError: The folder holds no evaluation, or one is damaged.
    """
    found: dict[str, dict[str, Evaluation]] = {}
    for path in sorted(command.folder.glob(f"*/*/{_EVALUATION}")):
        seed = path.parents[1]
        found.setdefault(seed.parent.name, {})[seed.name] = _read(path)
    if not found:
        raise DataError("there is no evaluation", value=command.folder, limit=f"ARM/SEED/{_EVALUATION}")
    arms = sorted((_arm(name, by_seed) for name, by_seed in found.items()), key=lambda arm: arm.mean_top1, reverse=True)
    result = Result(this_machine(), datetime.now(UTC).date().isoformat(), arms)
    print(markdown(result))
    with replaced(command.out) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def markdown(result: Result) -> str:
    """The result as a table in Markdown."""
    rows = [
        [arm.name, f"{arm.mean_top1:.1%}", f"{min(arm.top1):.1%} to {max(arm.top1):.1%}", str(len(arm.seeds))]
        for arm in result.arms
    ]
    pictures = result.arms[0].num_pictures
    return f"{result.machine}, {pictures} test pictures:\n\n{table(['arm', 'top-1', 'runs', 'seeds'], rows)}"


def _read(path: Path) -> Evaluation:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Evaluation)
    except msgspec.DecodeError as error:
        raise DataError(
            "an evaluation is damaged", value=f"{path}: {error}", remedy="evaluate the run again"
        ) from error


def _arm(name: str, by_seed: dict[str, Evaluation]) -> Arm:
    metrics = [each.all for each in by_seed.values()]
    return Arm(
        name=name,
        seeds=list(by_seed),
        num_pictures=metrics[0].top1_taxon.num_pictures,
        top1=[each.top1_taxon.value for each in metrics],
        nll=[each.nll for each in metrics],
    )


if __name__ == "__main__":
    main()
