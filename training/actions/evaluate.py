"""Measures the accuracy of a checkpoint or a bundle on a split, and how often the two agree."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from models.bundle import Bundle, load_bundle
from models.bundle_record import Precision
from models.errors import DataError
from models.metrics import Share
from models.network import ExportableNetwork, PlantNetwork
from models.preprocess import InputSpec
from models.session import NetworkOutput
from training.atomic_file import replace_together
from training.bundling.precisions.pictures import BATCH_SIZE, pictures_of
from training.bundling.precisions.ranges import Pixels
from training.bundling.served import FurtherPictures, describe_answers, served_answers
from training.bundling.side_by_side import run_side_by_side
from training.commands.evaluate import Evaluate
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.engine.checkpoint import read_checkpoint
from training.engine.device import allow_tf32, choose_device
from training.evaluation.curves import learning_curves
from training.evaluation.mistakes import SHEETS, draw_mistakes
from training.evaluation.predict import require_same_outputs, run_in_torch
from training.evaluation.predictions import Predictions, calibrated_predictions
from training.evaluation.provenance import OTHER_DATA, is_other_data
from training.evaluation.split_metrics import (
    ClassMetrics,
    Evaluation,
    SplitMetrics,
    class_metrics,
    evaluate_predictions,
)
from training.evaluation.stored_rows import Outputs, store_outputs
from training.loading.negatives import list_negatives
from training.monitor.log import LOG_FILE
from training.network_input import stored_input_spec
from training.recipe import HardwareRecipe
from training.toml_file import check_section, section_to_plain

CURVES_FILE: Final = "curves.png"
_PREDICTION_COLUMNS: Final = ("picture", "right_taxon_id", "named_taxon_id", "score")


class Subject(msgspec.Struct, frozen=True):
    """A network to measure: a checkpoint or a bundle."""

    name: str
    run: Callable[[Iterator[Pixels]], Iterator[NetworkOutput]]
    """Batches of network inputs, each of shape (batch, 3, height, width) -> the outputs of each batch."""
    input: InputSpec
    output_keys: tuple[str, ...]
    temperature: float
    trained_with: str
    """SHA-256 of the manifest of its training; empty if unknown."""
    bundle: Bundle | None = None
    """None for a checkpoint."""


def evaluate(command: Evaluate) -> list[Evaluation]:
    """Measures the checkpoint, the bundle or both, prints the metrics, and writes them if `out` is given.

    Raises:
        DataError: Neither checkpoint nor bundle is given, its outputs are not those of the data, or it was trained with
            other data and `other_data` is not set. Or further pictures are given without a bundle, or cannot be read.
        RecipeError: A flag is out of range.
    """
    command = check_section(section_to_plain(command), Evaluate, origin="of this command", what="flags")
    manifest, further = Manifest(command.data, command.shards), _further_pictures(command)
    results: list[tuple[Evaluation, Predictions]] = []
    for subject in _subjects(command):
        require_same_outputs(manifest, subject.output_keys, subject.name)
        other_data = is_other_data(manifest, subject.trained_with, subject.name, allowed=command.other_data)
        predictions, outputs = measure(subject, manifest, command.split, command.workers, command.out)
        evaluation = evaluate_predictions(
            predictions,
            manifest,
            network=subject.name,
            split=command.split,
            temperature=subject.temperature,
            other_data=other_data,
        )
        results.append((evaluation, predictions))
        if command.out is not None:
            _write(command.out, evaluation, predictions, manifest)
        if subject.bundle is not None:
            _judge_answers(command, subject.bundle, outputs, predictions, further=further, stem=_stem(evaluation))
    if command.out is not None and command.checkpoint is not None:
        _write_curves(command.out, command.checkpoint.parent)
    _print(results)
    return [evaluation for evaluation, _ in results]


def _further_pictures(command: Evaluate) -> FurtherPictures:
    """Lists the pictures that judge the answers of a bundle, before anything is measured."""
    given = [folder for folder in (command.negatives, command.unknown) if folder is not None]
    if given and command.bundle is None:
        raise DataError(
            "pictures without a label judge the answers of a bundle, and none is given",
            value=given[0],
            remedy="give --bundle DIR, or leave out --negatives and --unknown",
        )
    things, unknown = (
        list_negatives((folder,), (command.negatives_split,)).paths if folder is not None else ()
        for folder in (command.negatives, command.unknown)
    )
    return FurtherPictures(things, unknown)


def measure(
    subject: Subject, manifest: Manifest, split: Split, workers: int, folder: Path | None = None
) -> tuple[Predictions, Outputs]:
    """Runs every picture of a split through a network with the outputs of the data, as it would be served.

    Args:
        subject: The network.
        manifest: The data.
        split: Which of its pictures.
        workers: Loader processes; 0 loads in this process.
        folder: Where the outputs are stored, see `StoredRows`; it is made if it does not exist.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    pictures = pictures_of(manifest, split, subject.input, workers)
    outputs = store_outputs(subject.run(pictures.pixels(BATCH_SIZE)), folder)
    labels, rows, plants, temperature = pictures.labels, pictures.rows, pictures.plants, subject.temperature
    found = calibrated_predictions(outputs.logits, labels, rows, manifest.taxonomy, temperature, plants=plants)
    return found, outputs


def bundle_subject(bundle: Bundle, precision: Precision) -> Subject:
    """Returns a bundle's network, run one picture at a time as the service does on a CPU."""
    session, temperature = bundle.open_session(precision, num_threads=1), bundle.network(precision).temperature
    record, output_keys, run = bundle.record, bundle.taxonomy.output_keys, partial(run_side_by_side, session)
    return Subject("bundle", run, record.input, output_keys, temperature, record.manifest_sha256, bundle)


def _checkpoint_subject(path: Path, served: InputSpec | None = None) -> Subject:
    """Returns a checkpoint's network, without calibration: the moving average of its weights if it has one.

    Args:
        path: The checkpoint.
        served: Input of the bundle to compare with; default: that of the recipe.
    """
    checkpoint = read_checkpoint(path)
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.eval_weights)
    device = choose_device(HardwareRecipe(amp="off"))
    allow_tf32(device, False)  # single precision, which PyTorch's default for convolutions is not
    run = partial(run_in_torch, ExportableNetwork(network).to(device).eval(), device)
    spec, output_keys = served or stored_input_spec(checkpoint.recipe, origin=str(path)), tuple(checkpoint.output_keys)
    return Subject("checkpoint", run, spec, output_keys, temperature=1.0, trained_with=checkpoint.trained_with)


def _subjects(command: Evaluate) -> list[Subject]:
    bundle = load_bundle(command.bundle) if command.bundle is not None else None
    subjects = []
    if command.checkpoint is not None:
        subjects.append(_checkpoint_subject(command.checkpoint, bundle.record.input if bundle else None))
    if bundle is not None:
        subjects.append(bundle_subject(bundle, command.precision))
    if not subjects:
        raise DataError("there is nothing to evaluate", remedy="give --checkpoint FILE, --bundle DIR, or both")
    return subjects


def _print(results: list[tuple[Evaluation, Predictions]]) -> None:
    console = Console()
    for evaluation, _ in results:
        console.print(_table(evaluation))
    if len(results) == 2:
        names = [evaluation.network for evaluation, _ in results]
        first, second = (predictions.named_N for _, predictions in results)
        console.print(f"{' and '.join(names)} name the same taxon: {(first == second).sum()} of {len(first)}")


def _table(evaluation: Evaluation) -> Table:
    other = f" ({OTHER_DATA})" if evaluation.other_data else ""
    table = Table("", "all", *evaluation.by_source, title=f"{evaluation.network}, {evaluation.split} split{other}")
    columns = [evaluation.all, *evaluation.by_source.values()]
    for name in SplitMetrics.__struct_fields__:
        table.add_row(name, *(_cell(getattr(column, name)) for column in columns))
    return table


def _cell(figure: Share | float) -> str:
    if isinstance(figure, float):
        return f"{figure:.4f}"
    low, high = figure.interval_95
    return f"{figure.value:.1%} [{low:.1%}, {high:.1%}] of {figure.num_pictures}"


def _write(folder: Path, evaluation: Evaluation, predictions: Predictions, manifest: Manifest) -> None:
    """Writes all files of one network, and removes pictures of an earlier evaluation that this one did not draw."""
    files = {
        ".json": msgspec.json.format(msgspec.json.encode(evaluation)) + b"\n",
        "-classes.csv": _csv(
            ClassMetrics.__struct_fields__, map(msgspec.structs.astuple, class_metrics(predictions, manifest.taxonomy))
        ),
        "-answers.csv": _csv(_PREDICTION_COLUMNS, _prediction_rows(predictions, manifest)),
    }
    sheets = draw_mistakes(predictions, manifest)
    files |= {f"-{name}": content for name, content in sheets.items()}
    stem = _stem(evaluation)
    replace_together(folder, {f"{stem}{ending}": content for ending, content in files.items()})
    for name in SHEETS:
        if name not in sheets:
            (folder / f"{stem}-{name}").unlink(missing_ok=True)


def _stem(evaluation: Evaluation) -> str:
    """Returns the start of the file names of an evaluation."""
    return f"{evaluation.network}-{evaluation.split}{'-other-data' if evaluation.other_data else ''}"


def _judge_answers(
    command: Evaluate,
    bundle: Bundle,
    outputs: Outputs,
    predictions: Predictions,
    *,
    further: FurtherPictures,
    stem: str,
) -> None:
    """Measures the answers of a bundle, prints the figures, and writes them if `out` is given."""
    found = served_answers(
        bundle, command.precision, outputs, predictions.labels_N, further=further, folder=command.out
    )
    for line in describe_answers(found):
        print(line)
    if command.out is not None:
        content = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
        replace_together(command.out, {f"{stem}-served.json": content})


def _prediction_rows(predictions: Predictions, manifest: Manifest) -> Iterable[tuple[str, ...]]:
    taxa = manifest.taxonomy.taxa
    found = (predictions.rows, predictions.taxon_labels_N, predictions.named_N, predictions.confidence_N)
    for row, right, named, score in zip(*found, strict=True):
        yield manifest.name(int(row)), taxa[right].taxon_id, taxa[named].taxon_id, f"{score:.6f}"


def _csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def _write_curves(folder: Path, run: Path) -> None:
    """Draws the learning curves if the checkpoint is in the folder of its run."""
    if (run / LOG_FILE).is_file():
        replace_together(folder, {CURVES_FILE: learning_curves([run])})
