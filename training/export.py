"""Program: turns a checkpoint into a sealed bundle: convert, check parity, calibrate, measure, seal.

python training/export.py --checkpoint FILE --data DATA --out DIR
"""

import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import torch
import tyro

from models.bundle import (
    FORMAT_VERSION,
    Architecture,
    Bundle,
    BundleRecord,
    DataSource,
    Gate,
    Metric,
    NetworkFile,
    seal_bundle,
)
from models.errors import BundleError, DataError
from models.network import PlantNetwork
from models.preprocess import InputSpec
from models.ranking import Thresholds, output_probabilities
from models.session import OnnxSession
from training.audit import joint_commercial_use
from training.calibration import fit_temperature
from training.checkpoint import Checkpoint, current_commit, read_checkpoint
from training.data import input_spec, judged_loader
from training.judgment import Figures, answers, figures
from training.manifest import Manifest
from training.metrics import Share
from training.model_card import MODEL_CARD_FILE, model_card
from training.onnx_file import fold_batch_norm, round_to_half, write_onnx
from training.predict import Logits, predict, torch_runner
from training.program import run_program
from training.recipe import DataRecipe, Pixels, WholeNumber, check_recipe
from training.sources.record import Split
from training.toml_file import Section, check_section, section_to_plain

PARITY_LIMIT: Final = 1e-3
_NETWORK_FILE: Final = "model.fp32.onnx"
_CPU: Final = torch.device("cpu")


class Export(Section, frozen=True, kw_only=True):
    """Turns a checkpoint into a sealed bundle."""

    checkpoint: Path
    """A checkpoint of training/train.py."""
    data: Path
    """Folder written by training/prepare.py: its calibration split (else validation) calibrates, test is measured."""
    shards: str = ""
    """Folder or URL (s3://, gs://) that the shards of packed data lie in; default: the data folder."""
    out: Path
    """Folder of the new bundle; must not exist."""
    name: str = ""
    """Name of the model; default: the recipe's."""
    model_version: str = "1.0.0"
    """Version of the model."""
    serve_px: Pixels | None = None
    """Side of the pictures in service, px; default: the recipe's. Often best a little above the last training size
    (Touvron et al. 2019); choose it on validation, never on test."""
    half_storage: bool = True
    """Store the weights in half precision and compute in single: half the size at the same speed."""
    note: str = ""
    """What users must know of the training pictures; stands in the bundle and its model card."""
    thresholds: Thresholds = Thresholds()
    parity_limit: Annotated[float, msgspec.Meta(gt=0)] = PARITY_LIMIT
    """Largest difference in probability from PyTorch that is accepted."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the process that exports."""


class Converted(msgspec.Struct, frozen=True):
    """A network file and what it answers on the validation pictures."""

    path: Path
    logits: Logits
    gates: tuple[Gate, ...]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: export(tyro.cli(Export, description=__doc__)))


def export(command: Export) -> Bundle:
    """Exports a checkpoint.

    Raises:
        BundleError: The folder exists, or the network file does not answer as PyTorch does; nothing is written then.
        DataError: The data is not what the checkpoint was trained on.
        RecipeError: A flag is out of range.
    """
    command = check_section(section_to_plain(command), Export, origin="of the flags")
    if command.out.exists():
        raise BundleError(
            "a bundle is immutable and its folder exists already", value=command.out, remedy="name another"
        )
    checkpoint, manifest = read_checkpoint(command.checkpoint), Manifest(command.data, command.shards)
    _require_same_outputs(checkpoint, manifest)
    spec = input_spec(check_recipe(checkpoint.recipe, origin=str(command.checkpoint)))
    if command.serve_px is not None:
        spec = msgspec.structs.replace(spec, height=command.serve_px, width=command.serve_px)
    with tempfile.TemporaryDirectory() as folder:
        converted = convert(checkpoint, manifest, spec, Path(folder) / _NETWORK_FILE, command)
        _require_gates(converted.gates)
        temperature = _temperature(converted, manifest, spec, command.workers)
        measured = measure_file(
            converted.path, manifest, spec, "test", temperature=temperature, workers=command.workers
        )
        record = describe(
            command, checkpoint, manifest, spec, temperature=temperature, gates=converted.gates, measured=measured
        )
        card = Path(folder) / MODEL_CARD_FILE
        card.write_text(model_card(record, manifest.taxonomy), encoding="utf-8")
        files = {_NETWORK_FILE: converted.path, MODEL_CARD_FILE: card}
        bundle = seal_bundle(command.out, record, manifest.taxonomy, files)
    _print(bundle)
    return bundle


def convert(checkpoint: Checkpoint, manifest: Manifest, spec: InputSpec, path: Path, command: Export) -> Converted:
    """Writes the network file and holds it against PyTorch on every validation picture."""
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.judged_weights)
    network.eval()
    fold_batch_norm(network, spec)
    exact = _validation_logits(network, manifest, spec, command.workers)
    if command.half_storage:
        round_to_half(network)
    same_weights = _validation_logits(network, manifest, spec, command.workers) if command.half_storage else exact
    write_onnx(network, spec, manifest.taxonomy, path, half_storage=command.half_storage)
    logits = _file_logits(path, manifest, spec, "validation", command.workers)
    gates = [
        _gate(
            "parity: largest difference in probability from PyTorch with the same weights",
            logits,
            same_weights,
            command.parity_limit,
        )
    ]
    if command.half_storage:
        gates.append(
            _gate("rounding: largest difference in probability from unrounded weights", same_weights, exact, 1.0)
        )
    return Converted(path, logits, tuple(gates))


def measure_file(
    path: Path, manifest: Manifest, spec: InputSpec, split: Split, *, temperature: float, workers: int
) -> Figures:
    """The figures of a network file on a split."""
    rows = manifest.rows_of(split)
    logits = _file_logits(path, manifest, spec, split, workers)
    return figures(answers(logits, manifest.labels[rows], rows, manifest.taxonomy, temperature))


def describe(
    command: Export,
    checkpoint: Checkpoint,
    manifest: Manifest,
    spec: InputSpec,
    *,
    temperature: float,
    gates: tuple[Gate, ...],
    measured: Figures,
) -> BundleRecord:
    """Everything that `bundle.json` says, hashes apart."""
    recipe = check_recipe(checkpoint.recipe, origin="checkpoint")
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    return BundleRecord(
        format_version=FORMAT_VERSION,
        name=command.name or recipe.name,
        version=command.model_version,
        architecture=Architecture(
            name=checkpoint.architecture,
            num_outputs=network.num_outputs,
            num_features=network.num_features,
            num_parameters=network.num_parameters(),
        ),
        input=spec,
        label_hash=manifest.taxonomy.label_hash,
        networks={
            "fp32": NetworkFile(
                file=_NETWORK_FILE,
                temperature=temperature,
                thresholds=command.thresholds,
                stored_as="float16" if command.half_storage else "float32",
                gates=gates,
            )
        },
        metrics=_metrics(measured, f"{manifest.folder.name}, test split"),
        recipe=checkpoint.recipe,
        trained_on=checkpoint.trained_on,
        sources=_sources(manifest, command.note),
        git_commit=current_commit(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        description=recipe.description,
    )


def _temperature(converted: Converted, manifest: Manifest, spec: InputSpec, workers: int) -> float:
    """Fitted on the calibration split where there is one: no choice was made by its pictures."""
    if not manifest.has("calibration"):
        labels = manifest.labels[manifest.rows_of("validation")]
        return fit_temperature(converted.logits, labels, manifest.taxonomy)
    logits = _file_logits(converted.path, manifest, spec, "calibration", workers)
    return fit_temperature(logits, manifest.labels[manifest.rows_of("calibration")], manifest.taxonomy)


def _metrics(measured: Figures, data: str) -> tuple[Metric, ...]:
    metrics = []
    for name in Figures.__struct_fields__:
        figure: Share | float = getattr(measured, name)
        if isinstance(figure, Share):
            metrics.append(Metric(name, figure.value, data, figure.num_pictures, figure.interval_95))
        else:
            metrics.append(Metric(name, figure, data, measured.top1_taxon.num_pictures))
    return tuple(metrics)


def _sources(manifest: Manifest, note: str) -> tuple[DataSource, ...]:
    """Only what taught the network: the training pictures."""
    taught = manifest.table.select(["source", "licence", "author"]).take(manifest.rows_of("train"))
    licences: dict[str, dict[str, int]] = {}
    for row in taught.group_by(["source", "licence"]).aggregate([([], "count_all")]).to_pylist():
        licences.setdefault(row["source"], {})[row["licence"]] = row["count_all"]
    authors = taught.group_by(["source", "author"]).aggregate([]).to_pylist()
    num_authors = Counter(row["source"] for row in authors if row["author"])
    return tuple(
        DataSource(
            name,
            sum(counts.values()),
            counts,
            note=" ".join(filter(None, (manifest.sources[name].note, note))),
            num_authors=num_authors[name],
            commercial_use=joint_commercial_use(counts),
        )
        for name, counts in sorted(licences.items())
    )


def _validation_logits(network: PlantNetwork, manifest: Manifest, spec: InputSpec, workers: int) -> Logits:
    loader = judged_loader(manifest, manifest.rows_of("validation"), spec, DataRecipe(workers=workers))
    return predict(loader, torch_runner(network, _CPU))[0]


def _file_logits(path: Path, manifest: Manifest, spec: InputSpec, split: Split, workers: int) -> Logits:
    session = OnnxSession(path)
    loader = judged_loader(manifest, manifest.rows_of(split), spec, DataRecipe(workers=workers), batch_size=1)
    return predict(loader, lambda pixels: session.run(pixels.numpy()).logits)[0]


def _gate(name: str, first: Logits, second: Logits, limit: float) -> Gate:
    difference = float(np.abs(output_probabilities(first, 1.0) - output_probabilities(second, 1.0)).max())
    return Gate(name, difference, limit, passed=difference <= limit, num_pictures=len(first))


def _require_gates(gates: tuple[Gate, ...]) -> None:
    for gate in gates:
        if not gate.passed:
            raise BundleError(
                f"the network file does not answer as PyTorch does ({gate.name})",
                value=f"{gate.value:.2e} on {gate.num_pictures} pictures",
                limit=f"at most {gate.limit:.0e}",
                remedy="export with --no-half-storage, and report this with your versions of torch and onnxruntime",
            )


def _require_same_outputs(checkpoint: Checkpoint, manifest: Manifest) -> None:
    if tuple(checkpoint.output_keys) != manifest.taxonomy.output_keys:
        raise DataError(
            "checkpoint and data name different outputs",
            value=f"{len(manifest.taxonomy.outputs)} outputs in {manifest.folder}",
            limit=f"the {len(checkpoint.output_keys)} that the checkpoint was trained on",
            remedy="give the data that it was trained on",
        )


def _print(bundle: Bundle) -> None:
    network = bundle.network("fp32")
    print(f"Sealed: {bundle.folder} ({_megabytes(bundle.folder):.1f} MB), temperature {network.temperature:.3f}")
    for gate in network.gates:
        print(f"  {gate.name}: {gate.value:.2e} (limit {gate.limit:g}, {gate.num_pictures} pictures)")
    for metric in bundle.record.metrics:
        print(f"  {metric.name}: {metric.value:.4f} on {metric.num_pictures} pictures ({metric.data})")
    print(f"Next: python -m serving --bundle {bundle.folder}")


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


if __name__ == "__main__":
    main()
