"""Stores the finished turns of a long run, so that an interrupted run can continue."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from models.errors import DataError

AnyTurn = TypeVar("AnyTurn")


class _Line(msgspec.Struct, frozen=True):
    key: str
    turn: msgspec.Raw


class Turns:
    """Finished turns by key.

    Args:
        out: File of the result; the turns are stored beside it until it is written. None: they are not stored.
        run_key: Flags and machine of the run, as JSON; stored turns must have the same.

    Raises:
        DataError: The stored turns belong to another run.
    """

    def __init__(self, out: Path | None, run_key: bytes) -> None:
        self._path = None if out is None else out.with_name(f"{out.name}.turns")
        self._done: dict[str, msgspec.Raw] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path, run_key)
        elif self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(run_key + b"\n")

    def take(self, key: str, kind: type[AnyTurn], measure: Callable[[], AnyTurn]) -> AnyTurn:
        """Returns the stored turn of a key, or measures and stores it.

        Args:
            key: Name of the turn, unique in the run.
            kind: Type of the turn.
            measure: Function that measures it.
        """
        if key not in self._done:
            turn = msgspec.Raw(msgspec.json.encode(measure()))
            if self._path is not None:
                with self._path.open("ab") as stream:
                    stream.write(msgspec.json.encode(_Line(key, turn)) + b"\n")
            self._done[key] = turn
        return msgspec.json.decode(self._done[key], type=kind)

    def forget(self) -> None:
        """Removes the stored turns, once the result is written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path, run_key: bytes) -> None:
        head, *lines = path.read_bytes().split(b"\n")
        if head != run_key:
            raise DataError(
                "the stored turns are of a run with other flags or another commit",
                value=path,
                remedy="delete the file to start over, or pass the flags of that run",
            )
        for line in lines[:-1]:  # the last one is empty, or only partly written
            kept = msgspec.json.decode(line, type=_Line)
            self._done[kept.key] = kept.turn.copy()
        whole = b"\n".join([head, *lines[:-1]]) + b"\n"
        if whole != path.read_bytes():
            path.write_bytes(whole)
