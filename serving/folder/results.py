"""The files of the results: run.json, the rows of each part, and the joined table."""

import csv
import io
import platform
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from models.bundle import BUNDLE_FILE, file_sha256
from models.bundle_record import read_record as read_bundle_record
from models.cores import cores
from models.errors import DataError, InputError
from serving.folder.output import Output, as_json
from serving.folder.plan import REMEDY, Plan
from serving.folder.rows import Row, columns

RECORD_FILE: Final = "run.json"
CSV_TABLE: Final = "results.csv"
PARQUET_TABLE: Final = "results.parquet"
_PARTS: Final = "parts"
_PART_NAME: Final = re.compile(r"part-(?P<number>[0-9]{6,})-(?P<run>[0-9a-f]{8})\.parquet")
_COMPRESSION: Final = "zstd"
_FORMAT: Final = 2  # of the files of a run; rises when former ones can no longer be read
_ROWS_AT_ONCE: Final = 1000
_SECONDS_A_DAY: Final = 86_400


# ---- run.json


class BundleName(msgspec.Struct, frozen=True):
    """The bundle that answers."""

    name: str
    version: str
    sha256: str
    """Hash of its bundle.json, which holds the hashes of all its files."""

    def __str__(self) -> str:
        return f"{self.name} {self.version} with the hash {self.sha256[:8]}"


class RunRecord(msgspec.Struct, frozen=True):
    """run.json: what was asked, which bundle answered, and what came out. It decides whether a run can be continued."""

    bundle: BundleName
    options: Mapping[str, Any]
    """The options that change answers."""
    machine: Mapping[str, Any]
    run_id: str
    """Another one for each run that starts anew; in the names of its files."""
    format: int = 1
    is_complete: bool = False
    """Whether every plant has a row."""
    num_plans: int = 0
    """`Plan.num_files` of the plan that the table was made from; another number: it is not complete after all."""
    counts: Mapping[str, int] = {}
    """Rows by status."""
    photographs_per_s: float | None = None
    """Photographs per second in the last run, from the first to the last row."""
    photographs_per_day: float | None = None


def new_record(bundle: BundleName, options: Mapping[str, Any]) -> RunRecord:
    """Returns the record of a run that starts."""
    machine = {"system": platform.platform(), "num_cores": cores()}
    return RunRecord(bundle, options, machine, uuid.uuid4().hex[:8], _FORMAT)


def bundle_name(folder: Path) -> BundleName:
    """Returns the name of a bundle, without reading its networks.

    Raises:
        BundleError: The bundle is missing or damaged.
    """
    path = folder / BUNDLE_FILE
    record, _ = read_bundle_record(path)
    return BundleName(record.name, record.version, file_sha256(path))


def read_record(output: Output) -> RunRecord | None:
    """Reads the record of a former run; None if there was none.

    Raises:
        InputError: The file is not such a record, or another version of botanify wrote it.
    """
    content = output.read(RECORD_FILE)
    try:
        record = None if content is None else msgspec.json.decode(content, type=RunRecord)
    except msgspec.DecodeError as error:
        raise InputError(f"{RECORD_FILE} cannot be read", value=error, remedy=REMEDY) from error
    if record is not None and record.format != _FORMAT:
        raise InputError(
            "another version of botanify began the run in this place",
            value=f"format {record.format}",
            limit=f"format {_FORMAT}",
            remedy=REMEDY,
        )
    return record


def start_record(output: Output, new: RunRecord) -> RunRecord:
    """Writes the record of a run that starts; returns the one that counts if several machines start at the same time.

    Raises:
        InputError: The other machine has another bundle or other options.
    """
    if output.create(RECORD_FILE, as_json(new)):
        return new
    former = read_record(output)
    assert former is not None
    require_same(former, new)
    return former


def write_record(output: Output, record: RunRecord) -> None:
    """Writes the record, in place of the former one."""
    output.replace(RECORD_FILE, io.BytesIO(as_json(record)))


def require_same(old: RunRecord, new: RunRecord) -> None:
    """Checks that a run continues with the same bundle and options.

    Raises:
        InputError: Something differs; the message names it.
    """
    before, now = (msgspec.json.decode(msgspec.json.encode(each.options)) for each in (old, new))
    changed = [
        f"{name} ({_shown(before.get(name))} before)" for name in before | now if before.get(name) != now.get(name)
    ]
    if old.bundle != new.bundle:
        changed.insert(0, f"bundle ({old.bundle} before)")
    if changed:
        raise InputError(
            "the results of another run are in this place",
            value=f"changed: {', '.join(changed)}",
            limit="a run continues with the same bundle and the same options",
            remedy=REMEDY,
        )


def with_speed(record: RunRecord, num_photographs: int, seconds: float) -> RunRecord:
    """Returns the record with the speed of a run; unchanged if it answered nothing."""
    if num_photographs == 0 or seconds <= 0:
        return record
    rate = num_photographs / seconds
    return msgspec.structs.replace(
        record, photographs_per_s=round(rate, 2), photographs_per_day=round(rate * _SECONDS_A_DAY)
    )


def _shown(option: Any) -> str:
    return option if isinstance(option, str) else msgspec.json.encode(option).decode()[:100]


# ---- rows


class PartFiles(msgspec.Struct, frozen=True):
    """The rows of each part, in a file of its own that is there completely or not at all: what is written is done."""

    output: Output
    run_id: str
    """In the name of each file, so that a machine that belongs to a former run changes nothing."""
    columns: pa.Schema

    def written(self) -> set[int]:
        """Returns the numbers of the parts that have their rows."""
        found = filter(None, map(_PART_NAME.fullmatch, self.output.names(_PARTS)))
        return {int(name["number"]) for name in found if name["run"] == self.run_id}

    def write(self, number: int, rows: Sequence[Row]) -> None:
        """Writes the rows of a part, unless another process did: a part that was done twice counts once."""
        self.output.create(self._name(number), encode(rows, self.columns))

    def rows(self, plan: Plan) -> Iterator[Row]:
        """Yields the current row of each plant that is listed, part by part; none of a part that is not written yet."""
        for part in plan.parts:
            name = self._name(part.number)
            content = self.output.read(name)
            if content is None:
                continue
            try:
                rows = decode(content)
            except (ValueError, OSError) as error:
                remedy = "remove this file, and run the same command again"
                raise DataError(f"{name} of the results is damaged", value=error, remedy=remedy) from error
            yield from (row for row in rows if plan.current.get(row["group"]) == part.number)

    def _name(self, number: int) -> str:
        return f"{_PARTS}/part-{number:06d}-{self.run_id}.parquet"


def columns_of(plan: Plan, top_k: int) -> pa.Schema:
    """Returns the columns of a result, with those of the list that the photographs came from."""
    of_plants = (plant.photographs[0].columns for part in plan.parts for plant in part.plants)
    return columns(top_k, dict.fromkeys(chain.from_iterable(of_plants)))


def encode(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    """Returns a Parquet file with the rows; a missing column is null."""
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), stream, compression=_COMPRESSION)
    return stream.getvalue()


def decode(content: bytes) -> list[Row]:
    """Reads the rows of a file that `encode` made."""
    return list(pq.read_table(io.BytesIO(content)).to_pylist())


def write_table(output: Output, rows: Iterable[Row], schema: pa.Schema) -> Mapping[str, int]:
    """Writes the table as CSV, for spreadsheets, and as Parquet, each completely or not at all.

    Few rows are in memory at a time; a missing column is null.

    Returns:
        The number of rows by status.
    """
    left, counts = iter(rows), Counter[str]()
    with tempfile.TemporaryFile() as parquet, tempfile.TemporaryFile() as spreadsheet:
        # Excel takes a file without a byte order mark for one that is not UTF-8.
        text = io.TextIOWrapper(spreadsheet, encoding="utf-8-sig", newline="")
        lines = csv.DictWriter(text, schema.names)
        lines.writeheader()
        with pq.ParquetWriter(parquet, schema, compression=_COMPRESSION) as writer:
            while chunk := list(islice(left, _ROWS_AT_ONCE)):
                writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
                for row in chunk:
                    lists = {name: "; ".join(value) for name, value in row.items() if isinstance(value, list)}
                    lines.writerow(row | lists)
                counts.update(row["status"] for row in chunk)
        text.flush()
        for name, stream in ((CSV_TABLE, spreadsheet), (PARQUET_TABLE, parquet)):
            stream.seek(0)
            output.replace(name, stream)
    return dict(counts)
