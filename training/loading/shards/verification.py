"""The command `verify`: every stored picture against its hash, and every tar against the manifest."""

import hashlib
import os
import tarfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import tyro
from rich.console import Console
from rich.progress import track

from models.errors import DataError
from training.dataset.manifest import Manifest
from training.loading.shards.tar_file import tar_members
from training.loading.storage import PictureStore
from training.processes import clean_context, end_with_parent, told_if_killed

_ROWS_AT_ONCE: Final = 256
_MOST_LISTED: Final = 20


class Verify(msgspec.Struct, frozen=True, kw_only=True):
    """Holds every picture of prepared or packed data against its hash."""

    data: tyro.conf.Positional[Path]
    """Folder of prepared or packed data."""
    shards: str = ""
    """Folder or URL (s3://, gs://) that the shards lie in; default: the data folder."""
    workers: int = os.cpu_count() or 1
    """Processes that read and hash."""


def verify(command: Verify) -> int:
    """Reads all pictures.

    Returns:
        How many there are; all are sound.

    Raises:
        DataError: Some are missing or damaged; the message names them.
    """
    manifest = Manifest(command.data, command.shards)
    damaged = _damaged_tars(manifest) + _damaged_pictures(manifest, max(command.workers, 1))
    if damaged:
        more = f" and {len(damaged) - _MOST_LISTED} more" if len(damaged) > _MOST_LISTED else ""
        raise DataError(
            f"of {len(manifest)} pictures some are damaged",
            value="; ".join(damaged[:_MOST_LISTED]) + more,
            limit="the bytes that the manifest was written for",
            remedy="delete the shards named here and pack again, or restore the files",
        )
    Console(soft_wrap=True, highlight=False).print(f"{len(manifest)} pictures are as the manifest says.")
    return len(manifest)


def _damaged_pictures(manifest: Manifest, workers: int) -> list[str]:
    chunks = np.array_split(np.arange(len(manifest)), -(-len(manifest) // _ROWS_AT_ONCE) or 1)
    store = PictureStore(manifest)
    damaged: list[str] = []
    context = clean_context("training.loading.storage")
    with told_if_killed(), ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        found = pool.map(_damaged_of, (store for _ in chunks), (chunk.tolist() for chunk in chunks))
        for names in track(found, "Verifying", len(chunks)):
            damaged += names
    return damaged


def _damaged_of(store: PictureStore, rows: list[int]) -> list[str]:
    """Names of the pictures whose bytes are not what the manifest says, with the reason."""
    hashes = store.manifest.table["sha256"]
    damaged = []
    for row, data in zip(rows, _read(store, rows), strict=True):
        if isinstance(data, DataError):
            damaged.append(f"{store.manifest.name(row)} cannot be read")
        elif hashlib.sha256(data).hexdigest() != hashes[row].as_py():
            damaged.append(f"{store.manifest.name(row)} has another hash")
    return damaged


def _read(store: PictureStore, rows: list[int]) -> list[bytes | DataError]:
    """One round where all is well; picture by picture where one of them fails."""
    try:
        return [*store.read_many(rows)]
    except DataError:
        return [_read_one(store, row) for row in rows]


def _read_one(store: PictureStore, row: int) -> bytes | DataError:
    try:
        return store.read(row)
    except DataError as error:
        return error


def _damaged_tars(manifest: Manifest) -> list[str]:
    """Local shards that a tar reader understands otherwise than the manifest."""
    table = manifest.table.select(["shard", "offset", "length"])
    table = table.append_column("row", pa.array(np.arange(len(manifest))))
    grouped = table.group_by("shard").aggregate([("row", "min"), ("offset", "list"), ("length", "list")])
    damaged = []
    for shard in grouped.to_batches(max_chunksize=1):
        place = manifest.place(shard["row_min"][0].as_py())
        expected = dict(zip(shard["offset_list"][0].as_py(), shard["length_list"][0].as_py(), strict=True))
        if not place.whole and "://" not in place.file and _members(Path(place.file)) != expected:
            damaged.append(f"{place.file} is no tar with these pictures")
    return damaged


def _members(path: Path) -> dict[int, int] | None:
    try:
        return tar_members(path)
    except (OSError, tarfile.TarError):
        return None
