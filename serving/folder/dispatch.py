"""Which machine has which part, until every part is done once."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from models.errors import InputError
from serving.folder.plan import Part

_MAX_HOLDERS: Final = 2
MAX_LOSSES: Final = 10
"""Machines or processes that a part may cost; a photograph can end a process, but never so often by chance."""


class Dispatch:
    """Gives parts to machines.

    When none is left, a machine with a free place gets one that another machine has had for the longest time: that one
    may be frozen or slow, and what is written twice counts once.

    Args:
        parts: What is to be done.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._left = deque(parts)
        self._held: dict[int, tuple[Part, list[str]]] = {}  # in the order in which they were given
        self._losses: Counter[int] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether every part is done."""
        return not self._left and not self._held

    def give(self, machine: str) -> Part | None:
        """Returns a part for a machine with a free place, if there is one."""
        part = self._left.popleft() if self._left else self._copy(machine)
        if part is not None:
            self._held.setdefault(part.number, (part, []))[1].append(machine)
        return part

    def finish(self, part: Part) -> bool:
        """Notes that a part is done; returns whether it was not before."""
        return self._held.pop(part.number, None) is not None

    def lose(self, part: Part, machine: str) -> None:
        """Notes that a machine, or the process on it, ended before the part was done.

        Raises:
            InputError: The part has cost too many of them.
        """
        if part.number not in self._held:  # another machine did it
            return
        self._losses[part.number] += 1
        if self._losses[part.number] > MAX_LOSSES:
            raise InputError(
                f"{MAX_LOSSES + 1} processes ended while they answered one part",
                value=f"part {part.number}, which begins with {part.plants[0].photographs[0].path}",
                remedy="look at the logs of the cluster; the same command continues",
            )
        holders = self._held[part.number][1]
        holders.remove(machine)
        if not holders:
            del self._held[part.number]
            self._left.appendleft(part)

    def _copy(self, machine: str) -> Part | None:
        held = self._held.values()
        return next((part for part, who in held if len(who) < _MAX_HOLDERS and machine not in who), None)
