"""The history of a registry: `history.jsonl`, with one line for each change of the pointer.

A line is written before the pointer is replaced. If a crash comes between the two, the line tells of a change that did
not happen. Readers find such lines: the pointer's way back through the history never passes through them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from models.errors import DataError
from training.atomic_file import replaced

HISTORY_FILE: Final = "history.jsonl"


class Change(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}, omit_defaults=True):
    """A change of the pointer, as one line of the history."""

    time: str
    """When it was written, UTC, ISO 8601."""
    action: Literal["promote", "rollback"]
    before: str | None
    """Entry that the pointer named; None before the first promotion."""
    after: str
    """Entry that it names since."""
    report: str = ""
    """Report of the comparison, relative to the registry; empty if there was none."""
    accepted: str = ""
    """Why a person promoted a bundle that the comparison refused; empty if it did not."""


def read_history(registry: Path) -> tuple[Change, ...]:
    """Reads all lines, those of interrupted changes included.

    Raises:
        DataError: A line cannot be read.
    """
    path = registry / HISTORY_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    try:
        return tuple(msgspec.json.decode(line, type=Change) for line in lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read", value=error, remedy="restore it from a copy") from error


def append_change(registry: Path, change: Change) -> None:
    """Adds a line. The whole file is replaced atomically, so that no reader finds half a line."""
    lines = [msgspec.json.encode(each) + b"\n" for each in (*read_history(registry), change)]
    with replaced(registry / HISTORY_FILE) as stream:
        stream.writelines(lines)


def completed_changes(changes: Sequence[Change], current: str | None) -> list[Change]:
    """Returns the changes that led to the pointer's entry, the oldest first, without those that were interrupted."""
    completed, name = [], current
    for change in reversed(changes):
        if name is not None and change.after == name:
            completed.append(change)
            name = change.before
    return completed[::-1]


def entries_in_use(changes: Sequence[Change], current: str | None) -> list[str]:
    """Returns the entries that rollbacks return to, the oldest first; the last one is the pointer's entry.

    A promotion adds an entry, a rollback removes the last one. So two rollbacks go two steps back.
    """
    entries: list[str] = []
    for change in completed_changes(changes, current):
        if change.action == "promote":
            entries += [change.after]
        else:
            entries = entries[:-1]  # empty if the lines before were lost
    return entries
