"""The log of a run, `log.jsonl`: a JSON object per line, flushed at once, so that a crash loses nothing.

If TensorBoard is installed, its figures are written for it, too: `tensorboard --logdir runs` draws them.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from models.errors import DataError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG_FILE: Final = "log.jsonl"
Event = dict[str, Any]
"""A line of the log: "event", "time" and the event's own fields."""
_FLUSH_S: Final = 5  # points of this time are lost for TensorBoard if the process is killed
_GROUPS: Final = {"losses": "training", "epoch": "epoch", "monitor": "monitor"}
_SHORT: Final = {"losses": "loss", "gradient_norms": "gradient_norm", "lr": "learning_rate"}
_POSITION: Final = ("step", "epoch", "pictures")


class RunLog:
    """Appends events to a run's `log.jsonl`, and their figures to TensorBoard's files beside it.

    Args:
        folder: The run's folder; with None nothing is written, as on all ranks but the main one.
    """

    def __init__(self, folder: Path | None) -> None:
        self._stream = None
        self._board = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / LOG_FILE).open("a+b")
        self._stream.seek(0)
        self._stream.truncate(self._stream.read().rfind(b"\n") + 1)  # a last line that a crash cut off
        if find_spec("tensorboard"):
            self._board = TensorBoard(folder)

    def write(self, event: str, **fields: object) -> None:
        """Appends an event with the time, in seconds since 1970."""
        if self._stream is None:
            return
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **fields})
        self._stream.write(line + b"\n")
        self._stream.flush()
        if self._board is not None:
            try:
                self._board.write(event, fields)
            except OSError as error:
                self._drop_board(error)

    def close(self) -> None:
        """Closes the files."""
        if self._board is not None:
            try:
                self._board.close()
            except OSError as error:
                self._drop_board(error)
        if self._stream is not None:
            self._stream.close()

    def _drop_board(self, error: OSError) -> None:
        """Ends the writing for TensorBoard, as on a full disk, so that the run continues."""
        self._board = None
        self.write("note", note=f"nothing more is written for TensorBoard ({error}); this log has all events.")


class TensorBoard:
    """Writes the figures of events, each at its optimizer step."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._step = folder, 0
        self._writer: SummaryWriter | None = None

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Writes the figures of an event, from "start" on, which has the first step.

        Raises:
            OSError: The files cannot be written.
        """
        self._step = fields.get("step", self._step)
        if event == "start" and self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # takes a third of a second

            # Hides points of older files after this step, which are repeated, or all if the run starts over.
            purge = self._step + 1 if self._step else 0
            self._writer = SummaryWriter(str(self._folder), purge_step=purge, flush_secs=_FLUSH_S)
        if self._writer is not None:
            for tag, value in figures_of(event, fields).items():
                self._writer.add_scalar(tag, value, self._step)

    def close(self) -> None:
        """Writes everything to disk.

        Raises:
            OSError: The files cannot be written.
        """
        if self._writer is not None:
            self._writer.close()


def figures_of(event: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an event, by tag: a list becomes its mean, a share with an interval its value."""
    if event not in _GROUPS:
        return {}
    found: dict[str, float] = {}
    for name, value in fields.items():
        group = "" if name == "validation" else f"{_GROUPS[event]}/"
        if name not in _POSITION:
            found |= _numbers(f"{group}{_SHORT.get(name, name)}", rates(value) if name == "lr" else value)
    return found


def rates(lr: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    """The learning rates of a log by name; logs of earlier versions have a list of parameter groups."""
    return dict(lr) if isinstance(lr, Mapping) else {f"group_{number}": rate for number, rate in enumerate(lr, 1)}


def _numbers(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    match value:
        case bool() | None | str():
            return
        case int() | float():
            yield tag, value
        case {"value": float() | int() as share, "interval_95": _}:
            yield tag, share
        case Mapping():
            for name, part in value.items():
                yield from _numbers(f"{tag}/{name}", part)
        case Sequence():
            numbers = [number for number in value if isinstance(number, int | float)]
            if numbers:
                yield tag, sum(numbers) / len(numbers)


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
    events = []
    for line in lines:
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """The events without those of steps that were repeated after a resume."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            kept = [earlier for earlier in kept if earlier.get("step", 0) <= event["step"]]
        kept.append(event)
    return kept
