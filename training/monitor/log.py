"""The run's diary: one JSON object a line, flushed as it is written, so that a crash loses nothing.

Listeners hear every event after it is written; TensorBoard is one of them. What they show can be made again from the
diary, so a listener that fails is let go and the run goes on.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from models.errors import DataError
from training.monitor.tensorboard import TensorBoard
from training.recipe import RunRecipe

LOG_FILE: Final = "log.jsonl"
Event = dict[str, Any]
"""A line of the diary: "event", "time" and the event's own fields."""


class Listener(Protocol):
    """Something that follows a run."""

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Takes note of an event."""

    def close(self) -> None:
        """Ends with the run."""


class RunLog:
    """Appends events to a run's `log.jsonl` and tells them to the listeners.

    Args:
        folder: The run's folder; None writes nothing, as on every rank but the first.
        listeners: Who else hears of every event.
    """

    def __init__(self, folder: Path | None, listeners: Iterable[Listener] = ()) -> None:
        self._stream = None if folder is None else _open(folder)
        self._listeners = list(listeners)

    def write(self, event: str, **fields: object) -> None:
        """Appends one event with the time, seconds since 1970."""
        if self._stream is None:
            return
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **fields})
        self._stream.write(line + b"\n")
        self._stream.flush()
        for listener in list(self._listeners):
            try:
                listener.on_event(event, fields)
            except OSError as error:
                self._let_go(listener, error)

    def close(self) -> None:
        """Closes the file and the listeners."""
        for listener in list(self._listeners):
            try:
                listener.close()
            except OSError as error:
                self._let_go(listener, error)
        if self._stream is not None:
            self._stream.close()

    def _let_go(self, listener: Listener, error: OSError) -> None:
        """A full disk must not end a run for the sake of a second record."""
        self._listeners.remove(listener)
        name = type(listener).__name__
        self.write("note", text=f"{name} cannot write any more ({error}); the run goes on, and this log holds all.")


def open_log(run: RunRecipe, *, is_main: bool = True) -> RunLog:
    """The log of a run with the listeners that its recipe asks for; ranks other than the first write nothing."""
    if not is_main:
        return RunLog(None)
    return RunLog(run.run, [TensorBoard(run.run)] if run.tensorboard else [])


def read_log(folder: Path) -> list[Event]:
    """Everything that was written, in order; what a crash left half-written is passed over.

    Raises:
        DataError: The folder holds no log.
    """
    try:
        lines = (folder / LOG_FILE).read_bytes().splitlines()
    except FileNotFoundError as error:
        raise DataError(
            "the folder holds no run", value=folder, limit=f"a folder with {LOG_FILE}", remedy="name a run's folder"
        ) from error
    return [event for event in map(_decoded, lines) if event is not None]


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """The run as it counts: what a killed run did after its last checkpoint is left out, since it was done again."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            kept = [before for before in kept if before.get("step", 0) <= event["step"]]
        kept.append(event)
    return kept


def _open(folder: Path) -> BinaryIO:
    """Opens the diary behind its last whole line, so that a new event never joins what a crash cut off."""
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
