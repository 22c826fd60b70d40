"""Program: turns a checkpoint into a sealed bundle: convert, check parity, calibrate, measure, seal.

python training/export.py --checkpoint FILE --data DATA --out DIR [--precision fp32 fp16 int8]
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from models.bundle import Bundle, Gate, Metric, Precision, seal_bundle
from models.errors import BundleError, DataError, RecipeError
from models.golden import GOLDEN_FILE, GOLDEN_PART
from models.ranking import Thresholds
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint, read_checkpoint
from training.loading.data import input_spec
from training.program import run_program
from training.recipe import Count, Pixels, WholeNumber, check_stored_recipe
from training.release.bundle_description import describe
from training.release.model_card import MODEL_CARD_FILE, model_card
from training.release.precisions.candidates import MAKERS, Candidate, make_fp32
from training.release.precisions.checks import gate_in_words
from training.release.precisions.evaluated_network import Judges, judges_of
from training.release.precisions.golden_picture import record_golden
from training.release.precisions.pictures import require_unseen
from training.toml_file import Section, check_section, section_to_plain

PARITY_LIMIT: Final = 1e-3


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
    precision: tuple[Precision, ...] = ("fp32",)
    """What the bundle shall hold; fp32 must be among them. fp16 is for GPUs, int8 for CPUs; each is released only if it
    keeps its gates, else left out with its figures. int8 takes minutes."""
    judge_on: Path | None = None
    """Further prepared data with the same outputs, whose test split judges too: a loss under half a point cannot be
    shown on fewer than 765 pictures, and takes thousands where some answers change."""
    calibration_pictures: Count = 256
    """Training pictures that set the ranges of int8."""
    serve_px: Pixels | None = None
    """Side of the pictures in service, px; default: the recipe's. Often best a little above the last training size
    (Touvron et al. 2019); choose it on validation, never on test."""
    half_storage: bool = True
    """Store the weights of fp32 in half precision and compute in single: half the size at the same speed."""
    note: str = ""
    """What users must know of the training pictures; stands in the bundle and its model card."""
    thresholds: Thresholds = Thresholds()
    parity_limit: Annotated[float, msgspec.Meta(gt=0)] = PARITY_LIMIT
    """Largest difference in probability from PyTorch that is accepted."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the process that exports."""


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
    _require_fp32(command.precision)
    if command.out.exists():
        raise BundleError(
            "a bundle is immutable and its folder exists already", value=command.out, remedy="name another"
        )
    checkpoint = read_checkpoint(command.checkpoint)
    judges = gather(command, checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        single, judged = make_fp32(
            checkpoint,
            judges,
            folder,
            command.thresholds,
            half_storage=command.half_storage,
            parity_limit=command.parity_limit,
        )
        candidates: dict[Precision, Candidate] = {"fp32": single}
        for precision in sorted(MAKERS.keys() & set(command.precision)):
            candidates[precision] = MAKERS[precision](judged, judges, folder, command.thresholds)
        bundle = seal(command, checkpoint, judges, candidates, metrics=judged.metrics, folder=folder)
    _print(bundle)
    return bundle


def gather(command: Export, checkpoint: Checkpoint) -> Judges:
    """The pictures that the networks are made and judged with, as they will be served.

    Raises:
        DataError: The data names other outputs than the checkpoint, or the further data would judge by pictures that
            something was learned or chosen by, or count some twice.
    """
    spec = input_spec(check_stored_recipe(checkpoint.recipe, origin=str(command.checkpoint)))
    if command.serve_px is not None:
        spec = msgspec.structs.replace(spec, height=command.serve_px, width=command.serve_px)
    manifest = Manifest(command.data, command.shards)
    judging = [manifest] if command.judge_on is None else [manifest, Manifest(command.judge_on)]
    for each in judging:
        _require_same_outputs(checkpoint, each)
    for further in judging[1:]:
        require_unseen(further, manifest)
    return judges_of(judging, spec, calibration_pictures=command.calibration_pictures, workers=command.workers)


def seal(
    command: Export,
    checkpoint: Checkpoint,
    judges: Judges,
    candidates: Mapping[Precision, Candidate],
    *,
    metrics: tuple[Metric, ...],
    folder: Path,
) -> Bundle:
    """Seals what passed, with its golden picture and model card, and the figures of what did not.

    Args:
        command: Gives the name, the version and the place.
        checkpoint: What was trained.
        judges: Give the input and the names.
        candidates: fp32 among them.
        metrics: How right fp32 is.
        folder: To write to.
    """
    manifest, spec = judges.validation.manifest, judges.validation.spec
    released = {precision: made for precision, made in candidates.items() if made.passed}
    record = describe(
        checkpoint,
        manifest,
        spec,
        name=command.name,
        version=command.model_version,
        note=command.note,
        networks={precision: made.entry for precision, made in released.items()},
        left_out={precision: made.left_out() for precision, made in candidates.items() if not made.passed},
        metrics=metrics,
        parts={GOLDEN_PART: GOLDEN_FILE},
    )
    golden, card = folder / GOLDEN_FILE, folder / MODEL_CARD_FILE
    paths = {precision: made.path for precision, made in released.items()}
    temperatures = {precision: made.entry.temperature for precision, made in released.items()}
    golden.write_bytes(msgspec.json.encode(record_golden(paths, temperatures, spec)))
    card.write_text(model_card(record, manifest.taxonomy), encoding="utf-8")
    files = {made.entry.file: made.path for made in released.values()}
    return seal_bundle(command.out, record, manifest.taxonomy, files | {path.name: path for path in (golden, card)})


def _require_fp32(precisions: tuple[Precision, ...]) -> None:
    if "fp32" not in precisions:
        raise RecipeError(
            "a bundle without fp32 cannot be made: the other precisions are made from it and judged against it",
            value=" ".join(precisions) or "none",
            limit="a list that holds fp32",
            remedy="add fp32 to --precision",
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
    print(f"Sealed: {bundle.folder} ({sum(path.stat().st_size for path in bundle.folder.iterdir()) / 1e6:.1f} MB)")
    for precision, network in bundle.record.networks.items():
        print(f"{precision}: temperature {network.temperature:.3f}. {network.note}".rstrip())
        _print_figures(network.gates, bundle.record.metrics if precision == "fp32" else network.metrics)
    for precision, left_out in bundle.record.left_out.items():
        print(f"{precision} was LEFT OUT. {left_out.note}")
        _print_figures(left_out.gates, left_out.metrics)
    print(f"Next: python -m serving --bundle {bundle.folder}")


def _print_figures(gates: tuple[Gate, ...], metrics: tuple[Metric, ...]) -> None:
    for gate in gates:
        print(f"  {gate_in_words(gate)}")
    for metric in metrics:
        between = " [{:.4f}, {:.4f}]".format(*metric.interval_95) if metric.interval_95 else ""
        print(f"  {metric.name}: {metric.value:.4f}{between} on {metric.num_pictures} pictures ({metric.data})")


if __name__ == "__main__":
    main()
