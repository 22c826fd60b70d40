"""How far a run is: a bar on a terminal, a line a minute elsewhere."""

import sys
import time
from collections import Counter
from types import TracebackType
from typing import Final, TextIO

from serving.folder.rows import Row

_LINE_S: Final = 60.0
_BAR_S: Final = 0.5
_SPAN_S: Final = 30.0  # over which the rate is taken


class Progress:
    """Counts rows and says how far the run is.

    Args:
        num_plants: Plants of this run.
        num_before: Plants that former runs answered.
        stream: Where to write; by default standard error.
    """

    def __init__(self, num_plants: int, num_before: int, stream: TextIO | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.num_photographs = 0
        self._num_plants, self._num_before, self._stream = num_plants, num_before, stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._recent: list[tuple[float, int]] = []
        self.begin()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal and self.counts:
            self._say()
            self._stream.write("\n")

    @property
    def num_done(self) -> int:
        """Plants of this run with a row."""
        return self.counts.total()

    @property
    def seconds(self) -> float:
        """Time from `begin` to the last row, s."""
        return self._last_at - self._started_at

    def begin(self) -> None:
        """Starts the clock: the network is open, and the first plant follows."""
        self._started_at = self._said_at = self._last_at = time.monotonic()
        self._recent = [(self._started_at, 0)]

    def add(self, row: Row) -> None:
        """Counts a row."""
        self.counts[row["status"]] += 1
        self.num_photographs += row["num_photographs"]
        now = self._last_at = time.monotonic()
        if now - self._said_at >= (_BAR_S if self._is_terminal else _LINE_S):
            self._said_at = now
            self._say()

    def _say(self) -> None:
        line = self._line()
        self._stream.write(f"\r\x1b[2K{line}" if self._is_terminal else f"{line}\n")
        self._stream.flush()

    def _line(self) -> str:
        now = time.monotonic()
        self._recent = [(at, done) for at, done in self._recent if now - at <= _SPAN_S] or self._recent[-1:]
        at, done = self._recent[0]
        self._recent.append((now, self.num_done))
        rate = (self.num_done - done) / (now - at) if now > at else 0.0
        left = f", {_duration((self._num_plants - self.num_done) / rate)} left" if rate > 0 else ""
        failed = f", {self.counts['failed']:,} failed" if self.counts["failed"] else ""
        total = self._num_before + self._num_plants
        return f"{self._num_before + self.num_done:,} of {total:,} plants{failed}, {rate:.1f} a second{left}"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{hours:.1f} h"
