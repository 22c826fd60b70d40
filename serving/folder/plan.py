"""The plan of a run: which plants are in which part. A part is written completely or not at all."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from serving.folder.output import Output
from serving.folder.photographs import NO_COLUMNS, Photograph
from serving.folder.plants import Plant

_FOLDER: Final = "plans"
_ROWS_AT_ONCE: Final = 10_000
_SCHEMA: Final = pa.schema(
    {"part": pa.int32(), "plant": pa.string(), "path": pa.string(), "num_bytes": pa.int64(), "version": pa.string(),
     "columns": pa.string()}
)  # fmt: skip


class Part(msgspec.Struct, frozen=True):
    """Plants whose rows are written together."""

    number: int
    plants: tuple[Plant, ...]


class Plan(msgspec.Struct, frozen=True):
    """All parts, in the order of their numbers. A plant in a later part replaces the same plant in an earlier one."""

    parts: tuple[Part, ...]
    num_files: int = 0
    """Files that it was read from."""

    def latest_part(self) -> dict[str, int]:
        """Returns for each plant the part with its current row."""
        return {plant.name: part.number for part in self.parts for plant in part.plants}

    def changed(self, plants: Iterable[Plant]) -> list[Plant]:
        """Returns the plants that are new, or whose photographs changed since they were planned."""
        planned: Mapping[str, tuple[Photograph, ...]] = {
            plant.name: plant.photographs for part in self.parts for plant in part.plants
        }
        return [plant for plant in plants if planned.get(plant.name) != plant.photographs]


def read_plan(output: Output, run_id: str) -> Plan:
    """Reads what a run planned so far; no parts if nothing."""
    parts: list[Part] = []
    names = [name for name in output.names(_FOLDER) if name.endswith(f"-{run_id}.parquet")]
    for name in names:
        content = output.read(f"{_FOLDER}/{name}")
        assert content is not None, name
        parts += _decode(pq.read_table(io.BytesIO(content)))
    return Plan(tuple(parts), len(names))


def extend_plan(output: Output, run_id: str, plan: Plan, plants: Sequence[Plant], part_rows: int) -> Plan:
    """Plans more plants. If another process plans at the same time, the first one counts, and this one adds to it.

    Args:
        output: Where the plan is written.
        run_id: Whose plan it is.
        plan: What is planned already.
        plants: The plants to add.
        part_rows: Number of plants in a part.

    Returns:
        The plan with the new parts.
    """
    if not plants:
        return plan
    first = len(plan.parts)
    new = [
        Part(first + index, tuple(plants[at : at + part_rows]))
        for index, at in enumerate(range(0, len(plants), part_rows))
    ]
    name = f"{_FOLDER}/plan-{plan.num_files:04d}-{run_id}.parquet"
    if output.create(name, _encode(new)):
        return Plan((*plan.parts, *new), plan.num_files + 1)
    plan = read_plan(output, run_id)
    return extend_plan(output, run_id, plan, plan.changed(plants), part_rows)


def remove_plans(output: Output) -> None:
    """Removes the plans of all runs."""
    for name in output.names(_FOLDER):
        output.remove(f"{_FOLDER}/{name}")


def _encode(parts: Iterable[Part]) -> bytes:
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, _SCHEMA, compression="zstd") as writer:
        for part in parts:
            writer.write_table(_table(part))
    return stream.getvalue()


def _table(part: Part) -> pa.Table:
    rows = [
        (part.number, plant.name, each.path, each.num_bytes, each.version, msgspec.json.encode(each.columns).decode())
        for plant in part.plants
        for each in plant.photographs
    ]
    return pa.table([list(values) for values in zip(*rows, strict=True)], schema=_SCHEMA)


def _decode(table: pa.Table) -> Iterator[Part]:
    """Yields the parts, whose rows follow each other; only a few rows at a time are more than their photographs."""
    batches = table.to_batches(max_chunksize=_ROWS_AT_ONCE)
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for number, members in groupby(rows, key=itemgetter(0)):
        plants: dict[str, list[Photograph]] = {}
        for _, plant, path, num_bytes, version, columns in members:
            listed = NO_COLUMNS if columns == "{}" else msgspec.json.decode(columns)
            photograph = Photograph(path, num_bytes, version, listed)
            plants.setdefault(path if plant == path else plant, []).append(photograph)  # one text for both
        yield Part(number, tuple(Plant(name, tuple(found)) for name, found in plants.items()))
