"""The Parquet table of every training picture: label, split, group, licence, hash. Beside it stands `taxa.json`.

The table is the only thing that training reads about the data; its SHA-256 is kept in every checkpoint, so that a run
is never resumed on other data.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.bundle import TAXA_FILE, file_sha256
from models.errors import DataError
from models.taxonomy import Taxonomy
from training.sources.record import Split

MANIFEST_FILE: Final = "manifest.parquet"
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("picture_id", pa.string(), nullable=False),  # source, colon, path below the root
        pa.field("source", _TEXT, nullable=False),
        pa.field("path", pa.string(), nullable=False),  # relative to the root that the schema's metadata names
        pa.field("label", _TEXT, nullable=False),  # key of the network output
        pa.field("split", _TEXT, nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("licence", _TEXT, nullable=False),  # empty: unknown
        pa.field("author", _TEXT, nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),  # upright, px
        pa.field("height", pa.int32(), nullable=False),
    ]
)


class ManifestRow(msgspec.Struct, frozen=True):
    """One row, with the fields of `SCHEMA`."""

    picture_id: str
    source: str
    path: str
    label: str
    split: Split
    group: str
    licence: str
    author: str
    sha256: str
    num_bytes: int
    width: int
    height: int


class Manifest:
    """The pictures of a prepared data folder.

    Args:
        folder: Written by training/prepare.py.

    Raises:
        DataError: Something is missing, damaged, or manifest and taxa do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taxonomy = _read_taxonomy(folder)
        self.table = _read_table(folder)
        metadata = self.table.schema.metadata or {}
        self.root = Path(metadata.get(b"root", b".").decode())
        if metadata.get(b"label_hash", b"").decode() != self.taxonomy.label_hash:
            raise DataError(
                f"{MANIFEST_FILE} and {TAXA_FILE} do not belong together",
                value=folder,
                remedy="run training/prepare.py again",
            )

    def __reduce__(self) -> tuple[type["Manifest"], tuple[Path]]:
        """Other processes open the files themselves: the table is memory-mapped, and shared that way."""
        return Manifest, (self.folder,)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def sha256(self) -> str:
        """Hash of the manifest file, which a checkpoint must agree with."""
        return file_sha256(self.folder / MANIFEST_FILE)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """Position of each picture's output; shape (len(self),)."""
        column = self.table["label"].combine_chunks()
        position = {key: index for index, key in enumerate(self.taxonomy.output_keys)}
        of_code = np.array([position[key] for key in column.dictionary.to_pylist()], dtype=np.int64)
        return np.asarray(of_code[column.indices.to_numpy()])

    def path(self, row: int) -> Path:
        """The file of one picture."""
        return self.root / str(self.table["path"][row].as_py())

    def rows_of(self, split: Split) -> npt.NDArray[np.int64]:
        """The rows of a split, in ascending order.

        Raises:
            DataError: The split is empty.
        """
        rows = np.flatnonzero(np.asarray(self.table["split"].to_numpy(zero_copy_only=False) == split))
        if len(rows) == 0:
            raise DataError(f"the data has no {split} pictures", value=self.folder, remedy="prepare it with that split")
        return rows


def write_manifest(folder: Path, rows: Sequence[ManifestRow], taxonomy: Taxonomy, root: Path) -> None:
    """Writes manifest and taxa; each file is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"root": str(root), "label_hash": taxonomy.label_hash}
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in SCHEMA}
    table = pa.table(columns, schema=SCHEMA.with_metadata(metadata))
    taxa = msgspec.json.format(msgspec.json.encode(taxonomy), indent=2) + b"\n"
    _replace(folder / TAXA_FILE, lambda path: path.write_bytes(taxa))
    _replace(folder / MANIFEST_FILE, lambda path: pq.write_table(table, path))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.part")
    write(temporary)
    temporary.replace(path)


def _read_taxonomy(folder: Path) -> Taxonomy:
    try:
        return msgspec.json.decode((folder / TAXA_FILE).read_bytes(), type=Taxonomy)
    except FileNotFoundError as error:
        raise _not_prepared(folder) from error
    except msgspec.DecodeError as error:
        raise DataError(f"{folder / TAXA_FILE} cannot be read", value=error, remedy="prepare the data again") from error


def _read_table(folder: Path) -> pa.Table:
    try:
        return pq.read_table(folder / MANIFEST_FILE, memory_map=True)
    except FileNotFoundError as error:
        raise _not_prepared(folder) from error
    except pa.ArrowInvalid as error:
        raise DataError(f"{folder / MANIFEST_FILE} is damaged", value=error, remedy="prepare the data again") from error


def _not_prepared(folder: Path) -> DataError:
    return DataError(
        "no prepared data stands there",
        value=folder,
        limit=f"a folder with {MANIFEST_FILE} and {TAXA_FILE}",
        remedy="run training/prepare.py first",
    )
