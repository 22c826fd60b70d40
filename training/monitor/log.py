"""The log of a run, `log.jsonl`: a JSON object per line, flushed at once, so that a crash loses nothing.

If TensorBoard is installed, `tensorboard --logdir runs` draws loss, learning rates, speed and validation.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import msgspec

from models.errors import DataError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG_FILE: Final = "log.jsonl"
Event = dict[str, Any]
"""A line of the log: "event", "time" and the event's own fields."""
_FLUSH_S: Final = 5  # points of this time are lost for TensorBoard if the process is killed


class RunLog:
    """Appends events to a run's `log.jsonl`, and the points of TensorBoard's curves to its files beside it.

    Without a folder nothing is written, as on all ranks but the main one.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._stream = None
        self._board: SummaryWriter | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / LOG_FILE).open("a+b")
        self._stream.seek(0)
        self._stream.truncate(self._stream.read().rfind(b"\n") + 1)  # a last line that a crash cut off

    def write(self, event: str, **fields: Any) -> None:
        """Appends an event with the time, in seconds since 1970."""
        if self._stream is None:
            return
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **fields})
        self._stream.write(line + b"\n")
        self._stream.flush()
        try:
            if event == "start" and find_spec("tensorboard"):  # which has the first step
                from torch.utils.tensorboard import SummaryWriter  # takes a third of a second

                # Hides points of older files after this step, which are repeated, or all if the run starts over.
                purge = fields["step"] + 1 if fields["step"] else 0
                self._board = SummaryWriter(str(self._folder), purge_step=purge, flush_secs=_FLUSH_S)
            if self._board is not None:
                for tag, value in points_of(event, fields).items():
                    self._board.add_scalar(tag, value, fields["step"])
        except OSError as error:  # as on a full disk; the run continues
            self._board = None
            self.write("note", note=f"nothing more is written for TensorBoard ({error}); this log has all events.")

    def close(self) -> None:
        """Closes the files."""
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
        if self._stream is not None:
            self._stream.close()


def points_of(event: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """What TensorBoard draws of an event, by tag: loss, learning rates, speed, and the figures of a validation."""
    points: dict[str, float] = {}
    if event == "losses":
        points = {f"training/learning_rate/{name}": rate for name, rate in fields["lr"].items()}
        points["training/loss"] = fmean(fields["losses"])
    elif event == "epoch":
        points = {f"epoch/{name}": fields[name] for name in ("seconds", "pictures_per_s")}
        if validation := fields.get("validation"):
            points["validation/loss"] = validation["loss"]
            points |= {f"validation/{name}": validation[name]["value"] for name in ("top1", "top5")}
    return points


def read_log(folder: Path) -> list[Event]:
    """All events in order; a line that a crash cut off is skipped.

    Raises:
        DataError: The folder has no log.
    """
    path = folder / LOG_FILE
    if not path.is_file():
        raise DataError(
            "the folder holds no run", value=folder, limit=f"a folder with {LOG_FILE}", remedy="give a run's folder"
        )
    events: list[Event] = []
    for line in path.read_bytes().splitlines():
        with suppress(msgspec.DecodeError):
            events.append(msgspec.json.decode(line, type=Event))
    return [event for event in events if "event" in event]
