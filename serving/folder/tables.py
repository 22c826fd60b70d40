"""Rows as Parquet, CSV or JSON Lines, and parts joined to one file without holding them all in memory."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from serving.folder.rows import Row

TableFormat = Literal["parquet", "csv", "jsonl"]
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), list: pa.list_(pa.string())}
_COMPRESSION: Final = "zstd"


class TableWriter(Protocol):
    """Writes rows to a stream."""

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        ...

    def close(self) -> None:
        """Writes what is left; the stream stays open."""
        ...


def encode(rows: Sequence[Row], kinds: Mapping[str, type], kind: TableFormat) -> bytes:
    """Returns a complete file with the rows.

    Args:
        rows: The rows; a missing column is null.
        kinds: All columns, with their types, in their order.
        kind: Format of the file.
    """
    stream = io.BytesIO()
    writer = open_writer(stream, kinds, kind)
    writer.write(rows)
    writer.close()
    return stream.getvalue()


def decode(content: bytes, kinds: Mapping[str, type], kind: TableFormat) -> list[Row]:
    """Reads the rows of a file that `encode` made."""
    if kind == "parquet":
        return list(pq.read_table(io.BytesIO(content)).to_pylist())
    if kind == "jsonl":
        return [msgspec.json.decode(line) for line in content.splitlines()]
    rows = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    return [{name: _parsed(text, kinds[name]) for name, text in row.items()} for row in rows]


def open_writer(stream: BinaryIO, kinds: Mapping[str, type], kind: TableFormat) -> TableWriter:
    """Starts a file."""
    if kind == "parquet":
        return _ParquetWriter(stream, kinds)
    return _CsvWriter(stream, kinds) if kind == "csv" else _JsonLinesWriter(stream, kinds)


class _ParquetWriter:
    def __init__(self, stream: BinaryIO, kinds: Mapping[str, type]) -> None:
        self._schema = pa.schema({name: _ARROW[kind] for name, kind in kinds.items()})
        self._writer = pq.ParquetWriter(stream, self._schema, compression=_COMPRESSION)

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _CsvWriter:
    def __init__(self, stream: BinaryIO, kinds: Mapping[str, type]) -> None:
        self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.DictWriter(self._text, list(kinds))
        self._writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._writer.writerow({name: _text(value) for name, value in row.items()})

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


class _JsonLinesWriter:
    def __init__(self, stream: BinaryIO, kinds: Mapping[str, type]) -> None:
        self._stream, self._names = stream, list(kinds)

    def write(self, rows: Sequence[Row]) -> None:
        ordered: Iterable[Row] = ({name: row.get(name) for name in self._names} for row in rows)
        self._stream.writelines(msgspec.json.encode(row) + b"\n" for row in ordered)

    def close(self) -> None:
        self._stream.flush()


def _text(value: Any) -> Any:
    return "; ".join(value) if isinstance(value, list) else value


def _parsed(text: str, kind: type) -> Any:
    if not text:
        return None
    return text.split("; ") if kind is list else kind(text)
