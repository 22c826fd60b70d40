"""Program: measures how right a checkpoint or a bundle is on a split, and how far the two agree.

python training/evaluate.py --data DATA --bundle DIR [--checkpoint FILE] [--out DIR]
"""

import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from models.bundle import Bundle, Precision, load_bundle
from models.errors import DataError
from models.network import PlantNetwork
from models.preprocess import InputSpec
from training.atomic_file import replace_together
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.engine.checkpoint import read_checkpoint
from training.engine.device import amp_dtype, choose_device
from training.evaluation.metrics import Share
from training.evaluation.predict import RunBatch, predict, torch_runner
from training.evaluation.split_metrics import Answers, ClassFigures, Figures, Judgment, answers, class_figures, judge
from training.insight.curves import learning_curves
from training.insight.mistakes import SHEETS, draw_mistakes
from training.loading.data import evaluation_loader, input_spec
from training.monitor.log import LOG_FILE
from training.program import run_program
from training.recipe import DataRecipe, HardwareRecipe, WholeNumber, check_stored_recipe
from training.toml_file import Section, check_section, section_to_plain

CURVES_FILE: Final = "curves.png"
_ANSWER_COLUMNS: Final = ("picture", "right_taxon_id", "named_taxon_id", "score")


class Evaluate(Section, frozen=True, kw_only=True):
    """Measures a checkpoint, a bundle, or both."""

    data: Path
    """Folder written by training/prepare.py."""
    shards: str = ""
    """Folder or URL (s3://, gs://) that the shards of packed data lie in; default: the data folder."""
    checkpoint: Path | None = None
    """A checkpoint of training/train.py; judged without calibration, in full precision, at the bundle's picture size
    if one is named too."""
    bundle: Path | None = None
    """A bundle; judged as it is served."""
    precision: Precision = "fp32"
    """Which network of the bundle."""
    split: Split = "test"
    """Which pictures."""
    out: Path | None = None
    """Folder for the report (JSON), the per-class table and the answers (CSV), mistakes as pictures, and the learning
    curves of the checkpoint's run."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the process that judges."""


class Subject(msgspec.Struct, frozen=True):
    """Something that can be judged."""

    name: str
    run: RunBatch
    input: InputSpec
    output_keys: tuple[str, ...]
    temperature: float


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: evaluate(tyro.cli(Evaluate, description=__doc__)))


def evaluate(command: Evaluate) -> list[Judgment]:
    """Judges what the command names and prints the figures; with `out`, writes them too.

    Raises:
        DataError: Nothing to judge is named, or it names other outputs than the data.
        RecipeError: A flag is out of range.
    """
    command = check_section(section_to_plain(command), Evaluate, origin="of the flags")
    manifest = Manifest(command.data, command.shards)
    found: dict[str, Answers] = {}
    judgments = []
    for subject in _subjects(command):
        found[subject.name] = measure(subject, manifest, command.split, command.workers)
        judgment = judge(
            found[subject.name], manifest, network=subject.name, split=command.split, temperature=subject.temperature
        )
        judgments.append(judgment)
        if command.out is not None:
            _write(command.out, judgment, found[subject.name], manifest)
    if command.out is not None and command.checkpoint is not None:
        _write_curves(command.out, command.checkpoint.parent)
    _print(judgments, list(found.values()))
    return judgments


def measure(subject: Subject, manifest: Manifest, split: Split, workers: int) -> Answers:
    """Runs every picture of a split through a network, as it would be served.

    Raises:
        DataError: The network names other outputs than the data.
    """
    if subject.output_keys != manifest.taxonomy.output_keys:
        raise DataError(
            f"the {subject.name} and the data name different outputs",
            value=f"{len(manifest.taxonomy.output_keys)} outputs in the data",
            limit=f"the {len(subject.output_keys)} of the {subject.name}, in the same order",
            remedy="evaluate on the data that it was trained on",
        )
    rows = manifest.rows_of(split)
    loader = evaluation_loader(manifest, rows, subject.input, DataRecipe(workers=workers))
    logits, labels = predict(loader, subject.run)
    return answers(logits, labels, rows, manifest.taxonomy, subject.temperature)


def bundle_subject(bundle: Bundle, precision: Precision) -> Subject:
    """A bundle's network, run one picture at a time as the service runs it on a CPU."""
    session = bundle.open_session(precision)

    def run(pixels: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.concatenate([session.run(picture[None].numpy()).logits for picture in pixels])

    temperature = bundle.network(precision).temperature
    return Subject("bundle", run, bundle.record.input, bundle.taxonomy.output_keys, temperature)


def checkpoint_subject(path: Path, served: InputSpec | None = None) -> Subject:
    """A checkpoint's network: the moving average of its weights where there is one, without calibration.

    Args:
        path: The checkpoint.
        served: The input of the bundle that it is held against; default: the recipe's.
    """
    checkpoint = read_checkpoint(path)
    recipe = check_stored_recipe(checkpoint.recipe, origin=str(path))
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.eval_weights)
    hardware = HardwareRecipe(amp="off")
    device = choose_device(hardware)
    run = torch_runner(network.to(device), device, amp_dtype(hardware, device))
    return Subject("checkpoint", run, served or input_spec(recipe), tuple(checkpoint.output_keys), temperature=1.0)


def _subjects(command: Evaluate) -> list[Subject]:
    bundle = load_bundle(command.bundle) if command.bundle is not None else None
    subjects = []
    if command.checkpoint is not None:
        subjects.append(checkpoint_subject(command.checkpoint, bundle.record.input if bundle else None))
    if bundle is not None:
        subjects.append(bundle_subject(bundle, command.precision))
    if not subjects:
        raise DataError("nothing to judge is named", remedy="give --checkpoint FILE, --bundle DIR, or both")
    return subjects


def _print(judgments: list[Judgment], found: list[Answers]) -> None:
    console = Console()
    for judgment in judgments:
        console.print(_table(judgment))
    if len(found) == 2:
        first, second = (answer.taxa_NT for answer in found)
        same = int((first.argmax(axis=1) == second.argmax(axis=1)).sum())
        console.print(f"{judgments[0].network} and {judgments[1].network} name the same taxon: {same} of {len(first)}")


def _table(judgment: Judgment) -> Table:
    table = Table("", "all", *judgment.by_source, title=f"{judgment.network}, {judgment.split} split")
    columns = [judgment.all, *judgment.by_source.values()]
    for name in Figures.__struct_fields__:
        table.add_row(name, *(_cell(getattr(figures, name)) for figures in columns))
    return table


def _cell(figure: Share | float) -> str:
    if isinstance(figure, float):
        return f"{figure:.4f}"
    low, high = figure.interval_95
    return f"{figure.value:.1%} [{low:.1%}, {high:.1%}] of {figure.num_pictures}"


def _write(folder: Path, judgment: Judgment, found: Answers, manifest: Manifest) -> None:
    """Writes everything about one subject; what an earlier evaluation drew and this one does not is removed."""
    files = {
        ".json": msgspec.json.format(msgspec.json.encode(judgment)) + b"\n",
        "-classes.csv": _csv(
            ClassFigures.__struct_fields__, map(msgspec.structs.astuple, class_figures(found, manifest.taxonomy))
        ),
        "-answers.csv": _csv(_ANSWER_COLUMNS, _answer_rows(found, manifest)),
    }
    drawn = draw_mistakes(found, manifest)
    files |= {f"-{name}": content for name, content in drawn.items()}
    stem = f"{judgment.network}-{judgment.split}"
    replace_together(folder, {f"{stem}{ending}": content for ending, content in files.items()})
    for name in SHEETS:
        if name not in drawn:
            (folder / f"{stem}-{name}").unlink(missing_ok=True)


def _answer_rows(found: Answers, manifest: Manifest) -> Iterable[tuple[str, ...]]:
    taxa = manifest.taxonomy.taxa
    for row, right, scores in zip(found.rows, found.taxon_labels_N, found.taxa_NT, strict=True):
        best = int(scores.argmax())
        yield manifest.name(int(row)), taxa[right].taxon_id, taxa[best].taxon_id, f"{scores[best]:.6f}"


def _csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def _write_curves(folder: Path, run: Path) -> None:
    """Draws the learning curves beside the report, where the checkpoint still lies in its run's folder."""
    if (run / LOG_FILE).is_file():
        replace_together(folder, {CURVES_FILE: learning_curves([run])})


if __name__ == "__main__":
    main()
