"""The plan of a run: which plants are in which part. A part is written completely or not at all."""

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import msgspec

from models.errors import DataError
from serving.folder.output import Output
from serving.folder.plants import Plant

REMEDY: Final = "choose another --out, or remove the results"
_FOLDER: Final = "plans"
_NAME: Final = re.compile(r"plan-(?P<number>[0-9]{4,})-(?P<run>[0-9a-f]{8})\.json\.gz")
_GONE: Final = -1  # the part of a plant that is no longer listed
_LEVEL: Final = 1  # of gzip: 100 MB/s, and paths are alike


class Part(msgspec.Struct, frozen=True):
    """Plants whose rows are written together."""

    number: int
    plants: tuple[Plant, ...]


class _File(msgspec.Struct, frozen=True):
    """What one listing adds to the plan."""

    parts: list[Part]
    moved: dict[str, int]
    """Name of a plant that is gone, or back -> the part with its row."""


class Plan(msgspec.Struct, frozen=True):
    """All parts, in the order of their numbers, and which of their rows are in the table."""

    parts: tuple[Part, ...] = ()
    current: Mapping[str, int] = {}
    """Name of each plant that is listed now -> the part with its row; a plant can be in several parts."""
    num_files: int = 0
    """One more than the highest number of a file that it was read from."""

    def plants(self) -> dict[str, Plant]:
        """Returns the plants by name, also those that are no longer listed, each as it was planned last."""
        return {plant.name: plant for part in self.parts for plant in part.plants}

    def missing(self, written: Set[int]) -> list[Part]:
        """Returns the parts to identify.

        Args:
            written: Numbers of the parts that have their rows.
        """
        left = [part for part in self.parts if part.number not in written]
        return [part for part in left if any(self.current.get(plant.name) == part.number for plant in part.plants)]

    def changes(
        self, listed: Iterable[Plant], known: Iterable[str], failed: Mapping[str, int]
    ) -> tuple[list[Plant], dict[str, int]]:
        """Compares the plan with what is listed now.

        Args:
            listed: All plants; each name once.
            known: Plants that are gone if they are not listed.
            failed: Plants to identify again -> the part with the row to replace.

        Returns:
            The plants to add, because they are new, their photographs have changed, or they failed; and each plant that
            is gone, with `_GONE`, or back, with the part where its row is.
        """
        planned = {plant.name: (plant, part.number) for part in self.parts for plant in part.plants}
        new: list[Plant] = []
        moved = {name: _GONE for name in known if name in self.current}
        for plant in listed:
            moved.pop(plant.name, None)
            former, number = planned.get(plant.name, (None, _GONE))
            if former != plant or failed.get(plant.name) == number:
                new.append(plant)
            elif self.current.get(plant.name) != number:
                moved[plant.name] = number
        return new, moved


def read_plan(output: Output, run_id: str) -> Plan:
    """Reads what a run planned so far; no parts if nothing.

    Raises:
        DataError: A file is damaged.
    """
    parts: list[Part] = []
    current: dict[str, int] = {}
    num_files = 0
    for number in _numbers(output, run_id):
        name = _name(number, run_id)
        content = output.read(name)
        assert content is not None, number
        try:
            added = msgspec.json.decode(gzip.decompress(content), type=_File)
        except (OSError, EOFError, zlib.error, ValueError, msgspec.MsgspecError) as error:
            raise DataError(f"{name} of the results is damaged", value=error, remedy=REMEDY) from error
        parts += added.parts
        _update(current, added)
        num_files = number + 1
    return Plan(tuple(parts), current, num_files)


def count_plans(output: Output, run_id: str) -> int:
    """Returns `Plan.num_files` without reading the files."""
    return max(_numbers(output, run_id), default=-1) + 1


def extend_plan(
    output: Output,
    run_id: str,
    plan: Plan,
    listed: Sequence[Plant],
    *,
    part_rows: int,
    failed: Mapping[str, int] | None = None,
) -> Plan:
    """Plans what is new. If another process plans at the same time, the first one counts, and this one adds to it.

    Args:
        output: Where the plan is written.
        run_id: Whose plan it is.
        plan: What was planned when the listing began. Only what is in it can be gone: others may list at the same time.
        listed: All plants; each name once.
        part_rows: Number of plants in a part.
        failed: Plants to identify again -> the part with the row to replace.

    Returns:
        The plan with the new parts, and without the plants that are not listed.
    """
    known = plan.current
    while True:
        plants, moved = plan.changes(listed, known, failed or {})
        if not plants and not moved:
            return plan
        assert len({plant.name for plant in plants}) == len(plants)
        first = plan.parts[-1].number + 1 if plan.parts else 0
        new = [
            Part(first + index, tuple(plants[at : at + part_rows]))
            for index, at in enumerate(range(0, len(plants), part_rows))
        ]
        added = _File(new, moved)
        if output.create(_name(plan.num_files, run_id), gzip.compress(msgspec.json.encode(added), _LEVEL)):
            current = dict(plan.current)
            _update(current, added)
            return Plan((*plan.parts, *new), current, plan.num_files + 1)
        plan = read_plan(output, run_id)


def _name(number: int, run_id: str) -> str:
    return f"{_FOLDER}/plan-{number:04d}-{run_id}.json.gz"


def _numbers(output: Output, run_id: str) -> list[int]:
    found = filter(None, map(_NAME.fullmatch, output.names(_FOLDER)))
    return sorted(int(name["number"]) for name in found if name["run"] == run_id)


def _update(current: dict[str, int], added: _File) -> None:
    for name, number in added.moved.items():
        if number == _GONE:
            current.pop(name, None)
        else:
            current[name] = number
    for part in added.parts:
        current |= dict.fromkeys((plant.name for plant in part.plants), part.number)
