"""Builds the content of `bundle.json`, and draws the golden picture."""

import io
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from models.bundle import Golden
from models.bundle_record import (
    FORMAT_VERSION,
    Architecture,
    BundleRecord,
    DataSource,
    FailedNetwork,
    FileName,
    NetworkFile,
    Precision,
)
from models.openvino_session import OpenVinoSession
from models.preprocess import InputSpec, picture_to_input
from models.ranking import Floats, output_probabilities
from models.session import NetworkSession, OnnxSession
from training.dataset.audit.licenses import joint_commercial_use
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint
from training.fit.networks import Candidate, PictureSets
from training.fit.pictures import Pixels
from training.fit.provenance import OTHER_DATA
from training.machine import current_commit
from training.toml_file import without_folders

_WIDTH_PX: Final = 112
_HEIGHT_PX: Final = 84  # about 10 kB as PNG
_NUM_BLOBS: Final = 14
_NUM_CANDIDATES: Final = 16
_NOISE: Final = 0.008  # half a gray level, in normalized units


def record_golden(networks: Mapping[Precision, tuple[Path, float]], spec: InputSpec) -> Golden:
    """Draws pictures and records the logits of every network file for the most stable of them.

    That is the picture for which noise of half a gray level changes the probabilities least. On another processor an
    network may round a few values differently, which must not look like an error. Beside each file stands its
    temperature.
    """
    pictures = [draw_golden(seed) for seed in range(_NUM_CANDIDATES)]
    pixels_BCHW = np.stack([picture_to_input(picture, spec)[0] for picture in pictures])
    noise = np.random.default_rng(0).uniform(-_NOISE, _NOISE, pixels_BCHW.shape).astype(np.float32)
    logits = {}
    changes = np.zeros(_NUM_CANDIDATES)
    for precision, (path, temperature) in networks.items():
        session = OpenVinoSession(path, bf16=True) if precision == "bf16" else OnnxSession(path)
        logits[precision] = _logits(session, pixels_BCHW)
        pair = (logits[precision], _logits(session, pixels_BCHW + noise))
        one, other = (output_probabilities(each, temperature) for each in pair)
        changes = np.maximum(changes, np.abs(one - other).max(axis=1))
    best = int(changes.argmin())
    return Golden(pictures[best], {precision: tuple(map(float, each[best])) for precision, each in logits.items()})


def draw_golden(seed: int) -> bytes:
    """Draws a PNG with gradients, stripes, and blobs of many sizes and colors, so that every layer responds to it."""
    random = np.random.default_rng(seed)
    y_HW, x_HW = np.mgrid[0:_HEIGHT_PX, 0:_WIDTH_PX] / np.array([_HEIGHT_PX, _WIDTH_PX]).reshape(2, 1, 1)
    picture_HW3 = np.stack([90 + 60 * y_HW, 140 - 50 * y_HW + 20 * x_HW, 70 + 30 * x_HW], axis=-1)
    for _ in range(_NUM_BLOBS):
        x = random.random()
        y = random.random()
        radius = random.uniform(0.04, 0.16)
        inside_HW = np.exp(-((((x_HW - x) ** 2 + (y_HW - y) ** 2) / radius**2) ** 2))
        picture_HW3 += inside_HW[..., None] * (random.uniform(0, 255, 3) - picture_HW3)
    picture_HW3 += 12 * np.sin(40 * x_HW + 25 * y_HW)[..., None]
    stream = io.BytesIO()
    Image.fromarray(picture_HW3.clip(0, 255).astype(np.uint8)).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _logits(session: NetworkSession, pixels_BCHW: Pixels) -> Floats:
    return np.concatenate([session.run(pixels[None]).logits for pixels in pixels_BCHW])


def describe(
    checkpoint: Checkpoint,
    sets: PictureSets,
    released: Mapping[Precision, Candidate],
    left_out: dict[Precision, FailedNetwork],
    *,
    name: str,
    version: str,
    description: str,
    note: str,
    parts: dict[str, FileName],
) -> BundleRecord:
    """Builds the record of a bundle, with the metrics of fp32; `seal_bundle` adds the hashes.

    The default of the description is how many plants and pictures there are. `note` is what users must know about the
    training pictures.
    """
    network = checkpoint.trained_network()
    manifest = sets.validation.manifest
    spec = sets.validation.spec
    taxa = manifest.taxonomy.taxa
    recipe = _without_folders(checkpoint.recipe)
    recipe["pictures"]["serve_px"] = spec.height  # the bundle names one input size only, that of the service
    fp32 = released["fp32"]
    return BundleRecord(
        format_version=FORMAT_VERSION,
        name=name,
        version=version,
        architecture=Architecture(
            name=checkpoint.architecture,
            num_outputs=network.num_outputs,
            num_features=network.num_features,
            num_parameters=network.num_parameters(),
        ),
        input=spec,
        label_hash=manifest.taxonomy.label_hash,
        networks={precision: _network_file(each, each is fp32) for precision, each in released.items()},
        left_out=left_out,
        metrics=fp32.metrics,
        recipe=recipe,
        trained_on=checkpoint.trained_on,
        initial_weights=checkpoint.initial_weights or "unknown",
        sources=_sources(manifest, f"These are pictures of {OTHER_DATA}." if sets.other_data else "", note),
        git_commit=current_commit(),
        trained_commit=checkpoint.git_commit or "unknown",
        manifest_sha256=checkpoint.trained_with,
        other_data=sets.other_data,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        description=description
        or f"Names {len(taxa):,} plants: {checkpoint.architecture}, trained with {len(sets.features):,} pictures.",
        parts=parts,
        look_alikes={
            taxa[one].taxon_id: tuple(taxa[other].taxon_id for other in others)
            for one, others in fp32.fitted.model.look_alikes.items()
        },
    )


def _network_file(made: Candidate, is_fp32: bool) -> NetworkFile:
    model = made.fitted.model
    return NetworkFile(
        file=made.path.name,
        temperature=model.temperature,
        thresholds=model.thresholds,
        promises=model.promises,
        coverages=made.coverages,
        place=None if model.place is None else model.place.rule,
        mistaken=model.mistaken,
        stored_as="float16",
        checks=made.checks,
        metrics=() if is_fp32 else made.metrics,
        note=made.note,
    )


def _without_folders(value: Any) -> Any:
    """Cuts the absolute paths of a recipe to their last part."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(each) for each in value]
    return without_folders(value) if isinstance(value, str) else value


def _sources(manifest: Manifest, *notes: str) -> tuple[DataSource, ...]:
    """Summarizes the sources of the training pictures; the notes, in sentences, are about all of them."""
    trained = manifest.table.select(["source", "licence", "author"]).take(manifest.rows_of("train"))
    licenses: dict[str, dict[str, int]] = {}
    for row in trained.group_by(["source", "licence"]).aggregate([([], "count_all")]).to_pylist():
        licenses.setdefault(row["source"], {})[row["licence"]] = row["count_all"]
    authors = trained.group_by(["source", "author"]).aggregate([]).to_pylist()
    num_authors = Counter(row["source"] for row in authors if row["author"])
    return tuple(
        DataSource(
            name,
            sum(counts.values()),
            counts,
            note=" ".join(filter(None, (manifest.sources[name].note, *notes))),
            num_authors=num_authors[name],
            commercial_use=joint_commercial_use(counts),
        )
        for name, counts in sorted(licenses.items())
    )
