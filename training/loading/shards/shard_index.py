"""The index file of each shard: the place of each picture. It is written last, so a shard with an index is complete."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from models.errors import DataError
from training.atomic_file import remove_leftovers, replaced
from training.dataset.manifest import Manifest
from training.loading.shards.encode import StoredPicture
from training.loading.shards.plan import Shard, ShardPlan
from training.loading.shards.tar_file import write_tar

_LONGEST_SUFFIX: Final = 8
_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # of the manifest that was packed
        pa.field("name", pa.string(), nullable=False),  # of the tar's member
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
    ]
)
_PLAN: Final = b"plan"
_TAR_BYTES: Final = b"tar_bytes"


def write_shard(
    folder: Path, shard: Shard, pictures: Iterable[StoredPicture], manifest: Manifest, plan: ShardPlan
) -> None:
    """Writes a shard, then its index.

    Args:
        folder: Folder of the shards.
        shard: The shard.
        pictures: The pictures of `shard.rows`, in that order.
        manifest: The source manifest; copied pictures keep the suffix of their path.
        plan: The plan of the shard.

    Raises:
        OSError: The disk is full or not writable; neither the tar nor the index is left behind.
    """
    tar, index = folder / shard.name, index_path(folder, shard)
    index.unlink(missing_ok=True)  # it may be left from a tar that was lost
    names = [_member_name(position, int(row), shard, manifest) for position, row in enumerate(shard.rows)]
    columns: dict[str, list[object]] = {key: [] for key in ("length", "sha256", "width", "height")}

    def members() -> Iterator[tuple[str, bytes]]:
        for name, picture in zip(names, pictures, strict=True):
            for key, values in columns.items():
                values.append(len(picture.data) if key == "length" else getattr(picture, key))
            yield name, picture.data

    offsets = write_tar(tar, members())
    metadata = {_PLAN: plan.identity.encode(), _TAR_BYTES: str(tar.stat().st_size).encode()}
    table = pa.table({"row": shard.rows, "name": names, "offset": offsets} | columns, _SCHEMA.with_metadata(metadata))
    with replaced(index) as stream:
        pq.write_table(table, stream)


def is_complete(folder: Path, shard: Shard, plan: ShardPlan) -> bool:
    """Whether a shard and its index are there, belong to the plan, and have the recorded size."""
    try:
        metadata = pq.read_schema(index_path(folder, shard)).metadata or {}
        tar_bytes = (folder / shard.name).stat().st_size
    except (OSError, pa.ArrowInvalid):
        return False
    return metadata.get(_PLAN) == plan.identity.encode() and metadata.get(_TAR_BYTES) == str(tar_bytes).encode()


def read_index(folder: Path, shard: Shard) -> pa.Table:
    """Reads the index of a complete shard.

    Raises:
        DataError: The index is damaged.
    """
    path = index_path(folder, shard)
    try:
        table = pq.read_table(path).replace_schema_metadata()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} is damaged", value=error, remedy="delete it and pack again") from error
    if table["row"].to_pylist() != shard.rows.tolist():
        raise DataError(f"{path} lists other pictures than its plan", remedy="delete it and pack again")
    return table


def index_path(folder: Path, shard: Shard) -> Path:
    """Path of the index of a shard."""
    return (folder / shard.name).with_suffix(".parquet")


def plans_in(folder: Path) -> set[str]:
    """Identities of the plans of all indexes in a folder; damaged indexes are ignored."""
    plans = set()
    for path in folder.glob("*-[0-9]*.parquet"):
        try:
            metadata = pq.read_schema(path).metadata or {}
        except (OSError, pa.ArrowInvalid):
            continue
        plans.add(metadata.get(_PLAN, b"").decode())
    return plans


def remove_shard_leftovers(folder: Path, shard: Shard) -> None:
    """Removes the temporary files that killed runs left of a shard."""
    for path in (folder / shard.name, index_path(folder, shard)):
        remove_leftovers(path)  # safe: only one part writes this shard


def _member_name(position: int, row: int, shard: Shard, manifest: Manifest) -> str:
    """A short name, the same on every machine; all training pictures are stored as JPEG."""
    if shard.split == "train":
        return f"{position:08d}.jpg"
    suffix = PurePosixPath(manifest.table["path"][row].as_py()).suffix.lower()
    is_plain = suffix.isascii() and suffix[1:].isalnum() and len(suffix) <= _LONGEST_SUFFIX
    return f"{position:08d}{suffix if is_plain else ''}"
