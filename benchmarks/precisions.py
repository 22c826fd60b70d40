"""Program: what fp16 and int8 of a released network are worth, judged as `training/export.py` judges them.

python benchmarks/precisions.py --data DATA [--bundle DIR] [--judge-on DATA ...] [--out FILE.json]

For a bundle whose checkpoint is not at hand: both are made from its fp32 file. Nothing is released.
"""

import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from models.bundle import Bundle, Metric, NetworkFile, Precision, load_bundle
from models.errors import DataError
from training.atomic_file import replaced
from training.dataset.manifest import Manifest
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program
from training.release.precisions.candidates import MAKERS
from training.release.precisions.evaluated_network import Answering, Judges, judge_network, judges_of
from training.release.precisions.pictures import require_unseen

_DEMONSTRATION: Final = Path(__file__).resolve().parents[1] / "models" / "releases" / "flowers17"
_TOP1: Final = "top1_taxon"
_LOST: Final = "top1_taxon_lost_against_fp32"


class Precisions(msgspec.Struct, frozen=True, kw_only=True):
    """Makes and judges the other precisions of a bundle."""

    bundle: Path = _DEMONSTRATION
    """The bundle."""
    data: Path
    """Prepared data that its network learned from: training pictures set ranges, test judges."""
    judge_on: tuple[Path, ...] = ()
    """Further prepared data with the same outputs, whose test split judges too."""
    calibration_pictures: int = 256
    """Training pictures that set the ranges of int8."""
    workers: int = 2
    """Loader processes; 0 loads in this one."""
    out: Path | None = None
    """File for the result, JSON."""


class Made(msgspec.Struct, frozen=True):
    """One network file."""

    precision: Precision
    entry: NetworkFile
    """What a bundle would say of it; `metrics` of fp32 too."""
    num_bytes: int
    passed: bool
    """Whether a bundle would hold it."""


class Result(msgspec.Struct, frozen=True):
    """What was measured."""

    machine: Machine
    measured_on: str
    bundle: str
    side_px: int
    networks: list[Made]
    """fp32 first."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Precisions, description=__doc__)))


def measure(command: Precisions) -> Result:
    """Makes fp16 and int8, judges all three, prints a table and, with `out`, writes the result.

    Raises:
        BundleError: The bundle is missing or damaged.
        DataError: The data names other outputs, or the further data holds pictures of the first.
    """
    bundle = load_bundle(command.bundle)
    judges = _judges(command, bundle)
    with tempfile.TemporaryDirectory() as folder:
        networks = _networks(bundle, judges, Path(folder))
    record = bundle.record
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        bundle=f"{record.name} {record.version}",
        side_px=record.input.width,
        networks=networks,
    )
    print(markdown(result))
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        with replaced(command.out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def markdown(result: Result) -> str:
    """The result as a table, a row for each network and set of pictures."""
    columns = ["network", "judged on", "top-1", "lost against fp32, 95 % interval", "size", "passes its gates"]
    rows = [row for made in result.networks for row in _rows(made)]
    notes = "\n".join(f"* {made.precision}: {made.entry.note}" for made in result.networks if made.entry.note)
    head = f"{result.bundle} at {result.side_px} px, {result.machine}, {result.measured_on}:"
    return f"{head}\n\n{table(columns, rows)}\n\n{notes}"


def _judges(command: Precisions, bundle: Bundle) -> Judges:
    judging = [Manifest(folder) for folder in (command.data, *command.judge_on)]
    for each in judging:
        if each.taxonomy.output_keys != bundle.taxonomy.output_keys:
            raise DataError(
                "bundle and data name different outputs",
                value=f"{len(each.taxonomy.outputs)} outputs in {each.folder}",
                limit=f"the {len(bundle.taxonomy.outputs)} of the bundle",
                remedy="give the data that its network was trained on",
            )
    for further in judging[1:]:
        require_unseen(further, judging[0])
    pictures = command.calibration_pictures
    return judges_of(judging, bundle.record.input, calibration_pictures=pictures, workers=command.workers)


def _networks(bundle: Bundle, judges: Judges, folder: Path) -> list[Made]:
    entry = bundle.network("fp32")
    single = judge_network(Answering(bundle.folder / entry.file), judges)
    entry = msgspec.structs.replace(entry, temperature=single.temperature, metrics=single.metrics)
    networks = [Made("fp32", entry, single.network.path.stat().st_size, passed=True)]
    for precision, make in MAKERS.items():
        made = make(single, judges, folder, entry.thresholds)
        networks.append(Made(precision, made.entry, made.path.stat().st_size, made.passed))
    return networks


def _rows(made: Made) -> list[list[str]]:
    metrics = made.entry.metrics
    tops = [metric for metric in metrics if metric.name == _TOP1]
    return [
        [
            made.precision,
            f"{top.data}, {top.num_pictures:,}",
            f"{top.value:.1%}",
            _lost(metrics, top.data),
            f"{made.num_bytes / 1e6:.1f} MB",
            _passes(made),
        ]
        for top in tops
    ]


def _lost(metrics: Sequence[Metric], data: str) -> str:
    found = next((metric for metric in metrics if (metric.name, metric.data) == (_LOST, data)), None)
    if found is None or found.interval_95 is None:
        return ""
    low, high = found.interval_95
    return f"{100 * found.value:.1f} points ({100 * low:.1f} to {100 * high:.1f})"


def _passes(made: Made) -> str:
    failed = [gate for gate in made.entry.gates if not gate.passed]
    if not failed:
        return "yes"
    return "no: " + "; ".join(f"{gate.name.split(':')[0]} {gate.value:.3g}, limit {gate.limit:g}" for gate in failed)


if __name__ == "__main__":
    main()
