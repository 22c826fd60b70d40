"""Program: exports a checkpoint to a sealed bundle.

It converts the network to ONNX, compares it with PyTorch, calibrates it, measures it on the test split, and seals the
bundle.

python training/export.py --checkpoint FILE --data DATA --out DIR [--precision fp32 fp16]
"""

import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages, run_program, tell_next

explain_missing_packages("make train-env")

import msgspec
import numpy as np
from msgspec.structs import replace

from models.bundle import (
    BUNDLE_FILE,
    GOLDEN_FILE,
    GOLDEN_PART,
    WEIGHTS_FILE,
    WEIGHTS_PART,
    WITH_PLACE,
    Bundle,
    seal_bundle,
)
from models.bundle_record import (
    FORMAT_VERSION,
    Architecture,
    BundleRecord,
    Check,
    FailedNetwork,
    FileName,
    Metric,
    Precision,
)
from models.calibration import CALIBRATION_FILE, CALIBRATION_PART, Calibration, write_calibration
from models.errors import BundleError, DataError, RecipeError
from models.examples import EXAMPLES_FILE, EXAMPLES_PART, write_examples
from models.openvino_session import require_bf16
from models.place import PLACE_FILE, PLACE_PART, write_place
from models.ranking import RANKS, Rank
from training.dataset.manifest import Manifest
from training.fit.provenance import OTHER_DATA, is_other_data, require_same_outputs
from training.machine import current_commit
from training.recipe import SidePx, check_stored_recipe, side_at_epoch
from training.toml_file import Section

# PyTorch takes seconds to load. The functions that need it import it, so that --help and a wrong flag answer at once.
if TYPE_CHECKING:
    from training.engine.checkpoint import Checkpoint
    from training.fit.model import PictureSets
    from training.fit.networks import Candidate

_LEAST_PLANTS: Final = 2  # of which one is left out of the fit that judges it
WORKERS: Final = 2
"""Loader processes."""


class Export(Section, frozen=True, kw_only=True):
    """Exports a checkpoint to a sealed bundle."""

    checkpoint: Path
    """Checkpoint of training/train.py."""
    data: Path
    """Folder written by training/prepare.py. Its calibration split sets the temperatures; if it has none, validation
    does, and names promise nothing. Its test split gives the metrics. If the network was trained with other data, whose
    training pictures may be in any split of this one, every figure of the bundle says so, and its names promise
    nothing."""
    out: Path
    """Folder of the new bundle; must not exist yet."""
    name: str = ""
    """Name of the model; default: that of the data folder."""
    model_version: str = ""
    """Version of the model; default: 1.0.0, or the next after the last bundle of this name beside --out, as 1.1.0."""
    description: str = ""
    """What the model names and for whom, in a sentence that the page shows; default: the size of the data."""
    precision: tuple[Precision, ...] = ("fp32",)
    """Precisions of the networks in the bundle; fp32 is required, fp16 is for GPUs, bf16 for processors with bfloat16
    (needs OpenVINO and such a processor). A network that fails its release checks is left out; the bundle then holds
    its figures only."""
    serve_px: SidePx | None = None
    """Side of the network input in the service, px; default: that of the recipe. A value a little above the last
    training size is often best (Touvron et al. 2019); choose it on the validation split, never on the test split."""
    with_weights: bool = False
    """Put the weights into the bundle too, in full precision, so that train.py --weights BUNDLE can start from them."""
    note: str = ""
    """What users must know about the training pictures; written to the bundle and its model card."""
    negatives: tuple[Path, ...] = ()
    """Pictures that show no plant: folders, or CSV lists as for training/train.py. The bundle can then tell plants from
    other things; a few hundred pictures of many kinds are enough."""
    unknown: tuple[Path, ...] = ()
    """Pictures of plants that the network does not know and was not trained with: for each source a folder, or a CSV
    list with the column scientific_name. They teach the bundle what to leave unnamed. Those of a quarter of the genera
    measure how often it names them all the same. A thousand pictures of a few hundred genera are enough."""
    examples: str = "0"
    """Reference pictures to put into the bundle, small, which the service shows beside its answers: a number for each
    taxon, of training pictures whose license allows it, or a CSV list with the columns path, scientific_name, author,
    license and source."""
    thresholds: tuple[str, ...] = ()
    """Thresholds to use in place of the fitted ones, as in species=0.6 genus=0.5 family=0.5: the smallest (summed)
    probability of a name. A rank whose threshold is given makes no promise."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Export, export, description=__doc__)


def export(command: Export) -> Bundle:
    """Exports a checkpoint.

    Raises:
        BundleError: The folder exists, or the probabilities differ from PyTorch's. No bundle is written.
        DataError: The outputs of the data are not those of the checkpoint.
    """
    thresholds = _thresholds(command.thresholds)
    if "fp32" not in command.precision:
        raise RecipeError(
            "a bundle needs fp32, since the others are made from it and compared with it",
            value=" ".join(command.precision) or "none",
            limit="a list with fp32",
            remedy="add fp32 to --precision",
        )
    if command.out.exists():
        raise BundleError(
            "a bundle is immutable, and its folder already exists", value=command.out, remedy="choose a new folder"
        )
    if "bf16" in command.precision:
        require_bf16()  # before the hours of fp32
    from training.engine.checkpoint import read_checkpoint
    from training.fit.examples import listed_pictures
    from training.fit.networks import make_bf16, make_fp16, make_fp32

    command = _named(command)
    checkpoint = read_checkpoint(command.checkpoint)
    sets = _picture_sets(command, checkpoint)
    command.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=command.out.parent, prefix=f".{command.out.name}.") as temporary:
        folder = Path(temporary)
        if not command.examples.isdecimal():  # what is wrong with the list is told before the hours
            listed = listed_pictures(Path(command.examples), sets.test.manifest.taxonomy)
            write_examples(folder / EXAMPLES_FILE, listed)
        fp32 = make_fp32(checkpoint, sets, folder, thresholds)
        made: dict[Precision, Candidate | FailedNetwork] = {"fp32": fp32}
        if "fp16" in command.precision:
            made["fp16"] = make_fp16(fp32, sets, folder, thresholds)
        if "bf16" in command.precision:
            made["bf16"] = make_bf16(fp32, sets, folder, thresholds)
        bundle = _seal(command, checkpoint, sets, made, folder)
    _print(bundle)
    for warning in fp32.fitted.thresholds.warnings:
        print(f"WARNING: {warning}")
    return bundle


def _thresholds(words: Iterable[str]) -> dict[Rank, float]:
    """Reads thresholds as in species=0.6."""
    given: dict[Rank, float] = {}
    for word in words:
        name, _, number = word.partition("=")
        rank = next((rank for rank in RANKS if rank == name), None)
        value = float(number) if re.fullmatch(r"[0-9]*\.?[0-9]+", number) else -1.0
        if rank is None or not 0 <= value <= 1:
            raise RecipeError(
                "--thresholds cannot be read",
                value=word,
                limit=f"one of {', '.join(RANKS)}, =, and a number from 0 to 1",
                remedy="write it as in --thresholds species=0.6 genus=0.5",
            )
        given[rank] = value
    return given


def _named(command: Export) -> Export:
    """Fills in the name and the version, so that the model card's command repeats them; asks for a description."""
    name = command.name or command.data.resolve().name
    versions = [(1, -1)]
    for path in command.out.parent.glob(f"*/{BUNDLE_FILE}"):
        with suppress(OSError, msgspec.MsgspecError):
            other = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            found = re.fullmatch(r"(\d+)\.(\d+)\.\d+", str(other.get("version")))
            if other.get("name") == name and found:
                versions.append((int(found[1]), int(found[2])))
    major, minor = max(versions)
    version = command.model_version or f"{major}.{minor + 1}.0"
    others = "" if command.name else "; --name and --model-version give others"
    print(f"Name and version: {name} {version}{others}")
    if not command.description:
        print("No --description: the page shows the size of the data in its place")
    return replace(command, name=name, model_version=version)


def _picture_sets(command: Export, checkpoint: "Checkpoint") -> "PictureSets":
    """Chooses the pictures that the networks are calibrated and measured with, at the size of the service.

    Raises:
        DataError: The outputs of the data are not those of the checkpoint, or there are too few validation plants.
    """
    from training.fit.model import picture_sets
    from training.fit.pictures import PictureFiles
    from training.fit.unknown_plants import LEAST_NEGATIVES, unknown_files
    from training.loading.negatives import list_negatives
    from training.network_input import require_side, stored_input_spec

    recipe = check_stored_recipe(checkpoint.recipe, origin=str(command.checkpoint))
    spec = stored_input_spec(checkpoint.recipe, origin=str(command.checkpoint))
    spec = replace(spec, train_px=side_at_epoch(recipe.pictures, checkpoint.last_epoch))
    if command.serve_px is not None:
        require_side(checkpoint.architecture, command.serve_px)
        spec = replace(spec, height=command.serve_px, width=command.serve_px)
    # The shards of packed data may lie elsewhere, where the training read them.
    manifest = Manifest(command.data, "" if any(command.data.glob("*.tar")) else recipe.data.shards)
    require_same_outputs(manifest, tuple(checkpoint.output_keys), "checkpoint")
    trained_with = checkpoint.trained_with
    other_data = is_other_data(manifest, trained_with, "checkpoint", allowed=bool(trained_with))
    if other_data:
        print(f"WARNING: {command.data} is {OTHER_DATA}: the bundle says so, and its names promise nothing")
    elif not manifest.has("calibration"):
        print(
            f"WARNING: {command.data} has no calibration split, and validation chose the checkpoint, so its names "
            "promise nothing: prepare it with --calibration-share 0.1 before the training"
        )
    negatives = None
    if command.negatives:
        found = list_negatives(command.negatives)
        trained_on = (checkpoint.plant_output or {}).get("negatives_sha256", "")
        name = "pictures without a plant"
        if trained_on:
            name += f" that the network {'was' if trained_on == found.sha256 else 'may have been'} trained on"
        negatives = PictureFiles(found.paths, spec, LEAST_NEGATIVES, name)
    unknown = unknown_files(command.unknown, spec, manifest.taxonomy) if command.unknown else None
    if unknown is not None and unknown.num_doubtful:
        print(f"{unknown.num_doubtful:,} photographs of unknown plants are named by a known genus alone and left out")
    sets = picture_sets(manifest, spec, WORKERS, negatives=negatives, unknown=unknown, other_data=other_data)
    if (negatives or unknown) and len(np.unique(sets.validation.plants)) < _LEAST_PLANTS:
        raise DataError(
            "plants are told from other pictures by validation plants, and there are too few",
            value=len(sets.validation),
            limit=f"at least {_LEAST_PLANTS}",
            remedy="prepare the data with a larger --validation-share, or leave out --negatives and --unknown",
        )
    return sets


def _seal(
    command: Export,
    checkpoint: "Checkpoint",
    sets: "PictureSets",
    made: "dict[Precision, Candidate | FailedNetwork]",
    folder: Path,
) -> Bundle:
    """Seals the networks that passed their checks, with a golden picture, a model card, and the figures of the others.

    fp32 has passed; it gives the metrics and the reliability diagram. The folder is for temporary files.
    """
    from training.fit.record import MODEL_CARD_FILE, card_commands, model_card

    released = {precision: each for precision, each in made.items() if not isinstance(each, FailedNetwork)}
    left_out = {precision: each for precision, each in made.items() if isinstance(each, FailedNetwork)}
    parts = _write_parts(command, checkpoint, sets, released, folder)
    record = replace(_record(command, checkpoint, sets, released), left_out=left_out, parts=parts)
    card = model_card(
        record,
        released["fp32"].fitted,
        released["fp32"].figures,
        negatives="" if sets.negatives is None else sets.negatives.name,
        commands=card_commands(command, command.data, command.out, other_data=sets.other_data),
    )
    (folder / MODEL_CARD_FILE).write_text(card, encoding="utf-8")
    files = {each.path.name: each.path for each in released.values()}
    files |= {name: folder / name for name in (*parts.values(), MODEL_CARD_FILE)}
    return seal_bundle(command.out, record, sets.test.manifest.taxonomy, files)


def _write_parts(
    command: Export,
    checkpoint: "Checkpoint",
    sets: "PictureSets",
    released: "dict[Precision, Candidate]",
    folder: Path,
) -> dict[str, FileName]:
    """Writes the parts of the bundle into a folder: golden picture, tables, weights, reference pictures, place."""
    from training.fit.examples import example_pictures
    from training.fit.networks import record_golden
    from training.fit.onnx_file import write_weights

    parts: dict[str, FileName] = {GOLDEN_PART: GOLDEN_FILE, CALIBRATION_PART: CALIBRATION_FILE}
    files = {precision: (each.path, each.network.temperature) for precision, each in released.items()}
    golden = record_golden(files, sets.test.spec)
    (folder / GOLDEN_FILE).write_bytes(msgspec.json.encode(golden))
    if command.with_weights:
        parts[WEIGHTS_PART] = WEIGHTS_FILE
        write_weights(folder / WEIGHTS_FILE, checkpoint)
    if command.examples.isdecimal() and int(command.examples):
        features = released["fp32"].run(sets.training, with_logits=False).features
        chosen = example_pictures(sets.training, features, int(command.examples))
        print(
            f"Reference pictures whose license allows to show them: {write_examples(folder / EXAMPLES_FILE, chosen):,}"
        )
    if (folder / EXAMPLES_FILE).exists():
        parts[EXAMPLES_PART] = EXAMPLES_FILE
    tables: dict[str, Calibration] = {precision: each.fitted.model.calibration for precision, each in released.items()}
    for precision, each in released.items():
        if (place := each.fitted.model.place) is not None:
            tables[f"{precision}{WITH_PLACE}"] = Calibration(conformal=place.conformal)
            parts[PLACE_PART] = PLACE_FILE
            write_place(folder / PLACE_FILE, place.prior)
    write_calibration(folder / CALIBRATION_FILE, tables)
    return parts


def _record(
    command: Export, checkpoint: "Checkpoint", sets: "PictureSets", released: "dict[Precision, Candidate]"
) -> BundleRecord:
    """Describes the bundle, but for its parts and the networks that were left out; the metrics are those of fp32."""
    from training.fit.record import recipe_without_folders, sources_of

    manifest = sets.test.manifest
    taxa = manifest.taxonomy.taxa
    network = checkpoint.trained_network()
    fp32 = released["fp32"]
    recipe = recipe_without_folders(checkpoint.recipe)
    recipe["pictures"]["serve_px"] = sets.test.spec.height  # the bundle names one input size, that of the service
    networks = {precision: each.network for precision, each in released.items()}
    return BundleRecord(
        format_version=FORMAT_VERSION,
        name=command.name,
        version=command.model_version,
        architecture=Architecture(
            name=checkpoint.architecture,
            num_outputs=network.num_outputs,
            num_features=network.num_features,
            num_parameters=network.num_parameters(),
        ),
        input=sets.test.spec,
        label_hash=manifest.taxonomy.label_hash,
        networks=networks | {"fp32": replace(fp32.network, metrics=())},
        metrics=fp32.network.metrics,
        recipe=recipe,
        trained_on=checkpoint.trained_on,
        initial_weights=checkpoint.initial_weights or "unknown",
        sources=sources_of(manifest, f"These are pictures of {OTHER_DATA}." if sets.other_data else "", command.note),
        git_commit=current_commit(),
        trained_commit=checkpoint.git_commit or "unknown",
        manifest_sha256=checkpoint.trained_with,
        other_data=sets.other_data,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        description=command.description
        or f"Names {len(taxa):,} plants: {checkpoint.architecture}, trained with {len(sets.training):,} pictures.",
        look_alikes={
            taxa[one].taxon_id: tuple(taxa[other].taxon_id for other in others)
            for one, others in fp32.fitted.model.look_alikes.items()
        },
    )


def _print(bundle: Bundle) -> None:
    from training.fit.record import describe_fit, describe_threshold

    print(f"Sealed: {bundle.folder} ({sum(path.stat().st_size for path in bundle.folder.iterdir()) / 1e6:.1f} MB)")
    for precision, network in bundle.record.networks.items():
        print(f"{precision}: temperature {network.temperature:.3f}. {network.note}".rstrip())
        print(f"  {describe_fit(bundle.calibration(precision))}")
        for rank in RANKS:
            threshold = getattr(network.thresholds, rank)
            promise = getattr(network.promises, rank)
            print(f"  {describe_threshold(rank, threshold, promise)}")
        _print_figures(network.checks, bundle.record.metrics if precision == "fp32" else network.metrics)
    for precision, left_out in bundle.record.left_out.items():
        print(f"{precision} was LEFT OUT, because a check failed. {left_out.note}")
        _print_figures(left_out.checks, left_out.metrics)
    tell_next(f"python -m serving --bundle {bundle.folder}")


def _print_figures(checks: tuple[Check, ...], metrics: tuple[Metric, ...]) -> None:
    from training.fit.record import describe_check

    for check in checks:
        print(f"  {describe_check(check)}")
    for metric in metrics:
        interval = " [{:.4f}, {:.4f}]".format(*metric.interval_95) if metric.interval_95 else ""
        print(f"  {metric.name}: {metric.value:.4f}{interval} on {metric.num_pictures} pictures ({metric.data})")


if __name__ == "__main__":
    main()
