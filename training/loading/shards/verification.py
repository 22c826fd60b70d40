"""The command `verify`: checks each picture by its hash, and each local tar against the manifest."""

import hashlib
import tarfile
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
import tyro
from rich.console import Console
from rich.progress import track

from models.cores import cores
from models.errors import DataError, some_of
from training.dataset.manifest import Manifest
from training.loading.storage import PictureStore
from training.processes import clear_error_if_killed, worker_pool

_ROWS_AT_ONCE: Final = 256
_MOST_LISTED: Final = 20


class Verify(msgspec.Struct, frozen=True, kw_only=True):
    """Checks each picture of prepared or packed data by its hash."""

    data: tyro.conf.Positional[Path]
    """Folder of prepared or packed data."""
    shards: str = ""
    """Folder or URL (s3://, gs://) of the shards; default: the data folder."""
    workers: Annotated[int, msgspec.Meta(ge=1)] = cores()
    """Processes that read and hash."""


def verify(command: Verify) -> int:
    """Reads and checks all pictures.

    Returns:
        The number of pictures, if all are intact.

    Raises:
        DataError: Pictures are missing or damaged; the message names them.
    """
    manifest = Manifest(command.data, command.shards)
    damaged = _damaged_tars(manifest) + _damaged_pictures(manifest, command.workers)
    if damaged:
        raise DataError(
            f"of {len(manifest)} pictures some are damaged",
            value=some_of(damaged, _MOST_LISTED, "; "),
            limit="the bytes whose hashes the manifest holds",
            remedy="delete the named shards and pack again, or restore the named files",
        )
    Console(soft_wrap=True, highlight=False).print(f"{len(manifest)} pictures are intact.")
    return len(manifest)


def _damaged_pictures(manifest: Manifest, workers: int) -> list[str]:
    chunks = np.array_split(np.arange(len(manifest)), -(-len(manifest) // _ROWS_AT_ONCE) or 1)
    store = PictureStore(manifest)
    damaged: list[str] = []
    with clear_error_if_killed(), worker_pool(workers, "training.loading.storage") as pool:
        found = pool.map(_damaged_of, (store for _ in chunks), (chunk.tolist() for chunk in chunks))
        for names in track(found, "Verifying", len(chunks)):
            damaged += names
    return damaged


def _damaged_of(store: PictureStore, rows: list[int]) -> list[str]:
    """Names of the pictures whose bytes do not match the manifest, with the reason.

    They are read in one round; if a picture fails, one by one to find it.
    """
    try:
        pictures = store.read_many(rows)
    except DataError:
        if len(rows) == 1:
            return [f"{store.manifest.name(rows[0])} cannot be read"]
        return [damaged for row in rows for damaged in _damaged_of(store, [row])]
    hashes = store.manifest.table["sha256"]
    return [
        f"{store.manifest.name(row)} has another hash"
        for row, data in zip(rows, pictures, strict=True)
        if hashlib.sha256(data).hexdigest() != hashes[row].as_py()
    ]


def _damaged_tars(manifest: Manifest) -> list[str]:
    """Local shards whose tar members do not match the manifest."""
    table = manifest.table.select(["shard", "offset", "length"]).append_column("row", pa.array(range(len(manifest))))
    grouped = table.group_by("shard").aggregate([("row", "min"), ("offset", "list"), ("length", "list")])
    damaged = []
    for batch in grouped.to_batches(max_chunksize=1):  # one at a time: millions of Python integers take much memory
        (shard,) = batch.to_pylist()
        place = manifest.place(shard["row_min"])
        expected = dict(zip(shard["offset_list"], shard["length_list"], strict=True))
        if place.whole or "://" in place.file:
            continue
        if not expected.items() <= _members(Path(place.file)).items():  # a shard of a stream has also what was left out
            damaged.append(f"{place.file} is not a tar of these pictures")
    return damaged


def _members(path: Path) -> dict[int, int]:
    """Offset of the first byte -> length, of each member; none if the file is missing or no tar."""
    try:
        with tarfile.open(path, "r:") as tar:
            return {member.offset_data: member.size for member in tar}
    except (OSError, tarfile.TarError):
        return {}
