"""The turns of a long run, kept on the disk as they end, so that an interrupted run goes on where it stood."""

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
        out: File of the result; the turns stand beside it until it is written. Without it nothing is kept.
        setting: What all turns must share, as JSON.

    Raises:
        DataError: The turns that stand there are those of another run.
    """

    def __init__(self, out: Path | None, setting: bytes) -> None:
        self._path = None if out is None else out.with_name(f"{out.name}.turns")
        self._done: dict[str, msgspec.Raw] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path, setting)
        elif self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(setting + b"\n")

    def take(self, key: str, kind: type[AnyTurn], measure: Callable[[], AnyTurn]) -> AnyTurn:
        """The turn of that key: as it was kept, else measured now.

        Args:
            key: Its name in the run.
            kind: What it is.
            measure: Measures it.
        """
        if key not in self._done:
            turn = msgspec.Raw(msgspec.json.encode(measure()))
            if self._path is not None:
                with self._path.open("ab") as stream:
                    stream.write(msgspec.json.encode(_Line(key, turn)) + b"\n")
            self._done[key] = turn
        return msgspec.json.decode(self._done[key], type=kind)

    def forget(self) -> None:
        """Removes them from the disk, once the result is written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path, setting: bytes) -> None:
        head, *lines = path.read_bytes().split(b"\n")
        if head != setting:
            raise DataError(
                "the turns that were kept are of a run with other flags or another commit",
                value=path,
                remedy="delete the file to begin anew, or give the flags of that run",
            )
        for line in lines[:-1]:  # the last is empty, or was not written to its end
            kept = msgspec.json.decode(line, type=_Line)
            self._done[kept.key] = kept.turn.copy()
        whole = b"\n".join([head, *lines[:-1]]) + b"\n"
        if whole != path.read_bytes():
            path.write_bytes(whole)
