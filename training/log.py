"""The run's diary: one JSON object a line, flushed as it is written, so that a crash loses nothing."""

import time
from pathlib import Path
from typing import Final

import msgspec

LOG_FILE: Final = "log.jsonl"


class RunLog:
    """Appends events to a run's `log.jsonl`.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / LOG_FILE).open("ab")

    def write(self, event: str, **fields: object) -> None:
        """Appends one event with the time, seconds since 1970."""
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **fields})
        self._stream.write(line + b"\n")
        self._stream.flush()

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()
