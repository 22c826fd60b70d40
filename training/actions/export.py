"""Exports a checkpoint to a sealed bundle."""

import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from models.bundle import BUNDLE_FILE, GOLDEN_FILE, GOLDEN_PART, WEIGHTS_FILE, WEIGHTS_PART, Bundle, seal_bundle
from models.bundle_record import Check, FileName, Metric, Precision
from models.calibration import CALIBRATION_FILE, CALIBRATION_PART, write_calibration
from models.errors import BundleError, RecipeError
from models.preprocess import InputSpec
from models.ranking import RANKS
from training.bundling.bundle_description import describe
from training.bundling.calibration_section import calibration_section, describe_fit, describe_threshold
from training.bundling.commands import commands_section
from training.bundling.model_card import MODEL_CARD_FILE, model_card
from training.bundling.precisions.candidates import MAKERS, Candidate, make_fp32
from training.bundling.precisions.checks import describe_check
from training.bundling.precisions.evaluated_network import EvaluatedNetwork
from training.bundling.precisions.golden_picture import record_golden
from training.bundling.precisions.pictures import LEAST_NEGATIVES, PictureFiles, PictureSets, picture_sets
from training.bundling.trained_weights import write_weights
from training.commands.export import Export
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint, read_checkpoint
from training.evaluation.predict import require_same_outputs
from training.evaluation.provenance import is_other_data
from training.evaluation.risk_coverage import risk_coverage
from training.evaluation.split_metrics import reliability_diagrams
from training.loading.negatives import list_negatives
from training.network_input import require_side, stored_input_spec
from training.recipe import check_stored_recipe, side_at_epoch
from training.toml_file import check_section, section_to_plain

_PARTS: Final[dict[str, FileName]] = {GOLDEN_PART: GOLDEN_FILE, CALIBRATION_PART: CALIBRATION_FILE}


def export(command: Export) -> Bundle:
    """Exports a checkpoint.

    Raises:
        BundleError: The folder exists, or the probabilities differ from PyTorch's. No bundle is written.
        DataError: The outputs of the data are not those of the checkpoint, or it was trained with other data and
            `other_data` is not set.
        RecipeError: A flag is out of range.
    """
    command = check_section(section_to_plain(command), Export, origin="of this command", what="flags")
    _require_fp32(command.precision)
    if command.out.exists():
        raise BundleError(
            "a bundle is immutable, and its folder already exists", value=command.out, remedy="choose a new folder"
        )
    command = _named(command)
    checkpoint = read_checkpoint(command.checkpoint)
    sets = _picture_sets(command, checkpoint)
    command.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=command.out.parent, prefix=f".{command.out.name}.") as temporary:
        folder = Path(temporary)
        candidate, fp32 = make_fp32(
            checkpoint,
            sets,
            folder,
            command.thresholds.by_rank(),
            half_storage=command.half_storage,
            parity_limit=command.parity_limit,
        )
        candidates: dict[Precision, Candidate] = {"fp32": candidate}
        for precision in sorted(MAKERS.keys() & set(command.precision)):
            candidates[precision] = MAKERS[precision](fp32, sets, folder, command.thresholds.by_rank())
        bundle = _seal(command, checkpoint, sets, candidates, fp32=fp32, folder=folder)
    _print(bundle)
    return bundle


class _Sealed(msgspec.Struct, frozen=True):
    """What `bundle.json` says first."""

    name: str
    version: str


def _named(command: Export) -> Export:
    """Fills in the name and the version, so that the model card's command repeats them; asks for a description."""
    name, versions = command.name or command.data.resolve().name, [(1, -1)]
    for path in command.out.parent.glob(f"*/{BUNDLE_FILE}"):
        with suppress(OSError, msgspec.MsgspecError):
            other = msgspec.json.decode(path.read_bytes(), type=_Sealed)
            if other.name == name and (found := re.fullmatch(r"(\d+)\.(\d+)\.\d+", other.version)):
                versions.append((int(found[1]), int(found[2])))
    major, minor = max(versions)
    version = command.model_version or f"{major}.{minor + 1}.0"
    print(f"Name and version: {name} {version}; --name and --model-version give others")
    if not command.description:
        print("No --description: the page shows the size of the data in its place")
    return msgspec.structs.replace(command, name=name, model_version=version)


def _picture_sets(command: Export, checkpoint: Checkpoint) -> PictureSets:
    """Chooses the pictures that the networks are calibrated and measured with, at the size of the service.

    Raises:
        DataError: The outputs of the data are not those of the checkpoint, the checkpoint was trained with other data
            and that is not allowed, or the further data holds pictures of the first.
    """
    recipe = check_stored_recipe(checkpoint.recipe, origin=str(command.checkpoint))
    spec = stored_input_spec(checkpoint.recipe, origin=str(command.checkpoint))
    spec = msgspec.structs.replace(spec, train_px=side_at_epoch(recipe.pictures, checkpoint.last_epoch))
    if command.serve_px is not None:
        require_side(checkpoint.architecture, command.serve_px)
        spec = msgspec.structs.replace(spec, height=command.serve_px, width=command.serve_px)
    manifests = [Manifest(command.data, command.shards)]
    if command.judge_on is not None:
        manifests.append(Manifest(command.judge_on))
    for manifest in manifests:
        require_same_outputs(manifest, tuple(checkpoint.output_keys), "checkpoint")
    return picture_sets(
        manifests,
        spec,
        calibration_pictures=command.calibration_pictures,
        feature_pictures=command.feature_pictures,
        negatives=_negatives(command.negatives, checkpoint, spec),
        workers=command.workers,
        other_data=is_other_data(manifests[0], checkpoint.trained_with, "checkpoint", allowed=command.other_data),
    )


def _negatives(folders: tuple[Path, ...], checkpoint: Checkpoint, spec: InputSpec) -> PictureFiles | None:
    """Lists the pictures without a plant, and says in their name whether the network was trained on them too."""
    if not folders:
        return None
    found, trained_on = list_negatives(folders), (checkpoint.plant_output or {}).get("negatives_sha256", "")
    name = "pictures without a plant"
    if trained_on:
        name += f" that the network {'was' if trained_on == found.sha256 else 'may have been'} trained on"
    return PictureFiles(found.paths, spec, LEAST_NEGATIVES, name)


def _seal(
    command: Export,
    checkpoint: Checkpoint,
    sets: PictureSets,
    candidates: Mapping[Precision, Candidate],
    *,
    fp32: EvaluatedNetwork,
    folder: Path,
) -> Bundle:
    """Seals the networks that passed their checks, with a golden picture, a model card, and the figures of the others.

    Args:
        command: Gives the name, the version and the folder of the bundle.
        checkpoint: The trained network.
        sets: The pictures, which also give the input and the taxonomy.
        candidates: Precision -> network; fp32 has passed.
        fp32: Gives the metrics and the reliability diagram.
        folder: For temporary files.
    """
    manifest, spec = sets.validation.manifest, sets.validation.spec
    released = {precision: made for precision, made in candidates.items() if made.passed}
    record = describe(
        checkpoint,
        manifest,
        spec,
        name=command.name,
        version=command.model_version,
        description=command.description,
        note=command.note,
        networks={precision: made.entry for precision, made in released.items()},
        left_out={precision: made.left_out() for precision, made in candidates.items() if not made.passed},
        metrics=fp32.metrics,
        other_data=sets.other_data,
        parts=_PARTS | ({WEIGHTS_PART: WEIGHTS_FILE} if command.with_weights else {}),
    )
    golden, card, tables = (folder / name for name in (GOLDEN_FILE, MODEL_CARD_FILE, CALIBRATION_FILE))
    paths = {precision: made.path for precision, made in released.items()}
    temperatures = {precision: made.entry.temperature for precision, made in released.items()}
    golden.write_bytes(msgspec.json.encode(record_golden(paths, temperatures, spec)))
    commands = commands_section(command, command.data, command.out, other_data=sets.other_data)
    sections = (_checks_section(candidates["fp32"]), commands, _calibration_section(sets, fp32))
    card.write_text(model_card(record, manifest.taxonomy, *sections), encoding="utf-8")
    write_calibration(tables, {precision: made.calibration for precision, made in released.items()})
    files = {made.entry.file: made.path for made in released.values()}
    files |= {path.name: path for path in (golden, card, tables)}
    if command.with_weights:
        files[WEIGHTS_FILE] = folder / WEIGHTS_FILE
        write_weights(files[WEIGHTS_FILE], checkpoint)
    return seal_bundle(command.out, record, manifest.taxonomy, files)


def _checks_section(fp32: Candidate) -> str:
    return "## Checks of the fp32 network\n\n" + "\n".join(f"* {describe_check(each)}" for each in fp32.entry.checks)


def _calibration_section(sets: PictureSets, fp32: EvaluatedNetwork) -> str:
    manifest, found = sets.tests[0].manifest, fp32.predictions[0]
    return calibration_section(
        fp32.fitted,
        manifest.taxonomy,
        {rank: risk_coverage(each).area for rank, each in found.rank_scores.items()},
        reliability_diagrams(found, manifest),
    )


def _require_fp32(precisions: tuple[Precision, ...]) -> None:
    if "fp32" not in precisions:
        raise RecipeError(
            "a bundle needs fp32, since the other precisions are made from it and compared with it",
            value=" ".join(precisions) or "none",
            limit="a list with fp32",
            remedy="add fp32 to --precision",
        )


def _print(bundle: Bundle) -> None:
    print(f"Sealed: {bundle.folder} ({sum(path.stat().st_size for path in bundle.folder.iterdir()) / 1e6:.1f} MB)")
    for precision, network in bundle.record.networks.items():
        print(f"{precision}: temperature {network.temperature:.3f}. {network.note}".rstrip())
        print(f"  {describe_fit(bundle.calibration(precision))}")
        for rank in RANKS:
            threshold, promise = getattr(network.thresholds, rank), getattr(network.promises, rank)
            print(f"  {describe_threshold(rank, threshold, promise)}")
        _print_figures(network.checks, bundle.record.metrics if precision == "fp32" else network.metrics)
    for precision, left_out in bundle.record.left_out.items():
        print(f"{precision} was LEFT OUT, because a check failed. {left_out.note}")
        _print_figures(left_out.checks, left_out.metrics)
    print(f"Next: python -m serving --bundle {bundle.folder}")


def _print_figures(checks: tuple[Check, ...], metrics: tuple[Metric, ...]) -> None:
    for check in checks:
        print(f"  {describe_check(check)}")
    for metric in metrics:
        interval = " [{:.4f}, {:.4f}]".format(*metric.interval_95) if metric.interval_95 else ""
        print(f"  {metric.name}: {metric.value:.4f}{interval} on {metric.num_pictures} pictures ({metric.data})")
