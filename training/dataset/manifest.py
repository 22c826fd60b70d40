"""The Parquet table of every training picture: place, label, split, group, license, hash; beside it `taxa.json`.

The table is the only thing that training reads about the data; its SHA-256 is kept in every checkpoint, so that a run
is never resumed on other data. `manifest.arrow` holds the same rows uncompressed: every process maps it into memory
instead of reading it, so 1.6 million rows cost a loader process next to nothing. It is made from the Parquet file
whenever it is missing or belongs to another one.
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

from models.bundle import TAXA_FILE, file_sha256
from models.errors import DataError
from models.taxonomy import Taxonomy
from training.atomic_file import remove_leftovers, replace_together, replaced
from training.dataset.sources.record import Split

MANIFEST_FILE: Final = "manifest.parquet"
INDEX_FILE: Final = "manifest.arrow"
_SHA256_KEY: Final = b"manifest_sha256"
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("picture_id", pa.string(), nullable=False),  # source, colon, path below the source's root
        pa.field("source", _TEXT, nullable=False),
        pa.field("path", pa.string(), nullable=False),  # relative to the source's root, which the metadata names
        pa.field("shard", _TEXT, nullable=False),  # tar file that holds the picture; empty: a file of its own
        pa.field("offset", pa.int64(), nullable=False),  # of the picture's first byte in its shard or file
        pa.field("length", pa.int64(), nullable=False),  # bytes
        pa.field("label", _TEXT, nullable=False),  # key of the network output
        pa.field("split", _TEXT, nullable=False),
        pa.field("group", pa.string(), nullable=False),  # pictures of one group never straddle two splits
        pa.field("licence", _TEXT, nullable=False),  # as SPDX names it; "unknown"
        pa.field("author", _TEXT, nullable=False),
        pa.field("taken_on", pa.date32()),
        pa.field("latitude", pa.float32()),  # degrees
        pa.field("longitude", pa.float32()),
        pa.field("sha256", pa.string(), nullable=False),  # of the bytes that offset and length name
        pa.field("width", pa.int32(), nullable=False),  # upright, px, of the same bytes
        pa.field("height", pa.int32(), nullable=False),
    ]
)


class Place(msgspec.Struct, frozen=True):
    """Where a picture's bytes lie."""

    file: str
    """Path or URL of the picture's file or of the shard that holds it."""
    offset: int
    """First byte."""
    length: int
    """How many bytes; the whole file where the picture has one of its own."""
    whole: bool
    """Whether the picture is a file of its own."""


class SourceNote(msgspec.Struct, frozen=True):
    """What is known of a source as a whole."""

    root: str
    """Folder that its paths are relative to."""
    note: str = ""
    """What a user of the weights must know of it."""


class Manifest:
    """The pictures of a prepared data folder.

    Args:
        folder: Written by training/prepare.py.
        shards: Folder or URL (s3://, gs://) that the shards lie in; default: the data folder.
        sha256: Only the manifest with this hash will do: that of the process that started this one.

    Raises:
        DataError: Something is missing, damaged, or manifest and taxa do not belong together.
    """

    def __init__(self, folder: Path, shards: str = "", *, sha256: str = "") -> None:
        self.folder, self._shards = folder, shards
        self.taxonomy = _read_taxonomy(folder)
        self.table = _open_index(folder, sha256)
        metadata = self.table.schema.metadata or {}
        self.sources = msgspec.json.decode(metadata.get(b"sources", b"{}"), type=dict[str, SourceNote])
        if metadata.get(b"label_hash", b"").decode() != self.taxonomy.label_hash:
            raise DataError(
                f"{MANIFEST_FILE} and {TAXA_FILE} do not belong together",
                value=folder,
                remedy="run training/prepare.py again",
            )

    def __reduce__(self) -> tuple[Callable[..., "Manifest"], tuple[Path, str]]:
        """Other processes open the files themselves: the table is memory-mapped, and shared that way."""
        return partial(Manifest, sha256=self.sha256), (self.folder, self._shards)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def sha256(self) -> str:
        """Hash of the manifest file, which a checkpoint must agree with."""
        return str((self.table.schema.metadata or {})[_SHA256_KEY].decode())

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Position of each picture's output; shape (len(self),). For whole splits; `label` is for single pictures."""
        return np.asarray(self._output_of_code[self._codes("label")])

    def label(self, row: int) -> int:
        """Position of one picture's output, without a copy of the column."""
        return int(self._output_of_code[self._codes("label")[row]])

    def name(self, row: int) -> str:
        """Which picture a row is, for people: its file, in or out of a shard."""
        shard = self._text("shard", row)
        return f"{self.folder / shard}: {self._text('picture_id', row)}" if shard else self.place(row).file

    def place(self, row: int) -> Place:
        """Where the bytes of one picture lie."""
        shard, length = self._text("shard", row), int(self.table["length"][row].as_py())
        if not shard:
            root = self.sources[self._text("source", row)].root
            return Place(str(self.folder / root / self._text("path", row)), 0, length, whole=True)
        base = self._shards.rstrip("/") or str(self.folder)
        return Place(f"{base}/{shard}", int(self.table["offset"][row].as_py()), length, whole=False)

    def path(self, row: int) -> Path:
        """The file of a picture that has one of its own."""
        return Path(self.place(row).file)

    def has(self, split: Split) -> bool:
        """Whether any picture belongs to the split."""
        names = self._dictionary("split")
        return split in names and bool((self._codes("split") == names.index(split)).any())

    def rows_of(self, split: Split) -> npt.NDArray[np.int64]:
        """The rows of a split, in ascending order.

        Raises:
            DataError: The split is empty.
        """
        if not self.has(split):
            raise DataError(f"the data has no {split} pictures", value=self.folder, remedy="prepare it with that split")
        return np.flatnonzero(self._codes("split") == self._dictionary("split").index(split))

    @cached_property
    def _output_of_code(self) -> npt.NDArray[np.int64]:
        position = {key: index for index, key in enumerate(self.taxonomy.output_keys)}
        return np.array([position[key] for key in self._dictionary("label")], dtype=np.int64)

    def _text(self, column: str, row: int) -> str:
        return str(self.table[column][row].as_py())

    def _codes(self, column: str) -> npt.NDArray[np.int32]:
        """The column's dictionary codes, in the mapped file itself."""
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
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Writes manifest and taxa; all files are there whole, or the old ones still stand.

    Args:
        folder: Where to.
        columns: Arrow arrays, arrays or lists of equal length, with the names of `SCHEMA`.
        taxonomy: The outputs that the labels name.
        sources: Where the pictures of each source lie.
        plan: Of packed data, the identity of the plan that its shards follow.
        beside: Name -> content of further files that tell of the same data.
    """
    metadata = {"sources": msgspec.json.encode(dict(sources)), "label_hash": taxonomy.label_hash}
    if plan:
        metadata["plan"] = plan
    table = pa.table(dict(columns), schema=SCHEMA.with_metadata(metadata))
    taxa = msgspec.json.format(msgspec.json.encode(taxonomy), indent=2) + b"\n"
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    replace_together(folder, {MANIFEST_FILE: parquet.getbuffer(), TAXA_FILE: taxa, **(beside or {})})


def _open_index(folder: Path, expected: str) -> pa.Table:
    """Maps the uncompressed rows, writing them first where they are missing or belong to another manifest.

    A process that expects a manifest takes an index that says so for granted, and hashes nothing.
    """
    index, manifest = folder / INDEX_FILE, folder / MANIFEST_FILE
    mapped = _map_index(index)
    if expected and mapped is not None and _sha256_of(mapped) == expected:
        return mapped
    if not manifest.is_file():
        raise _not_prepared(folder)
    sha256 = file_sha256(manifest)
    if expected and sha256 != expected:
        raise DataError(
            "the data was prepared anew while it was used",
            value=folder,
            remedy="start the run again, and prepare into another folder the next time",
        )
    if mapped is not None and _sha256_of(mapped) == sha256:
        return mapped
    return _write_index(index, _read_parquet(manifest), sha256)


def _map_index(index: Path) -> pa.Table | None:
    try:
        return pa.ipc.open_file(pa.memory_map(str(index))).read_all()
    except (OSError, pa.ArrowInvalid):
        return None


def _sha256_of(table: pa.Table) -> str:
    return bytes((table.schema.metadata or {}).get(_SHA256_KEY, b"")).decode()


def _write_index(index: Path, table: pa.Table, sha256: str) -> pa.Table:
    """Writes one record batch, in which a row is found without searching for its chunk, and maps it.

    In a folder that may not be written, or on a full disk, the rows cost memory and nothing else.
    """
    schema = table.schema.with_metadata((table.schema.metadata or {}) | {_SHA256_KEY: sha256.encode()})
    table = table.cast(schema)
    try:
        remove_leftovers(index, older_than_s=60)
        with replaced(index) as stream, pa.ipc.new_file(stream, schema) as writer:
            writer.write_table(table, max_chunksize=max(table.num_rows, 1))
    except OSError:
        return table
    mapped = _map_index(index)
    return mapped if mapped is not None and _sha256_of(mapped) == sha256 else table


def _read_parquet(manifest: Path) -> pa.Table:
    try:
        return pq.read_table(manifest).unify_dictionaries().combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{manifest} is damaged", value=error, remedy="prepare the data again") from error


def _read_taxonomy(folder: Path) -> Taxonomy:
    try:
        return msgspec.json.decode((folder / TAXA_FILE).read_bytes(), type=Taxonomy)
    except FileNotFoundError as error:
        raise _not_prepared(folder) from error
    except msgspec.DecodeError as error:
        raise DataError(f"{folder / TAXA_FILE} cannot be read", value=error, remedy="prepare the data again") from error


def _not_prepared(folder: Path) -> DataError:
    return DataError(
        "no prepared data stands there",
        value=folder,
        limit=f"a folder with {MANIFEST_FILE} and {TAXA_FILE}",
        remedy="run training/prepare.py first",
    )
