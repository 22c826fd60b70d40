"""The files of the parts: what is written decides what is done."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from serving.folder.output import Output
from serving.folder.plan import Plan
from serving.folder.rows import Row, columns
from serving.folder.tables import decode, encode

_FOLDER: Final = "parts"
_NAME: Final = re.compile(r"part-(?P<number>[0-9]{6,})-(?P<run>[0-9a-f]{8})\.parquet")


class PartFiles(msgspec.Struct, frozen=True):
    """The rows of each part, in a file of its own that is there completely or not at all."""

    output: Output
    run_id: str
    """In the name of each file, so that a machine that belongs to a run before --restart changes nothing."""
    kinds: Mapping[str, type]
    """All columns, with their types, in their order."""

    def written(self) -> set[int]:
        """Returns the numbers of the parts that have their rows."""
        found = filter(None, map(_NAME.fullmatch, self.output.names(_FOLDER)))
        return {int(name["number"]) for name in found if name["run"] == self.run_id}

    def write(self, number: int, rows: Sequence[Row]) -> None:
        """Writes the rows of a part, unless another process did: a part that was done twice counts once."""
        self.output.create(f"{_FOLDER}/{self._name(number)}", encode(rows, self.kinds))

    def read(self, number: int) -> list[Row]:
        """Returns the rows of a part; none if they are not written yet."""
        content = self.output.read(f"{_FOLDER}/{self._name(number)}")
        return [] if content is None else decode(content)

    def rows(self, plan: Plan) -> Iterator[Row]:
        """Yields the current row of each plant that is listed, part by part."""
        for part in plan.parts:
            yield from (row for row in self.read(part.number) if plan.current.get(row["group"]) == part.number)

    def _name(self, number: int) -> str:
        return f"part-{number:06d}-{self.run_id}.parquet"


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
    for name in filter(_NAME.fullmatch, output.names(_FOLDER)):
        output.remove(f"{_FOLDER}/{name}")
