"""The log of a run, `log.jsonl`: a JSON object per line, flushed at once, so that a crash loses nothing.

Listeners receive every event after it is written; TensorBoard is one. The log holds all events, so a listener that
fails is dropped and the run continues.
"""

import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from models.errors import DataError
from training.monitor.tensorboard import TensorBoard
from training.recipe import RunRecipe

LOG_FILE: Final = "log.jsonl"
Event = dict[str, Any]
"""A line of the log: "event", "time" and the event's own fields."""


def open_log(run: RunRecipe, *, is_main: bool = True) -> "RunLog":
    """The log of a run with the listeners of its recipe; only the main rank writes."""
    if not is_main:
        return RunLog(None)
    return RunLog(run.run, [TensorBoard(run.run)] if find_spec("tensorboard") else [])


class Listener(Protocol):
    """Receives the events of a run."""

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Receives an event."""

    def close(self) -> None:
        """Called at the end of the run."""


class RunLog:
    """Appends events to a run's `log.jsonl` and passes them to listeners.

    Args:
        folder: The run's folder; with None nothing is written, as on all ranks but the main one.
        listeners: Receive every event, too.
    """

    def __init__(self, folder: Path | None, listeners: Iterable[Listener] = ()) -> None:
        self._stream = None if folder is None else _open(folder)
        self._listeners = list(listeners)

    def write(self, event: str, **fields: object) -> None:
        """Appends an event with the time, in seconds since 1970."""
        if self._stream is None:
            return
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **fields})
        self._stream.write(line + b"\n")
        self._stream.flush()
        for listener in list(self._listeners):
            try:
                listener.on_event(event, fields)
            except OSError as error:
                self._drop(listener, error)

    def close(self) -> None:
        """Closes the file and the listeners."""
        for listener in list(self._listeners):
            try:
                listener.close()
            except OSError as error:
                self._drop(listener, error)
        if self._stream is not None:
            self._stream.close()

    def _drop(self, listener: Listener, error: OSError) -> None:
        """Removes a listener that cannot write, as on a full disk, so that the run continues."""
        self._listeners.remove(listener)
        name = type(listener).__name__
        self.write(
            "note",
            note=f"{name} stopped, since it cannot write ({error}); the run continues, and this log has all events.",
        )


def read_log(folder: Path) -> list[Event]:
    """All events in order; a line that a crash cut off is skipped.

    Raises:
        DataError: The folder has no log.
    """
    try:
        lines = (folder / LOG_FILE).read_bytes().splitlines()
    except FileNotFoundError as error:
        raise DataError(
            "the folder holds no run", value=folder, limit=f"a folder with {LOG_FILE}", remedy="give a run's folder"
        ) from error
    return [event for event in map(_decoded, lines) if event is not None]


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """The events without those of steps that were repeated after a resume."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            kept = [earlier for earlier in kept if earlier.get("step", 0) <= event["step"]]
        kept.append(event)
    return kept


def _open(folder: Path) -> BinaryIO:
    """Opens the log for appending and removes a last line that a crash cut off."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = (folder / LOG_FILE).open("a+b")
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)
    return stream


def _decoded(line: bytes) -> Event | None:
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
