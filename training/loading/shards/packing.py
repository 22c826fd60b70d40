"""The command `pack`: prepared pictures -> tar shards, and a manifest with the place of each picture in them.

The command `reduce` does to the pictures of `--negatives` and `--unknown` what `pack` does to training pictures.

Worker processes encode the pictures in order, a bounded number of tasks ahead; this process writes the shards one after
another. Shards are written atomically, so a killed run continues when the same command is given again.

Evaluation pictures are copied byte for byte, so that they are evaluated as the service would see them. Training
pictures are reduced once, instead of in every epoch; a small one is copied, never enlarged.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import pyarrow as pa
import tyro
from PIL import Image
from rich.console import Console
from rich.progress import track

from models.atomic_file import remove_leftovers, replaced, write_bytes
from models.cores import cores
from models.errors import DataError, PictureError, some_of
from models.exif import exif_orientation
from models.file_structure import sniff_format
from models.preprocess import in_srgb, open_picture, read_picture, upright_size
from models.program import read_part, tell_next
from training.dataset.manifest import MANIFEST_FILE, Manifest
from training.loading.negatives import LIST, listed_pictures, table_of
from training.loading.shards.shard_files import (
    PackOptions,
    Quality,
    Shard,
    ShardPlan,
    ShortSide,
    StoredPicture,
    index_path,
    is_complete,
    make_plan,
    plans_in,
    read_index,
    write_packed_manifest,
    write_shard,
)
from training.processes import in_order, worker_pool

# A JPEG is decoded at 1/2, 1/4 or 1/8 if its side then is still this many times the wanted one. The mean error against
# a full decode is 0.4 of 255, while quality 90 alone costs 2 to 3, and camera files are packed 2 to 3 times as fast.
_DECODE_MARGIN: Final = 1.5


class SourcePicture(msgspec.Struct, frozen=True):
    """A picture of the manifest."""

    file: str
    length: int
    sha256: str
    width: int
    """Of the upright picture, px; so is the height."""
    height: int
    keep_bytes: bool
    """Whether it is copied byte for byte."""


def encode_picture(source: SourcePicture, short_side_px: int, quality: int) -> StoredPicture:
    """Reads a picture and returns what the shard stores: the file, or a JPEG of at most that short side.

    Raises:
        DataError: The file is missing, damaged, or has changed since the manifest was written.
    """
    try:
        data = Path(source.file).read_bytes()
    except OSError as error:
        raise _unusable(source, "cannot be read", error) from error
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise _unusable(source, "changed since it was prepared", "its hash differs")
    found = StoredPicture(data, source.sha256, source.width, source.height)
    try:
        return found if source.keep_bytes else reduced(found, short_side_px, quality)
    except PictureError as error:
        raise _unusable(source, "does not decode", error) from error


def reduced(picture: StoredPicture, short_side_px: int, quality: int) -> StoredPicture:
    """Returns a JPEG of at most that short side: the same bytes if they are one that stands upright without its EXIF.

    Raises:
        PictureError: The bytes do not decode.
    """
    if min(picture.width, picture.height) <= short_side_px and sniff_format(picture.data) == "JPEG":
        with open_picture(picture.data) as (_, opened):
            if exif_orientation(opened) == 1:
                return picture
    image = reduce(picture.data, short_side_px)
    stream = io.BytesIO()
    # EXIF is dropped, since it would turn the upright picture again; so is the comment, which Pillow would keep.
    image.save(stream, "JPEG", quality=quality, comment="")
    encoded = stream.getvalue()
    return StoredPicture(encoded, hashlib.sha256(encoded).hexdigest(), image.width, image.height)


def reduce(data: bytes, short_side_px: int) -> Image.Image:
    """Decodes to an upright RGB picture whose short side is at most `short_side_px`; never enlarges.

    Raises:
        PictureError: The bytes do not decode.
    """
    picture = read_picture(data, min_side_px=int(_DECODE_MARGIN * short_side_px))
    scale = min(short_side_px / min(picture.width, picture.height), 1.0)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    image = picture.image if picture.image.size == size else picture.image.resize(size, Image.Resampling.LANCZOS)
    return in_srgb(image)


def _unusable(source: SourcePicture, what: str, why: object) -> DataError:
    return DataError(
        f"a picture {what}: {source.file}",
        value=why,
        limit="the file as it was prepared",
        remedy="restore it or run training/prepare.py again",
    )


AHEAD: Final = 4  # tasks per process that may wait to be written
_TASK_BYTES: Final = 2_000_000  # one camera file, or many small files
_MOST_LISTED: Final = 10
Item = TypeVar("Item")


class Pack(PackOptions, frozen=True, kw_only=True):
    """Packs prepared pictures into tar shards. If it was killed, the same command continues where it stopped."""

    data: tyro.conf.Positional[Path]
    """Folder of prepared data."""
    out: Path
    """Folder for the shards, the manifest and the taxa."""
    part: str = "0/1"
    """Part of the shards to pack, i/n with i from 0 to n - 1: n machines may each pack one. The run that finds all
    shards complete writes the manifest; with separate disks, copy the files to one folder and run once more."""
    workers: Annotated[int, msgspec.Meta(ge=1)] = cores()
    """Processes that decode and encode pictures."""


class PackSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of the command."""

    num_written: int
    """Shards that this run wrote."""
    num_shards: int
    """Shards of all parts."""
    missing: tuple[str, ...]
    """Names of the shards that are not complete yet; the manifest is written when there are none."""


def pack(command: Pack) -> PackSummary:
    """Packs one part, and writes the manifest when all parts are complete.

    Raises:
        InputError: The part is malformed.
        DataError: The data is missing or has changed since it was prepared, or the folder holds other shards.
        OSError: The disk is full or not writable; complete shards stay, incomplete ones are removed.
    """
    part, num_parts = read_part(command.part)
    manifest = Manifest(command.data)
    if not manifest.place(0).whole:
        raise DataError(
            "the data is packed already", value=manifest.folder, remedy="name the folder that it was packed from"
        )
    plan = make_plan(manifest, command)
    if plans_in(command.out) - {plan.identity}:
        raise DataError(
            "the folder holds other data, or shards that were packed with other options",
            value=command.out,
            limit="an empty folder, or the folder of an unfinished run with the same options",
            remedy="pass the options of that run, or name another folder",
        )
    command.out.mkdir(parents=True, exist_ok=True)
    own = [shard for shard in plan.shards if shard.number % num_parts == part]
    for shard in own:
        for path in (command.out / shard.name, index_path(command.out, shard)):
            remove_leftovers(path)  # of killed runs; safe, since only one part writes this shard
    pending = [shard for shard in own if not is_complete(command.out, shard, plan)]
    _write_shards(command, pending, manifest, plan)
    missing = [shard for shard in plan.shards if not is_complete(command.out, shard, plan)]
    if not missing:
        tables = [
            read_index(command.out, shard).append_column("shard", pa.repeat(shard.name, len(shard.rows)))
            for shard in plan.shards
        ]
        write_packed_manifest(command.out, manifest, pa.concat_tables(tables), plan.identity)
    _print_outcome(command.out, plan, missing, len(pending), num_parts)
    names = tuple(shard.name for shard in missing)
    return PackSummary(num_written=len(pending), num_shards=len(plan.shards), missing=names)


def _write_shards(command: Pack, pending: Sequence[Shard], manifest: Manifest, plan: ShardPlan) -> None:
    """Encodes and writes all pending shards; the pool does not wait between two shards."""
    if not pending:
        return
    sources = (_source(manifest, row, shard) for shard in pending for row in shard.rows.tolist())
    with worker_pool(command.workers, "training.loading.shards.packing") as pool:
        encode = partial(_encode_all, short_side_px=command.short_side_px, quality=command.quality)
        encoded = in_order(pool, encode, in_tasks(sources, lambda each: each.length), most=AHEAD * command.workers)
        pictures = iter(track(encoded, "Packing", sum(len(shard.rows) for shard in pending)))
        for shard in pending:
            write_shard(command.out, shard, islice(pictures, len(shard.rows)), manifest, plan)
        next(pictures, None)  # lets the progress bar end


def _encode_all(sources: Sequence[SourcePicture], *, short_side_px: int, quality: int) -> list[StoredPicture]:
    return [encode_picture(source, short_side_px, quality) for source in sources]


def in_tasks(pictures: Iterable[Item], num_bytes: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Groups consecutive pictures into tasks of about `_TASK_BYTES`: a task for each small picture would be slow."""
    task: list[Item] = []
    total = 0
    for picture in pictures:
        task.append(picture)
        total += num_bytes(picture)
        if total >= _TASK_BYTES:
            yield task
            task = []
            total = 0
    if task:
        yield task


def _source(manifest: Manifest, row: int, shard: Shard) -> SourcePicture:
    place = manifest.place(row)
    table = manifest.table
    return SourcePicture(
        file=place.file,
        length=place.length,
        sha256=table["sha256"][row].as_py(),
        width=table["width"][row].as_py(),
        height=table["height"][row].as_py(),
        keep_bytes=shard.split != "train",
    )


def _print_outcome(folder: Path, plan: ShardPlan, missing: Sequence[Shard], num_written: int, num_parts: int) -> None:
    packed = [shard for shard in plan.shards if shard not in missing]
    num_bytes = sum((folder / shard.name).stat().st_size for shard in packed)
    lines = [
        f"{len(packed)} of {len(plan.shards)} shards are packed, {num_bytes / 1e9:.2f} GB, {num_written} of them now."
    ]
    if missing:
        names = some_of([shard.name for shard in missing], _MOST_LISTED)
        parts = ", ".join(f"{part}/{num_parts}" for part in sorted({shard.number % num_parts for shard in missing}))
        lines += [
            f"Missing: {names}.",
            f"Next: run the missing parts ({parts}); the last one writes the manifest.",
        ]
    else:
        lines += [f"Written: {folder / MANIFEST_FILE}"]
    Console(soft_wrap=True, highlight=False, markup=False).print("\n".join(lines))
    if not missing:
        tell_next(f"python training/train.py RECIPE --data {folder}")


class Reduce(msgspec.Struct, frozen=True, kw_only=True):
    """Reduces the pictures of --negatives or --unknown as `pack` reduces those of the classes.

    Otherwise the network could learn the compression, for example that a blurred picture is no plant that it knows.
    """

    pictures: tyro.conf.Positional[Path]
    """Folder or CSV list, as for --negatives."""
    out: Path
    """Folder for the pictures, below the same paths, and for the list, as labels.csv."""
    short_side_px: ShortSide = PackOptions().short_side_px
    """As in `pack`."""
    quality: Quality = PackOptions().quality
    """As in `pack`."""
    workers: Annotated[int, msgspec.Meta(ge=1)] = cores()
    """Processes that decode and encode pictures."""


def reduce_pictures(command: Reduce) -> tuple[int, int]:
    """Writes the pictures and the list; returns how many were written, and how many do not decode.

    The paths stay those of the list, so that export still knows which pictures the training saw.

    Raises:
        DataError: Pictures lie outside of the list's folder, none decodes, or `out` is the folder of the pictures.
        OSError: The disk is full or not writable.
    """
    given = command.pictures
    root = given if given.is_dir() else given.parent
    names = list(listed_pictures(given))
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside or command.out.resolve() == root.resolve():
        raise DataError(
            "pictures cannot be reduced into another folder below the paths of their list",
            value=outside[0] if outside else command.out,
            limit="paths below the folder of the list, and another folder for --out",
            remedy="copy the pictures below the list, or name another folder",
        )
    with worker_pool(command.workers, "training.loading.shards.packing") as pool:
        write = partial(_write_reduced, root, command.out, command.short_side_px, command.quality)
        tasks = in_tasks(names, lambda _: _TASK_BYTES // 50)
        written = sum(track(in_order(pool, write, tasks, most=AHEAD * command.workers), "Reducing", len(names)))
    if not written:
        raise DataError("no picture can be read", value=given, remedy="name a folder of pictures, or a CSV list")
    if (table := table_of(given)) is not None:
        write_bytes(command.out / LIST, table.read_bytes())
    return written, len(names) - written


def _write_reduced(root: Path, out: Path, short_side_px: int, quality: int, names: Sequence[str]) -> list[bool]:
    """Writes pictures; returns for each whether it decodes."""
    found = []
    for name in names:
        try:
            data = (root / name).read_bytes()
            small = reduced(StoredPicture(data, "", *upright_size(data)), short_side_px, quality)
        except (OSError, PictureError):
            found.append(False)
            continue
        with replaced(out / name) as stream:  # `write_bytes` lists the folder for each file that is there
            stream.write(small.data)
        found.append(True)
    return found
