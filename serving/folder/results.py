"""The files of the results: run.json, the parts with the rows, and the joined table.

A row has a key: a hash of what was asked, of its group, and of the path, size, time and cells of each photograph.
A part holds the rows of some plants, and its name is a hash of their keys. What the parts hold is done; nothing else
is written down.
"""

import csv
import hashlib
import io
import platform
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from models.atomic_file import as_json
from models.bundle import BUNDLE_FILE, file_sha256
from models.bundle_record import read_record as read_bundle_record
from models.cores import cores
from models.errors import DataError, InputError
from serving.folder.output import Output
from serving.folder.plants import Plant
from serving.folder.rows import Row

RECORD_FILE: Final = "run.json"
CSV_TABLE: Final = "results.csv"
PARQUET_TABLE: Final = "results.parquet"
_PARTS: Final = "parts"
_PART_NAME: Final = re.compile(r"[0-9a-f]{32}\.parquet")
_KEY: Final = "key"  # column of a part
_NUM_FAILED: Final = "num_failed"
_KEY_CHARACTERS: Final = 32  # 128 bits
_READERS: Final = 16  # of an object store, where each part is a request
_COMPRESSION: Final = "zstd"
_FORMAT: Final = 3  # of the files of a run; rises when former ones can no longer be read
_ROWS_AT_ONCE: Final = 1000
_SECONDS_A_DAY: Final = 86_400
_REMEDY: Final = "choose another --out, or remove the results"

Part = Mapping[str, Plant]
"""Key -> plant: plants whose rows are written together."""


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
    """Another one for each run that starts anew; in the identifiers of its occurrences."""
    format: int = 1
    counts: Mapping[str, int] = {}
    """Rows of the table by status; none before there is a table."""
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


def read_record(output: Output, new: RunRecord) -> RunRecord | None:
    """Reads the record of a former run that `new` continues; None if there was none.

    Raises:
        InputError: It cannot be read, another version of botanify wrote it, or the bundle or an option differs.
    """
    content = output.read(RECORD_FILE)
    if content is None:
        return None
    try:
        old = msgspec.json.decode(content, type=RunRecord)
    except msgspec.DecodeError as error:
        raise InputError(f"{RECORD_FILE} cannot be read", value=error, remedy=_REMEDY) from error
    if old.format != _FORMAT:
        raise InputError(
            "another version of botanify began the run in this place",
            value=f"format {old.format}",
            limit=f"format {_FORMAT}",
            remedy=_REMEDY,
        )
    before, now = (msgspec.json.decode(msgspec.json.encode(each.options)) for each in (old, new))
    changed = [f"{name} ({_shown(before.get(name))} before)" for name in now if before.get(name) != now[name]]
    if old.bundle != new.bundle:
        changed.insert(0, f"bundle ({old.bundle} before)")
    if changed:
        raise InputError(
            "the results of another run are in this place",
            value=f"changed: {', '.join(changed)}",
            limit="a run continues with the same bundle and the same options",
            remedy=_REMEDY,
        )
    return old


def write_record(output: Output, record: RunRecord) -> None:
    """Writes the record, in place of the former one."""
    output.write(RECORD_FILE, as_json(record))


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


def keyed(plants: Iterable[Plant], run: RunRecord) -> dict[str, Plant]:
    """Returns the plants, in their order, by the keys of their rows.

    Rows of a choice of taxa have other keys than before `discarded_mass` entered their verdicts, so a former run
    answers them again.
    """
    asked = msgspec.json.encode((run.bundle, run.options)) + b"discarded_mass" * bool(run.options.get("taxa"))
    return {_hash(asked + msgspec.json.encode(plant)): plant for plant in plants}


class PartFiles(msgspec.Struct, frozen=True):
    """The parts, each in a file that is there completely or not at all."""

    output: Output
    columns: pa.Schema

    def write(self, part: Part, rows: Sequence[Row]) -> None:
        """Writes the rows of a part, unless another process has answered all of it.

        Two processes answer a part if one was frozen, and taken for dead; it may thaw after the end of the run.
        """
        name = f"{_PARTS}/{_hash(''.join(part).encode())}.parquet"
        written = self.output.read(name)
        if written and not any(_table(name, written)[_NUM_FAILED].to_pylist()):
            return
        table = pa.Table.from_pylist(list(rows), schema=self.columns).append_column(_KEY, pa.array(list(part)))
        stream = io.BytesIO()
        pq.write_table(table, stream, compression=_COMPRESSION)
        self.output.write(name, stream.getvalue())

    def held(self, *, failed: bool = True) -> dict[str, list[str]]:
        """Returns the keys of the rows in each part, by the name of its file.

        Args:
            failed: Whether rows with a photograph that failed count.
        """

        def keys(name: str) -> list[str]:
            rows = _table(name, self.output.read(name), [_KEY, _NUM_FAILED]).to_pylist()
            return [row[_KEY] for row in rows if failed or not row[_NUM_FAILED]]

        names = [f"{_PARTS}/{name}" for name in self.output.names(_PARTS) if _PART_NAME.fullmatch(name)]
        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(names, pool.map(keys, names), strict=True))

    def rows(self, plants: Iterable[str], held: Mapping[str, Sequence[str]]) -> Iterator[Row]:
        """Yields the row of each plant once, in the order of the plants: of several the one with the fewest failures.

        Few rows are in memory at a time: a part is read when the first of its plants is due.

        Args:
            plants: Keys of the plants.
            held: What `held` returns; a plant that no part holds has no row.
        """
        places = {key: place for place, key in enumerate(plants)}
        due = [(min((places[key] for key in keys if key in places), default=-1), name) for name, keys in held.items()]
        waiting: dict[int, Row] = {}
        for first, name in [each for each in sorted(due) if each[0] >= 0]:
            yield from [waiting.pop(place) for place in sorted(waiting) if place < first]
            for row in _table(name, self.output.read(name)).to_pylist():
                place = places.get(row.pop(_KEY))
                if place is not None and row[_NUM_FAILED] <= waiting.get(place, row)[_NUM_FAILED]:
                    waiting[place] = row
        yield from [waiting.pop(place) for place in sorted(waiting)]


def _table(name: str, content: bytes | None, only: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(io.BytesIO(content or b""), columns=only)
    except (ValueError, OSError) as error:
        raise DataError(
            f"{name} of the results is damaged", value=error, remedy="remove this file, and run the same command again"
        ) from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_KEY_CHARACTERS]


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
