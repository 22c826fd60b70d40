"""Program: measures how far answers can be believed, with a network that is trained on drawn plants.

python benchmarks/drawn_answers.py --work FOLDER [--out FILE.json]

It draws 40 species, trains EfficientNet-B0 on 28 of them with a long tail (16 to 120 training pictures), exports the
network with its tables, and measures the answers on 25,200 test pictures. The other 12 species are the unknown plants.
Everything is drawn in the style of one data set, so the test pictures are like the calibration pictures: the figures
show whether the methods keep their word, not how well photographs are recognized. A step whose result is in the folder
is skipped. Drawing takes a quarter of an hour on one core, training as long.
"""

import csv
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from benchmarks.answer_tables import answer_tables
from models.bundle import load_bundle
from models.errors import DataError
from models.ranking import Promises, Thresholds
from training.atomic_file import replaced
from training.bundling.served import ServedAnswers
from training.dataset.manifest import MANIFEST_FILE
from training.dataset.sources.record import Split
from training.evaluation.split_metrics import Evaluation, SplitMetrics
from training.herbarium.drawings import Drawing, draw_files
from training.herbarium.names import species_name
from training.herbarium.photo_styles import INATURALIST_STYLE
from training.machine import Machine, this_machine
from training.program import run_program

_ROOT: Final = Path(__file__).resolve().parents[1]
_RECIPE: Final = Path(__file__).with_suffix(".toml")
_SEED: Final = 16
_SIDE_PX: Final = 72
_NUM_KNOWN: Final = 28
_NUM_UNKNOWN: Final = 12
_UNKNOWN_PICTURES: Final = 60
_MOST_TRAINING: Final = 120
_LEAST_TRAINING: Final = 16
_HELD_OUT: Final[dict[Split, int]] = {"validation": 12, "calibration": 60, "test": 900}
_COLUMNS: Final = ("path", "scientific_name", "common_name", "genus", "family", "split")


class DrawnAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Draws, trains, exports and measures."""

    work: Path
    """Folder for the pictures, the run, the bundle and the report; a step that is done there is not repeated."""
    workers: int = os.cpu_count() or 1
    """Processes that draw."""
    out: Path | None = None
    """File for the result (JSON)."""


class Result(msgspec.Struct, frozen=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    num_pictures: dict[str, int]
    """Pictures of each split, and of unknown species."""
    thresholds: Thresholds
    promises: Promises
    metrics: SplitMetrics
    """The figures of `evaluate.py` on the test split."""
    served: ServedAnswers
    """Its figures of the answers as they are served."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(DrawnAnswers, description=__doc__)))


def measure(command: DrawnAnswers) -> Result:
    """Runs the steps that are not done yet, prints the report, and writes the result if `out` is given."""
    work = command.work.resolve()
    pictures, data, run, bundle, report = (work / name for name in ("pictures", "data", "run", "bundle", "report"))
    if not (data / MANIFEST_FILE).is_file():
        num_drawn = draw(pictures, command.workers)
        print(f"{num_drawn:,} pictures drawn")
        _program("prepare", "table", str(pictures / "list.csv"), "--out", str(data), "--near-copy-bits", "0")
    if not bundle.is_dir():
        _program("train", str(_RECIPE), "--data", str(data), "--run", str(run), "--auto-resume")
        _program("export", "--checkpoint", str(run / "best.pt"), "--data", str(data), "--out", str(bundle))
    unknown = str(pictures / "unknown")
    _program("evaluate", "--data", str(data), "--bundle", str(bundle), "--unknown", unknown, "--out", str(report))
    result = _result(pictures, bundle, report)
    print(markdown(result))
    if command.out is not None:
        with replaced(command.out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""
    num = result.num_pictures
    return (
        f"{result.machine}; {num['train']:,} training, {num['calibration']:,} calibration and {num['test']:,} test "
        f"pictures of {_NUM_KNOWN} species, {num['unknown']:,} pictures of {_NUM_UNKNOWN} others:\n\n"
        f"{answer_tables(result.metrics, result.served, result.promises)}"
    )


def draw(folder: Path, workers: int) -> int:
    """Draws all pictures, and writes the list of those of known species. Returns the number of pictures."""
    drawings, rows = [], []
    for species in range(_NUM_KNOWN + _NUM_UNKNOWN):
        name = species_name(species, _SEED)
        for picture, split in enumerate(_splits(species)):
            path = f"{split}/{species:02}-{picture:04}.jpg"
            drawings.append(Drawing(path, species, picture, INATURALIST_STYLE, _SIDE_PX, _SIDE_PX))
            if species < _NUM_KNOWN:
                rows.append((path, name.scientific_name, name.common_name, name.genus, name.family, split))
    draw_files(folder, drawings, seed=_SEED, workers=workers)
    with (folder / "list.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([_COLUMNS, *rows])
    return len(drawings)


def _splits(species: int) -> list[str]:
    """Returns the split of each picture of a species; known species have ever fewer training pictures."""
    if species >= _NUM_KNOWN:
        return ["unknown"] * _UNKNOWN_PICTURES
    num_training = round(_MOST_TRAINING * (_LEAST_TRAINING / _MOST_TRAINING) ** (species / (_NUM_KNOWN - 1)))
    held_out = [split for split, number in _HELD_OUT.items() for _ in range(number)]
    return ["train"] * num_training + held_out


def _program(name: str, *arguments: str) -> None:
    """Runs a program of training.

    Raises:
        DataError: It failed; its own message is above.
    """
    command = (sys.executable, str(_ROOT / "training" / f"{name}.py"), *arguments)
    if subprocess.run(command, cwd=_ROOT, check=False).returncode:
        raise DataError(f"{name}.py failed", value=" ".join(arguments), remedy="its message is above")


def _result(pictures: Path, bundle: Path, report: Path) -> Result:
    network = load_bundle(bundle).network("fp32")
    evaluation, served = ((report / f"bundle-test{end}.json").read_bytes() for end in ("", "-served"))
    folders = sorted(path for path in pictures.iterdir() if path.is_dir())
    return Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        num_pictures={folder.name: len(list(folder.glob("*.jpg"))) for folder in folders},
        thresholds=network.thresholds,
        promises=network.promises,
        metrics=msgspec.json.decode(evaluation, type=Evaluation).all,
        served=msgspec.json.decode(served, type=ServedAnswers),
    )


if __name__ == "__main__":
    main()
