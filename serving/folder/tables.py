"""The rows as files: Parquet for each part; for the whole table Parquet too, and CSV, which spreadsheets open."""

import csv
import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from serving.folder.output import Output
from serving.folder.rows import Row

CSV_TABLE: Final = "results.csv"
PARQUET_TABLE: Final = "results.parquet"
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), list: pa.list_(pa.string())}
_COMPRESSION: Final = "zstd"
_ROWS_AT_ONCE: Final = 1000


def encode(rows: Sequence[Row], kinds: Mapping[str, type]) -> bytes:
    """Returns a Parquet file with the rows.

    Args:
        rows: The rows; a missing column is null.
        kinds: All columns, with their types, in their order.
    """
    stream = io.BytesIO()
    pq.write_table(_table(rows, _schema(kinds)), stream, compression=_COMPRESSION)
    return stream.getvalue()


def decode(content: bytes) -> list[Row]:
    """Reads the rows of a file that `encode` made."""
    return list(pq.read_table(io.BytesIO(content)).to_pylist())


def write_table(output: Output, rows: Iterable[Row], kinds: Mapping[str, type]) -> Mapping[str, int]:
    """Writes the table in both forms, each completely or not at all; returns the number of rows by status.

    Args:
        output: Where they are written.
        rows: The rows, of which few are in memory at a time; a missing column is null.
        kinds: All columns, with their types, in their order.
    """
    schema, left, counts = _schema(kinds), iter(rows), Counter[str]()
    with tempfile.TemporaryFile() as parquet, tempfile.TemporaryFile() as spreadsheet:
        # Excel takes a file without a byte order mark for one that is not UTF-8.
        text = io.TextIOWrapper(spreadsheet, encoding="utf-8-sig", newline="")
        lines = csv.DictWriter(text, list(kinds))
        lines.writeheader()
        with pq.ParquetWriter(parquet, schema, compression=_COMPRESSION) as writer:
            while chunk := list(islice(left, _ROWS_AT_ONCE)):
                writer.write_table(_table(chunk, schema))
                lines.writerows({name: _cell(value) for name, value in row.items()} for row in chunk)
                counts.update(row["status"] for row in chunk)
        text.flush()
        for name, stream in ((CSV_TABLE, spreadsheet), (PARQUET_TABLE, parquet)):
            stream.seek(0)
            output.replace(name, stream)
    return dict(counts)


def _schema(kinds: Mapping[str, type]) -> pa.Schema:
    return pa.schema({name: _ARROW[kind] for name, kind in kinds.items()})


def _table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _cell(value: Any) -> Any:
    return "; ".join(value) if isinstance(value, list) else value
