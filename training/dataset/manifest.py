"""The manifest: a Parquet table of all pictures (place, label, split, group, license, hash), and `taxa.json`.

Training reads nothing else about the data. Every checkpoint stores the SHA-256 of the table, so that a run cannot be
resumed on other data. `manifest.arrow` has the same rows uncompressed: every process maps it into memory, so that 1.6
million rows take almost no memory in a loader process. It is written from the Parquet file if it is missing or belongs
to another one.
"""

import io
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.atomic_file import as_json, remove_leftovers, replace_together, replaced
from models.bundle import TAXA_FILE, file_sha256
from models.errors import DataError
from models.taxonomy import Taxonomy
from training.dataset.sources.record import Split

MANIFEST_FILE: Final = "manifest.parquet"
INDEX_FILE: Final = "manifest.arrow"
Ints = npt.NDArray[np.int64]
_SHA256: Final = "manifest_sha256"
_PACKED_FROM: Final = "packed_from"
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("picture_id", pa.string(), nullable=False),  # source, colon, path below the source's root
        pa.field("source", _TEXT, nullable=False),
        pa.field("path", pa.string(), nullable=False),  # relative to the source's root, which the metadata names
        pa.field("shard", _TEXT, nullable=False),  # tar file with the picture; empty for a separate file
        pa.field("offset", pa.int64(), nullable=False),  # of the picture's first byte in its shard or file
        pa.field("length", pa.int64(), nullable=False),  # bytes
        pa.field("label", _TEXT, nullable=False),  # key of the network output
        pa.field("split", _TEXT, nullable=False),
        pa.field("group", pa.string(), nullable=False),  # pictures of one group are in one split
        pa.field("licence", _TEXT, nullable=False),  # SPDX identifier, or "unknown"
        pa.field("author", _TEXT, nullable=False),
        pa.field("taken_on", pa.date32()),
        pa.field("latitude", pa.float32()),  # degrees
        pa.field("longitude", pa.float32()),
        pa.field("sha256", pa.string(), nullable=False),  # of these bytes
        pa.field("width", pa.int32(), nullable=False),  # px, upright
        pa.field("height", pa.int32(), nullable=False),
    ]
)


class Place(msgspec.Struct, frozen=True):
    """Where a picture's bytes are stored."""

    file: str
    """Path or URL of the picture's file, or of its shard."""
    offset: int
    """First byte."""
    length: int
    """Number of bytes."""
    whole: bool
    """Whether the picture is a separate file, not part of a shard."""


class SourceNote(msgspec.Struct, frozen=True):
    """Facts about one source."""

    root: str
    """Folder that its paths are relative to."""
    note: str = ""
    """What a user of the weights must know about it."""


class Manifest:
    """The pictures of a prepared data folder.

    Args:
        folder: Written by training/prepare.py.
        shards: Folder or URL (s3://, gs://) of the shards; default: the data folder.
        sha256: Required hash of the manifest; worker processes pass the hash of the process that started them.

    Raises:
        DataError: A file is missing or damaged, or manifest and taxa do not belong together.
    """

    def __init__(self, folder: Path, shards: str = "", *, sha256: str = "") -> None:
        self.folder = folder
        self._shards = shards
        try:
            self.taxonomy = msgspec.json.decode((folder / TAXA_FILE).read_bytes(), type=Taxonomy)
        except FileNotFoundError as error:
            raise _not_prepared(folder) from error
        except msgspec.DecodeError as error:
            damaged = f"{folder / TAXA_FILE} cannot be read"
            raise DataError(damaged, value=error, remedy="prepare the data again") from error
        self.table = _open_index(folder, sha256)
        self.sources = msgspec.json.decode(_fact(self.table, "sources") or "{}", type=dict[str, SourceNote])
        if _fact(self.table, "label_hash") != self.taxonomy.label_hash:
            raise DataError(
                f"{MANIFEST_FILE} and {TAXA_FILE} do not belong together",
                value=folder,
                remedy="run training/prepare.py again",
            )

    def __reduce__(self) -> tuple[Callable[..., "Manifest"], tuple[Path, str]]:
        """Pickles the paths only: another process maps the files again, and so shares the memory."""
        return partial(Manifest, sha256=self.sha256), (self.folder, self._shards)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def sha256(self) -> str:
        """SHA-256 of the manifest file, which checkpoints store."""
        return _fact(self.table, _SHA256)

    @property
    def packed_from(self) -> str:
        """SHA-256 of the manifest that packed data was made from; empty if the data is not packed."""
        return _fact(self.table, _PACKED_FROM)

    def has_sha256(self, sha256: str) -> bool:
        """Returns whether this manifest, or the one that its packed data was made from, has that hash."""
        return bool(sha256) and sha256 in (self.sha256, self.packed_from)

    @property
    def labels(self) -> Ints:
        """Position of each picture's output; shape (len(self),). Copies the column; use `label` for single pictures."""
        return np.asarray(self._output_of_code[self._codes("label")])

    def label(self, row: int) -> int:
        """Returns the position of one picture's output."""
        return int(self._output_of_code[self._codes("label")[row]])

    def name(self, row: int) -> str:
        """Returns the picture's file, for messages."""
        shard = self._text("shard", row)
        return f"{self.folder / shard}: {self._text('picture_id', row)}" if shard else self.place(row).file

    def place(self, row: int) -> Place:
        """Returns where the bytes of one picture are stored."""
        shard = self._text("shard", row)
        length = int(self.table["length"][row].as_py())
        if not shard:
            root = self.sources[self._text("source", row)].root
            return Place(str(self.folder / root / self._text("path", row)), 0, length, whole=True)
        base = self._shards.rstrip("/") or str(self.folder)
        return Place(f"{base}/{shard}", int(self.table["offset"][row].as_py()), length, whole=False)

    def path(self, row: int) -> Path:
        """Returns the file of a picture that is not in a shard."""
        return Path(self.place(row).file)

    def has(self, split: Split) -> bool:
        """Returns whether the split has any picture."""
        return len(self._rows(split)) > 0

    def rows_of(self, split: Split) -> Ints:
        """Returns the rows of a split, in ascending order.

        Raises:
            DataError: The split is empty.
        """
        rows = self._rows(split)
        if len(rows) == 0:
            share = "" if split == "train" else f": --{split}-share 0.1 (in a collection: {split}_share)"
            raise DataError(
                f"the data has no {split} pictures", value=self.folder, remedy=f"prepare it with that split{share}"
            )
        return rows

    def _rows(self, split: Split) -> Ints:
        names = self._dictionary("split")
        return np.flatnonzero(self._codes("split") == names.index(split)) if split in names else np.empty(0, np.int64)

    @cached_property
    def _output_of_code(self) -> Ints:
        position = {key: index for index, key in enumerate(self.taxonomy.output_keys)}
        return np.array([position[key] for key in self._dictionary("label")], dtype=np.int64)

    def _text(self, column: str, row: int) -> str:
        return str(self.table[column][row].as_py())

    def _codes(self, column: str) -> npt.NDArray[np.int32]:
        """Returns the column's dictionary codes, without a copy."""
        codes: npt.NDArray[np.int32] = self.table[column].chunk(0).indices.to_numpy()
        return codes

    def _dictionary(self, column: str) -> list[str]:
        names: list[str] = self.table[column].chunk(0).dictionary.to_pylist()
        return names


def write_manifest(
    folder: Path,
    columns: Mapping[str, Any],
    taxonomy: Taxonomy,
    sources: Mapping[str, SourceNote],
    *,
    plan: str = "",
    packed_from: str = "",
    further_files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes manifest and taxa, and further files (name -> content) with them: all are replaced, or none.

    The columns are Arrow arrays, arrays or lists of equal length, named as in `SCHEMA`. Packed data gives the identity
    of the plan that its shards follow, and the hash of the manifest that it was packed from.
    """
    facts = {
        "sources": msgspec.json.encode(dict(sources)),
        "label_hash": taxonomy.label_hash,
        "plan": plan,
        _PACKED_FROM: packed_from,
    }
    metadata = {name: fact for name, fact in facts.items() if fact}
    table = pa.table(dict(columns), schema=SCHEMA.with_metadata(metadata))
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    taxa = as_json(taxonomy)
    replace_together(folder, {MANIFEST_FILE: parquet.getbuffer(), TAXA_FILE: taxa, **(further_files or {})})


def _open_index(folder: Path, expected: str) -> pa.Table:
    """Maps the uncompressed rows, which are written first if they are missing or belong to another manifest.

    An index with the expected hash is used as it is, without hashing the manifest.
    """
    index = folder / INDEX_FILE
    manifest = folder / MANIFEST_FILE
    if expected and (mapped := _map_index(index, expected)) is not None:
        return mapped
    if not manifest.is_file():
        raise _not_prepared(folder)
    sha256 = file_sha256(manifest)
    if expected not in ("", sha256):
        raise DataError(
            "the data was prepared again while a run was using it",
            value=folder,
            remedy="start the run again; prepare into another folder next time",
        )
    if (mapped := _map_index(index, sha256)) is not None:
        return mapped
    try:
        table = pq.read_table(manifest).unify_dictionaries().combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{manifest} is damaged", value=error, remedy="prepare the data again") from error
    return _write_index(index, table, sha256)


def _map_index(index: Path, sha256: str) -> pa.Table | None:
    """Maps the index of the manifest with this hash; None if there is none."""
    try:
        mapped = pa.ipc.open_file(pa.memory_map(str(index))).read_all()
    except (OSError, pa.ArrowInvalid):
        return None
    return mapped if _fact(mapped, _SHA256) == sha256 else None


def _fact(table: pa.Table, name: str) -> str:
    """Returns an entry of the table's metadata; empty if it has none."""
    return bytes((table.schema.metadata or {}).get(name.encode(), b"")).decode()


def _write_index(index: Path, table: pa.Table, sha256: str) -> pa.Table:
    """Writes the rows as one record batch, so that a row is found without a search for its chunk, and maps them.

    If the file cannot be written (read-only folder, full disk), the rows stay in memory.
    """
    table = table.replace_schema_metadata((table.schema.metadata or {}) | {_SHA256: sha256})
    try:
        remove_leftovers(index, older_than_s=60)
        with replaced(index) as stream, pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=max(table.num_rows, 1))
    except OSError:
        return table
    mapped = _map_index(index, sha256)
    return table if mapped is None else mapped


def _not_prepared(folder: Path) -> DataError:
    return DataError(
        "the folder holds no prepared data",
        value=folder,
        limit=f"a folder with {MANIFEST_FILE} and {TAXA_FILE}",
        remedy="run training/prepare.py first",
    )
