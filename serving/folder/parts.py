"""The files of the parts: what is written decides what is done."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from serving.folder.output import Output
from serving.folder.plan import Plan
from serving.folder.rows import Row, columns
from serving.folder.tables import TableFormat, decode, encode

_FOLDER: Final = "parts"


class PartFiles(msgspec.Struct, frozen=True):
    """The rows of each part, in a file of its own that is there completely or not at all."""

    output: Output
    run_id: str
    """In the name of each file, so that a machine that belongs to a run before --restart changes nothing."""
    kinds: Mapping[str, type]
    """All columns, with their types, in their order."""
    format: TableFormat

    def missing(self, plan: Plan) -> set[int]:
        """Returns the numbers of the parts without rows."""
        there = set(self.output.names(_FOLDER))
        return {part.number for part in plan.parts if self._name(part.number) not in there}

    def write(self, number: int, rows: Sequence[Row]) -> None:
        """Writes the rows of a part, unless another process did: a part that was done twice counts once."""
        self.output.create(f"{_FOLDER}/{self._name(number)}", encode(rows, self.kinds, self.format))

    def rows(self, plan: Plan) -> Iterator[Row]:
        """Yields the current row of each plant, part by part."""
        latest = plan.latest_part()
        for part in plan.parts:
            content = self.output.read(f"{_FOLDER}/{self._name(part.number)}")
            if content is not None:
                rows = decode(content, self.kinds, self.format)
                yield from (row for row in rows if latest[row["group"]] == part.number)

    def _name(self, number: int) -> str:
        return f"part-{number:06d}-{self.run_id}.{self.format}"


def columns_of(plan: Plan, top_k: int) -> dict[str, type]:
    """Returns the columns of a result, with those of the list that the photographs came from.

    Args:
        plan: The photographs.
        top_k: Number of names and scores.
    """
    extra: dict[str, None] = {}
    for part in plan.parts:
        for plant in part.plants:
            extra |= dict.fromkeys(plant.photographs[0].columns)
    return columns(top_k, tuple(extra))


def remove_parts(output: Output) -> None:
    """Removes the parts of all runs."""
    for name in output.names(_FOLDER):
        output.remove(f"{_FOLDER}/{name}")
