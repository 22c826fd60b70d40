"""Program: makes fp16 and int8 of a released network and checks them as `training/export.py` does.

python benchmarks/precisions.py --data DATA [--bundle DIR] [--judge-on DATA ...] [--out FILE.json]

Both are made from the fp32 file of a bundle, so that no checkpoint is needed. Nothing is released.
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

from models.bundle import Bundle, load_bundle
from models.bundle_record import Metric, NetworkFile, Precision
from training.atomic_file import replaced
from training.bundling.precisions.candidates import MAKERS
from training.bundling.precisions.evaluated_network import CachedNetwork, evaluate_network
from training.bundling.precisions.pictures import PictureSets, picture_sets
from training.dataset.manifest import Manifest
from training.evaluation.predict import require_same_outputs
from training.evaluation.provenance import is_other_data
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program

_DEMONSTRATION: Final = Path(__file__).resolve().parents[1] / "models" / "releases" / "garden_and_wild_plants"
_TOP1: Final = "top1_taxon"
_LOST: Final = "top1_taxon_lost_against_fp32"


class Precisions(msgspec.Struct, frozen=True, kw_only=True):
    """Makes and evaluates the other precisions of a bundle."""

    bundle: Path = _DEMONSTRATION
    """Bundle with the fp32 network."""
    data: Path
    """Prepared data that its network was trained on; training pictures set ranges, the test split gives the
    metrics."""
    judge_on: tuple[Path, ...] = ()
    """Further prepared data with the same outputs, whose test split is measured too."""
    calibration_pictures: int = 256
    """Number of training pictures that set the ranges of int8."""
    other_data: bool = False
    """Measure with data that the network was not trained with; then every figure says so."""
    workers: int = 2
    """Loader processes; 0 loads in the main process."""
    out: Path | None = None
    """File for the result (JSON)."""


class Made(msgspec.Struct, frozen=True):
    """A network file and its figures."""

    precision: Precision
    entry: NetworkFile
    """Its entry in `bundle.json`; for fp32 too, `metrics` is filled in."""
    num_bytes: int
    passed: bool
    """Whether it passed its release checks."""


class Result(msgspec.Struct, frozen=True):
    """The content of the result file."""

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
    """Makes fp16 and int8, evaluates all three, prints a table, and writes the result if `out` is given.

    Raises:
        BundleError: The bundle is missing or damaged.
        DataError: The outputs of the data are not those of the bundle, or the further data holds pictures of the first.
    """
    bundle = load_bundle(command.bundle)
    sets = _picture_sets(command, bundle)
    with tempfile.TemporaryDirectory() as folder:
        networks = _networks(bundle, sets, Path(folder))
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
    """Returns the result as a Markdown table, a row for each network and test set."""
    columns = ["network", "measured on", "top-1", "lost against fp32, 95 % interval", "size", "passes its checks"]
    rows = [row for made in result.networks for row in _rows(made)]
    notes = "\n".join(f"* {made.precision}: {made.entry.note}" for made in result.networks if made.entry.note)
    head = f"{result.bundle} at {result.side_px} px, {result.machine}, {result.measured_on}:"
    return f"{head}\n\n{table(columns, rows)}\n\n{notes}"


def _picture_sets(command: Precisions, bundle: Bundle) -> PictureSets:
    manifests = [Manifest(folder) for folder in (command.data, *command.judge_on)]
    for manifest in manifests:
        require_same_outputs(manifest, bundle.taxonomy.output_keys, "bundle")
    return picture_sets(
        manifests,
        bundle.record.input,
        calibration_pictures=command.calibration_pictures,
        feature_pictures=command.calibration_pictures,
        workers=command.workers,
        other_data=is_other_data(manifests[0], bundle.record.manifest_sha256, "bundle", allowed=command.other_data),
    )


def _networks(bundle: Bundle, sets: PictureSets, folder: Path) -> list[Made]:
    entry = bundle.network("fp32")
    fp32 = evaluate_network(CachedNetwork(bundle.folder / entry.file, folder), sets)
    entry = msgspec.structs.replace(entry, temperature=fp32.temperature, metrics=fp32.metrics)
    networks = [Made("fp32", entry, fp32.network.path.stat().st_size, passed=True)]
    for precision, make in MAKERS.items():
        made = make(fp32, sets, folder, {})
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
    failed = [check for check in made.entry.checks if not check.passed]
    if not failed:
        return "yes"
    return "no: " + "; ".join(
        f"{check.name.split(':')[0]} {check.value:.3g}, limit {check.limit:g}" for check in failed
    )


if __name__ == "__main__":
    main()
