"""What a bundle says of itself: the model, its input, its networks, and what taught it."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from models.bundle import (
    FORMAT_VERSION,
    Architecture,
    BundleRecord,
    DataSource,
    FileName,
    LeftOut,
    Metric,
    NetworkFile,
    Precision,
)
from models.network import PlantNetwork
from models.preprocess import InputSpec
from training.dataset.audit.licenses import joint_commercial_use
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint
from training.machine import current_commit
from training.recipe import check_stored_recipe


def describe(
    checkpoint: Checkpoint,
    manifest: Manifest,
    spec: InputSpec,
    *,
    name: str,
    version: str,
    note: str,
    networks: Mapping[Precision, NetworkFile],
    left_out: Mapping[Precision, LeftOut],
    metrics: tuple[Metric, ...],
    parts: Mapping[str, FileName],
) -> BundleRecord:
    """Everything that `bundle.json` says, hashes apart.

    Args:
        checkpoint: What was trained.
        manifest: The data that taught it.
        spec: What is served.
        name: Of the model; default: the recipe's.
        version: Of the model.
        note: What users must know of the training pictures.
        networks: What is released.
        left_out: What failed a gate.
        metrics: How right the fp32 network is.
        parts: Further files.
    """
    recipe = check_stored_recipe(checkpoint.recipe, origin="checkpoint")
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    return BundleRecord(
        format_version=FORMAT_VERSION,
        name=name or recipe.name,
        version=version,
        architecture=Architecture(
            name=checkpoint.architecture,
            num_outputs=network.num_outputs,
            num_features=network.num_features,
            num_parameters=network.num_parameters(),
        ),
        input=spec,
        label_hash=manifest.taxonomy.label_hash,
        networks=dict(networks),
        left_out=dict(left_out),
        metrics=metrics,
        recipe=_without_folders(checkpoint.recipe),
        trained_on=checkpoint.trained_on,
        sources=_sources(manifest, note),
        git_commit=current_commit(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        description=recipe.description,
        parts=dict(parts),
    )


def _without_folders(value: Any) -> Any:
    """A recipe with the last part alone of every absolute path: where things lay concerns nobody but their machine."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    # A checkpoint may come from another system.
    paths = [kind(value) for kind in (PurePosixPath, PureWindowsPath)] if isinstance(value, str) else []
    return next((path.name for path in paths if path.is_absolute()), value)


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
