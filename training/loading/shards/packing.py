"""The command `pack`: prepared pictures -> tar shards and the manifest that says where in them each picture lies.

Pictures are encoded by helper processes, in order and a bounded number ahead; this process writes shard after shard.
A shard is there whole or not at all, so a killed run is continued by giving the same command again.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from rich.console import Console
from rich.progress import track

from models.errors import DataError, RecipeError
from training.dataset.manifest import MANIFEST_FILE, Manifest, write_manifest
from training.loading.shards.encode import SourcePicture, StoredPicture, encode_pictures
from training.loading.shards.plan import PackOptions, Plan, Shard, make_plan, part_of, shards_of_part
from training.loading.shards.shard_index import is_done, plans_in, read_index, remove_shard_leftovers, write_shard
from training.processes import clean_context, end_with_parent, told_if_killed

_AHEAD: Final = 4  # tasks a process that may wait to be written
_TASK_BYTES: Final = 2_000_000  # a camera's original, or as many copies as are worth a task
_MOST_LISTED: Final = 10


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """Packs prepared pictures into tar shards. Killed, it continues where it was when given the same command."""

    data: tyro.conf.Positional[Path]
    """Folder of prepared data."""
    out: Path
    """Folder to write shards, manifest and names to."""
    short_side_px: int = 512
    """Training pictures are reduced to this short side, px; smaller ones are copied. Judged pictures stay as they
    are."""
    quality: int = 90
    """JPEG quality of training pictures that are reduced."""
    shard_mb: float = 512
    """About how large a shard becomes, MB."""
    part: str = "1/1"
    """Which share of the shards to pack, as 2/4: the second of four runs, on as many machines. The run that finds all
    shards complete joins them; on separate disks, bring the files together and run once more."""
    workers: int = os.cpu_count() or 1
    """Processes that decode and encode pictures."""
    seed: int = 0
    """Decides the order of the training pictures."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of the command came to."""

    num_written: int
    """Shards that this run wrote."""
    num_shards: int
    """Shards of all parts together."""
    num_bytes: int
    """What the finished ones take on the disk."""
    missing: tuple[str, ...]
    """Shards that no run has finished yet; with none missing the manifest is written."""


def pack(command: Pack) -> Packed:
    """Packs one part, and joins all parts when they are complete.

    Raises:
        RecipeError: An option is out of range.
        DataError: The data is missing, changed since it was prepared, or the folder holds something else.
        OSError: The disk is full or may not be written; what was finished stays, nothing is left half-written.
    """
    part, num_parts = _parse_part(command.part)
    options = PackOptions(command.short_side_px, command.quality, command.shard_mb, command.seed)
    manifest = Manifest(command.data)
    _require_plain_files(manifest)
    plan = make_plan(manifest, options)
    _require_same_plan(command.out, plan)
    command.out.mkdir(parents=True, exist_ok=True)
    own = shards_of_part(plan, part, num_parts)
    for shard in own:
        remove_shard_leftovers(command.out, shard)
    pending = [shard for shard in own if not is_done(command.out, shard, plan)]
    _write_shards(command, pending, manifest, plan)
    missing = [shard for shard in plan.shards if not is_done(command.out, shard, plan)]
    if not missing:
        _join(command.out, manifest, plan)
    packed = Packed(
        num_written=len(pending),
        num_shards=len(plan.shards),
        num_bytes=sum((command.out / shard.name).stat().st_size for shard in plan.shards if shard not in missing),
        missing=tuple(shard.name for shard in missing),
    )
    _print_summary(packed, [part_of(shard, num_parts) for shard in missing], num_parts, command.out)
    return packed


def _write_shards(command: Pack, pending: Sequence[Shard], manifest: Manifest, plan: Plan) -> None:
    """Encodes and writes; the pool runs on over the borders of shards."""
    if not pending:
        return
    workers = max(command.workers, 1)
    sources = (_source(manifest, int(row), shard) for shard in pending for row in shard.rows)
    context = clean_context("training.loading.shards.encode")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        encoded = _in_order(pool, sources, command, ahead=_AHEAD * workers)
        pictures = iter(track(encoded, "Packing", sum(len(shard.rows) for shard in pending)))
        for shard in pending:
            write_shard(command.out, shard, islice(pictures, len(shard.rows)), manifest, plan)
        next(pictures, None)  # lets the progress bar end


def _in_order(
    pool: ProcessPoolExecutor, sources: Iterable[SourcePicture], command: Pack, ahead: int
) -> Iterator[StoredPicture]:
    """Encoded pictures in the order of their sources, no more than `ahead` tasks of them in memory."""
    waiting: deque[Future[list[StoredPicture]]] = deque()
    with told_if_killed():
        for task in _tasks(sources):
            waiting.append(pool.submit(encode_pictures, task, command.short_side_px, command.quality))
            if len(waiting) >= ahead:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _tasks(sources: Iterable[SourcePicture]) -> Iterator[list[SourcePicture]]:
    """Consecutive pictures of about `_TASK_BYTES`: handing a small one over takes longer than copying it."""
    task: list[SourcePicture] = []
    num_bytes = 0
    for source in sources:
        task.append(source)
        num_bytes += source.length
        if num_bytes >= _TASK_BYTES:
            yield task
            task, num_bytes = [], 0
    if task:
        yield task


def _source(manifest: Manifest, row: int, shard: Shard) -> SourcePicture:
    place, table = manifest.place(row), manifest.table
    return SourcePicture(
        file=place.file,
        length=place.length,
        sha256=table["sha256"][row].as_py(),
        width=table["width"][row].as_py(),
        height=table["height"][row].as_py(),
        judged=shard.split != "train",
    )


def _join(folder: Path, manifest: Manifest, plan: Plan) -> None:
    """Writes the manifest of all shards; its rows stand in the order of the bytes. Doing it again changes nothing."""
    indexes = [read_index(folder, shard) for shard in plan.shards]
    index = pa.concat_tables(indexes).combine_chunks()
    columns = manifest.table.take(index["row"])
    packed = {name: columns[name] for name in columns.column_names}
    packed |= {name: index[name] for name in ("offset", "length", "sha256", "width", "height")}
    names = pa.array([shard.name for shard in plan.shards])
    codes = pa.array([shard.number for shard in plan.shards for _ in shard.rows], pa.int32())
    packed["shard"] = pa.DictionaryArray.from_arrays(codes, names)
    write_manifest(folder, packed, manifest.taxonomy, manifest.sources, plan=plan.identity)


def _parse_part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, num_parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= num_parts:
        raise RecipeError(
            "--part is no share of the work", value=text, limit="i/n with i from 1 to n", remedy="give 2/4, for example"
        )
    return part, num_parts


def _require_plain_files(manifest: Manifest) -> None:
    if len(manifest) == 0 or manifest.place(0).whole:
        return
    raise DataError(
        "the data is packed already",
        value=manifest.folder,
        remedy="give the folder that it was packed from",
    )


def _require_same_plan(folder: Path, plan: Plan) -> None:
    """Before anything is touched: shards of other data or other options must not be mixed with these."""
    found = plans_in(folder)
    if (folder / MANIFEST_FILE).is_file():
        found.add(_plan_of(folder / MANIFEST_FILE))
    if found - {plan.identity}:
        raise DataError(
            "the folder holds other data, or shards that were packed with other options",
            value=folder,
            limit="an empty folder, or one that the same command has begun to fill",
            remedy="give the options of the first run, or name another folder",
        )


def _plan_of(manifest: Path) -> str:
    try:
        return bytes((pq.read_schema(manifest).metadata or {}).get(b"plan", b"")).decode()
    except (OSError, pa.ArrowInvalid):
        return "a damaged manifest"


def _print_summary(packed: Packed, missing_parts: Sequence[int], num_parts: int, folder: Path) -> None:
    lines = [
        f"{packed.num_shards - len(packed.missing)} of {packed.num_shards} shards are packed, "
        f"{packed.num_bytes / 1e9:.2f} GB, {packed.num_written} of them now."
    ]
    if packed.missing:
        parts = ", ".join(f"{part}/{num_parts}" for part in sorted(set(missing_parts)))
        more = ", ..." if len(packed.missing) > _MOST_LISTED else ""
        lines += [
            f"Missing: {', '.join(packed.missing[:_MOST_LISTED])}{more}.",
            f"Next: run the missing parts ({parts}); the last one writes the manifest.",
        ]
    else:
        lines += [f"Written: {folder / MANIFEST_FILE}. Next: python training/train.py RECIPE --data {folder}"]
    Console(soft_wrap=True, highlight=False, markup=False).print("\n".join(lines))
