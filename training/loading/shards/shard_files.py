"""The shards: which picture stands where, their tar files, and the index of each.

The shard and place of a picture are a pure function of the manifest and the options. Each machine that packs a part
computes the same plan, and so does a run that continues a killed one. The size of a picture is known only after it is
encoded, so shards are cut by estimated sizes. Members of a tar are not compressed, so each is a byte range of the file;
names are short, and owner and time are zero, so the same pictures always give the same bytes. The index of a shard is
written last, so a shard with an index is complete.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.atomic_file import replaced
from models.errors import DataError
from training.dataset.manifest import MANIFEST_FILE, SCHEMA, Ints, Manifest, write_manifest
from training.dataset.sources.record import Split

PLAN_VERSION: Final = 1
"""Raise this number whenever the same options give other shards."""
_MEMBER_OVERHEAD_BYTES: Final = 512 + 256  # a tar header, and half a block of padding on average
# Photographs of plants at short side 512 and quality 90, 4:2:0: 0.20 to 0.39 bytes a pixel (measured with Pillow).
_BYTES_PER_PX_AT_90: Final = 0.3
_SIZE_EXPONENT: Final = -0.65  # of the size in libjpeg's quantization scale, fitted at quality 50 to 100


class StoredPicture(msgspec.Struct, frozen=True):
    """A picture as a shard stores it."""

    data: bytes
    sha256: str
    """Of `data`."""
    width: int
    """Of the upright picture, px; so is the height."""
    height: int


ShortSide = Annotated[int, msgspec.Meta(ge=8, le=8192)]
Quality = Annotated[int, msgspec.Meta(ge=50, le=100)]


class PackOptions(msgspec.Struct, frozen=True):
    """The options of `pack` that decide the content of the shards."""

    short_side_px: ShortSide = 440
    """Training pictures are reduced to this short side, px; smaller ones are copied. Pictures of the other splits are
    always copied."""
    quality: Quality = 90
    """JPEG quality of training pictures that are reduced."""
    shard_mb: Annotated[float, msgspec.Meta(ge=0.001, le=100_000.0)] = 512
    """Approximate size of a shard, MB."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the order of the training pictures."""


class Shard(msgspec.Struct, frozen=True, eq=False):
    """One tar file."""

    number: int
    """Position in the plan."""
    name: str
    """File name of the tar."""
    split: Split
    rows: Ints
    """Rows of the source manifest, in the order of the tar."""


class ShardPlan(msgspec.Struct, frozen=True, eq=False):
    """All shards of a packed data set."""

    shards: tuple[Shard, ...]
    identity: str
    """Hash of manifest, options and assignment, which identifies the shards of this plan."""


def make_plan(manifest: Manifest, options: PackOptions) -> ShardPlan:
    """Assigns each picture to a place in a shard.

    Training pictures are shuffled; the other splits keep the order of the manifest. The shards of a split have about
    equal size, at most about `options.shard_mb`.
    """
    stored_bytes = estimate_bytes(manifest, options)
    shards: list[Shard] = []
    for split in get_args(Split):
        if manifest.has(split):
            rows = manifest.rows_of(split)
            if split == "train":
                rows = np.random.default_rng(options.seed).permutation(rows)
            before = np.cumsum(stored_bytes[rows]) - stored_bytes[rows]
            total = float(stored_bytes[rows].sum())
            num_shards = max(1, int(np.ceil(total / (options.shard_mb * 1e6))))
            number = np.floor(before * (num_shards / total)).astype(np.int64)
            # About equal sizes; no shard is empty, even if a picture is larger than a shard.
            for index, part in enumerate(np.split(rows, np.flatnonzero(np.diff(number)) + 1)):
                shards.append(Shard(len(shards), f"{split}-{index:05d}.tar", split, part))
    # The assignment is hashed as well, to detect a NumPy version that shuffles otherwise.
    digest = hashlib.sha256(f"{PLAN_VERSION} {manifest.sha256} ".encode())
    digest.update(msgspec.json.encode({name: getattr(options, name) for name in PackOptions.__struct_fields__}))
    for shard in shards:
        digest.update(shard.name.encode() + shard.rows.astype("<i8").tobytes())
    return ShardPlan(tuple(shards), digest.hexdigest())


def estimate_bytes(manifest: Manifest, options: PackOptions) -> npt.NDArray[np.float64]:
    """Estimates the bytes of each picture in its shard, shape (len(manifest),).

    A copied picture takes its length; a reduced one takes its pixels times the bytes per pixel of the JPEG quality.
    Whether a file is a JPEG is guessed from its name, since the file is not read here.
    """
    column = {name: manifest.table[name].to_numpy().astype(np.float64) for name in ("length", "width", "height")}
    short_side = np.minimum(column["width"], column["height"])
    scale = np.minimum(1.0, options.short_side_px / np.maximum(short_side, 1))
    # libjpeg's quantization scale is 200 - 2 * quality; the 10 keeps quality 100 above zero.
    bytes_per_px = _BYTES_PER_PX_AT_90 * ((210 - 2 * options.quality) / 30) ** _SIZE_EXPONENT
    encoded = column["width"] * column["height"] * scale**2 * bytes_per_px
    jpeg = pc.match_substring_regex(manifest.table["path"], r"\.jpe?g$", ignore_case=True).to_numpy()
    kept = pc.not_equal(manifest.table["split"].cast("string"), "train").to_numpy()
    copied = kept | (jpeg & (short_side <= options.short_side_px))
    return np.asarray(np.where(copied, column["length"], encoded) + _MEMBER_OVERHEAD_BYTES)


_LONGEST_SUFFIX: Final = 8
STORED_COLUMNS: Final = ("offset", "length", "sha256", "width", "height")
"""Columns of the manifest that describe the stored picture."""
_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # of the manifest that was packed
        pa.field("name", pa.string(), nullable=False),  # of the tar's member
        *(SCHEMA.field(name) for name in STORED_COLUMNS),
    ]
)
_PLAN: Final = b"plan"


def write_shard(
    folder: Path, shard: Shard, pictures: Iterable[StoredPicture], manifest: Manifest, plan: ShardPlan
) -> None:
    """Writes a shard of the pictures of `shard.rows`, in that order, as a POSIX (ustar) tar, then its index.

    Raises:
        OSError: The disk is full or not writable; neither the tar nor the index is left behind.
    """
    tar = folder / shard.name
    index = index_path(folder, shard)
    index.unlink(missing_ok=True)  # it may be left from a tar that was lost
    rows = []
    with replaced(tar) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as writer:
        for position, (row, picture) in enumerate(zip(shard.rows.tolist(), pictures, strict=True)):
            name = _member_name(position, row, shard, manifest)
            rows.append({"row": row, "name": name} | add_picture(writer, name, picture))
    table = pa.Table.from_pylist(rows, _SCHEMA.with_metadata(_facts(folder, shard, plan)))
    with replaced(index) as stream:
        pq.write_table(table, stream)


def add_picture(writer: tarfile.TarFile, name: str, picture: StoredPicture) -> dict[str, Any]:
    """Adds a picture to a tar, and returns its `STORED_COLUMNS`; the header of a short name is one block."""
    info = tarfile.TarInfo(name)
    info.size = len(picture.data)
    offset = writer.offset + tarfile.BLOCKSIZE
    writer.addfile(info, io.BytesIO(picture.data))
    stored = (offset, info.size, picture.sha256, picture.width, picture.height)
    return dict(zip(STORED_COLUMNS, stored, strict=True))


def write_packed_manifest(folder: Path, manifest: Manifest, index: pa.Table, plan: str) -> None:
    """Writes the manifest of shards, in the order of their bytes. Idempotent.

    Args:
        folder: Of the shards.
        manifest: Of the pictures before they were packed.
        index: `row` of that manifest, `shard` and `STORED_COLUMNS` of each picture.
        plan: Identity of the plan that the shards follow.
    """
    index = index.combine_chunks()
    columns = manifest.table.take(index["row"])
    packed = {name: columns[name] for name in columns.column_names}
    packed |= {name: index[name] for name in STORED_COLUMNS}
    packed["shard"] = index["shard"].dictionary_encode()
    write_manifest(folder, packed, manifest.taxonomy, manifest.sources, plan=plan, packed_from=manifest.sha256)


def is_complete(folder: Path, shard: Shard, plan: ShardPlan) -> bool:
    """Whether a shard and its index are there, belong to the plan, and have the recorded size."""
    try:
        return bool(pq.read_schema(index_path(folder, shard)).metadata == _facts(folder, shard, plan))
    except (OSError, pa.ArrowInvalid):
        return False


def _facts(folder: Path, shard: Shard, plan: ShardPlan) -> dict[bytes, bytes]:
    """Metadata of the index of a shard that is written: its plan, and the size of its tar."""
    return {_PLAN: plan.identity.encode(), b"tar_bytes": str((folder / shard.name).stat().st_size).encode()}


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
    """Identities of the plans of the manifest and of all indexes in a folder; damaged indexes are ignored."""
    plans = set()
    for path in [*folder.glob("*-[0-9]*.parquet"), *folder.glob(MANIFEST_FILE)]:
        try:
            plans.add((pq.read_schema(path).metadata or {}).get(_PLAN, b"").decode())
        except (OSError, pa.ArrowInvalid):
            if path.name == MANIFEST_FILE:
                plans.add("a damaged manifest")
    return plans


def _member_name(position: int, row: int, shard: Shard, manifest: Manifest) -> str:
    """A short name, the same on every machine; all training pictures are stored as JPEG."""
    if shard.split == "train":
        return f"{position:08d}.jpg"
    suffix = PurePosixPath(manifest.table["path"][row].as_py()).suffix.lower()
    is_plain = suffix.isascii() and suffix[1:].isalnum() and len(suffix) <= _LONGEST_SUFFIX
    return f"{position:08d}{suffix if is_plain else ''}"
