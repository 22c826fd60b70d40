"""Archives and folders -> shards in one pass: each picture is examined, reduced and stored as it comes.

Splits and near copies follow from what was examined, once the pass has ended. So a shard keeps the order of the archive
and holds some pictures that no manifest lists. Whether a picture becomes one of validation is not known yet: only
pictures of splits that are published are copied byte for byte.

A shard is there completely, with its index, or not at all. A killed pass continues after its last shard: the places of
all pictures are those of an undisturbed pass.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.progress import track

from models.atomic_file import remove_leftovers, replaced, write_bytes
from models.errors import DataError, PictureError
from training.dataset.archive import members
from training.dataset.audit.examine import OUTCOME, Failure, Outcome, examine_bytes, usable
from training.dataset.manifest import SCHEMA, Manifest
from training.dataset.sources.record import ImageInfo, LeftOut
from training.loading.shards.packing import AHEAD, in_tasks, reduced
from training.loading.shards.shard_files import (
    STORED_COLUMNS,
    PackOptions,
    StoredPicture,
    add_picture,
    write_packed_manifest,
)
from training.processes import in_order, worker_pool

_MOST_ABOVE: Final = 8  # folders of an archive above those of the data set
_IDENTITY: Final = b"stream"
_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("outcome", pa.binary(), nullable=False),  # JSON of what was found
        *(SCHEMA.field(name).with_nullable(True) for name in STORED_COLUMNS),  # null for a picture that failed
    ]
)


class Stream(msgspec.Struct, frozen=True):
    """The pictures of a data set that are to be stored."""

    source: str
    """Name of the data set; the shards have it too."""
    root: Path
    archives: Sequence[Path]
    """A picture that none of them has is a file below `root`."""
    kept_bytes: Mapping[str, bool]
    """Path of each picture -> whether it is copied byte for byte."""
    beside: Mapping[str, Path] = {}
    """Path of each picture of no class -> the file that it is written to; few, since each is a file."""


class _Picture(NamedTuple):
    path: str
    data: bytes
    keep_bytes: bool


class _Examined(NamedTuple):
    path: str
    outcome: Outcome
    stored: StoredPicture | None


def stream(pass_: Stream, out: Path, options: PackOptions, workers: int) -> pa.Table:
    """Examines and stores the pictures of a data set that no shard in `out` holds yet.

    Returns:
        A row for each picture that was found: path, outcome, shard, and `STORED_COLUMNS`.

    Raises:
        DataError: An archive is damaged or not to be trusted, or `out` holds shards of other pictures or options.
        OSError: The disk is full or not writable; complete shards stay.
    """
    out.mkdir(parents=True, exist_ok=True)
    identity = _identity(pass_, options)
    tables = _complete_shards(pass_, out, identity)
    done = {path for table in tables for path in table["path"].to_pylist()}
    with worker_pool(workers, "training.loading.shards.streaming", "scipy.fft") as pool:
        work = partial(_examine_all, options=options)
        tasks = in_tasks(_pictures(pass_, done), lambda each: len(each.data))
        found = in_order(pool, work, tasks, most=AHEAD * workers)
        left = iter(track(found, f"Streaming {pass_.source}", len(pass_.kept_bytes) - len(done)))
        while len(table := _write_shard(out / _name(pass_, len(tables)), left, options, identity)):
            tables.append(table)
    shards = [_name(pass_, number) for number, table in enumerate(tables) for _ in range(len(table))]
    return pa.concat_tables([_SCHEMA.empty_table(), *tables]).append_column("shard", pa.array(shards, pa.string()))


def infos(table: pa.Table, source: str, paths: Sequence[str], min_side_px: int) -> list[ImageInfo | LeftOut]:
    """Returns for each path what `stream` found, or why the picture cannot be used, as `examine` does."""
    outcomes = dict(zip(table["path"].to_pylist(), table["outcome"].to_pylist(), strict=True))
    missing = msgspec.json.encode(Failure("missing_file", "the archive has no such file"))
    found = ((f"{source}:{path}", OUTCOME.decode(outcomes.get(path, missing))) for path in paths)
    return [usable(picture_id, outcome, min_side_px) for picture_id, outcome in found]


def write_streamed_manifest(folder: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    """Writes the manifest of the shards, in the order of their bytes, given that of the data and source -> `stream`."""
    rows = pa.table({"picture_id": manifest.table["picture_id"], "row": range(len(manifest))})
    stored = [
        table.set_column(0, "picture_id", pc.binary_join_element_wise(f"{name}:", table["path"], ""))
        for name, table in tables.items()
    ]
    index = pa.concat_tables(stored).drop(["outcome"]).join(rows, "picture_id", join_type="inner")
    index = index.sort_by([("shard", "ascending"), ("offset", "ascending")])
    write_packed_manifest(folder, manifest, index, plan="stream")


def _pictures(pass_: Stream, done: set[str]) -> Iterator[_Picture]:
    """Yields the pictures that are to be stored, in the order of the archives; then those that are files.

    Raises:
        DataError: Two members have one name.
    """
    seen = set[str]()
    for archive in pass_.archives:
        for member in members(archive):
            path = _path(member.name, pass_)
            if path is None:
                continue
            if path in seen:
                remedy = "take the archives from their publisher, each once"
                raise DataError("two members have one name", value=f"{archive}: {member.name}", remedy=remedy)
            seen.add(path)
            if file := pass_.beside.get(path):
                if not file.is_file():
                    write_bytes(file, member.read())
            elif path not in done:
                yield _Picture(path, member.read(), pass_.kept_bytes[path])
    for path, keep in pass_.kept_bytes.items():
        file = pass_.root / path
        if path not in seen and path not in done and file.is_file():
            yield _Picture(path, file.read_bytes(), keep)


def _path(member: str, wanted: Stream) -> str | None:
    """Returns the path of a member below the data set's root; None if no picture of the data set has it."""
    path = member.removeprefix("./")
    for _ in range(_MOST_ABOVE):
        if path in wanted.kept_bytes or path in wanted.beside:
            return path
        path = path.partition("/")[2]
    return None


def _examine_all(pictures: Sequence[_Picture], *, options: PackOptions) -> list[_Examined]:
    return [_examine(picture, options) for picture in pictures]


def _examine(picture: _Picture, options: PackOptions) -> _Examined:
    outcome = examine_bytes(picture.path, picture.data)
    if isinstance(outcome, Failure):
        return _Examined(picture.path, outcome, None)
    stored = StoredPicture(picture.data, outcome.sha256, outcome.width, outcome.height)
    try:
        if not picture.keep_bytes:
            stored = reduced(stored, options.short_side_px, options.quality)
    except PictureError as error:
        return _Examined(picture.path, Failure(error.code, str(error)), None)
    return _Examined(picture.path, outcome, stored)


def _write_shard(tar: Path, left: Iterator[_Examined], options: PackOptions, identity: str) -> pa.Table:
    """Writes the next pictures into a shard, until it is full or none is left, and then its index."""
    rows: list[dict[str, Any]] = []
    remove_leftovers(tar)
    with replaced(tar) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as writer:
        for found in left:
            row = {"path": found.path, "outcome": msgspec.json.encode(found.outcome)}
            if found.stored is not None:
                row |= add_picture(writer, f"{len(rows):08d}", found.stored)
            rows.append(row)
            if writer.offset >= options.shard_mb * 1e6:
                break
    if not rows:
        tar.unlink()
        return _SCHEMA.empty_table()
    facts = {_IDENTITY: identity.encode(), b"tar_bytes": str(tar.stat().st_size).encode()}
    table = pa.Table.from_pylist(rows, _SCHEMA.with_metadata(facts))
    with replaced(tar.with_suffix(".parquet")) as file:
        pq.write_table(table, file)
    return table.replace_schema_metadata()


def _complete_shards(pass_: Stream, out: Path, identity: str) -> list[pa.Table]:
    tables: list[pa.Table] = []
    while (index := (out / _name(pass_, len(tables))).with_suffix(".parquet")).is_file():
        tar = index.with_suffix(".tar")
        try:
            table = pq.read_table(index)
        except (OSError, pa.ArrowInvalid):
            break
        facts = table.schema.metadata or {}
        if facts.get(_IDENTITY) != identity.encode():
            raise DataError(
                "the folder holds shards of other pictures or options, or of an archive that was written again since",
                value=index,
                limit="an empty folder, or the folder of an unfinished run with the same archives and options",
                remedy="name another folder, or remove these shards",
            )
        if not tar.is_file() or facts.get(b"tar_bytes") != str(tar.stat().st_size).encode():
            break
        tables.append(table.replace_schema_metadata())
    return tables


def _identity(pass_: Stream, options: PackOptions) -> str:
    stats = [(archive.name, (found := archive.stat()).st_size, found.st_mtime_ns) for archive in pass_.archives]
    fixed = {name: getattr(options, name) for name in ("short_side_px", "quality", "shard_mb")}
    wanted = list(pass_.kept_bytes.items())
    return hashlib.sha256(msgspec.json.encode([pass_.source, stats, fixed, wanted])).hexdigest()


def _name(pass_: Stream, number: int) -> str:
    return f"{pass_.source}-{number:05d}.tar"
